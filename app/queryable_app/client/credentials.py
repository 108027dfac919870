"""Send a token with every request: a fixed one, or that of a file, which is read again when it changes."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Final

import httpx

from queryable_app.client.exceptions import InvalidRequest

_TOKEN_BYTES_MAX: Final = 8192


class BearerToken(httpx.Auth):
    """Add the `Authorization` header to each request. No message shows the token."""

    def __init__(self, token: str = "", token_file: str | Path | None = None) -> None:
        self._file = None if token_file is None else Path(token_file)
        self._read_at: tuple[int, int, int] | None = None
        self._header = "" if self._file is not None else _header(token, "token")

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._file is not None:
            self._read(self._file)
        request.headers["authorization"] = self._header
        yield request

    def _read(self, file: Path) -> None:
        """Read the file if it is another one than at the last request: Kubernetes replaces it while the client runs."""
        try:
            now = file.stat()
            changed = (now.st_mtime_ns, now.st_ino, now.st_size)
            if changed != self._read_at:
                with file.open("rb") as opened:
                    content = opened.read(_TOKEN_BYTES_MAX + 1)
                self._header = _header(content.decode("ascii", "replace"), "token_file")
                self._read_at = changed
        except OSError as error:
            if not self._header:
                problem = f"token_file: {file} cannot be read ({error.strerror})"
                raise InvalidRequest(problem, "name the file with the token") from None


def bearer_token(token: str | None, token_file: str | Path | None) -> BearerToken | None:
    """Return what adds the token to requests, or None without one."""
    if token is not None and token_file is not None:
        raise InvalidRequest("token, token_file: are both given", "give one of them")
    if token is None and token_file is None:
        return None
    return BearerToken(token or "", token_file)


def _header(token: str, field: str) -> str:
    text = token.strip()
    if (
        not text
        or len(text) > _TOKEN_BYTES_MAX
        or not text.isascii()
        or not text.isprintable()
        or " " in text
    ):
        raise InvalidRequest(f"{field}: is no token", "give the text of a JSON Web Token")
    return f"Bearer {text}"
