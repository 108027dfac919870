"""Send requests that are made from the OpenAPI of a running node: valid ones, and ones with a wrong part each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks

from tests.support.served import Served, served
from tests.support.windows import view

REQUESTS = 15  # of each route, valid ones and wrong ones
INDEXES = [
    {"name": "by-text", "field": "text", "type": "string"},
    {"name": "by-n", "field": "n", "type": "long"},
]
VIEWS: dict[str, dict[str, Any]] = {
    "rows": {"read": {"ingest": True}},
    "indexes and changes": {"view": {"indexes": INDEXES, "changes": True}},
    "entries": {"view": {"entries": {"timeField": "at", "retention": "1d"}}},
    "history": {"view": {"kind": "history", "history": {"retention": "1d"}}},
    "windows": {"view": view(size="1m", grace="10s", retention="1h")},
}
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
load_all_checks()


@pytest.fixture(scope="module", params=list(VIEWS))
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node"), partitions=2, **VIEWS[request.param]) as running:
        if request.param != "windows":
            for number in range(50):
                running.put(b"%d" % number, json.dumps({"n": number, "text": f"{number % 7}"}).encode())
        yield running


@pytest.fixture(autouse=True)
def node_still_serves(node: Served) -> Iterator[None]:
    """Check that the node still serves after the test, and has logged no defect."""
    yield
    with node.client() as client:
        assert client.get("/readyz").status_code == 200
    assert not node.node.counters.failures["internal"]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_every_answer_is_one_that_the_description_names(node: Served, mode: GenerationMode) -> None:
    """No request gets a 500, and the status, the type, the headers and the body of each answer are as described."""
    schema = schemathesis.openapi.from_url(f"{node.url}/openapi.json")
    operations = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
    assert len(operations) == sum(map(len, schema.raw_schema["paths"].values()))
    for operation in operations:
        parts = (operation.path_parameters, operation.query, operation.headers, operation.body)
        if mode is GenerationMode.NEGATIVE and not any(parts):
            continue
        # A read that waits for freshness would wait for as long as it may, and a feed that is no page has no end.
        short: dict[str, Any] = {"deadline-ms": 200, "wait-ms": 0}
        query = {name: short[name] for name in short if operation.query.get(name) is not None}
        page = {"accept": "application/x-ndjson"} if operation.path == "/v1/changes" else {}
        requests = operation.as_strategy(mode, query=query, headers=page)

        @settings(
            max_examples=REQUESTS,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
            deadline=None,
            database=None,
        )
        @given(case=requests)
        def answers_as_described(case: Case[Any]) -> None:
            response = case.call(timeout=30)
            assert response.status_code != 500, response.text
            case.validate_response(response, checks=CHECKS)

        answers_as_described()
