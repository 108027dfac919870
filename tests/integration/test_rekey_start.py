"""Test where a run of the rekey job begins, with a node that answers whatever a test needs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from queryable_app.contract import NodeSettings
from queryable_app.placement.assignment import initial_placement
from queryable_app.platform.processes import Process
from tests.integration import topics
from tests.integration.system import resource
from tests.support.kafka import KafkaForTests
from tests.support.waiting import eventually

COUNTS: dict[str, Any] = {
    "value": {"format": "json", "schema": "page STRING"},
    "transform": {"sql": "SELECT value.page AS page FROM records"},
    "view": {
        "kind": "aggregate",
        "aggregate": {"groupBy": ["page"], "columns": [{"name": "n", "op": "count"}]},
    },
}


@contextmanager
def node(
    positions: Callable[[], list[int]], note: Callable[[dict[str, Any]], object] = lambda _: None
) -> Iterator[str]:
    """Answer the job's reports as a node with the replica of partition 0, and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            note(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            replica = {"partition": 0, "sources": positions(), "refused": [], "sourceId": ""}
            answer = json.dumps({"replicas": [replica]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            with suppress(OSError):  # the job may have ended
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def job(topic: str, bootstrap: str, node_url: str, directory: Path) -> Iterator[Path]:
    """Run the job of a view with one node, and yield its log."""
    application_id = f"local.{topic}.r1"
    spec, placement = directory / "spec.json", directory / "placement.json"
    spec.write_text(json.dumps(resource(topic, bootstrap, **COUNTS)["spec"]))
    placement.write_text(initial_placement(application_id, 1, [node_url], 1).to_json())
    settings = NodeSettings(
        name=topic,
        ordinal=0,
        application_id=application_id,
        spec_path=str(spec),
        bootstrap_servers=bootstrap,
        advertised_url=node_url,
        data_dir=str(directory),
        run_dir=str(directory / "job"),
        placement_path=str(placement),
    )
    command = [sys.executable, "-m", "queryable_app.ingest.rekey"]
    process = Process(command, directory / "job.log", {**os.environ, **settings.to_env()})
    try:
        yield directory / "job.log"
    finally:
        process.kill()


def test_run_begins_while_another_job_moves_the_positions(kafka: KafkaForTests, tmp_path: Path) -> None:
    """A position that another job reaches after this one has seen the topic is no sign of a topic that was made again."""
    topic = "moving-positions"
    topics.create(kafka.bootstrap, topic, 1)

    def moved() -> list[int]:
        """Return the position of a node that has just got one more record through another job."""
        topics.produce(kafka.bootstrap, topic, [(b"key", b'{"page": "/"}')])
        return list(topics.ends(kafka.bootstrap, topic).values())

    with node(moved) as url, job(topic, kafka.bootstrap, url, tmp_path) as log:
        eventually("the run begins", lambda: "rekey-run" in log.read_text(), 120, story=log.read_text)
        assert "rekey-run-ended" not in log.read_text()


@pytest.mark.parametrize("records", [0, 1], ids=["idle", "with-records"])
def test_job_of_an_idle_topic_rehearses_a_record(kafka: KafkaForTests, tmp_path: Path, records: int) -> None:
    """If there is no record to begin with, the job computes a made-up one before it reports that it streams."""
    topic, states = f"rehearsed-{records}", set[str]()
    topics.create(kafka.bootstrap, topic, 1)
    topics.produce(kafka.bootstrap, topic, [(b"key", b'{"page": "/"}')] * records)

    with (
        node(lambda: [0], lambda report: states.add(report["state"])) as url,
        job(topic, kafka.bootstrap, url, tmp_path) as log,
    ):
        eventually("the job streams", lambda: "streaming" in states, 120, story=log.read_text)
        assert ("record-rehearsed" in log.read_text()) is (records == 0)


def test_job_names_the_last_bad_record(kafka: KafkaForTests, tmp_path: Path) -> None:
    """The report of a job says how many records could not be decoded, and which was the last, and why."""
    topic, details = "bad-records", set[str]()
    topics.create(kafka.bootstrap, topic, 1)
    topics.produce(kafka.bootstrap, topic, [(b"a", b"{"), (b"b", b'{"page": "/"}'), (b"c", b"no json")])

    with (
        node(lambda: [0], lambda report: details.add(report["detail"])) as url,
        job(topic, kafka.bootstrap, url, tmp_path) as log,
    ):
        last = "2 bad, the last at offset 2 of partition 0: "
        eventually(
            "the job names it", lambda: any(last in detail for detail in details), 120, story=log.read_text
        )
        assert any(re.search(r"1 rows .* partition 0: .*JSON", detail) for detail in details)
