"""Run a whole system as a user does: `qtopic run` as a process of its own, its nodes, and an HTTP client for them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import yaml

from queryable_app.contract import CONTROL_SOCKET, NodeSettings
from queryable_app.placement.assignment import initial_placement
from tests.support.fold import LogRecord, fold
from tests.support.waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
ANSWERS_MS_MAX = 15_000  # for reads and writes that a test expects to succeed: on a busy machine any process waits for seconds
_READS = (
    "/v1/keys/",
    "/v1/scan",
    "/v1/range",
    "/v1/prefix/",
    "/v1/count",
    "/v1/multi-get",
    "/v1/windows",
    "/v1/top",
    "/v1/index/",
)
_WITH_DEADLINE = (*_READS, "/v1/records")
_HTTP_SECONDS = 70  # more than the greatest deadline
T = TypeVar("T")


def resource(topic: str, bootstrap: str, **spec: Any) -> dict[str, Any]:
    """Return a QueryableTopic over `topic`; keywords set fields of its spec."""
    return {
        "apiVersion": "queryabletopics.io/v1alpha1",
        "kind": "QueryableTopic",
        "metadata": {"name": topic.replace("_", "-").lower()},
        "spec": {"kafka": {"bootstrapServers": bootstrap}, "topic": topic, **spec},
    }


def example(file: str, bootstrap: str) -> dict[str, Any]:
    """Return a resource of the examples, over this Kafka."""
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / file).read_text())
    document["spec"]["kafka"]["bootstrapServers"] = bootstrap
    return document


def with_deadline(path: str) -> str:
    """Add the deadline to the path of a read or write that states none. The default is for callers, not for busy machines."""
    if not path.startswith(_WITH_DEADLINE) or "deadline-ms=" in path:
        return path
    return f"{path}{'&' if '?' in path else '?'}deadline-ms={ANSWERS_MS_MAX}"


class System:
    """Control a running `qtopic run` over a directory of its own."""

    def __init__(self, process: subprocess.Popen[str], data: Path, log: Path) -> None:
        self.process, self.data, self.log = process, data, log
        self.http = httpx.Client(timeout=_HTTP_SECONDS, verify=False)

    def described(self) -> dict[str, Any]:
        """Return what `run.json` contains now."""
        return dict(json.loads((self.data / "run.json").read_text()))

    def url(self, node: int = 0) -> str:
        return str(self.described()["nodes"][node]["url"])

    def pid(self, role: str, node: int = 0) -> int:
        return int(self.described()["nodes"][node]["pids"][role])

    def kill(self, role: str, node: int = 0) -> None:
        """Send SIGKILL, then wait until the supervisor has replaced the process."""
        old = self.pid(role, node)
        os.kill(old, signal.SIGKILL)
        eventually(f"{role} is replaced", lambda: self.pid(role, node) != old, 180)

    def get(self, path: str, node: int = 0, **options: Any) -> httpx.Response:
        return self.request("GET", path, node, **options)

    def post(self, path: str, node: int = 0, **options: Any) -> httpx.Response:
        return self.request("POST", path, node, **options)

    def request(self, method: str, path: str, node: int = 0, **options: Any) -> httpx.Response:
        return self.http.request(method, self.url(node) + with_deadline(path), **options)

    def value(self, key: str, node: int = 0) -> Any:
        """Return the key's value, or None if the answer is 404 key_not_found; any other answer fails."""
        answer = self.get(f"/v1/keys/{key}", node)
        if answer.status_code == 404 and answer.json()["reason"] == "key_not_found":
            return None
        assert answer.status_code == 200, answer.text
        return answer.json()

    def status(self, node: int = 0) -> dict[str, Any]:
        return dict(self.get("/v1/status", node).json())

    def partition(self, number: int, node: int = 0) -> dict[str, Any]:
        return next(p for p in self.status(node)["partitions"] if p["partition"] == number)

    def ready(self, node: int = 0) -> bool:
        try:
            return self.get("/readyz", node).status_code == 200
        except httpx.TransportError:
            return False

    def wait_ready(self, nodes: int = 1, seconds: float = 240) -> None:
        for node in range(nodes):
            eventually(f"node {node} is ready\n{self.tail()}", lambda n=node: self.ready(n), seconds)  # type: ignore[misc]

    def at_end(self, ends: Mapping[int, int], seconds: float = 120) -> None:
        """Wait until every replica of the partitions in `ends` has applied everything below, and each has one."""

        def reached() -> bool:
            try:
                statuses = [self.status(node) for node in range(len(self.described()["nodes"]))]
            except httpx.TransportError:
                return False
            positions = [(p["partition"], p["position"]) for status in statuses for p in status["partitions"]]
            behind = [p for p, position in positions if position < ends.get(p, 0)]
            return not behind and {p for p, _ in positions} >= ends.keys()

        eventually(f"positions {dict(ends)}\n{self.tail()}", reached, seconds)

    def items(self, path: str = "/v1/scan", node: int = 0) -> Iterator[dict[str, Any]]:
        """Yield every row, page by page."""
        cursor, sign = "", "&" if "?" in path else "?"
        while True:
            answer = self.get(f"{path}{sign}limit=1000{cursor}", node)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            yield from page["items"]
            if not page["cursor"]:
                return
            cursor = f"&cursor={page['cursor']}"

    def assert_fold(self, log: Sequence[LogRecord]) -> None:
        """Check that the rows equal the fold of the topic: no key missing, none extra, every count right."""
        folded = fold(log)
        expected = {k.decode(): json.loads(row.value) for k, row in folded.items() if row.value is not None}
        served = {item["key"]: item["value"] for item in self.items()}
        assert served == expected
        assert self.get("/v1/count").json()["count"] == len(expected)
        assert sum(p["rows"] + p["deletes"] for p in self.status()["partitions"]) == len(log)

    def node_logs(self) -> str:
        return "\n".join(p.read_text(errors="replace") for p in sorted((self.data / "logs").glob("*.log")))

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] + self.node_logs()[-3000:]

    def stop(self) -> None:
        """Send Ctrl-C, and check that no process remains."""
        self.http.close()
        family = (
            psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        )
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        _gone, alive = psutil.wait_procs(family, 30)
        for left in alive:
            left.kill()
        assert not alive, f"processes remain: {alive}"


