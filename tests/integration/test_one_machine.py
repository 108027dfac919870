"""Test `qtopic` on one machine: the commands, and the effect of processes or the run itself dying."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.integration import topics
from tests.integration.system import System, example, resource, running
from tests.support.kafka import KafkaForTests
from tests.support.processes import command_and_environment
from tests.support.waiting import eventually

OWN_KAFKA = ("--kafka", "embedded", "--port", "0")


def qtopic(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "queryable_app.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, input=stdin)


def produced(system: System, *arguments: object, stdin: str = "") -> dict[str, Any]:
    """Produce the records, and return the answer to the last one."""
    done = qtopic("produce", "--data", system.data, "--json", *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def got(system: System, key: str, *options: object) -> Any:
    done = qtopic("get", "--data", system.data, key, "--deadline-ms", 60_000, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running(
        resource("notes", "elsewhere:9092", view={"changes": True}),
        tmp_path_factory.mktemp("one-machine"),
        *OWN_KAFKA,
    ) as started:
        yield started


def test_produced_record_is_read_back(system: System) -> None:
    """`get` reads its own write by the position that `produce` returns."""
    position = produced(system, "greeting", '{"text": "hello"}')["position"]

    assert got(system, "greeting", "--min-position", position) == {"text": "hello"}


def test_get_in_json_contains_the_lag(system: System) -> None:
    """`get` in JSON returns value, partition, offset and lag, for scripts."""
    written = produced(system, "fresh", "1")
    answer = got(system, "fresh", "--min-position", written["position"], "--json")

    assert answer["key"] == "fresh"
    assert answer["value"] == 1
    assert (answer["partition"], answer["offset"]) == (written["partition"], written["offset"])
    assert answer["lagRecords"] >= 0


@pytest.mark.parametrize("key", ["a/b", "..", "?x=1#y", "%2F", "grüße 🎈", "ALL"])
def test_any_key_can_be_read(system: System, key: str) -> None:
    """`get` reads a key with any characters; none has a meaning in the address."""
    position = produced(system, stdin=json.dumps({"key": key, "value": {"of": key}}) + "\n")["position"]

    assert got(system, key, "--min-position", position) == {"of": key}


def test_lines_become_records_and_null_deletes(system: System) -> None:
    """`produce` accepts the lines that a scan returns; a null value deletes."""
    lines = [{"key": f"line-{n}", "value": n} for n in range(20)] + [{"key": "line-7", "value": None}]
    done = qtopic("produce", "--data", system.data, stdin="".join(json.dumps(line) + "\n" for line in lines))

    assert len(done.stdout.splitlines()) == 21
    eventually("the last line", lambda: system.value("line-19") == 19)
    eventually("the deletion", lambda: system.value("line-7") is None)


def test_deleted_key_is_not_found(system: System) -> None:
    """`get` exits with code 1 for a deleted key, and prints nothing on standard output."""
    produced(system, "doomed", "1")
    position = produced(system, "doomed", "--delete")["position"]
    done = qtopic("get", "--data", system.data, "doomed", "--min-position", position, "--deadline-ms", 60_000)

    assert (done.returncode, done.stdout) == (1, "")
    assert "position" in done.stderr


def test_watch_prints_what_was_produced(system: System) -> None:
    """`watch` begins at the first record, and goes on with what is produced meanwhile, deletions too."""
    produced(system, "watched", '{"n": 1}')
    command = [sys.executable, "-m", "queryable_app.cli", "watch", "--data", str(system.data), "watched"]
    with subprocess.Popen(
        [*command, "--from", "start", "--json"], stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        found = [json.loads(watching.stdout.readline())]
        produced(system, "watched", '{"n": 2}')
        produced(system, "--delete", "watched")
        found += [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
    assert [change["value"] for change in found] == [{"n": 1}, {"n": 2}, None]
    assert [change["deleted"] for change in found] == [False, False, True]


def test_unmet_position_is_exit_code_3(system: System) -> None:
    """`get` waits until the deadline, and no longer, for a position that does not exist yet."""
    partition = produced(system, "x", "1")["partition"]
    never = f"{partition}:1000000"
    done = qtopic("get", "--data", system.data, "x", "--min-position", never, "--deadline-ms", "100")

    assert done.returncode == 3, done.stderr


def test_status_shows_every_partition(system: System) -> None:
    """`status` prints a line for each replica, and the same in JSON."""
    table = qtopic("status", "--data", system.data)
    [node] = json.loads(qtopic("status", "--data", system.data, "--json").stdout)

    assert table.returncode == 0
    assert [line.split()[1] for line in table.stdout.splitlines()[1:]] == ["0", "1", "2", "3"]
    assert {p["partition"] for p in node["status"]["partitions"]} == {0, 1, 2, 3}


def test_malformed_line_is_named(system: System) -> None:
    """`produce` names the first bad line of a file and exits with code 2."""
    done = qtopic("produce", "--data", system.data, stdin='{"key": "ok", "value": 1}\n{"key": 1}\n')

    assert done.returncode == 2
    assert "line 2" in done.stderr


@pytest.mark.parametrize("role", ["serve", "ingest"])
def test_killed_process_is_replaced(system: System, role: str) -> None:
    """`run.json` names the replacement process, and the node continues with its stored rows."""
    position = produced(system, f"before-{role}", "1")["position"]
    assert got(system, f"before-{role}", "--min-position", position) == 1

    system.kill(role)
    system.wait_ready()

    assert psutil.pid_exists(system.pid(role))
    assert system.value(f"before-{role}") == 1
    position = produced(system, f"after-{role}", "2")["position"]
    eventually("a new record", lambda: system.value(f"after-{role}") == 2, 90)


def test_killed_broker_restarts(system: System) -> None:
    """Reads continue while the broker restarts, and the broker accepts records afterwards."""
    produced(system, "kept", "1")
    eventually("the row is readable", lambda: system.value("kept") == 1)
    children = psutil.Process(system.process.pid).children()
    [broker] = [child for child in children if "kafka.Kafka" in command_and_environment(child)]
    broker.kill()

    assert system.value("kept") == 1
    eventually("the broker has restarted", lambda: "kafka is started again" in system.log.read_text())
    eventually(
        "the broker accepts a record",
        lambda: qtopic("produce", "--data", system.data, "later", "2").returncode == 0,
    )
    eventually("the later record is readable", lambda: system.value("later") == 2, 90)


def test_records_and_rows_are_kept_between_runs(tmp_path: Path) -> None:
    """With --data the broker keeps its records and the node its rows, also after SIGKILL of the run."""
    document = resource("kept", "elsewhere:9092")
    with running(document, tmp_path, *OWN_KAFKA) as first:
        position = produced(first, "k", "1")["position"]
        assert got(first, "k", "--min-position", position) == 1
        family = psutil.Process(first.process.pid).children(recursive=True)
        os.kill(first.process.pid, 9)
        first.process.wait()
        assert not psutil.wait_procs(family, 30)[1]
    (first.data / "run.json").unlink()  # the file of the dead run remains until the next run begins

    with running(document, tmp_path, *OWN_KAFKA) as second:
        assert second.value("k") == 1
        assert second.partition(int(position.split(":")[0]))["position"] >= int(position.split(":")[1])


def test_changed_sql_rebuilds_the_rows(kafka: KafkaForTests, tmp_path: Path) -> None:
    """A change of the SQL removes every earlier row, and the run logs what has changed."""
    topics.create(kafka.bootstrap, "shaped")
    with running(resource("shaped", kafka.bootstrap), tmp_path) as first:
        position = produced(first, "k", '{"n": 1}')["position"]
        assert got(first, "k", "--min-position", position) == {"n": 1}
    sql = "SELECT key, value.n + 1 AS m FROM records"
    changed = resource(
        "shaped", kafka.bootstrap, transform={"sql": sql}, value={"format": "json", "schema": "n INT"}
    )
    with running(changed, tmp_path) as second:
        assert second.value("k") == {"m": 2}
        assert "Changed since the last run: transform, value" in second.log.read_text()


def test_invalid_sql_is_refused_before_the_start(tmp_path: Path) -> None:
    """`run` prints Spark's own message with the position, exits with code 2, and starts no broker."""
    document = resource("wrong", "elsewhere:9092", transform={"sql": "SELECT key, valu FROM records"})
    with running(document, tmp_path, *OWN_KAFKA, wait=False) as system:
        assert system.process.wait(120) == 2
        assert "valu" in system.log.read_text()
        assert not (system.data / "kafka").exists()


