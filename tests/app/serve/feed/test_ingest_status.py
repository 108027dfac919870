"""Test that status and readiness show what ingest reports, over a real control socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from queryable_app.serve.api.status import readiness, status_json
from tests.support.control_socket import connected, ingest, node_running
from tests.support.node import put, slice_payload
from tests.support.waiting import until


def test_missing_topic_starts_nothing(tmp_path: Path) -> None:
    """Without a topic nothing starts, and status has the state that ingest reports."""

    async def run() -> None:
        async with connected(tmp_path) as (node, client):
            client.send(type="topic", id=None)
            client.send(type="state", state="waiting-for-topic", mode="realtime", detail="users", starts=0)
            await until("the state", lambda: node.ingest_status.state == "waiting-for-topic")

            assert (node.ingest_status.pid, node.ingest_status.detail) == (77, "users")
            assert (await client.start())["generation"] == 1

    asyncio.run(run())


def test_topic_that_stays_missing_is_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """After the wait, status and readiness report the failure and the log has one line. A topic that is
    created later is read."""

    async def run() -> None:
        async with node_running(tmp_path, settings={"topic_wait_seconds": 0}) as node:
            node.slices.apply(slice_payload(put(4, b"a", b"1")))
            client = await ingest(node)
            client.send(type="topic", id=None)
            client.send(type="state", state="waiting-for-topic", mode="realtime", detail="users", starts=0)
            await until("the failure", lambda: node.ingest_status.state == "failed")

            detail = status_json(node)["ingest"]["detail"]
            assert detail.startswith("there is no topic users")
            assert readiness(node)["ingestFailed"] == detail
            assert [(c.failed, c.position) for c in node.replicas.by_partition.values()] == [
                (None, 5),
                (None, -1),
            ]
            assert (await client.start())["positions"] == {"0": 5, "1": -2}
            client.send(type="state", state="streaming", mode="realtime", detail="", starts=1)
            await until("it is read", lambda: readiness(node)["ingestFailed"] is None)
            client.writer.close()

    asyncio.run(run())
    assert capfd.readouterr().err.count('"event": "topic-missing"') == 1


def test_topic_created_in_time_is_no_failure(tmp_path: Path) -> None:
    """The wait ends when the topic exists."""

    async def run() -> None:
        async with connected(tmp_path, settings={"topic_wait_seconds": 0}) as (node, client):
            for state in ("waiting-for-topic", "streaming"):  # in one piece: no time passes in between
                client.send(type="state", state=state, mode="realtime", detail="", starts=0)
            assert (await client.start())["type"] == "start"

            assert node.ingest_status.state == "streaming"

    asyncio.run(run())


def test_permanent_failure_stays_until_ingest_gets_further(tmp_path: Path) -> None:
    """Restarts of ingest keep the failure, which status and readiness report."""

    async def run() -> None:
        async with node_running(tmp_path) as node:
            for pid in (1, 2):
                client = await ingest(node, pid)
                client.send(type="state", state="starting", mode="", detail="", starts=0)
                if pid == 1:
                    client.send(
                        type="state",
                        state="failed",
                        mode="",
                        detail="no such column",
                        starts=0,
                        reason="TransformRefused",
                    )
                    await until("the failure", lambda: node.ingest_status.state == "failed")
                    client.writer.close()
                    await until("no ingest", lambda: node.ingest_status.state == "absent")
                assert status_json(node)["ingest"]["failure"] == {
                    "reason": "TransformRefused",
                    "message": "no such column",
                }
                assert readiness(node)["ingestFailed"] == "no such column"
            client.send(type="state", state="streaming", mode="", detail="", starts=1)
            await until("it streams", lambda: node.ingest_status.state == "streaming")
            assert status_json(node)["ingest"]["failure"] is None
            client.writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("reason", [{}, {"reason": ""}, {"reason": 7}, {"reason": "not a word"}])
def test_failure_without_a_reason_may_be_transient(tmp_path: Path, reason: dict[str, Any]) -> None:
    """An ingest of an earlier version reports no reason."""

    async def run() -> None:
        async with connected(tmp_path) as (node, client):
            client.send(type="state", state="failed", mode="", detail="why", starts=0, **reason)
            await until("the failure", lambda: node.ingest_status.state == "failed")
            assert status_json(node)["ingest"]["failure"] is None
            assert readiness(node)["ingestFailed"] == "why"

    asyncio.run(run())
