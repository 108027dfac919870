"""Test that the documentation explains every word in a resource's status and events."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from queryable_app.wire.ingest_failures import REASONS
from queryable_operator.report.conditions import ORDER
from queryable_operator.rollout.rollout_state import Phase

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "operator" / "queryable_operator"
PAGE = (ROOT / "docs" / "operator_status.md").read_text()
WORD = re.compile(r'"([A-Z][a-z]+(?:[A-Z][a-z]+)*)"')
NOT_SAID = {"Normal", "Warning", "True", "False", "Unknown", "Redeploy", "Alert", "Retain"}
KINDS = {"Pod", "ConfigMap", "StatefulSet", "PersistentVolumeClaim", "Service"}


@pytest.mark.parametrize("file", ["report/condition_rules", "decide/events", "decide/deletion"])
def test_every_reason_is_explained(file: str) -> None:
    """Conditions and events have stable reasons, and the page explains each."""
    condition = set(WORD.findall((PACKAGE / f"{file}.py").read_text())) - NOT_SAID - KINDS

    assert {word for word in condition if f"`{word}`" not in PAGE} == set()


@pytest.mark.parametrize("page", ["operator_status", "failure_modes"])
def test_every_permanent_failure_is_explained(page: str) -> None:
    """The page explains the reason of each permanent failure, which a condition and an event have."""
    text = (ROOT / "docs" / f"{page}.md").read_text()

    assert [reason for reason in REASONS if f"`{reason}`" not in text] == []


def test_every_phase_and_condition_is_explained() -> None:
    """The page explains each phase and each condition, those of a healthy view included."""
    assert [word for word in (*get_args(Phase), *ORDER) if f"`{word}`" not in PAGE] == []
