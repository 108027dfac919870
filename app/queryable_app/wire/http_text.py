"""Parse parameters and `Qt-` headers, and build answers: header lines, problems, entity tags, content negotiation.

Strategy: an answer has its headers as bytes, `name: value\r\n` each, because the fast lane and FastAPI send the same answer.
Parameters come from a closed list of names, so a misspelt one is refused with the nearest name and never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from queryable_app.errors import Failure, Reason, invalid, shown

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
BYTES: Final = "application/octet-stream"
AVRO: Final = "application/avro"
AVRO_JSON: Final = "application/avro+json"
PROBLEM: Final = "application/problem+json"

PARAMETERS_MAX: Final = 100  # a view of 50 partitions needs 50 for min-position
_OPTION_PREFIX: Final = "qt-"
_DIGITS_MAX: Final = 19  # of a 64-bit number
_NO_OPTIONS: Final = ("client-certificate", "forwarded", "node")  # between nodes


class Answer(NamedTuple):
    """Hold an answer. `headers` lacks the status line and what the server adds (Date, Connection)."""

    status: int
    headers: bytes
    body: bytes

    def header_list(self) -> list[tuple[bytes, bytes]]:
        """Return the headers as ASGI has them."""
        lines = self.headers.split(b"\r\n")[:-1]
        return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


def json_answer(body: object, headers: bytes = b"", status: int = 200) -> Answer:
    return body_answer(
        json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(), JSON, headers, status
    )


def body_answer(body: bytes, content_type: str, headers: bytes = b"", status: int = 200) -> Answer:
    return Answer(status, _content(content_type, len(body)) + headers, body)


def problem_answer(failure: Failure, headers: bytes = b"") -> Answer:
    """Return the answer of a failed request, as `application/problem+json`."""
    body = json.dumps(failure.problem(), ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    if failure.retry_after_ms is not None:
        headers += b"retry-after: %d\r\n" % max(1, -(-failure.retry_after_ms // 1000))
    if failure.challenge:
        headers += b"www-authenticate: %b\r\n" % header_text(failure.challenge)
    return body_answer(body, PROBLEM, headers, failure.reason.status)


def _content(content_type: str, length: int) -> bytes:
    return b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type.encode(), length)


def header_text(value: str) -> bytes:
    """Return a value with `?` for every byte that a header cannot hold."""
    return bytes(byte if 0x20 <= byte < 0x7F else 0x3F for byte in value.encode())


def matches_etag(if_none_match: str, etag: str) -> bool:
    """Return whether If-None-Match, which compares weakly, has the tag or `*`."""
    given = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in given or given == ["*"]


def negotiate(accept: str, offered: Sequence[str]) -> str:
    """Return the offered type with the highest quality, the first among equals."""
    if not accept.strip():
        return offered[0]
    qualities = dict(_quality(part) for part in accept.split(","))
    best, best_quality = "", 0.0
    for name in offered:
        group = name.partition("/")[0] + "/*"
        quality = qualities.get(name, qualities.get(group, qualities.get("*/*", 0.0)))
        if quality > best_quality:
            best, best_quality = name, quality
    if not best:
        raise invalid("Accept", f"{shown(accept)} is not available here", f"use {' or '.join(offered)}")
    return best


def _quality(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return name, min(1.0, max(0.0, float(parameter[2:])))
            except ValueError:
                return name, 0.0
    return name, 1.0


def parse_query(
    query: bytes, allowed: Sequence[str], absent: Callable[[str], Failure | None] = lambda _: None
) -> dict[str, list[str]]:
    """Return the values of each parameter; each character is one byte (see `as_bytes`).

    `absent` returns the failure of a name that other views allow.
    """
    try:
        pairs = parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, encoding="latin-1", max_num_fields=PARAMETERS_MAX
        )
    except ValueError:
        raise invalid("query", f"has more than {PARAMETERS_MAX} parameters", "send fewer") from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in allowed:
            raise absent(name) or _unknown(name, "is no parameter of this request", allowed)
        values.setdefault(name, []).append(value)
    return values


def parse_options(headers: Iterable[tuple[bytes, bytes]], allowed: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each `Qt-` header, without the prefix. ASGI has the names in lower case."""
    values: dict[str, list[str]] = {}
    for raw_name, value in headers:
        if not raw_name.startswith(b"qt-"):
            continue
        name = raw_name.decode("latin-1").removeprefix(_OPTION_PREFIX)
        if name in _NO_OPTIONS:
            continue
        if name not in allowed:
            raise _unknown("Qt-" + name, "is no header of this request", ["Qt-" + known for known in allowed])
        values.setdefault(name, []).append(value.decode("latin-1"))
    return values


def as_bytes(value: str) -> bytes:
    return value.encode("latin-1")


def single(values: Mapping[str, Sequence[str]], name: str) -> str | None:
    """Return the value, which may be given once, or None if there is none."""
    given = values.get(name, ())
    if len(given) > 1:
        raise invalid(name, f"is given {len(given)} times", "give it once")
    return given[0] if given else None


def optional_choice(values: Mapping[str, Sequence[str]], name: str, allowed: Sequence[str]) -> str | None:
    """Return the value, which must be one of `allowed`, or None if there is none."""
    text = single(values, name)
    if text is not None and text not in allowed:
        raise invalid(name, f"{shown(text)} is not one of {', '.join(allowed)}", f"use {name}={allowed[0]}")
    return text


def choice(values: Mapping[str, Sequence[str]], name: str, allowed: Sequence[str]) -> str:
    """Return the value, which must be one of `allowed`, or the first of them if there is none."""
    return optional_choice(values, name, allowed) or allowed[0]


def whole_number(values: Mapping[str, Sequence[str]], name: str, low: int, high: int) -> int | None:
    """Return the value, which must be within the bounds, or None if there is none."""
    text = single(values, name)
    if text is None:
        return None
    number = _digits(text)
    if number is None or not low <= number <= high:
        raise invalid(name, f"{shown(text)} is not allowed", f"give a whole number from {low} to {high}")
    return number


def parse_position(text: str) -> tuple[int, int] | None:
    """Parse `<partition>:<next offset>`. Return None for any other text."""
    left, _, right = text.partition(":")
    partition, offset = _digits(left), _digits(right)
    return None if partition is None or offset is None else (partition, offset)


def parse_positions(text: str) -> dict[int, int] | None:
    """Parse positions joined by commas, as `Qt-Position` has them. The highest offset of a partition counts."""
    positions: dict[int, int] = {}
    for position in (parse_position(part.strip()) for part in text.split(",")):
        if position is None:
            return None
        partition, offset = position
        positions[partition] = max(offset, positions.get(partition, 0))
    return positions


def _digits(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None


def no_such_resource(path: str, known: Sequence[str]) -> Failure:
    nearest = get_close_matches(path[:200], known, 1, 0.72)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    return Failure(
        Reason.NO_SUCH_RESOURCE,
        f"{shown(path)} is not a path of this node",
        f"{hint}There are {', '.join(known)}",
    )


def _unknown(name: str, problem: str, allowed: Sequence[str]) -> Failure:
    if not allowed:
        return invalid(shown(name), problem, "leave it out; this request takes none")
    nearest = get_close_matches(name[:100].lower(), allowed, 1, 0.5)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    return invalid(shown(name), problem, f"{hint}There are {', '.join(allowed)}")
