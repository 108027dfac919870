"""Read the topic with the JVM that has been started, until the process is ended.

Each node of the pod has a query of its own, so that the end of one worker stops no other's rows.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import NoReturn

from queryable_app.config.topic_spec import TopicSpec
from queryable_app.contract import NodeSettings
from queryable_app.ingest.failures import permanent_failure
from queryable_app.ingest.gateway import connect
from queryable_app.ingest.jvm import StartedJvm
from queryable_app.ingest.launch import Profile
from queryable_app.ingest.process import IngestProcess
from queryable_app.ingest.rehearsal import turn_to_rehearse
from queryable_app.ingest.session import start_session
from queryable_app.ingest.stream import view_of
from queryable_app.ingest.supervisor import Supervisor, report_failed
from queryable_app.ingest.transform import check_view
from queryable_app.ingest.warm_up import warm_up
from queryable_app.ingest.writer_check import check_writer
from queryable_app.placement.assignment import Placement
from queryable_app.platform.log import add_to_events, event


def read(
    settings: NodeSettings,
    nodes: Sequence[NodeSettings],
    spec: TopicSpec,
    placement: Placement,
    process: IngestProcess,
    profile: Profile,
    jvm: Future[StartedJvm],
) -> NoReturn:
    """Check what can be checked, and read the topic until the process is ended."""
    run_dir, partitions = Path(settings.run_dir), placement.partitions
    try:
        gateway = connect(jvm.result())
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
