"""Test the operator's metrics, health and resync."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client import generate_latest

from queryable_operator.act.metrics import Health, Metrics, serve
from queryable_operator.act.reconciler import Reconcilers
from queryable_operator.act.resync import Resync
from queryable_operator.decide.actions import Event
from queryable_operator.spec import names
from tests.support.fake_api import Request
from tests.support.operating import Operating, config_map

VIEW = ("a", "v")


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def _text(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_phase_is_one_series_at_a_time(metrics: Metrics) -> None:
    """The series of the last phase is removed."""
    metrics.observe_decision(VIEW, {"phase": "Pending"}, ())
    metrics.observe_decision(VIEW, {"phase": "Ready"}, ())
    assert 'qt_phase{name="v",namespace="a",phase="Ready"} 1.0' in _text(metrics)
    assert "Pending" not in _text(metrics)


def test_lag_and_progress_equal_the_status(metrics: Metrics) -> None:
    """Prometheus scrapes the figures that kubectl shows."""
    candidate = {"hydratedPartitions": 3, "totalPartitions": 12}
    metrics.observe_decision(VIEW, {"active": {"lag": 7}, "candidate": candidate}, ())
    assert 'qt_active_lag{name="v",namespace="a"} 7.0' in _text(metrics)
    assert 'qt_candidate_progress_ratio{name="v",namespace="a"} 0.25' in _text(metrics)


def test_missing_candidate_has_no_progress(metrics: Metrics) -> None:
    """An active revision with unknown lag has no lag series either."""
    metrics.observe_decision(VIEW, {"active": {"lag": 7}, "candidate": {"totalPartitions": 12}}, ())
    metrics.observe_decision(VIEW, {"active": {}}, ())
    assert "qt_active_lag{" not in _text(metrics)
    assert "qt_candidate_progress_ratio{" not in _text(metrics)


def test_rollouts_are_counted_by_outcome(metrics: Metrics) -> None:
    """Rollouts are counted by outcome, from their final events; other events do not count."""
    for reason in ("CutOver", "CutOver", "RolloutFailed", "Paused"):
        metrics.observe_decision(VIEW, {}, (Event("Normal", reason, ""),))
    assert 'qt_rollouts_total{outcome="succeeded"} 2.0' in _text(metrics)
    assert 'qt_rollouts_total{outcome="failed"} 1.0' in _text(metrics)


def test_deleted_resource_leaves_no_series(metrics: Metrics) -> None:
    """No alert fires for a deleted resource."""
    metrics.observe_pass(VIEW, "ok", 0.1)
    metrics.observe_decision(VIEW, {"phase": "Ready", "active": {"lag": 0}}, ())
    metrics.forget(VIEW)
    assert 'namespace="a"' not in _text(metrics)


def test_last_reconcile_time_needs_a_pass_without_error(metrics: Metrics) -> None:
    """The timestamp shows since when a resource is not reconciled."""
    metrics.observe_pass(VIEW, "error", 0.1)
    assert "qt_last_reconcile_timestamp_seconds{" not in _text(metrics)
    metrics.observe_pass(VIEW, "ok", 0.1)
    assert "qt_last_reconcile_timestamp_seconds{" in _text(metrics)


def test_running_operator_is_healthy() -> None:
    """An operator without resources is healthy, too."""
    clock = _Clock()
    health = Health(clock)
    assert health.problem() is None
    health.event_loop_turned()
    health.finished(VIEW)
    clock.now = 50.0
    assert health.problem() is None


def test_blocked_event_loop_is_unhealthy() -> None:
    """A thread reports it, since the event loop cannot."""
    clock = _Clock()
    health = Health(clock)
    health.event_loop_turned()
    clock.now = 61.0
    assert health.problem() == "the event loop has not run for 61 s"


def test_unreconciled_resource_is_unhealthy() -> None:
    """Health recovers with its next pass or its deletion."""
    clock = _Clock()
    health = Health(clock)
    health.finished(VIEW)
    clock.now = 301.0
    assert health.problem() == "a/v was not reconciled for 301 s"
    health.forget(VIEW)
    assert health.problem() is None


def test_port_serves_metrics_and_health() -> None:
    """The port serves metrics and health, and a hint at other paths."""
    metrics, health = Metrics(), Health()
    metrics.observe_pass(VIEW, "ok", 0.1)
    server = serve(0, metrics, health)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", trust_env=False) as client:
        assert 'qt_reconcile_total{result="ok"} 1.0' in client.get("/metrics").text
        assert client.get("/healthz").status_code == 200
        health.set_watch_problem("the watch is dead")
        ill = client.get("/healthz")
        assert (ill.status_code, ill.text) == (503, "the watch is dead\n")
        assert client.get("/").status_code == 404
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_port_listens_on_both_address_families(address: str) -> None:
    """The kubelet of an IPv6-only cluster can probe the operator."""
    server = serve(0, Metrics(), Health())
    try:
        url = f"http://{address}:{server.server_port}/healthz"
        assert httpx.get(url, trust_env=False, timeout=30).status_code == 200
    finally:
        server.shutdown()
        server.server_close()


def _resync(operator: Operating) -> Resync:
    return Resync(
        operator.cluster, operator.watch_cache, Reconcilers(), operator.health, ("ConfigMap", "Node"), ()
    )


def test_resync_removes_an_unreported_deletion(operator: Operating) -> None:
    """A restarted watch does not report an object that was deleted meanwhile."""

    async def resync() -> None:
        await operator.run_pass()
        operator.api.put(config_map(operator.observed[0]))
        operator.bring()
        operator.api.delete("ConfigMap", "a", "v-r1")
        await _resync(operator).once()

    asyncio.run(resync())
    assert operator.watch_cache.known("ConfigMap") == {}


def test_resync_keeps_an_object_newer_than_its_list(operator: Operating) -> None:
    """An object that the watch brought after the list is not removed."""

    async def resync() -> None:
        await operator.run_pass()

        def order(request: Request) -> None:
            if (
                request.plural == "configmaps"
            ):  # after what was known had been noted, before the list is answered
                operator.watch_cache.put(
                    "ConfigMap", {**made, "metadata": {**made["metadata"], "resourceVersion": "99"}}
                )

        made = operator.api.put(config_map(operator.observed[0]))
        operator.bring()
        operator.api.delete("ConfigMap", "a", "v-r1")
        operator.api.order = order
        await _resync(operator).once()

    asyncio.run(resync())
    assert ("a", "v-r1") in operator.watch_cache.known("ConfigMap")


def test_resync_detects_a_dead_watch(operator: Operating) -> None:
    """An object that is listed twice and never brought fails health until the watch brings it."""

    async def resync() -> list[str | None]:
        operator.api.delete(names.KIND, "a", "v")
        operator.api.put(
            {"kind": "ConfigMap", "metadata": {"name": "v-r1", "namespace": "a", "labels": _LABELS}}
        )
        resync, problems = _resync(operator), []
        for _ in range(2):
            await resync.once()
            problems.append(operator.health.problem())
        operator.bring()
        await resync.once()
        return [*problems, operator.health.problem()]

    first, second, third = asyncio.run(resync())
    assert (first, third) == (None, None)
    assert second is not None
    assert "the watch of ConfigMap has missed a change" in second


_LABELS = {names.VIEW_LABEL: "v"}
