"""Run a pod's ingest: `python -m queryable_app.ingest`, configured by the variables of `contract.NodeSettings`.

One JVM feeds all nodes of the pod. Each node has a query of its own, so that the end of one worker stops no other's rows.

Ingest keeps no state, so it ends by killing the JVM. If the JVM dies by itself, or a newer ingest has taken over, the process
ends with an exit code of its own, and its supervisor decides what follows.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from queryable_app.config.topic_spec import SpecError, TopicSpec
from queryable_app.contract import NodeSettings, SettingsError, worker_settings
from queryable_app.ingest.control import Superseded
from queryable_app.ingest.failures import DescriptorsTooFew, permanent_failure
from queryable_app.ingest.rehearsal import turn_to_rehearse
from queryable_app.ingest.session import Profile, prepare_jvm, start_session
from queryable_app.ingest.stream import view_of
from queryable_app.ingest.supervisor import Supervisor, first_line, report_failed
from queryable_app.ingest.transform import check_view
from queryable_app.ingest.warm_up import warm_up
from queryable_app.ingest.writer_check import WriterBroken, check_writer
from queryable_app.placement.assignment import Placement
from queryable_app.platform.core_dumps import forbid_core_dumps
from queryable_app.platform.descriptors import descriptor_limit, raise_descriptor_limit
from queryable_app.platform.jars import JarsError, cache_dir
from queryable_app.platform.log import add_to_events, configure, event
from queryable_app.platform.mounted_files import read_node_spec
from queryable_app.policy.descriptor_plan import descriptor_shortage

JVM_DIED: Final = 3
"""The exit code when the JVM has ended by itself."""

SUPERSEDED: Final = 4
"""The exit code when serve has taken a newer ingest. Started again, this one would be the newest."""

_JVM_EXIT_SECONDS: Final = 2.0


class IngestProcess:
    """End the JVM and remove its files when this process ends."""

    def __init__(self, run_dir: Path, drain_seconds: int) -> None:
        self._drain_seconds = drain_seconds
        self._draining = False
        scratches = run_dir / "ingest"
        shutil.rmtree(scratches, ignore_errors=True)  # left by a process that was killed
        scratches.mkdir(parents=True)
        self.scratch = Path(tempfile.mkdtemp(dir=scratches))
        self._ending = threading.Lock()

    def watch(self, jvm: subprocess.Popen[bytes]) -> None:
        threading.Thread(target=self._wait_for_jvm, args=(jvm,), name="jvm-watch", daemon=True).start()

    def end(self, exit_code: int, name: str, **fields: object) -> NoReturn:
        """End the process at once; of several callers the first one gives the reason."""
        if not self._ending.acquire(blocking=False):
            signal.pause()  # the other thread ends the process
        event(name, **fields)
        for child in children():
            os.kill(child, signal.SIGKILL)
        shutil.rmtree(self.scratch, ignore_errors=True)
        os._exit(exit_code)

    def handle_end_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._on_end_signal())

    def _on_end_signal(self) -> None:
        """Go on feeding serve while it drains, so that reads that wait for freshness are answered; end at a second signal."""
        if self._drain_seconds and not self._draining:
            self._draining = True
            event("draining", seconds=self._drain_seconds)
            last = threading.Timer(self._drain_seconds, self.end, (0, "stopped"))
            last.daemon = True
            last.start()
        else:
            self.end(0, "stopped")

    def _wait_for_jvm(self, jvm: subprocess.Popen[bytes]) -> None:
        code = jvm.wait()
        # A signal to the whole process group reaches the JVM too. The handler in this process then reports the end.
        threading.Event().wait(0.2)
        if self._draining:
            self.end(0, "stopped")
        self.end(JVM_DIED, "jvm-died", code=code)


def main() -> int:
    forbid_core_dumps()  # the JVM inherits it
    raise_descriptor_limit()  # the JVM inherits it
    configure()
    try:
        settings = NodeSettings.from_env()
        nodes = worker_settings(settings)
        spec = read_node_spec(settings)
        placement = Placement.from_json(Path(settings.placement_path).read_text())
        process = IngestProcess(Path(settings.run_dir), settings.drain_seconds)
    except (SettingsError, SpecError, OSError) as error:
        event("failed", reason=str(error))
        return 1
    process.handle_end_signals()
    try:
        event("starting", node=settings.name, application=settings.application_id)
        read(settings, nodes, spec, placement, process)
    except (JarsError, WriterBroken, DescriptorsTooFew) as error:
        process.end(1, "failed", reason=str(error))
    except Superseded as error:
        process.end(SUPERSEDED, "superseded", reason=str(error))
    except Exception as error:
        threading.Event().wait(_JVM_EXIT_SECONDS)  # if the JVM has died, its watcher reports that instead
        process.end(1, "failed", reason=first_line(error))


def read(
    settings: NodeSettings,
    nodes: Sequence[NodeSettings],
    spec: TopicSpec,
    placement: Placement,
    process: IngestProcess,
) -> NoReturn:
    """Start the JVM, check what can be checked, and read the topic until the process is ended."""
    run_dir, partitions = Path(settings.run_dir), placement.partitions
    try:
        replicas = sum(len(placement.assigned_to(node.ordinal)) for node in nodes)
        if missing := descriptor_shortage(descriptor_limit(), replicas):
            raise DescriptorsTooFew(missing)
        cache = cache_dir(settings.cache_dir)
        threads = partitions * len(nodes) + 1  # for the rehearsal
        profile = Profile(
            threads,
            spec.ingest.driver_memory,
            process.scratch,
            cache,
            options=tuple(settings.jvm_options.split()),
        )
        gateway = prepare_jvm(profile)
        process.watch(gateway.proc)
        warm_up(gateway.jvm, settings.bootstrap_servers, spec.kafka_config, spec.topic)
        session = start_session(profile)
        process.handle_end_signals()  # Spark has replaced the handlers with its own
        check_writer(session, run_dir)
        reads_headers = check_view(session, view_of(spec)).reads_headers
        event("spark", version=session.version, partitions=partitions)
        rehearsal = turn_to_rehearse(profile.options)
        supervise(
            {
                node.name: Supervisor(
                    session,
                    spec,
                    settings.bootstrap_servers,
                    Path(node.run_dir),
                    process.scratch / node.name,
                    partitions,
                    reads_headers,
                    rehearsal,
                )
                for node in nodes
            }
        )
    except Exception as error:
        if (failure := permanent_failure(error)) is not None:
            _in_threads([partial(report_failed, Path(n.run_dir), spec.ingest.mode, failure) for n in nodes])
        raise


def supervise(supervisors: Mapping[str, Supervisor]) -> NoReturn:
    """Run the supervisors of all nodes until one of them fails, and raise its error.

    Py4J gives each thread a connection of its own.
    """
    if len(supervisors) == 1:
        next(iter(supervisors.values())).run()
    failures: queue.Queue[Exception] = queue.Queue()

    def run(node: str, supervisor: Supervisor) -> None:
        add_to_events(node=node)
        try:
            supervisor.run()
        except Exception as error:
            failures.put(error)

    for each in supervisors.items():
        threading.Thread(target=run, args=each, name="supervisor", daemon=True).start()
    raise failures.get()


def _in_threads(calls: Sequence[Callable[[], object]]) -> None:
    """Make all calls at the same time, and return when all have returned."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def children() -> list[int]:
    """Return the process ids of this process's children: the JVM, also while it starts."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has just ended
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(status.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
