"""Run a view's rekey job: `python -m queryable_app.ingest.rekey`, configured by the variables of `contract.NodeSettings`.

The application, the spec, the placement and the token are those of the view's nodes. `run_dir` is the job's own.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

from queryable_app.config.topic_spec import SpecError, TopicSpec
from queryable_app.contract import NodeSettings, SettingsError
from queryable_app.ingest.exit_codes import run
from queryable_app.ingest.gateway import connect
from queryable_app.ingest.launch import Profile, launch
from queryable_app.ingest.process import IngestProcess
from queryable_app.ingest.rekey_job import RekeyJob
from queryable_app.ingest.session import start_session
from queryable_app.ingest.warm_up import warm_up
from queryable_app.placement.assignment import Placement
from queryable_app.platform.core_dumps import forbid_core_dumps
from queryable_app.platform.descriptors import raise_descriptor_limit
from queryable_app.platform.jars import cache_dir
from queryable_app.platform.log import configure, event
from queryable_app.platform.mounted_files import read_spec, read_token


def main() -> int:
    forbid_core_dumps()  # the JVM inherits it
    raise_descriptor_limit()
    configure()
    try:
        settings = NodeSettings.from_env()
        spec = read_spec(settings)
        placement = Placement.from_json(Path(settings.placement_path).read_text())
        if not spec.is_rekeyed:
            raise SettingsError("the view has the record key, so it needs no rekey job")
        process = IngestProcess(Path(settings.run_dir), 0)
    except (SettingsError, SpecError, OSError) as error:
        event("failed", reason=str(error))
        return 1
    process.handle_end_signals()
    event("starting", job="rekey", application=settings.application_id)
    run(process, partial(_rekey, settings, spec, placement.partitions, process))


def _rekey(settings: NodeSettings, spec: TopicSpec, partitions: int, process: IngestProcess) -> NoReturn:
    in_pods = bool(settings.pod_address)
    executors = min(spec.ingest.executors, partitions)  # each reads a partition at least
    profile = Profile(
        partitions + 1,
        spec.ingest.driver_memory,
        process.scratch,
        cache_dir(settings.cache_dir),
        0 if in_pods else executors,
        settings.pod_address,
        read_token(settings) if in_pods else "",
        tuple(settings.jvm_options.split()),
    )
    jvm = launch(profile)
    process.watch(jvm.process)
    gateway = connect(jvm)
    warm_up(gateway.jvm, settings.bootstrap_servers, spec.kafka_config, spec.topic)
    session = start_session(profile)
    process.handle_end_signals()  # Spark has replaced the handlers with its own
    event("spark", version=session.version, partitions=partitions, executors=executors)
    RekeyJob(session, spec, settings, partitions, process.scratch).run()


if __name__ == "__main__":
    sys.exit(main())
