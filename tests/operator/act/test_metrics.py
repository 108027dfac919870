"""What the operator says of itself."""

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


def test_a_phase_is_one_series_at_a_time(metrics: Metrics) -> None:
    """A resource is in one phase, and the series of the last one goes."""
    metrics.observe_decision(VIEW, {"phase": "Pending"}, ())
    metrics.observe_decision(VIEW, {"phase": "Ready"}, ())
    assert 'qt_phase{name="v",namespace="a",phase="Ready"} 1.0' in _text(metrics)
    assert "Pending" not in _text(metrics)


def test_lag_and_progress_are_the_status(metrics: Metrics) -> None:
    """What kubectl shows and what Prometheus scrapes are the same."""
    candidate = {"hydratedPartitions": 3, "totalPartitions": 12}
    metrics.observe_decision(VIEW, {"active": {"lag": 7}, "candidate": candidate}, ())
    assert 'qt_active_lag{name="v",namespace="a"} 7.0' in _text(metrics)
    assert 'qt_candidate_progress_ratio{name="v",namespace="a"} 0.25' in _text(metrics)


def test_a_candidate_that_is_gone_has_no_progress(metrics: Metrics) -> None:
    """Nor has an active revision whose lag nobody knows a lag."""
    metrics.observe_decision(VIEW, {"active": {"lag": 7}, "candidate": {"totalPartitions": 12}}, ())
    metrics.observe_decision(VIEW, {"active": {}}, ())
    assert "qt_active_lag{" not in _text(metrics)
    assert "qt_candidate_progress_ratio{" not in _text(metrics)


def test_rollouts_are_counted_by_how_they_ended(metrics: Metrics) -> None:
    """Each by its event; other events are none."""
    for reason in ("CutOver", "CutOver", "RolloutFailed", "Paused"):
        metrics.observe_decision(VIEW, {}, (Event("Normal", reason, ""),))
    assert 'qt_rollouts_total{outcome="succeeded"} 2.0' in _text(metrics)
    assert 'qt_rollouts_total{outcome="failed"} 1.0' in _text(metrics)


def test_a_resource_that_is_gone_leaves_no_series(metrics: Metrics) -> None:
    """Nobody is alerted for what is no longer there."""
    metrics.observe_pass(VIEW, "ok", 0.1)
    metrics.observe_decision(VIEW, {"phase": "Ready", "active": {"lag": 0}}, ())
    metrics.forget(VIEW)
    assert 'namespace="a"' not in _text(metrics)


def test_only_a_round_without_an_error_counts_as_the_last_one(metrics: Metrics) -> None:
    """The timestamp tells since when a resource is not carried out."""
    metrics.observe_pass(VIEW, "error", 0.1)
    assert "qt_last_reconcile_timestamp_seconds{" not in _text(metrics)
    metrics.observe_pass(VIEW, "ok", 0.1)
    assert "qt_last_reconcile_timestamp_seconds{" in _text(metrics)


def test_an_operator_that_goes_on_is_healthy() -> None:
    """Also before it has anything to do."""
    clock = _Clock()
    health = Health(clock)
    assert health.problem() is None
    health.event_loop_turned()
    health.finished(VIEW)
    clock.now = 50.0
    assert health.problem() is None


def test_a_loop_that_hangs_is_a_problem() -> None:
    """A thread says so, since the loop cannot."""
    clock = _Clock()
    health = Health(clock)
    health.event_loop_turned()
    clock.now = 61.0
    assert health.problem() == "the event loop has not run for 61 s"


def test_a_resource_that_is_left_alone_is_a_problem() -> None:
    """Until it is looked at again, or is gone."""
    clock = _Clock()
    health = Health(clock)
    health.finished(VIEW)
    clock.now = 301.0
    assert health.problem() == "a/v was not reconciled for 301 s"
    health.forget(VIEW)
    assert health.problem() is None


def test_the_port_answers() -> None:
    """Metrics, health with its reason, and a hint for every other path."""
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
def test_the_port_answers_over_both_families(address: str) -> None:
    """The kubelet of an IPv6-only cluster can ask for the operator's health."""
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


def test_what_has_gone_unnoticed_is_taken_away(operator: Operating) -> None:
    """A watch that began anew did not say that an object had gone."""

    async def resync() -> None:
        await operator.run_pass()
        operator.api.put(config_map(operator.observed[0]))
        operator.bring()
        operator.api.delete("ConfigMap", "a", "v-r1")
        await _resync(operator).once()

    asyncio.run(resync())
    assert operator.watch_cache.known("ConfigMap") == {}


def test_what_comes_while_it_is_listed_stays(operator: Operating) -> None:
    """An object that the watch brought after the list was made is not taken for one that has gone."""

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


def test_a_watch_that_brings_nothing_is_noticed(operator: Operating) -> None:
    """What was listed and was not brought until the next time shows it, and once it is brought all is well."""

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
