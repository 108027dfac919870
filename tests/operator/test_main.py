"""Test `python -m queryable_operator` as a process, against a fake API server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from queryable_operator.spec import names
from tests.support.fake_api import FakeApi
from tests.support.operating import topic
from tests.support.operator_process import operator_process
from tests.support.waiting import eventually

DOCS = Path(__file__).parents[2] / "docs" / "operator.md"


@pytest.fixture
def kubeconfig(api: FakeApi, tmp_path: Path) -> str:
    (tmp_path / "kubeconfig").write_text(api.kubeconfig())
    return str(tmp_path / "kubeconfig")


def _phase(api: FakeApi, name: str) -> object:
    live = api.get(names.KIND, "a", name)
    return live.get("status", {}).get("phase") if live else None


def _help() -> str:
    command = [sys.executable, "-m", "queryable_operator", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_help_and_docs_name_every_option() -> None:
    """Help and documentation contain each option, and help its environment variable."""
    text, docs = _help(), DOCS.read_text()
    options = re.findall(r"^\s+(?:-h, )?(--[a-z-]+)", text, re.MULTILINE)
    assert len(options) > 9
    for option in options:
        if option != "--help":
            assert f"`{option}" in docs, option
            assert f"QT_OPERATOR_{option[2:].replace('-', '_').upper()}" in text


def test_resource_gets_a_status(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """A resource whose Kafka is unreachable gets a phase, and metrics count the pass."""
    api.put(topic())
    with operator_process(tmp_path / "log", kubeconfig) as operator:
        eventually("there is a status", lambda: _phase(api, "v"))
        assert operator.get("/healthz").text == "ok\n"
        # A pass is counted when it has ended, which is after its status can be observed.
        eventually(
            "a pass is counted", lambda: operator.metrics().get('qt_reconcile_total{result="ok"}', 0) >= 1
        )
    assert _phase(api, "v") == "Pending"


def test_signal_ends_the_operator(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """After a signal the operator exits with status 0 and without a trace, also during a pass."""
    api.put(topic())
    with operator_process(tmp_path / "log", kubeconfig) as operator:
        eventually("there is a status", lambda: _phase(api, "v"))
        assert operator.end() == 0
        assert "Traceback" not in operator.log


def test_json_log_names_the_resource(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """Each line is one JSON object with the resource's namespace and name."""
    api.put(topic())
    with operator_process(tmp_path / "log", kubeconfig, "--log-format=json") as operator:
        eventually("there is a status", lambda: _phase(api, "v"))
        operator.end()
        lines = [json.loads(line) for line in operator.log.splitlines()]
    assert any((line.get("namespace"), line.get("name")) == ("a", "v") for line in lines)
    assert all({"time", "level", "message", "logger"} <= line.keys() for line in lines)


def test_unreachable_cluster_is_named(tmp_path: Path) -> None:
    """The error contains the address of the API server."""
    (tmp_path / "kubeconfig").write_text(FakeApi(port=1).kubeconfig())
    with operator_process(tmp_path / "log", str(tmp_path / "kubeconfig")) as operator:
        assert operator.popen.wait(60) == 1
        assert "The cluster is unreachable" in operator.log
        assert "http://127.0.0.1:1" in operator.log
        assert "Traceback" not in operator.log


def test_missing_configuration_is_reported(tmp_path: Path) -> None:
    """The operator reports that there is neither a service account nor a kubeconfig."""
    with operator_process(tmp_path / "log", str(tmp_path / "nothing")) as operator:
        assert operator.popen.wait(60) == 1
        assert "Traceback" not in operator.log
        assert operator.log


def test_missing_crd_is_reported(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """The error says how to install it."""
    api.crd = False
    with operator_process(tmp_path / "log", kubeconfig) as operator:
        assert operator.popen.wait(60) == 1
        assert operator.log == (
            "The cluster has no queryabletopics.queryabletopics.io: apply crds/queryabletopic.yaml first\n"
        )


def test_missing_permissions_are_reported_at_once(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """The error lists verbs, kinds and namespaces."""
    api.denied |= {("watch", "pods"), ("list", "pods"), ("create", "events")}
    with operator_process(tmp_path / "log", kubeconfig, "--namespaces=a, b") as operator:
        assert operator.popen.wait(60) == 1
        assert operator.log.splitlines() == [
            "The operator's service account lacks these permissions:",
            *(
                line
                for namespace in ("a", "b")
                for line in (
                    f"  create Event in the namespace {namespace}",
                    f"  list, watch Pod in the namespace {namespace}",
                )
            ),
        ]


def test_failed_resync_does_not_end_the_operator(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """A defect in the comparison of watches is logged, and resources are reconciled all the same."""
    prelude = """
import queryable_operator.act.resync as resync
async def broken(self):
    raise KeyError("items")
resync.Resync.once, resync._EVERY_SECONDS = broken, 0.1
"""
    with operator_process(tmp_path / "log", kubeconfig, prelude=prelude) as operator:
        operator.wait_for_log("The resync of watches failed")
        api.put(topic())
        eventually("the resource is reconciled", lambda: _phase(api, "v"))
        assert operator.end() == 0


@pytest.mark.parametrize("wrong", ["--namespaces=A_b", "--reconcile-seconds=0", "--log-format=xml", "--what"])
def test_invalid_option_is_named(kubeconfig: str, tmp_path: Path, wrong: str) -> None:
    """The operator does not start."""
    with operator_process(tmp_path / "log", kubeconfig, wrong) as operator:
        assert operator.popen.wait(60) == 2
        assert wrong.partition("=")[0] in operator.log


def test_standby_takes_over(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """After the holder is killed, the standby acts once the Lease's term is over."""
    api.put(topic())
    election = ("--leader-election", "--lease-namespace=a")
    with operator_process(tmp_path / "one", kubeconfig, *election) as one:
        one.wait_for_log("This operator acts now")
        with operator_process(tmp_path / "two", kubeconfig, *election) as two:
            two.wait_for_log("Standing by")
            assert two.get("/healthz").status_code == 200
            one.end(signal.SIGKILL)
            api.put(topic("later"))
            two.wait_for_log("This operator acts now", 60)
            eventually("the second one acts", lambda: _phase(api, "later"))
            assert two.end() == 0
    lease = api.get("Lease", "a", names.FIELD_MANAGER)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""


def test_operator_without_its_lease_ends(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """An operator that loses its Lease exits at once with status 1 and the reason."""
    with operator_process(
        tmp_path / "log", kubeconfig, "--leader-election", "--lease-namespace=a"
    ) as operator:
        operator.wait_for_log("This operator acts now")
        eventually("it acts", lambda: any(r.plural == names.PLURAL for r in api.requests))
        lease = api.get("Lease", "a", names.FIELD_MANAGER)
        assert lease is not None
        api.put({**lease, "spec": {**lease["spec"], "holderIdentity": "another"}})
        assert operator.popen.wait(60) == 1
        assert "so that only one acts" in operator.log
        assert "is held by another" in operator.log
        assert "Traceback" not in operator.log


def test_ended_standby_leaves_the_lease_alone(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """A standby that ends exits with status 0 and does not write the Lease."""
    api.put(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": names.FIELD_MANAGER, "namespace": "a"},
            "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600},
        }
    )
    with operator_process(
        tmp_path / "log", kubeconfig, "--leader-election", "--lease-namespace=a"
    ) as operator:
        operator.wait_for_log("Standing by: another holds the Lease")
        assert operator.end() == 0
        assert "Traceback" not in operator.log
    assert api.get("Lease", "a", names.FIELD_MANAGER)["spec"]["holderIdentity"] == "another"  # type: ignore[index]
