"""Test docs/security.md: its trial on one machine, as it is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.system import EXAMPLES, example, running
from tests.support.pages import blocks

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


def shell(
    script: str, directory: Path, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", **(more or {})}
    command = ["sh", "-e", "-c", script]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )
