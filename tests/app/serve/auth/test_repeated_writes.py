"""Test that callers with tokens do not share Idempotency-Keys, and are checked wherever a write is remembered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.serve.auth.conftest import HERE
from tests.support.served import Served
from tests.support.tokens import bearer


class _Topic:
    """Stand in for Kafka."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send(self, key: bytes, value: bytes | None, partition: int, deadline_seconds: float) -> int:
        self.sent.append(key)
        return len(self.sent) - 1


@pytest.fixture
def topic(nodes: list[Served]) -> Any:
    written = _Topic()
    for each in nodes:
        each.node.producer = written  # type: ignore[assignment]
    return written


def test_callers_may_choose_the_same_key(nodes: list[Served], topic: Any) -> None:
    """Each caller gets the answer of its own write, from either node, and each write is in the topic once."""
    for name in ("alice", "bob"):
        headers = bearer(role="user", sub=name, scope="")
        for number in range(8):  # some of the keys are remembered by the other node
            record = {"key": HERE[f"user/{name}/"], "value": number}
            answers = []
            for each in nodes:
                with each.client() as http:
                    answers.append(http.post(
                        "/v1/records", json=record, headers={**headers, "idempotency-key": f"k-{number}"}
                    ))  # fmt: skip
            assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
            assert answers[0].json() == answers[1].json()
    assert topic.sent == [HERE["user/alice/"].encode()] * 8 + [HERE["user/bob/"].encode()] * 8


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_foreign_key_is_refused_by_the_node_that_remembers(
    nodes: list[Served], topic: Any, method: str
) -> None:
    """A caller cannot write a key of another prefix by an Idempotency-Key that another node remembers."""
    foreign, headers = HERE["user/bob/"], bearer(role="user", sub="alice", scope="")
    for number in range(8):
        more = {**headers, "idempotency-key": f"foreign-{number}"}
        with nodes[0].client() as http:
            answer = (
                http.post("/v1/records", json={"key": foreign, "value": 1}, headers=more)
                if method == "POST"
                else http.delete(f"/v1/records/{foreign}", headers=more)
            )
        assert (answer.status_code, answer.json()["reason"]) == (403, "forbidden"), answer.text
    assert topic.sent == []


def test_own_key_is_deleted_by_the_node_that_remembers(nodes: list[Served], topic: Any) -> None:
    """A deletion with an Idempotency-Key is written, whichever node remembers it."""
    own, headers = HERE["user/alice/"], bearer(role="user", sub="alice", scope="")
    for number in range(8):
        with nodes[0].client() as http:
            more = {**headers, "idempotency-key": f"own-{number}"}
            assert http.delete(f"/v1/records/{own}", headers=more).status_code == 200
    assert len(topic.sent) == 8
