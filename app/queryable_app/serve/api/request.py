"""Parse a request for the routes: its key, its parameters, its body.

Strategy: a key is taken from the raw path, before the path is decoded, normalised or split. `router_scope` cuts it out
before the router sees the path, so a key may be empty and may contain slashes, dots, NUL and bytes that are not UTF-8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from queryable_app.errors import Failure, Reason, invalid, shown
from queryable_app.policy.freshness import ReadOptions, parse_read_options
from queryable_app.serve.api.access import key_access
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.base.step_budget import ITEM_BYTES, StepBudget
from queryable_app.serve.node import Node
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import Answer, as_bytes, choice, parse_options, parse_query, single
from queryable_app.wire.json_text import (
    DEPTH_MAX,
    BadJson,
    Structure,
    decoded,
    may_be_deep,
    parse_text,
    too_deep,
)
from queryable_app.wire.serde import KeyCodec
from queryable_app.wire.times import parse_time

T = TypeVar("T")

# Names in the scope.
RAW_KEY: Final = "qt.key"
RAW_START: Final = "qt.start"
IS_HEAD: Final = "qt.head"
ARRIVED_AT: Final = "qt.arrived"  # loop time
RESERVATION: Final = "qt.reservation"

VALUES_MAX: Final = 20_000
"""The bound of a body's commas, and of its arrays and objects: each value costs time and memory, however short it is."""
INTERNAL_VALUES_MAX: Final = 200_000
_PORTION_BYTES: Final = 64 * 1024
SMALL_BODY_BYTES: Final = 64 * 1024
"""Up to this size a body counts neither against the node's budget for bodies nor as a large body."""
_KEYED_PATHS: Final = ((b"v1", b"keys"), (b"v1", b"prefix"), (b"v1", b"records"), (b"v1", b"entries"))
HISTORY_END: Final = b"/history"
_WINDOWS_PATH: Final = (b"v1", b"windows")
_TIME_ADVICE: Final = "write it like 2026-11-22T10:00:00Z, or as milliseconds since 1970"

Parameters = dict[str, list[str]]


def router_scope(scope: Scope, has_history: bool = False) -> dict[str, Any]:
    """Return a copy of the scope whose path has a placeholder for the key, and the key's bytes beside it.

    A path of windows may have a start behind the key, and then a slash in the key is written as %2F. With `has_history`, a path
    of a key may end with `/history`.

    In a path without a key an encoded slash is part of a name, not a separator; no route matches it.
    """
    raw_path: bytes = scope["raw_path"]
    pieces = raw_path.split(b"/", 3)
    if len(pieces) == 4:
        first, second = unquote_to_bytes(pieces[1]), unquote_to_bytes(pieces[2])
        if has_history and (first, second) == _KEYED_PATHS[0] and pieces[3].endswith(HISTORY_END):
            return {
                **scope,
                "path": "/v1/keys/key/history",
                RAW_KEY: unquote_to_bytes(pieces[3].removesuffix(HISTORY_END)),
            }
        if (first, second) in _KEYED_PATHS:
            return {**scope, "path": f"/v1/{second.decode()}/key", RAW_KEY: unquote_to_bytes(pieces[3])}
        if (first, second) == _WINDOWS_PATH:
            key, slash, start = map(unquote_to_bytes, pieces[3].partition(b"/"))
            path = "/v1/windows/key" + ("/start" if slash else "")
            return {**scope, "path": path, RAW_KEY: key, RAW_START: start}
    if b"%2f" in raw_path.lower():
        return {**scope, "path": raw_path.decode("latin-1")}
    return dict(scope)


def parse_parameters(
    request: Request,
    options: Sequence[str],
    *others: str,
    absent: Callable[[str], Failure | None] = lambda _: None,
) -> Parameters:
    """Return the parameters of a request. Each of `options` may also be a `Qt-` header.

    `absent` returns the failure of a parameter that other views allow.
    """
    values = parse_query(request.scope["query_string"], (*options, *others), absent)
    for name, given in parse_options(request.scope["headers"], options).items():
        values.setdefault(name, []).extend(given)
    keys_are_base64url(values)  # refuse an unknown encoding also where the request has no key
    return values


