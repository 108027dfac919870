"""Load the HTML pages of a node, which contain all their scripts and styles."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

HTML: Final = "text/html; charset=utf-8"
PAGE_HEADERS: Final = (
    b"cache-control: no-cache\r\n"
    b"content-security-policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    b"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    b"x-content-type-options: nosniff\r\n"
)


@cache
def page_html(name: str) -> bytes:
    return files("queryable_app.serve.api").joinpath(name).read_bytes()
