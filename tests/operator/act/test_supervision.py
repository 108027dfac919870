"""Supervised tasks: a defect ends neither a resource's reconciler nor the operator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queryable_operator.act import supervision
from queryable_operator.act.executor import Executor
from queryable_operator.act.reconciler import Reconcilers
from queryable_operator.act.supervision import supervised
from queryable_operator.spec import names
from tests.support.fake_api import Refuse, Request
from tests.support.operating import MAP, Operating, make_map, until


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart at once."""
    monkeypatch.setattr(supervision, "_RESTART_SECONDS", 0.0)


def test_failed_task_restarts(caplog: pytest.LogCaptureFixture) -> None:
    """A task that raises is logged and runs again until it returns."""
    runs: list[int] = []

    async def run() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise KeyError("items")

    asyncio.run(supervised("The test", run))
    assert runs == [0, 1, 2]
    assert caplog.text.count("The test failed, which is a defect of the operator") == 2


def test_cancelled_task_does_not_restart() -> None:
    """Cancellation ends a supervised task."""

    async def cancel() -> bool:
        task = asyncio.create_task(supervised("The test", asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(cancel())


def test_defect_in_the_report_of_an_error_does_not_end_the_reconciler(
    operator: Operating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the event about a refused request cannot be built, the resource is still reconciled once the request succeeds."""
    reports: list[str] = []
    post = Executor.post

    async def broken(self: Executor, event: Any, resource: Any) -> None:
        if event.reason == "ReconcileFailed":
            reports.append(event.message)
            operator.api.order = lambda _: None
            raise KeyError("resourceVersion")
        await post(self, event, resource)

    def order(request: Request) -> None:
        if request.plural == "configmaps" and request.writes:
            raise Refuse(403, "exceeded quota")

    monkeypatch.setattr(Executor, "post", broken)
    operator.api.order = order
    operator.plan = make_map
    reconcilers = Reconcilers()
    reconcilers.dependencies = operator.dependencies

    async def reconcile() -> None:
        live = operator.api.get(names.KIND, "a", "v")
        assert live is not None
        reconcilers.observe(live)
        await until(lambda: operator.api.get(MAP.kind, "a", MAP.name))
        await reconcilers.stop()

    asyncio.run(reconcile())
    assert reports
