"""Compare the OpenAPI document of a node with its routes and answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from queryable_app.errors import Reason
from tests.support.served import Served, served


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node"), key={"format": "string"}) as running:
        running.put(b"a", b'{"n":1}')
        running.put(b"\xff", b"2")
        yield running


@pytest.fixture(scope="module")
def document(http: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = http.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def test_every_route_is_described(document: dict[str, Any]) -> None:
    """The document has every public route under its own name, and no internal route."""
    assert document["paths"].keys() == {
        "/v1/keys/{key}", "/v1/multi-get", "/v1/scan", "/v1/range", "/v1/prefix/{prefix}", "/v1/count", "/v1/filter",
        "/v1/records", "/v1/records/{key}", "/v1/status", "/v1/placement", "/livez", "/readyz", "/metrics",
    }  # fmt: skip
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(names) == len(set(names))


def test_path_parameters_are_declared(document: dict[str, Any]) -> None:
    """Each {name} of a path is a required parameter, and no parameter is declared twice."""
    for path, operation in operations(document):
        parameters = [(p["in"], p["name"]) for p in operation.get("parameters", [])]
        assert len(parameters) == len(set(parameters))
        in_path = {name for where, name in parameters if where == "path"}
        assert in_path == {piece.split("}")[0] for piece in path.split("{")[1:]}


def test_every_route_describes_its_failures(document: dict[str, Any]) -> None:
    """A failure is a problem document with the closed set of reasons."""
    for _, operation in operations(document):
        problem = operation["responses"]["default"]["content"]["application/problem+json"]["schema"]
        assert problem["properties"]["reason"]["enum"] == [reason.slug for reason in Reason]


def test_every_schema_is_valid(document: dict[str, Any]) -> None:
    """Schemas of parameters, bodies and answers are valid JSON Schemas."""
    for _, operation in operations(document):
        contents = [answer.get("content", {}) for answer in operation["responses"].values()]
        contents.append(operation.get("requestBody", {}).get("content", {}))
        schemas = [media["schema"] for content in contents for media in content.values()]
        for schema in [*schemas, *(p["schema"] for p in operation.get("parameters", []))]:
            Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    ("method", "path", "described", "body"),
    [
        ("GET", "/v1/keys/a", "/v1/keys/{key}", None),
        ("GET", "/v1/keys/b", "/v1/keys/{key}", None),
        ("POST", "/v1/multi-get", "/v1/multi-get", {"keys": ["a", "b"]}),
        ("POST", "/v1/multi-get?key-encoding=base64url", "/v1/multi-get", {"keys": ["_w"]}),
        ("POST", "/v1/multi-get", "/v1/multi-get", {"key": "a"}),
        ("GET", "/v1/scan", "/v1/scan", None),
        ("GET", "/v1/scan?limit=1", "/v1/scan", None),
        ("GET", "/v1/scan?limit=0", "/v1/scan", None),
        ("GET", "/v1/range?from=a", "/v1/range", None),
        ("GET", "/v1/prefix/a", "/v1/prefix/{prefix}", None),
        ("GET", "/v1/count", "/v1/count", None),
        ("GET", "/v1/scan?consistency=strong&deadline-ms=50", "/v1/scan", None),
        ("POST", "/v1/records", "/v1/records", {"key": "a", "value": 1}),
        ("DELETE", "/v1/records/a", "/v1/records/{key}", None),
        ("GET", "/v1/status", "/v1/status", None),
        ("GET", "/v1/placement", "/v1/placement", None),
        ("GET", "/livez", "/livez", None),
        ("GET", "/readyz", "/readyz", None),
    ],
)
def test_answers_match_their_schemas(
    http: httpx.Client, document: dict[str, Any], method: str, path: str, described: str, body: Any
) -> None:
    """Answers and failures have the fields of their schemas, and no others."""
    answer = http.request(method, path, json=body)

    responses = document["paths"][described][method.lower()]["responses"]
    response = responses.get(str(answer.status_code), responses["default"])
    schema = response["content"][answer.headers["content-type"]]["schema"]
    Draft202012Validator(schema).validate(answer.json())


def test_readiness_of_503_matches_its_schema(tmp_path: Path, document: dict[str, Any]) -> None:
    """The 503 of the readiness probe is an answer of its own, not a problem document."""
    with served(tmp_path, complete=False) as node, node.client() as http:
        answer = http.get("/readyz")

    assert answer.status_code == 503
    content = document["paths"]["/readyz"]["get"]["responses"]["503"]["content"]
    Draft202012Validator(content["application/json"]["schema"]).validate(answer.json())
