"""The command line's HTTP client: asks one node, and the next one when that one cannot answer, and passes on what nodes say,
word for word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx

_CONNECT_SECONDS: Final = 2.0
_WRONG_OWNER: Final = 421


class Unreachable(Exception):
    """No node answers; the message names them."""


class NodeClient:
    def __init__(self, urls: Sequence[str], timeout_seconds: float = 30) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._http = httpx.Client(
            timeout=httpx.Timeout(timeout_seconds, connect=_CONNECT_SECONDS), trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get_key(self, key: str, asked: Mapping[str, str | list[str]] | None = None) -> httpx.Response:
        """The answer for a key, whatever it is. `asked` are the parameters of the request."""
        return self._first_answer(f"/v1/keys/{path_of(key)}", asked or {})

    def statuses(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Each node's status, or None when it does not answer."""
        for url in self._urls:
            try:
                yield url, self._http.get(f"{url}/v1/status").raise_for_status().json()
            except (httpx.HTTPError, ValueError):
                yield url, None

    def _first_answer(self, path: str, parameters: Mapping[str, str | list[str]]) -> httpx.Response:
        answer: httpx.Response | None = None
        problems = []
        for url in self._urls:
            try:
                answer = self._http.get(f"{url}{path}", params=parameters or None)
            except (httpx.HTTPError, httpx.InvalidURL) as e:
                problems.append(f"{url}: {e}")
                continue
            if answer.status_code != _WRONG_OWNER:
                return answer
        if answer is None:
            raise Unreachable(f"no node answers ({'; '.join(problems)})")
        return answer


def path_of(key: str) -> str:
    """A key as the last part of a path. Every character is a key's own, also a slash or a dot."""
    encoded = quote(key, safe="", errors="surrogateescape")
    # "." and ".." would be steps through the path.
    return encoded.replace(".", "%2E") if key in (".", "..") else encoded
