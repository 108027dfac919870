"""Run the workers of a pod: start them, restart each that ends or hangs, and end them together.

Strategy: each worker is a process of its own with the settings of a node. This parent holds no data and no socket of a client,
so what happens to one worker leaves the others alone. It probes each worker as the kubelet probes a pod, because a probe of the
front port reaches any worker. If all workers have ended at the same time, the parent ends too, and its supervisor says so.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
import time
from collections.abc import Sequence
from typing import Final

from queryable_app.contract import NodeSettings
from queryable_app.platform.descriptors import raise_descriptor_limit
from queryable_app.platform.log import event
from queryable_app.platform.processes import Process, SupervisedProcess

# As the operator's probes of a pod.
PROBE_SECONDS: Final = 10.0
PROBE_TIMEOUT_SECONDS: Final = 5.0
PROBE_FAILURES_MAX: Final = 6
START_SECONDS_MAX: Final = 300.0

_TICK_SECONDS: Final = 0.1
_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_EVERY_ADDRESS: Final = ("::", "0.0.0.0")  # noqa: S104  (compared with, not listened on)


def run_pod(pod: NodeSettings, workers: Sequence[NodeSettings]) -> int:
    """Run the workers until a signal ends the process. Return the exit code."""
    raise_descriptor_limit()  # the workers inherit it
    event("starting", pod=pod.name, application=pod.application_id, workers=len(workers))
    for number in _END_SIGNALS:  # the first process of a container has no default handlers
        signal.signal(number, lambda *_: sys.exit(0))
    code = asyncio.run(_run(workers))
    event("stopped", pod=pod.name)
    return code


class _Worker:
    """One worker's process, and the result of its probes."""

    def __init__(self, settings: NodeSettings, inherited: Sequence[int]) -> None:
        self.name = settings.name
        self._host = "localhost" if settings.http_host in _EVERY_ADDRESS else settings.http_host
        self._port = settings.http_port
        self._tls = _unverified() if settings.tls_dir else None
        command, environ = [sys.executable, "-m", "queryable_app.serve"], {**os.environ, **settings.to_env()}

        def start() -> Process:
            return Process(command, None, environ, inherited)

        self.supervised = SupervisedProcess(settings.name, start, start())

    @property
    def process(self) -> Process:
        return self.supervised.process

    async def kill_when_silent(self) -> None:
        """Probe the process for ever, and kill it when it does not answer."""
        probed, answered, failures = self.process, False, 0
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            if self.process is not probed:
                probed, answered, failures = self.process, False, 0
            if await self._answers():
                if not answered:
                    event("worker-answers", worker=self.name)
                answered, failures = True, 0
                continue
            failures += 1
            starts = not answered and time.monotonic() - probed.started_at < START_SECONDS_MAX
            if failures >= PROBE_FAILURES_MAX and not starts and self.process is probed:
                event("worker-silent", worker=self.name, seconds=failures * PROBE_SECONDS)
                probed.kill()
                failures = 0

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
                try:
                    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    return (await reader.readline()).startswith(b"HTTP/1.1 200 ")
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False


class _Pod:
    def __init__(self, workers: Sequence[NodeSettings]) -> None:
        inherited = _inherited_descriptors()
        self.ending = False
        self.workers = [_Worker(settings, inherited) for settings in workers]

    def supervise(self) -> bool:
        """Start again what has ended. Return False if no worker is left."""
        for worker in self.workers:
            if line := worker.supervised.supervise():
                event("worker", reason=line)
        return not all(worker.supervised.waits for worker in self.workers)

    def runs(self) -> bool:
        return any(worker.process.exit_code is None for worker in self.workers)

    def on_end_signal(self) -> None:
        """Pass the signal on: a worker drains after the first one, and stops after the second."""
        self.ending = True
        for worker in self.workers:
            if worker.process.exit_code is None:
                worker.process.terminate()


async def _run(workers: Sequence[NodeSettings]) -> int:
    pod = _Pod(workers)
    for number in _END_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, pod.on_end_signal)
    probes = [asyncio.create_task(worker.kill_when_silent()) for worker in pod.workers]
    while not pod.ending and pod.supervise():  # noqa: ASYNC110  (a process has no event)
        await asyncio.sleep(_TICK_SECONDS)
    for probe in probes:
        probe.cancel()
    if not pod.ending:
        event("failed", reason="all workers have ended")
        return 1
    while pod.runs():  # noqa: ASYNC110  (the same)
        await asyncio.sleep(_TICK_SECONDS)
    return 0


def _unverified() -> ssl.SSLContext:
    """Return the context of a probe, which says and learns nothing secret, of a process that this one has started."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _inherited_descriptors() -> list[int]:
    """Return what this process was given beside the standard streams, like the lock of a run, which each worker keeps too."""
    inherited = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                inherited.append(int(name))
        except OSError:  # the descriptor of the directory itself
            continue
    return inherited
