"""Responses as a node sends them to another one."""

from __future__ import annotations


def response(status: int, body: bytes) -> bytes:
    if status == 304:
        return b"HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n"
    return b"HTTP/1.1 %d X\r\ndate: now\r\ncontent-length: %d\r\nqt-hops: 0\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )
