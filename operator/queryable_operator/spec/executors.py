"""Refuse Spark executors, which need pods that the operator does not make in this version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queryable_app.config.topic_spec import SpecError


def check_executors(spec: Mapping[str, Any]) -> None:
    if spec["ingest"]["executors"]:
        raise SpecError(
            "spec.ingest.executors: executors run with `qtopic run` only in this version; leave the field out, and the rekey "
            "job runs in one pod"
        )
