"""Run an executor of a view's rekey job in a pod of its own: `python -m queryable_app.ingest.rekey_executor`.

It is configured as the job. The executor connects to the driver at `rekey_host` and ends with it, or without its answers. Then
another one starts, once the driver can be reached. It has a slot for each partition of the source topic.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final, NoReturn

from queryable_app.config.topic_spec import SpecError, TopicSpec
from queryable_app.contract import REKEY_PORT, NodeSettings, SettingsError
from queryable_app.ingest.class_archive import archive_options
from queryable_app.ingest.executors import executor_arguments, executor_options, shared_secret
from queryable_app.ingest.jvm import class_path, start_executor
from queryable_app.ingest.launch import Profile, java_options
from queryable_app.ingest.process import IngestProcess
from queryable_app.placement.assignment import Placement
from queryable_app.platform.core_dumps import forbid_core_dumps
from queryable_app.platform.descriptors import raise_descriptor_limit
from queryable_app.platform.jars import JarsError, cache_dir
from queryable_app.platform.log import configure, event
from queryable_app.platform.mounted_files import read_spec, read_token

_LOOK_SECONDS: Final = 0.5
_CONNECT_SECONDS: Final = 2.0


def main() -> int:
    forbid_core_dumps()  # the JVM inherits it
    raise_descriptor_limit()
    configure()
    try:
        settings = NodeSettings.from_env()
        if not settings.pod_address or not settings.rekey_host:
            raise SettingsError("QT_POD_ADDRESS and QT_REKEY_HOST are not set; the operator sets them")
        spec, token = read_spec(settings), read_token(settings)
        placement = Placement.from_json(Path(settings.placement_path).read_text())
        process = IngestProcess(Path(settings.run_dir), 0)
    except (SettingsError, SpecError, OSError) as error:
        event("failed", reason=str(error))
        return 1
    process.handle_end_signals()
    try:
        event("starting", job="executor", application=settings.application_id)
        _run(settings, spec, placement.partitions, shared_secret(token), process.scratch)
    except JarsError as error:
        process.end(1, "failed", reason=str(error))


def _run(settings: NodeSettings, spec: TopicSpec, slots: int, secret: str, scratch: Path) -> NoReturn:
    cache = cache_dir(settings.cache_dir)
    jars = class_path(cache)
    profile = Profile(
        slots, spec.ingest.driver_memory, scratch, cache, options=tuple(settings.jvm_options.split())
    )
    options = [*java_options(profile), *archive_options(cache, jars), *executor_options()]
    while True:
        _wait_for_driver(settings.rekey_host)
        arguments = executor_arguments(settings.rekey_host, settings.pod_address, slots)
        jvm = start_executor(jars, spec.ingest.driver_memory, options, arguments, scratch, secret)
        event("executor", driver=settings.rekey_host, slots=slots)
        event("executor-ended", code=jvm.wait())
        threading.Event().wait(_LOOK_SECONDS)


def _wait_for_driver(host: str) -> None:
    waiting = False
    while True:
        try:
            socket.create_connection((host, REKEY_PORT), _CONNECT_SECONDS).close()
            return
        except OSError as error:
            if not waiting:
                event("waiting-for-driver", driver=host, reason=str(error))
            waiting = True
            time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
