"""No route is open by omission."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from starlette.responses import PlainTextResponse

from queryable_app.serve.api.access import NODES_ONLY, ROUTES
from tests.app.serve.auth.conftest import AUTH
from tests.support.served import Served, served
from tests.support.tokens import bearer, secret_directory

VIEWS: dict[str, dict[str, Any]] = {
    "latest": {"view": {"changes": True, "indexes": [{"name": "by-n", "field": "n", "type": "long"}]}},
    "windows": {
        "view": {
            "kind": "aggregate",
            "aggregate": {
                "columns": [{"name": "n", "op": "count"}],
                "window": {"size": "1m", "retention": "1h"},
            },
        }
    },
    "entries": {"view": {"entries": {"timeField": "at"}}},
}


def with_auth(directory: Path, **spec: Any) -> Any:
    settings = {"auth_secret_dir": secret_directory(directory / "jwt")}
    auth = {**AUTH, "rules": [{"allow": ["read", "scan", "write", "changes", "admin"]}]}
    return served(directory / "node", settings=settings, auth=auth, **spec)


@pytest.fixture(params=VIEWS)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    with with_auth(tmp_path, **VIEWS[request.param]) as running:
        yield running


def routes_of(node: Served) -> set[tuple[str, str]]:
    """Return the method and the path of every route, except HEAD, which the guard makes GET."""
    return {
        (method, context.path)
        for context in iter_route_contexts(node.app.routes)
        for method in context.methods or ()
        if method != "HEAD" and context.path is not None
    }


def test_every_route_has_an_operation(node: Served) -> None:
    """Each route of a view is in the table of operations, or is for nodes only."""
    routes = routes_of(node)
    assert ("GET", "/v1/status") in routes
    for method, path in routes:
        assert path.startswith(NODES_ONLY) or method in ROUTES[path], (method, path)


def test_every_route_is_refused_without_a_token(node: Served) -> None:
    """Each route but the probes answers 401 to a request without a token, and to one with a wrong token."""
    with node.client() as client:
        for method, path in routes_of(node):
            url = path.replace("{", "").replace("}", "")
            for headers in ({}, {"authorization": "Bearer a.b.c"}, {"qt-node": "x"}, {"qt-forwarded": "x"}):
                answer = client.request(method, url, headers=headers)
                if path in ("/livez", "/readyz"):
                    assert answer.status_code in (200, 503)
                else:
                    assert answer.status_code in (401, 403), (method, path, headers)
                    assert answer.json()["reason"] in ("unauthenticated", "forbidden")


@pytest.mark.parametrize("path", ["/v1/new", "/v1/keys/{key}/new", "/new"])
def test_route_without_an_operation_is_refused(tmp_path: Path, path: str) -> None:
    """A route that the table does not name is refused to a caller that may do everything."""
    with with_auth(tmp_path) as node:

        async def new(request: Any) -> PlainTextResponse:
            raise AssertionError("it runs")

        node.on_loop(lambda: node.app.add_route(path, new))
        with node.client() as client:
            answer = client.get(path.format(key="a"), headers=bearer())
            assert answer.status_code in (403, 404)
            assert client.put("/v1/scan", headers=bearer()).status_code == 400


def test_answer_that_a_route_did_not_restrict_is_refused(tmp_path: Path) -> None:
    """A route that ignores the caller's prefix answers 403 to a caller that has one."""
    settings = {"auth_secret_dir": secret_directory(tmp_path / "jwt")}
    auth = {**AUTH, "rules": [{"allow": ["read"], "keyPrefix": "user/{sub}/"}]}
    with served(tmp_path / "node", settings=settings, auth=auth) as node:

        async def entries(request: Any) -> PlainTextResponse:
            return PlainTextResponse("every entry")

        node.on_loop(lambda: node.app.add_route("/v1/entries/{key}", entries))
        with node.client() as client:
            answer: httpx.Response = client.get("/v1/entries/a", headers=bearer())
            assert answer.status_code == 403
            assert "entry" not in answer.text
