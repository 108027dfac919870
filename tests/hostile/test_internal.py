"""Test bodies between nodes: a sender with the token is still checked, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.served import Served, served
from tests.support.wire import WireAnswer, request, wire

READ_OPTIONS = {
    "consistency": "any",
    "maxLagMs": None,
    "maxLagRecords": None,
    "minPositions": {"0": 1},
    "deadlineMs": 50,
}
READ = {"consistency": "bounded", "ingest": True, "maxConcurrent": 512}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/internal/v1/cover"): {"partitions": [0, 1], "asked": READ_OPTIONS},
    ("POST", "/internal/v1/rows"): {"positions": {"0": 1}, "start": "YQ==", "stop": None, "reverse": False},
    ("POST", "/internal/v1/keys"): {"positions": {"0": 1}, "keys": {"0": ["YQ=="]}},
    ("POST", "/internal/v1/count"): {"positions": {"0": 1}, "approximate": True},
    ("POST", "/internal/v1/checkpoints"): {"partition": 0, "recordsMin": 1 << 60},
    ("PUT", "/internal/v1/read"): READ,
    ("PUT", "/internal/v1/placement"): {
        "epoch": 1,
        "applicationId": "tests.users.r1",
        "addresses": ["http://127.0.0.1:1"],
        "serving": [[0], [0]],
        "hydrating": [[], []],
    },
}
EVERY_BODY = pytest.mark.parametrize(("method", "path"), BODIES, ids=lambda value: value)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield the node of this suite, with a token."""
    directory = tmp_path_factory.mktemp("node")
    (directory / "token").write_text("between-nodes")
    token = {"internal_token_path": str(directory / "token")}
    with served(directory / "node", settings=token, read={"ingest": True}) as running:
        running.fill(1000)
        yield running


def send(node: Served, method: str, path: str, body: bytes) -> WireAnswer:
    lines = (b"Qt-Node: between-nodes", b"Qt-Deadline-Ms: 50")
    with wire(node.port) as connection:
        connection.send(request(method.encode(), path.encode(), *lines, body=body))
        return connection.answer()


@EVERY_BODY
def test_complete_body_is_accepted(node: Served, method: str, path: str) -> None:
    """A node accepts the body that nodes and the operator send, also with a field of a newer release."""
    for body in (BODIES[method, path], {**BODIES[method, path], "ofANewerRelease": 1}):
        assert send(node, method, path, json.dumps(body).encode()).status != 400


@EVERY_BODY
def test_body_without_a_field_is_refused(node: Served, method: str, path: str) -> None:
    """A node refuses a body that lacks a field, and names the field."""
    body = BODIES[method, path]
    for name in body:
        left = {other: value for other, value in body.items() if other != name}
        answer = send(node, method, path, json.dumps(left).encode())
        assert (answer.status, answer.json()["detail"]) == (400, f"body: {name} is missing")


def test_read_settings_without_fields_turn_nothing_off(node: Served) -> None:
    """A node refuses read settings that have none of the fields, and keeps its own."""
    assert send(node, "PUT", "/internal/v1/read", b'{"nope":1}').status == 400
    assert node.node.read_settings.ingest is True


ODD = (
    '1e400 -1e400 NaN Infinity 9223372036854775808 -2 1.5 true "1" null [] {} "\\ud800" 1' + "0" * 400
).split()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_is_a_defect(node: Served, data: st.DataObject) -> None:
    """Whatever replaces any value of an internal body, a node does not answer 500."""
    method, path = data.draw(st.sampled_from(sorted(BODIES)))
    body = json.loads(json.dumps(BODIES[method, path]))
    holder: Any = body
    while True:
        name: Any = data.draw(
            st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder)))
        )
        inner = holder[name]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        holder = inner
    holder[name] = "ODD"
    raw = json.dumps(body).replace('"ODD"', data.draw(st.sampled_from(ODD)))
    before = node.node.read_settings
    answer = send(node, method, path, raw.encode())
    node.node.apply_read_settings(before)
    assert answer.status not in (500, 503, 504) or answer.reason in ("not_available", "not_fresh_enough"), (
        answer
    )


@EVERY_BODY
@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity", "1" + "0" * 400])
def test_number_beyond_its_range_is_refused(node: Served, method: str, path: str, number: str) -> None:
    """A node answers 400 to a number that is infinite, not a number, or beyond its range."""
    raw = json.dumps(BODIES[method, path])
    for whole in ('"maxConcurrent": 512', '"epoch": 1', '"recordsMin": 1152921504606846976', '"0": 1', "[0"):
        name, separator, _ = whole.partition(": ")
        raw = raw.replace(whole, f"{name}: {number}" if separator else "[" + number)
    assert number in raw
    assert send(node, method, path, raw.encode()).status == 400


@pytest.mark.parametrize("deadline", [b"1e3", b"-1", b"\xb2", b"9" * 5000])
def test_deadline_between_nodes_is_a_number(node: Served, deadline: bytes) -> None:
    """A node refuses a deadline of another node that is not a whole number."""
    body = json.dumps(BODIES["POST", "/internal/v1/count"]).encode()
    lines = (b"Qt-Node: between-nodes", b"Qt-Deadline-Ms: " + deadline)
    with wire(node.port) as connection:
        connection.send(request(b"POST", b"/internal/v1/count", *lines, body=body))
        assert connection.answer().status == 400
