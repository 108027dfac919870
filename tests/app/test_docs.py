"""What the documents name is there: tests, files, headings, events, metrics and reasons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queryable_app.errors import Reason

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "app" / "queryable_app").rglob("*.py")))
FAILURE_MODES = (ROOT / "docs" / "failure_modes.md").read_text()


def by_name(path: Path) -> str:
    return path.name


def test_every_guarantee_has_its_test() -> None:
    """Each test that guarantees.md names is in the file that it names, and each promise names one."""
    promised, _, _ = (ROOT / "docs" / "guarantees.md").read_text().partition("## What is not promised")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", promised)
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / "tests" / file).exists() or f"def {test}(" not in (ROOT / "tests" / file).read_text()
    ]
    without = [part for part in re.split(r"\n\n(?=\*\*)", promised)[1:] if "::test_" not in part]
    assert (missing, without) == ([], [])
    assert len(named) > 40


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links between documents, and to headings in them, resolve."""
    wrong = []
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text()):
        file, _, heading = target.partition("#")
        path = page.parent / file if file else page
        if not path.exists() or (heading and heading not in headings(path)):
            wrong.append(target)
    assert wrong == []


def headings(page: Path) -> set[str]:
    """As GitHub makes anchors of them."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("#")]
    texts = [line.lstrip("#").strip().lower().replace("`", "") for line in lines]
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


def test_failure_modes_name_what_there_is() -> None:
    """Every event, metric and reason in failure_modes.md is one that a node knows."""
    events = re.findall(r"event `([a-z-]+)`", FAILURE_MODES)
    metrics = {re.sub(r"_total$", "", name) for name in re.findall(r"`(qt_[a-z0-9_]+)", FAILURE_MODES)}
    reasons = re.findall(r"`([a-z_]+)` \(\d{3}\)", FAILURE_MODES)
    unknown = [name for name in events if f'"{name}"' not in SOURCES]
    unknown += [name for name in metrics if f'"{name}"' not in SOURCES]
    assert unknown == []
    assert set(reasons) <= {reason.slug for reason in Reason}
    assert len(events) > 20
