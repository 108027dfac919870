"""A request as the routes need it: the key's very bytes, checked parameters, a bounded body.

Strategy: a key comes from the raw path, before anyone decodes, normalises or splits it. `router_scope` takes it out before
the router looks, so that a key may be empty, have slashes, dots, NUL or bytes that are no UTF-8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from queryable_app.errors import Failure, Reason, invalid
from queryable_app.policy.freshness import ReadOptions, parse_read_options
from queryable_app.serve.base.answer_reservation import AnswerReservation
from queryable_app.serve.reads.point import Reads
from queryable_app.wire.http_text import Answer, as_bytes, choice, parse_options, parse_query
from queryable_app.wire.json_text import BadJson, parse_json
from queryable_app.wire.serde import KeyCodec

# In the scope.
RAW_KEY: Final = "qt.key"
IS_HEAD: Final = "qt.head"
ARRIVED_AT: Final = "qt.arrived"  # loop time
KEY_ENCODINGS: Final = ("text", "base64url")
SHARE: Final = "qt.share"
_COMMAS_MAX: Final = 200_000  # each value costs the parser time and memory, however short it is
_KEYED: Final = ((b"v1", b"keys"), (b"v1", b"prefix"), (b"v1", b"records"))

Parameters = dict[str, list[str]]


def router_scope(scope: Scope) -> dict[str, Any]:
    """Return a copy of the scope with the path that the router looks at.

    A path that ends in a key becomes one that the router knows, with the key's bytes beside it. In any other path an encoded
    slash is part of a name and not a separator; no route has one.
    """
    raw_path: bytes = scope["raw_path"]
    pieces = raw_path.split(b"/", 3)
    if len(pieces) == 4:
        first, second = unquote_to_bytes(pieces[1]), unquote_to_bytes(pieces[2])
        if (first, second) in _KEYED:
            return {**scope, "path": f"/v1/{second.decode()}/key", RAW_KEY: unquote_to_bytes(pieces[3])}
    if b"%2f" in raw_path.lower():
        return {**scope, "path": raw_path.decode("latin-1")}
    return dict(scope)


def parse_parameters(request: Request, options: Sequence[str], *others: str) -> Parameters:
    """The parameters of a request, and its options, which may be `Qt-` headers as well."""
    values = parse_query(request.scope["query_string"], (*options, *others))
    for name, given in parse_options(request.scope["headers"], options).items():
        values.setdefault(name, []).extend(given)
    choice(values, "key-encoding", KEY_ENCODINGS)  # also where the request has no key
    return values


def key_in_path(request: Request, values: Parameters, codec: KeyCodec) -> bytes:
    """The record key that the path ends in."""
    return decode_key(request.scope[RAW_KEY], values, codec)


def decode_key(raw: bytes, values: Parameters, codec: KeyCodec) -> bytes:
    if choice(values, "key-encoding", KEY_ENCODINGS) == "base64url":
        return codec.from_base64url(raw.decode("latin-1"))
    return codec.from_url_bytes(raw)


def key_parameter(values: Parameters, name: str, codec: KeyCodec) -> bytes | None:
    """A key that is a parameter, such as `from`, in on-disk form."""
    given = values.get(name, [])
    if len(given) > 1:
        raise invalid(name, f"is given {len(given)} times", "give it once")
    if not given:
        return None
    try:
        return codec.to_disk(decode_key(as_bytes(given[0]), values, codec))
    except Failure as failure:
        failure.detail = failure.detail.replace("key:", f"{name}:", 1)
        raise


def asked_of(request: Request, values: Parameters, reads: Reads) -> tuple[ReadOptions, float]:
    """What is asked of the copies, and until when (loop time). Nothing is done for a request that waited for longer."""
    asked = parse_read_options(values, reads.defaults, reads.replicas.partitions)
    deadline: float = request.scope[ARRIVED_AT] + asked.deadline_ms / 1000
    if asyncio.get_running_loop().time() >= deadline:
        raise Failure(
            Reason.DEADLINE_EXCEEDED,
            "the request waited for longer than it had time",
            "ask with fewer at once, or for more time with deadline-ms",
        )
    return asked, deadline


def asked_of_many(request: Request, values: Parameters, reads: Reads) -> tuple[ReadOptions, float]:
    """The same for a read of many keys, which no single node answers, so that it can be sent to none."""
    asked, deadline = asked_of(request, values, reads)
    if asked.route == "redirect":
        raise invalid(
            "route",
            "redirect is for a read of one key",
            "ask with route=forward, or each node for its own part with route=local",
        )
    return asked, deadline


def answer_reservation(request: Request) -> AnswerReservation:
    """What this request takes of the memory for answers. The guard gives it back."""
    share: AnswerReservation = request.scope[SHARE]
    return share


def accept_header(request: Request) -> str:
    return ",".join(request.headers.getlist("accept"))


def require_few_values(body: bytes) -> None:
    """Refuse a body whose values take long to parse, however short each is."""
    if body.count(b",") > _COMMAS_MAX:
        raise Failure(
            Reason.TOO_LARGE,
            f"the body has more than {_COMMAS_MAX} commas",
            "split it over several requests",
        )


async def json_body(request: Request) -> Any:
    body = await read_body(request)
    require_few_values(body)
    try:
        return parse_json(body, unique_names=True).value
    except BadJson as bad:
        raise invalid_json("body", bad) from None


def invalid_json(field: str, bad: BadJson) -> Failure:
    return invalid(field, str(bad), "send one JSON document in UTF-8; docs/http.md has its bounds")


async def read_body(request: Request) -> bytes:
    """Return the whole body. `body_budget` has bounded it before it came."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise invalid("Content-Encoding", "a packed body is not read here", "send the body as it is")
    try:
        return b"".join([chunk async for chunk in request.stream()])
    except ClientDisconnect:
        raise ClientDisconnected from None


class ClientDisconnected(Exception):
    """The client went away; nobody is left to answer."""


def to_response(answer: Answer) -> Response:
    response = Response(answer.body, answer.status)
    response.raw_headers = answer.header_list()
    return response
