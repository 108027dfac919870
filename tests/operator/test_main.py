"""`python -m queryable_operator` as a process, against an API server that answers as it is told."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from queryable_operator.spec import names
from tests.support.fake_api import FakeApi
from tests.support.operating import topic
from tests.support.operator_process import operator_process

DOCS = Path(__file__).parents[2] / "docs" / "operator.md"


@pytest.fixture
def kubeconfig(api: FakeApi, tmp_path: Path) -> str:
    (tmp_path / "kubeconfig").write_text(api.kubeconfig())
    return str(tmp_path / "kubeconfig")


def _until(holds: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _phase(api: FakeApi, name: str) -> object:
    live = api.get(names.KIND, "a", name)
    return live.get("status", {}).get("phase") if live else None


def _help() -> str:
    command = [sys.executable, "-m", "queryable_operator", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_help_names_every_variable_and_the_documentation_every_option() -> None:
    """Whoever runs it finds each option in both."""
    text, docs = _help(), DOCS.read_text()
    options = re.findall(r"^\s+(?:-h, )?(--[a-z-]+)", text, re.MULTILINE)
    assert len(options) > 9
    for option in options:
        if option != "--help":
            assert f"`{option}" in docs, option
            assert f"QT_OPERATOR_{option[2:].replace('-', '_').upper()}" in text


def test_a_resource_is_looked_at_and_says_where_it_stands(
    api: FakeApi, kubeconfig: str, tmp_path: Path
) -> None:
    """From the command line to the status of a resource whose Kafka is away."""
    api.put(topic())
    with operator_process(tmp_path / "log", kubeconfig) as operator:
        _until(lambda: _phase(api, "v"), "there is a status")
        assert operator.get("/healthz").text == "ok\n"
        # A round is counted when it has ended, which is after its status can be seen.
        _until(
            lambda: operator.metrics().get('qt_reconcile_total{result="ok"}', 0) >= 1, "a round is counted"
        )
    assert _phase(api, "v") == "Pending"


def test_a_signal_ends_it(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """With status 0 and no trace, also while a resource is under way."""
    api.put(topic())
    with operator_process(tmp_path / "log", kubeconfig) as operator:
        _until(lambda: _phase(api, "v"), "there is a status")
        assert operator.end() == 0
        assert "Traceback" not in operator.log


def test_a_line_names_its_resource(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """One JSON object a line, which machines can select by."""
    api.put(topic())
    with operator_process(tmp_path / "log", kubeconfig, "--log-format=json") as operator:
        _until(lambda: _phase(api, "v"), "there is a status")
        operator.end()
        lines = [json.loads(line) for line in operator.log.splitlines()]
    assert any((line.get("namespace"), line.get("name")) == ("a", "v") for line in lines)
    assert all({"time", "level", "message", "logger"} <= line.keys() for line in lines)


def test_a_cluster_that_is_away_is_named(tmp_path: Path) -> None:
    """The first sentence says where nobody answered."""
    (tmp_path / "kubeconfig").write_text(FakeApi(port=1).kubeconfig())
    with operator_process(tmp_path / "log", str(tmp_path / "kubeconfig")) as operator:
        assert operator.popen.wait(60) == 1
        assert "The cluster is unreachable" in operator.log
        assert "http://127.0.0.1:1" in operator.log
        assert "Traceback" not in operator.log


def test_no_cluster_at_all_is_said(tmp_path: Path) -> None:
    """Neither a pod's service account nor a kubeconfig."""
    with operator_process(tmp_path / "log", str(tmp_path / "nothing")) as operator:
        assert operator.popen.wait(60) == 1
        assert "Traceback" not in operator.log
        assert operator.log


def test_a_definition_that_is_missing_is_said(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """With what to do about it."""
    api.crd = False
    with operator_process(tmp_path / "log", kubeconfig) as operator:
        assert operator.popen.wait(60) == 1
        assert operator.log == (
            "The cluster has no queryabletopics.queryabletopics.io: apply crds/queryabletopic.yaml first\n"
        )


def test_permissions_that_are_missing_are_all_said_at_once(
    api: FakeApi, kubeconfig: str, tmp_path: Path
) -> None:
    """Which verb on what, and where."""
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
        operator.says("The resync of watches failed")
        api.put(topic())
        _until(lambda: _phase(api, "v"), "the resource is reconciled")
        assert operator.end() == 0


@pytest.mark.parametrize("wrong", ["--namespaces=A_b", "--reconcile-seconds=0", "--log-format=xml", "--what"])
def test_an_option_that_is_wrong_is_named(kubeconfig: str, tmp_path: Path, wrong: str) -> None:
    """And nothing begins."""
    with operator_process(tmp_path / "log", kubeconfig, wrong) as operator:
        assert operator.popen.wait(60) == 2
        assert wrong.partition("=")[0] in operator.log


def test_a_standby_takes_over(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """The first one is killed without a word; the second acts when the Lease has run out."""
    api.put(topic())
    election = ("--leader-election", "--lease-namespace=a")
    with operator_process(tmp_path / "one", kubeconfig, *election) as one:
        one.says("This operator acts now")
        with operator_process(tmp_path / "two", kubeconfig, *election) as two:
            two.says("Standing by")
            assert two.get("/healthz").status_code == 200
            one.end(signal.SIGKILL)
            api.put(topic("later"))
            two.says("This operator acts now", 60)
            _until(lambda: _phase(api, "later"), "the second one acts")
            assert two.end() == 0
    lease = api.get("Lease", "a", names.FIELD_MANAGER)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""


def test_one_that_has_lost_its_lease_ends(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """At once, with a status that has it started again, and with the reason."""
    with operator_process(
        tmp_path / "log", kubeconfig, "--leader-election", "--lease-namespace=a"
    ) as operator:
        operator.says("This operator acts now")
        _until(lambda: any(r.plural == names.PLURAL for r in api.requests), "it acts")
        lease = api.get("Lease", "a", names.FIELD_MANAGER)
        assert lease is not None
        api.put({**lease, "spec": {**lease["spec"], "holderIdentity": "another"}})
        assert operator.popen.wait(60) == 1
        assert "so that only one acts" in operator.log
        assert "is held by another" in operator.log
        assert "Traceback" not in operator.log


def test_a_standby_that_is_ended_goes_quietly(api: FakeApi, kubeconfig: str, tmp_path: Path) -> None:
    """It leaves the Lease to whom it belongs."""
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
        operator.says("Standing by: another holds the Lease")
        assert operator.end() == 0
        assert "Traceback" not in operator.log
    assert api.get("Lease", "a", names.FIELD_MANAGER)["spec"]["holderIdentity"] == "another"  # type: ignore[index]
