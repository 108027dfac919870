"""Test what the check of a view reports to the operator."""

from __future__ import annotations

import json

import pytest

from queryable_app.wire.check_report import accepted, refused, reported_format
from queryable_app.wire.ingest_failures import IngestFailure, parse_failure

KUBERNETES_BYTES_MAX = 4096


@pytest.mark.parametrize("character", ["x", '"', "\u00e9", "\u65e5", "\U0001f600"])
def test_refusal_survives_in_the_status_of_a_pod(character: str) -> None:
    """Kubernetes cuts a container's last words off. A long refusal is shortened before, so that it can be parsed."""
    report = refused(IngestFailure("TransformRefused", "line 1 " + character * 5000))

    assert len(report.encode()) <= KUBERNETES_BYTES_MAX
    failure = parse_failure(json.loads(report))
    assert failure is not None
    assert failure.message.startswith("line 1 " + character * 100)


def test_only_known_formats_are_read() -> None:
    """A format that nodes do not know is no format."""
    assert reported_format(json.loads(accepted("json"))) == "json"
    assert reported_format({"groupKeyFormat": "binary"}) is None
