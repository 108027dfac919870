"""Test docs/security.md: its trial on one machine, as it is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from queryable_app.contract import NODE_HEADER
from tests.integration.system import EXAMPLES, System, example, running
from tests.support.pages import blocks
from tests.support.visible_secrets import dumpable, places_of, secrets_of, visible

PAGE = EXAMPLES.parent / "docs" / "security.md"


def test_trial_on_one_machine_does_what_the_page_says(tmp_path: Path) -> None:
    """The page's commands make Secrets, a token, a write and reads; alice sees her own keys, and is refused another's."""
    secrets, trial = blocks(PAGE, "sh")[:2]
    make_secrets, start = secrets.rsplit("qtopic run", 1)
    assert start == " -f examples/guarded-users.yaml --secrets secrets\n"
    shell(make_secrets, tmp_path)
    view = example("guarded-users.yaml", "elsewhere:9092")
    options = ("--kafka", "embedded", "--port", "0", "--secrets", str(tmp_path / "secrets"))
    with running(view, tmp_path / "run", *options) as system:
        qtopic = tmp_path / "qtopic"
        qtopic.write_text(
            f'#!/bin/sh\nexec {sys.executable} -m queryable_app.cli "$@" --data {system.data}\n'
        )
        qtopic.chmod(0o755)
        written = trial.replace("https://127.0.0.1:8080", system.url()).replace(
            ".venv/bin/python", sys.executable
        )
        before_reads, reads = written.split("qtopic get", 1)
        done = shell(before_reads, tmp_path)
        assert '"position"' in done.stdout, done
        of_alice, of_bob, scan = ("qtopic get" + reads).splitlines()
        environment = {"QTOPIC_TOKEN_FILE": "alice.token"}
        read = shell(
            of_alice.split("#")[0] + " --consistency strong --deadline-ms 60000", tmp_path, environment
        )
        assert (read.returncode, read.stdout) == (0, of_alice.split("# ")[1] + "\n"), read.stderr
        refused = shell(of_bob.split("#")[0], tmp_path, environment)
        assert (refused.returncode, of_bob.split("# ")[1] in refused.stderr) == (2, True), refused.stderr
        assert [line.split() for line in shell(scan, tmp_path, environment).stdout.splitlines()] == [
            ["KEY", "city"],
            ["user/alice/1", "Paris"],
        ]
        check_that_no_secret_is_visible(system, tmp_path)


def check_that_no_secret_is_visible(system: System, directory: Path) -> None:
    """No argument, variable, log, status or metric has a key or a token, and no process dumps its memory."""
    secrets = secrets_of(directory / "secrets") | secrets_of(system.data / "internal-token")
    for file in (*directory.glob("*.token"), system.data / "internal-token"):
        secrets[file.name] = file.read_bytes().strip()
        secrets[f"signature of {file.name}"] = secrets[file.name].rpartition(b".")[2]
    assert len(secrets) > 5
    run = psutil.Process(system.process.pid)
    answers = {
        path: system.get(path, headers={NODE_HEADER: (system.data / "internal-token").read_text().strip()})
        for path in ("/v1/status", "/metrics", "/v1/placement")
    }
    assert [answer.status_code for answer in answers.values()] == [200, 200, 401]
    logs = {"log of the run": system.log.read_bytes(), "log of the node": system.node_logs().encode()}
    assert b"audit-refused" in logs["log of the node"]
    places = places_of(run) | logs | {path: answer.content for path, answer in answers.items()}
    assert len(places) > 8
    assert visible(secrets, places) == []
    assert dumpable([run, *run.children(recursive=True)]) == []


def shell(
    script: str, directory: Path, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", **(more or {})}
    command = ["sh", "-e", "-c", script]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )
