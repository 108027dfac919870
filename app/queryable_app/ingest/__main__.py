"""Run a pod's ingest: `python -m queryable_app.ingest`, configured by the variables of `contract.NodeSettings`.

One JVM feeds all nodes of the pod. It starts first of all, since PySpark takes half a second to import.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from queryable_app.config.topic_spec import SpecError
from queryable_app.contract import NodeSettings, SettingsError, worker_settings
from queryable_app.ingest.jvm import StartedJvm
from queryable_app.ingest.launch import DescriptorsTooFew, Profile, launch
from queryable_app.ingest.process import IngestProcess
from queryable_app.placement.assignment import Placement
from queryable_app.platform.collector import long_lived
from queryable_app.platform.core_dumps import forbid_core_dumps
from queryable_app.platform.descriptors import descriptor_limit, raise_descriptor_limit
from queryable_app.platform.jars import JarsError, cache_dir
from queryable_app.platform.log import configure, event
from queryable_app.platform.mounted_files import read_node_spec
from queryable_app.policy.descriptor_plan import descriptor_shortage


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
    event("starting", node=settings.name, application=settings.application_id)
    profile = Profile(
        placement.partitions * len(nodes) + 1,  # one for the rehearsal
        spec.ingest.driver_memory,
        process.scratch,
        cache_dir(settings.cache_dir),
        options=tuple(settings.jvm_options.split()),
    )
    replicas = sum(len(placement.assigned_to(node.ordinal)) for node in nodes)
    jvm = _launched(profile, process, replicas)
    with long_lived():
        from queryable_app.ingest.exit_codes import run
        from queryable_app.ingest.reading import read

    run(process, partial(read, settings, nodes, spec, placement, process, profile, jvm))


def _launched(profile: Profile, process: IngestProcess, replicas: int) -> Future[StartedJvm]:
    """Start the JVM. Return it, or why it did not start."""
    jvm: Future[StartedJvm] = Future()
    try:
        if missing := descriptor_shortage(descriptor_limit(), replicas):
            raise DescriptorsTooFew(missing)
        started = launch(profile)
        process.watch(started.process)
        jvm.set_result(started)
    except (JarsError, DescriptorsTooFew, OSError) as error:
        jvm.set_exception(error)
    return jvm


if __name__ == "__main__":
    sys.exit(main())
