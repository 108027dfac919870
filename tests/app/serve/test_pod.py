"""Test pods with workers as a supervisor runs them: real processes, without Kafka and without ingest."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.pods import KEYS, PARENT, PARTITIONS, PodProcess, get, running_pods
from tests.support.waiting import eventually

# The parent with shorter probes.
IMPATIENT = """
import sys
from queryable_app.serve import __main__, pod
pod.PROBE_SECONDS, pod.PROBE_TIMEOUT_SECONDS, pod.PROBE_FAILURES_MAX = 0.2, 1.0, 3
sys.exit(__main__.main())
"""


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[PodProcess]:
    with running_pods(tmp_path) as (only,):
        yield only


@pytest.fixture(scope="module")
def shared_pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodProcess]:
    """Yield a pod for the tests that only send requests to it."""
    with running_pods(tmp_path_factory.mktemp("shared-pod")) as (only,):
        yield only


def test_every_port_of_a_pod_answers_every_key(shared_pod: PodProcess) -> None:
    """Each worker hosts half of the partitions, and answers every key on its own port and on the front port."""
    statuses = [get(f"{worker.advertised_url}/v1/status").json() for worker in shared_pod.workers]
    hosted = [{replica["partition"] for replica in status["partitions"]} for status in statuses]
    assert [len(partitions) for partitions in hosted] == [PARTITIONS // 2] * 2
    assert set.union(*hosted) == set(range(PARTITIONS))
    assert [(status["name"], status["pod"]) for status in statuses] == [
        ("users-r1-0.0", "users-r1-0"),
        ("users-r1-0.1", "users-r1-0"),
    ]

    for url in (shared_pod.front, *(worker.advertised_url for worker in shared_pod.workers)):
        with httpx.Client(base_url=url) as http:
            assert [http.get(f"/v1/keys/{key}").json() for key in KEYS] == KEYS


def test_workers_share_the_connections_of_the_front_port(shared_pod: PodProcess) -> None:
    """The kernel gives new connections to the front port to all workers."""
    names = {get(f"{shared_pod.front}/v1/status").json()["name"] for _ in range(60)}

    assert names == {worker.name for worker in shared_pod.workers}


def test_placement_names_the_own_ports_of_workers(shared_pod: PodProcess) -> None:
    """A client that goes to the owner of a key goes to a worker, and not to the front port."""
    placement = get(f"{shared_pod.front}/v1/placement").json()

    addresses = {address for each in placement["partitions"] for address in each["addresses"]}
    assert addresses == {worker.advertised_url for worker in shared_pod.workers}


def test_killed_worker_starts_again_while_the_other_answers(pod: PodProcess) -> None:
    """After kill -9 of one worker, the other answers the keys that it hosts, and the parent starts the killed one again."""
    first, second = pod.workers
    before = pod.pids()
    hosted = {r["partition"] for r in get(f"{second.advertised_url}/v1/status").json()["partitions"]}
    with httpx.Client(base_url=second.advertised_url) as http:
        # A key whose only replica is in the killed worker is not answered meanwhile.
        keys = [key for key in KEYS if int(http.get(f"/v1/keys/{key}").headers["qt-partition"]) in hosted]
        os.kill(before[first.ordinal], signal.SIGKILL)

        def started_again() -> bool:
            assert [http.get(f"/v1/keys/{key}").json() for key in keys] == keys
            return pod.pids().get(first.ordinal, before[first.ordinal]) != before[first.ordinal]

        eventually("the worker is started again", started_again, 20, story=pod.log.read_text)
    pod.wait_until_ready()

    assert pod.pids()[second.ordinal] == before[second.ordinal]
    with httpx.Client(base_url=first.advertised_url) as http:
        assert [http.get(f"/v1/keys/{key}").json() for key in KEYS] == KEYS


@pytest.mark.timeout(120)
def test_no_read_fails_while_the_replicas_of_another_pod_answer(tmp_path: Path) -> None:
    """With a replica of each partition in another pod, reads through that pod and through the sibling answer every key while
    a worker is dead."""
    with running_pods(tmp_path, pods=2, replicas=2) as (pod, other):
        victim, sibling = pod.workers
        before = pod.pids()
        with httpx.Client() as http:
            for url in (sibling.advertised_url, other.front):  # connections that exist before
                assert http.get(f"{url}/v1/keys/{KEYS[0]}").status_code == 200

            def read_every_key() -> None:
                for url in (sibling.advertised_url, other.front):
                    assert [http.get(f"{url}/v1/keys/{key}").json() for key in KEYS] == KEYS

            def answers_again() -> bool:
                read_every_key()
                with suppress(httpx.TransportError):
                    return http.get(f"{victim.advertised_url}/readyz").status_code == 200
                return False

            with stopped(pod.process):  # it starts no worker meanwhile
                os.kill(before[victim.ordinal], signal.SIGKILL)
                read_every_key()
            eventually("the worker answers again", answers_again, 30, story=pod.log.read_text)
        assert pod.pids()[victim.ordinal] != before[victim.ordinal]


def test_sigterm_ends_parent_and_workers(pod: PodProcess) -> None:
    """SIGTERM to the parent ends each worker cleanly, then the parent, with exit code 0."""
    workers = [psutil.Process(pid) for pid in pod.pids().values()]
    assert len(workers) == 2

    pod.process.send_signal(signal.SIGTERM)

    assert pod.process.wait(20) == 0
    assert not any(worker.is_running() for worker in workers)
    stopped = [str(event.get("node")) for event in pod.events("stopped")]
    assert sorted(stopped[:-1]) == ["users-r1-0.0", "users-r1-0.1"]


def test_pod_drains_as_one(tmp_path: Path) -> None:
    """After SIGTERM all workers of the pod drain: they answer every key with `Connection: close` and are not ready, until the
    pod ends with exit code 0. The other pod answers every key then."""
    with running_pods(tmp_path, pods=2, replicas=2, drain_seconds=5) as (pod, other):
        urls = [worker.advertised_url for worker in pod.workers]
        pod.process.send_signal(signal.SIGTERM)
        for url in urls:
            eventually("it drains", lambda url=url: get(f"{url}/v1/status").json()["draining"])  # type: ignore[misc]

        for url in (pod.front, *urls):
            answers = [get(f"{url}/v1/keys/{key}") for key in KEYS[:10]]
            assert [(a.status_code, a.headers["connection"]) for a in answers] == [(200, "close")] * 10
            assert get(f"{url}/readyz").status_code == 503

        assert pod.process.wait(60) == 0
        with httpx.Client(base_url=other.front) as http:
            assert [http.get(f"/v1/keys/{key}").json() for key in KEYS] == KEYS


def test_workers_die_with_a_killed_parent(pod: PodProcess) -> None:
    """No worker outlives a parent that was killed with -9."""
    workers = [psutil.Process(pid) for pid in pod.pids().values()]

    pod.process.kill()

    assert not psutil.wait_procs(workers, timeout=10)[1]


def test_readiness_of_a_worker_is_that_of_its_pod(pod: PodProcess) -> None:
    """A probe of the front port gets one answer, whichever worker it reaches: not ready while one of them hangs."""
    first, second = pod.workers
    pid = pod.pids()[second.ordinal]
    os.kill(pid, signal.SIGSTOP)
    try:

        def waits_for() -> list[str]:
            answer = get(f"{first.advertised_url}/readyz")
            return list(answer.json()["waitsFor"]) if answer.status_code == 503 else []

        assert eventually("the pod is not ready", waits_for, 10) == [second.advertised_url]
        assert get(f"{first.advertised_url}/livez").status_code == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    pod.wait_until_ready()


@pytest.mark.timeout(120)
def test_worker_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    """A worker that does not answer on its own port is killed, as the kubelet restarts a container that fails its probe."""
    with running_pods(tmp_path, command=["-c", IMPATIENT]) as (pod,):
        first, second = pod.workers
        before = pod.pids()
        eventually("probes are answered", lambda: len(pod.events("worker-answers")) == 2, 20)
        os.kill(before[first.ordinal], signal.SIGSTOP)

        eventually(
            "the worker is started again",
            lambda: pod.pids().get(first.ordinal, before[first.ordinal]) != before[first.ordinal],
            30,
            story=pod.log.read_text,
        )
        pod.wait_until_ready()

        assert [event["worker"] for event in pod.events("worker-silent")] == [first.name]
        assert pod.pids()[second.ordinal] == before[second.ordinal]


def test_metrics_are_those_of_all_workers(shared_pod: PodProcess) -> None:
    """Any port of the pod returns the metrics of all workers, each metric once, told apart by the label `worker`."""
    for url in (shared_pod.front, shared_pod.workers[1].advertised_url):
        families = list(text_string_to_metric_families(get(f"{url}/metrics").text))
        names = [family.name for family in families]
        samples = {family.name: family.samples for family in families}

        assert len(set(names)) == len(names)
        assert {s.labels["worker"] for family in families for s in family.samples} == {"0", "1"}
        positions = [(s.labels["worker"], int(s.labels["partition"])) for s in samples["qt_position"]]
        assert sorted(partition for _, partition in positions) == list(range(PARTITIONS))
        assert [s.value for s in samples["qt_worker_up"]] == [1, 1]


def test_metrics_say_which_worker_does_not_answer(pod: PodProcess) -> None:
    """A scrape lasts about a second when a worker hangs, and has the others' metrics."""
    pid = pod.pids()[pod.workers[1].ordinal]
    os.kill(pid, signal.SIGSTOP)
    try:
        text = get(f"{pod.workers[0].advertised_url}/metrics", timeout=4).text
    finally:
        os.kill(pid, signal.SIGCONT)

    assert 'qt_worker_up{worker="0"} 1.0\nqt_worker_up{worker="1"} 0.0\n' in text
    assert 'qt_placement_epoch{worker="0"} 1.0' in text
    assert 'qt_placement_epoch{worker="1"}' not in text


def test_metrics_of_one_worker_need_the_token_of_nodes(shared_pod: PodProcess) -> None:
    """A client has the metrics of the pod, and not the path between workers."""
    assert get(f"{shared_pod.front}/internal/v1/metrics").status_code == 401


AMBIGUOUS = b"Content-Length: 1\r\nTransfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"POST /v1/multi-get HTTP/1.1\r\nHost: x\r\n" + AMBIGUOUS, b"400"),
        (b"GET /v1/keys/key-1 HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 70_000, b"413"),
        (b"GET /internal/v1/placement HTTP/1.1\r\nHost: x", b"401"),
        (b"GET /livez HTTP/1.1\r\nHost: x", b"200"),
    ],
    ids=["ambiguous framing", "long head", "internal path", "good request"],
)
def test_front_port_refuses_what_a_node_refuses(
    shared_pod: PodProcess, request_head: bytes, status: bytes
) -> None:
    """The strict parser, the bounds and the token apply to every connection to the front port and to own ports."""
    for port in (*[shared_pod.settings.http_port] * 8, *(worker.http_port for worker in shared_pod.workers)):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(request_head + b"\r\n\r\n")
            assert connection.recv(4096).split(b" ")[1] == status


def test_each_worker_has_its_share_of_connections_and_its_own_descriptors(shared_pod: PodProcess) -> None:
    """The limit of descriptors holds for each process, so it is not shared out; the connections of the pod are."""
    limit = resource.prlimit(shared_pod.process.pid, resource.RLIMIT_NOFILE)[0]

    served = shared_pod.events("serving")
    assert [event["descriptors"] for event in served] == [limit, limit]
    assert [event["connections"] for event in served] == [shared_pod.settings.connections_max // 2] * 2


def test_workers_keep_what_their_parent_inherited(tmp_path: Path) -> None:
    """A lock that the parent was given is free only when the last worker has ended."""
    with running_pods(tmp_path) as (pod,):
        settings = pod.settings
        pod.process.send_signal(signal.SIGTERM)
        pod.process.wait(20)
    lock = (tmp_path / "lock").open("w")
    with lock:
        again = PodProcess(settings, PARENT, inherited=[lock.fileno()])
        try:
            again.wait_until_ready()
            for pid in again.pids().values():
                assert os.readlink(f"/proc/{pid}/fd/{lock.fileno()}") == str(tmp_path / "lock")
        finally:
            again.process.kill()
            again.process.wait(10)


def test_pod_without_a_worker_left_ends(tmp_path: Path) -> None:
    """If every worker fails at its start, the parent ends with exit code 1, and the reason is in the log."""
    with running_pods(tmp_path) as (pod,):
        settings = pod.settings
        pod.process.send_signal(signal.SIGTERM)
        pod.process.wait(20)
        Path(settings.spec_path).write_text(
            '{"kafka": {"bootstrapServers": "x:1"}, "topic": "t", "auth": {"rules": []}}'
        )

        broken = PodProcess(settings, PARENT)
        try:
            assert broken.process.wait(20) == 1
        finally:
            broken.process.kill()
    assert "spec.auth.jwt: is missing" in str(broken.events("failed")[0]["reason"])


def test_port_of_a_worker_in_use_leaves_the_others_alone(tmp_path: Path) -> None:
    """A worker whose port is taken is tried again and again; the others answer, and the pod is not ready."""
    with running_pods(tmp_path) as (pod,):
        settings = pod.settings
        first, second = pod.workers
        pod.process.send_signal(signal.SIGTERM)
        pod.process.wait(20)
        with socket.create_server(("127.0.0.1", second.http_port)):
            again = PodProcess(settings, PARENT)
            try:

                def answers() -> bool:
                    with suppress(httpx.TransportError):
                        return get(f"{first.advertised_url}/readyz").status_code == 503
                    return False

                eventually("the first worker answers", answers, 20, story=again.log.read_text)
                eventually("two attempts", lambda: len(again.events("worker")) >= 3, 20)
                assert get(f"{again.front}/livez").status_code == 200
            finally:
                again.process.kill()
                again.process.wait(10)
