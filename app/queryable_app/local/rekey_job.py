"""Run the rekey job of a view on this machine, and remove its internal topics."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from queryable_app.config.kafka_settings import KafkaConnection
from queryable_app.config.rekey import internal_topic
from queryable_app.local import topics
from queryable_app.local.data_directory import DataDirectory
from queryable_app.local.pods import pod_settings
from queryable_app.local.secrets import NO_SECRETS, Secrets
from queryable_app.platform.processes import Process, SupervisedProcess


def start_rekey_job(
    name: str,
    spec: Mapping[str, Any],
    application_id: str,
    front: str,
    data: DataDirectory,
    secrets: Secrets = NO_SECRETS,
) -> SupervisedProcess:
    """Start the job, which finds the nodes by the placement."""
    settings = replace(
        pod_settings(name, 0, spec, application_id, front, [front], data, secrets=secrets),
        run_dir=str(data.job_sockets("rekey")),
    )
    command = [sys.executable, "-m", "queryable_app.ingest.rekey"]
    environ = {**os.environ, **settings.to_env()}

    def start() -> Process:
        return Process(command, data.log(name), environ, [data.lock])

    return SupervisedProcess("rekey job", start, start())


async def delete_internal_topics(kafka: KafkaConnection, name: str, revision: int) -> None:
    """Delete the internal topics of this revision and of the one before. An earlier run has left
    them in Kafka, and their records belong to another view."""
    for number in {revision, max(1, revision - 1)}:
        await topics.delete_topic(kafka, internal_topic(f"local.{name}.r{number}"))