def test_three_nodes_share_the_partitions(kafka: KafkaForTests, tmp_path: Path) -> None:
    """Each of three nodes has its own port and processes, and `get` finds a key on any of them."""
    topics.create(kafka.bootstrap, "shared")
    with running(resource("shared", kafka.bootstrap), tmp_path, nodes=3) as system:
        nodes = system.described()["nodes"]
        assert len({node["url"] for node in nodes}) == 3
        for n in range(12):
            position = produced(system, f"k-{n}", str(n))["position"]
            assert got(system, f"k-{n}", "--min-position", position) == n
        assigned = [{p["partition"] for p in system.status(n)["partitions"]} for n in range(3)]
        assert sorted(p for partitions in assigned for p in partitions) == [0, 1, 2, 3]


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
# A test that names an example's file runs it and checks its rows.
NAMED = {
    Path(name).name
    for file in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(r"[\w/-]+\.yaml", file.read_text())
}


@pytest.mark.parametrize("file", [e for e in EXAMPLES if e.name not in NAMED], ids=lambda file: file.stem)
def test_example_without_a_test_of_its_own_runs(kafka: KafkaForTests, tmp_path: Path, file: Path) -> None:
    """Each other file of the examples starts nodes that become ready."""
    document = example(file.name, kafka.bootstrap)
    topic = document["spec"]["topic"] = (
        f"example-{file.stem}"  # others may have their own under the example's name
    )
    topics.create(kafka.bootstrap, topic)
    with running(document, tmp_path, nodes=document["spec"].get("replicas", 1)) as system:
        assert system.status()["topic"] == topic


def test_printed_requests_of_the_demo_work(tmp_path: Path) -> None:
    """The demo's three curl lines find rows of the example records, and its address serves a page."""
    document = yaml.safe_load((EXAMPLES[0].parent / "demo.yaml").read_text())
    with running(document, tmp_path, *OWN_KAFKA, "--produce-examples", "50") as system:
        eventually("the demo prints what to try", lambda: "In a browser" in system.log.read_text())
        lines = [line.strip() for line in system.log.read_text().splitlines() if line.startswith("  curl ")]
        answers = [
            subprocess.run(["sh", "-c", f"{line} -sSf"], capture_output=True, text=True, timeout=30)
            for line in lines
        ]

        assert [answer.stderr for answer in answers] == ["", "", ""]
        value, scan, count = (json.loads(answer.stdout) for answer in answers)
        assert value["page"]
        assert len(scan["items"]) == 5
        assert count["count"] > 0
        assert "<html" in system.get("/").text