def keys_are_base64url(values: Parameters) -> bool:
    return choice(values, "key-encoding", ("text", "base64url")) == "base64url"


def allows_partial(values: Parameters) -> bool:
    return choice(values, "partial", ("refuse", "allow")) == "allow"


def key_in_path(request: Request, values: Parameters, codec: KeyCodec) -> bytes:
    """Return the record key at the end of the path, which the caller may use."""
    key = _parse_key(request.scope[RAW_KEY], values, codec)
    key_access(request).require((key,))
    return key


def prefix_in_path(request: Request, values: Parameters, codec: KeyCodec) -> bytes:
    """Return the bytes at the end of the path. They need not be a key in the view's format."""
    raw: bytes = request.scope[RAW_KEY]
    return codec.from_base64url(raw.decode("latin-1")) if keys_are_base64url(values) else raw


def key_parser(values: Parameters, codec: KeyCodec, field: str) -> Callable[[object], bytes]:
    """Return the function from a key in a JSON body to the record key."""
    if not keys_are_base64url(values):
        return codec.from_json

    def parse(key: object) -> bytes:
        if not isinstance(key, str):
            raise invalid(field, f"{shown(key)} is not text", "write a key as base64url in a JSON string")
        return codec.from_base64url(key)

    return parse


def _parse_key(raw: bytes, values: Parameters, codec: KeyCodec) -> bytes:
    if keys_are_base64url(values):
        return codec.from_base64url(raw.decode("latin-1"))
    return codec.from_url_bytes(raw)


def key_parameter(values: Parameters, name: str, codec: KeyCodec) -> bytes | None:
    """Return a key that is a parameter, such as `from`, in on-disk form."""
    given = values.get(name, [])
    if len(given) > 1:
        raise invalid(name, f"is given {len(given)} times", "give it once")
    if not given:
        return None
    try:
        return codec.to_disk(_parse_key(as_bytes(given[0]), values, codec))
    except Failure as failure:
        failure.detail = failure.detail.replace("key:", f"{name}:", 1)
        raise


def time_parameters(values: Parameters) -> tuple[int | None, int | None]:
    """Return the times `from` and `to` in milliseconds; None: not given. Refuse those that are the wrong way round."""
    first, after = single(values, "from"), single(values, "to")
    first_ms = None if first is None else parse_moment("from", first)
    after_ms = None if after is None else parse_moment("to", after)
    if first_ms is not None and after_ms is not None and after_ms < first_ms:
        raise invalid("to", "comes before `from`", "swap them; order=desc gives the newest first")
    return first_ms, after_ms


def parse_moment(field: str, text: str, more_advice: str = "") -> int:
    """Return a time in milliseconds."""
    time_ms = parse_time(text)
    if time_ms is None:
        raise invalid(field, f"{shown(text)} is not a time", _TIME_ADVICE + more_advice)
    return time_ms


def read_options(request: Request, values: Parameters, reads: Reads) -> tuple[ReadOptions, float]:
    """Return the options of a read and its deadline (loop time). Refuse a request whose deadline has passed."""
    options = parse_read_options(values, reads.defaults, reads.replicas.partitions, reads.rekeyed)
    deadline: float = request.scope[ARRIVED_AT] + options.deadline_ms / 1000
    if asyncio.get_running_loop().time() >= deadline:
        raise Failure(
            Reason.DEADLINE_EXCEEDED,
            "the request waited for longer than it had time",
            "send fewer requests at once, or allow more time with deadline-ms",
        )
    return options, deadline


def multi_read_options(request: Request, values: Parameters, reads: Reads) -> tuple[ReadOptions, float]:
    """Return the options and the deadline of a read of many keys. No single node can answer it, so refuse a redirect."""
    options, deadline = read_options(request, values, reads)
    if options.route == "redirect":
        raise invalid(
            "route",
            "redirect is for a read of one key",
            "use route=forward, or route=local at each node for its own part",
        )
    return options, deadline


