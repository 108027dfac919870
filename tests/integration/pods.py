"""Run both processes of a node as a pod does, with settings of the test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil

from queryable_app.contract import NodeSettings


class Pod:
    """Run serve and ingest of a node with the same variables. `directory` gets their logs."""

    def __init__(self, settings: NodeSettings, directory: Path) -> None:
        self.directory = directory
        self._environ = {**os.environ, **settings.to_env()}
        self.http = httpx.Client(base_url=settings.advertised_url, timeout=40, trust_env=False)
        self.serve, self.ingest = self._start("serve"), self._start("ingest")

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"queryable_app.{role}"]
        with (self.directory / f"{role}.log").open("ab") as log:
            return subprocess.Popen(command, env=self._environ, stdout=log, stderr=log)

    def restart(self) -> None:
        self.stop()
        self.serve, self.ingest = self._start("serve"), self._start("ingest")

    def stop(self) -> None:
        for process in (self.serve, self.ingest):
            process.send_signal(signal.SIGTERM)
        for process in (self.serve, self.ingest):
            assert process.wait(30) == 0, self.logs()

    def status(self) -> dict[str, Any]:
        return dict(self.http.get("/v1/status").json())

    def ingest_is(self, state: str) -> bool:
        try:
            return bool(self.status()["ingest"]["state"] == state)
        except httpx.TransportError:
            return False

    def logs(self) -> str:
        return "".join((self.directory / f"{role}.log").read_text() for role in ("serve", "ingest"))

    def family(self) -> list[psutil.Process]:
        """Return the processes of the pod, with the JVM."""
        alive = [process for process in (self.serve, self.ingest) if process.poll() is None]
        parents = [psutil.Process(process.pid) for process in alive]
        return [*parents, *(child for parent in parents for child in parent.children(recursive=True))]

    def kill(self) -> None:
        """Kill what is left of the processes."""
        self.http.close()
        for process in self.family():
            process.kill()
        self.serve.wait(10)
        self.ingest.wait(10)