@contextmanager
def running(
    document: Mapping[str, Any],
    directory: Path,
    *options: str,
    nodes: int = 1,
    wait: bool = True,
    prefix: Sequence[str] = (),
) -> Iterator[System]:
    """Run `qtopic run` on this document until the end of the block, and wait until every node is ready if `wait` is true.

    `prefix` is a command that runs it, such as `taskset`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file, data, log = directory / "topic.yaml", directory / "data", directory / "run.log"
    file.write_text(yaml.safe_dump(dict(document)))
    command = [*prefix, sys.executable, "-m", "queryable_app.cli", "run", "-f", str(file)]
    command += ["--kafka", "file", "--nodes", str(nodes), "--data", str(data), "--port", "0", *options]
    with log.open("a") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
        )
    system = System(process, data, log)
    try:
        if wait:

            def described() -> bool:
                assert process.poll() is None, f"qtopic run ended\n{system.tail()}"
                return (data / "run.json").exists()

            eventually(f"run.json\n{log.read_text()}", described, 120)
            system.wait_ready(nodes)
        yield system
    finally:
        system.stop()


@contextmanager
def serving(
    document: Mapping[str, Any], directory: Path, partitions: int, module: str = "queryable_app.serve"
) -> Iterator[tuple[System, NodeSettings]]:
    """Run serve alone, as `qtopic run` starts it, until the end of the block; the caller feeds it. `module` runs it."""
    run_dir, data = directory / "run", directory / "data"
    for made in (run_dir, data / "logs"):
        made.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    spec, name, url = document["spec"], document["metadata"]["name"], f"http://127.0.0.1:{port}"
    placement = directory / "placement.json"
    application_id = f"local.{name}.r1"
    placement.write_text(initial_placement(application_id, partitions, [url], 1).to_json())
    spec_path = directory / "spec.json"
    spec_path.write_text(json.dumps(spec))
    settings = NodeSettings(
        name=f"{name}-r1-0",
        ordinal=0,
        application_id=application_id,
        spec_path=str(spec_path),
        bootstrap_servers=spec["kafka"]["bootstrapServers"],
        advertised_url=url,
        data_dir=str(data),
        run_dir=str(run_dir),
        placement_path=str(placement),
        cache_dir=os.environ.get("QT_CACHE_DIR", ""),
        http_host="127.0.0.1",
        http_port=port,
    )
    log = data / "logs" / "serve.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", module]
        process = subprocess.Popen(
            command, env={**os.environ, **settings.to_env()}, stdout=out, stderr=out, text=True
        )
    node = {"name": settings.name, "url": url, "pids": {"serve": process.pid, "ingest": os.getpid()}}
    (data / "run.json").write_text(json.dumps({"kafka": settings.bootstrap_servers, "nodes": [node]}))
    system = System(process, data, log)
    try:
        eventually(f"the control socket\n{system.tail()}", (run_dir / CONTROL_SOCKET).exists, 60)
        yield system, settings
    finally:
        system.stop()
