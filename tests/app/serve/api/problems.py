"""Read the body of a failure."""

from __future__ import annotations

from typing import Any

import httpx


def problem(answer: httpx.Response) -> dict[str, Any]:
    """Return the body of a failure, whose reason is of the closed set."""
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert {"status", "reason", "title", "detail", "advice"} <= body.keys()
    assert body["status"] == answer.status_code
    return body