def answer_reservation(request: Request) -> AnswerReservation:
    """Return this request's reservation of the memory for answers. The guard releases it."""
    reservation: AnswerReservation = request.scope[RESERVATION]
    return reservation


def accept_header(request: Request) -> str:
    return list_header(request, "accept") or ""


def list_header(request: Request, name: str) -> str | None:
    """Return a header whose value is a list, from all its lines."""
    lines = request.headers.getlist(name)
    return ",".join(lines) if lines else None


async def json_body(request: Request, node: Node, values_max: int = VALUES_MAX) -> Any:
    """Return the JSON value of a request's body. No object may repeat a name."""
    return await parse_body(request, node, lambda body, steps: parse_value(body, values_max, steps))


async def internal_json_body(request: Request, node: Node) -> Any:
    """Return the JSON body of a request between nodes, which may name all partitions and their replicas."""
    return await json_body(request, node, INTERNAL_VALUES_MAX)


async def parse_body(
    request: Request, node: Node, parse: Callable[[bytes, StepBudget], Coroutine[Any, Any, T]]
) -> T:
    """Return what `parse` makes of a request's body. No local variable keeps the body alive.

    Parsing in steps lets other requests begin, but only one large body is parsed at a time: the memory that this takes, many
    times the body's size, is not budgeted.
    """
    body = await read_body(request)
    alone = node.parsing_large_body if len(body) > SMALL_BODY_BYTES else nullcontext()
    async with alone:
        return await parse(body, StepBudget())


async def parse_value(body: bytes, values_max: int, steps: StepBudget) -> Any:
    text, depth, weight = await checked_text(body, values_max, steps)
    try:
        value = parse_text(text, unique_names=True)
        if depth > DEPTH_MAX:
            raise too_deep()
    except BadJson as bad:
        raise invalid_json("body", bad) from None
    await steps.spend(weight)
    return value


class CheckedText(NamedTuple):
    """The text of a body that has few values. It need not be JSON."""

    text: str
    depth: int
    weight: int
    """The size of the work to parse it."""


async def checked_text(body: bytes, values_max: int, steps: StepBudget) -> CheckedText:
    """Decode a body. Refuse one whose values take long to parse, however short each is."""
    structure = Structure()
    if len(body) > values_max or may_be_deep(body):  # a shorter body cannot have as many values
        for start in range(0, len(body), _PORTION_BYTES):
            structure.add(body[start : start + _PORTION_BYTES])
            what = _has_more(structure, values_max)
            if what:
                detail = f"the body has more than {values_max} {what}"
                raise Failure(Reason.TOO_LARGE, detail, "split it over several requests")
            await steps.spend(_PORTION_BYTES)
    try:
        text = decoded(body)
    except BadJson as bad:
        raise invalid_json("body", bad) from None
    await steps.spend(len(body))
    weight = len(body) + (structure.commas + structure.openings) * ITEM_BYTES
    return CheckedText(text, structure.depth_max, weight)


def _has_more(structure: Structure, values_max: int) -> str:
    """Return what a body has more of than the bound, or an empty text."""
    if structure.commas > values_max:
        return "commas"
    if structure.openings > values_max:
        return "arrays and objects"
    return ""


def invalid_json(field: str, bad: BadJson) -> Failure:
    return invalid(field, str(bad), "send one JSON document in UTF-8; docs/http.md has its bounds")


async def read_body(request: Request) -> bytes:
    """Return the whole body, whose size the protocol bounds."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise invalid("Content-Encoding", "a compressed body is not accepted", "send the body as it is")
    try:
        return b"".join([chunk async for chunk in request.stream()])
    except ClientDisconnect:
        raise ClientDisconnected from None


class ClientDisconnected(Exception):
    """The client closed the connection before its answer was complete."""


def to_response(answer: Answer) -> Response:
    response = Response(answer.body, answer.status)
    response.raw_headers = answer.header_list()
    return response
