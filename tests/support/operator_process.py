"""Run the operator as a process, as a Deployment does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from tests.support.waiting import eventually

_ROOT = Path(__file__).parents[2]
_START_SECONDS = 60.0


class OperatorProcess:
    def __init__(self, log: Path, kubeconfig: str, options: tuple[str, ...], prelude: str) -> None:
        self._log = log
        run = ["-m", "queryable_operator"]
        if prelude:
            run = ["-c", f"{prelude}\nfrom queryable_operator.__main__ import main\nmain()"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QT_")}
        with log.open("ab") as file:
            self.popen = subprocess.Popen(
                [sys.executable, *run, "--node-image=example/node:1", "--metrics-port=0", *options],
                cwd=_ROOT,
                env={**environment, "KUBECONFIG": kubeconfig},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def port(self) -> int:
        """Return the port of metrics and health, once the operator has logged it."""
        self.wait_for_log("/metrics and /healthz are at port")
        return int(re.findall(r"are at port (\d+)", self.log)[-1])

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", trust_env=False, timeout=30, verify=False)

    def metrics(self) -> Mapping[str, float]:
        lines = [line.rpartition(" ") for line in self.get("/metrics").text.splitlines() if line[:1] != "#"]
        return {name: float(value) for name, _, value in lines}

    def wait_for_log(self, text: str, seconds: float = _START_SECONDS) -> None:
        def logged() -> bool:
            assert self.popen.poll() is None, self.log
            return text in self.log

        eventually(f"the log has {text!r}", logged, seconds, story=lambda: self.log)

    def rss_mib(self) -> float:
        return float(psutil.Process(self.popen.pid).memory_info().rss) / 2**20

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.popen.pid).cpu_times()
        return float(times.user + times.system)

    def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.popen.send_signal(by)
        return self.popen.wait(60)


@contextmanager
def operator_process(
    log: Path, kubeconfig: str, *options: str, prelude: str = ""
) -> Iterator[OperatorProcess]:
    """Run the operator until the end of the block. `kubeconfig` is its text or path; `prelude` is Python that runs first."""
    if kubeconfig.startswith("{"):
        file = log.with_suffix(".kubeconfig")
        file.write_text(kubeconfig)
        kubeconfig = str(file)
    process = OperatorProcess(log, kubeconfig, options, prelude)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait(60)
