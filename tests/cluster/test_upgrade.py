"""Test an upgrade of the chart: the operator is replaced, and no node restarts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.helm import CHART, helm
from tests.support.view_on_cluster import RELEASE, Platform, ViewOnCluster, available_view

pytestmark = pytest.mark.timeout(900)

OTHER_IMAGE = "example.test/queryable-topics:99"


@pytest.fixture
def view(platform: Platform) -> Iterator[ViewOnCluster]:
    with available_view(platform, "upgraded") as view:
        view.wait_until_settled()
        yield view


def test_operator_upgrade_restarts_no_node(view: ViewOnCluster) -> None:
    """An upgrade, another image for nodes and the rollback restart no node, and no read fails."""
    platform = view.platform
    own = ("--namespace", platform.operators.name, "--wait", "--timeout=300s")
    before = what_runs(view)
    with view.reading() as reading:
        helm(
            "upgrade", RELEASE, str(CHART), *own, "--reuse-values", "--set", f"nodeImage={OTHER_IMAGE}", timeout=310
        )  # fmt: skip
        try:
            platform.eventually("the new operator has reconciled the view", lambda: was_looked_at(view))
            assert OTHER_IMAGE in platform.operators.kubectl("get", "deploy", "--output=yaml")
        finally:
            helm("rollback", RELEASE, *own, timeout=310)
        platform.eventually("the old operator has reconciled the view again", lambda: was_looked_at(view))
    assert reading.failures == []
    assert what_runs(view) == before


def what_runs(view: ViewOnCluster) -> dict[str, object]:
    """Return each pod, and the generation of the StatefulSet."""
    pods = {name: pod["metadata"]["uid"] for name, pod in view.pods().items()}
    (stateful_set,) = view.live("statefulset")
    return {**pods, "written": stateful_set["metadata"]["generation"]}


def was_looked_at(view: ViewOnCluster) -> bool:
    """Return whether the present operator has reconciled the view."""
    path = (
        f"/api/v1/namespaces/{view.platform.operators.name}/services/qt-queryable-topics:8081/proxy/metrics"
    )
    answer = view.namespace.api.get(path)
    return answer.is_success and f'qt_last_reconcile_timestamp_seconds{{name="{view.name}"' in answer.text
