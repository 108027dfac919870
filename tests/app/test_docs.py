"""Compare the pages with the tree: the files, tests, identifiers, headings, events, metrics and words that they name exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from queryable_app.errors import Reason

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
PAGES_ABOUT_CODE = [
    DOCS / f"{name}.md"
    for name in ("architecture", "glossary", "protocols", "reads", "reconcile", "replication")
]
BASES = [ROOT, ROOT / "app" / "queryable_app", ROOT / "operator" / "queryable_operator", ROOT / "tests"]
PRODUCED = {"bench/results/latest.json", "placement.json", "run.json"}
PRODUCED |= {"docs/NAME.md"}
FOREIGN = {"PUT"}
SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "app" / "queryable_app").rglob("*.py")))
FAILURE_MODES = (DOCS / "failure_modes.md").read_text()


def by_name(path: Path) -> str:
    return path.name


def prose(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def code_files() -> Iterator[Path]:
    """Yield the files that may refer to a page: code, tests, benchmarks, the chart, the CRD."""
    for folder in ("app", "operator", "tests", "bench", "charts", "crds", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".java", ".yaml", ".tpl", ".txt") and "__pycache__" not in path.parts:
                yield path
    yield from (ROOT / "Makefile", ROOT / "Dockerfile", ROOT / "pyproject.toml")


@cache
def words_of_the_code() -> frozenset[str]:
    return frozenset(word for path in code_files() for word in re.findall(r"\w+", path.read_text()))


def headings(page: Path) -> set[str]:
    """Return the headings of a page as GitHub's anchors."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("#")]
    texts = [line.lstrip("#").strip().lower().replace("`", "") for line in lines]
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


def test_every_guarantee_has_its_test() -> None:
    """Each promise of guarantees.md names a test."""
    promised, _, _ = (DOCS / "guarantees.md").read_text().partition("## What is not promised")
    without = [part for part in re.split(r"\n\n(?=\*\*)", promised)[1:] if "::test_" not in part]
    assert without == []
    assert promised.count("::test_") > 40


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_named_test_exists(page: Path) -> None:
    """A page names a test as `file::test`, and the file has that test."""
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text())
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / "tests" / file).exists() or f"def {test}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_named_file_exists(page: Path) -> None:
    """A path in backquotes is a file or a folder of the tree, from its root, a package's or the tests'."""
    suffixes = "py|java|yaml|md|toml|sha256|lock|json"
    named = re.findall(rf"`([\w.-][\w./-]*\.(?:{suffixes})|[\w-]+(?:/[\w.-]+)*/)`", prose(page))
    missing = [
        name for name in named if name not in PRODUCED and not any((base / name).exists() for base in BASES)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES_ABOUT_CODE, ids=by_name)
def test_every_named_identifier_exists(page: Path) -> None:
    """An identifier or a call in backquotes, on a page about the code, is a word of the code."""
    spans = re.findall(r"`([A-Za-z_][\w.]*(?:\([\w, ]*\))?)`", prose(page))
    named = {word for span in spans for word in re.findall(r"[A-Za-z_]\w*", span)}
    files = {part for path in ROOT.glob("**/*.md") for part in path.stem.split(".")}
    assert sorted(named - words_of_the_code() - files - FOREIGN - {"md", "toml"}) == []


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links between pages, and to headings in them, resolve."""
    wrong = []
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text()):
        file, _, heading = target.partition("#")
        path = page.parent / file if file else page
        if not path.exists() or (heading and heading not in headings(path)):
            wrong.append(target)
    assert wrong == []


def test_every_reference_from_the_code_leads_somewhere() -> None:
    """The code refers to a page as docs/NAME.md, or with a heading as docs/NAME.md, "Heading"."""
    wrong = []
    for path in code_files():
        for name, heading in re.findall(r'docs/(\w+)\.md(?:, "([^"\n]+)")?', path.read_text()):
            page = DOCS / f"{name}.md"
            known = page.exists() and (not heading or f"# {heading}\n" in page.read_text())
            if not known and f"docs/{name}.md" not in PRODUCED:
                wrong.append((path.name, name, heading))
    assert wrong == []


def glossary() -> list[tuple[str, str, str]]:
    """Return the rows of the glossary: word, meaning, file."""
    text = (DOCS / "glossary.md").read_text()
    return re.findall(r"^\| ([a-z, -]+) \| ([A-Z][^|]+\.) \| `([\w./]+)` \|$", text, re.MULTILINE)


def test_glossary_is_short() -> None:
    """The glossary has about 40 words, each once; every row of its tables has a word, a sentence and a file."""
    rows = [line for line in (DOCS / "glossary.md").read_text().splitlines() if line.startswith("| ")]
    words = [word for word, _, _ in glossary()]
    assert len(words) == len(set(words)) == len([row for row in rows if not row.startswith("| word |")])
    assert 30 <= len(words) <= 50


@pytest.mark.parametrize(("word", "file"), [(word, file) for word, _, file in glossary()])
def test_word_of_the_glossary_is_used_in_its_file(word: str, file: str) -> None:
    """The file that the glossary names for a word exists and uses it, in prose or in an identifier."""
    (path,) = [base / file for base in BASES if (base / file).exists()]
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", path.read_text()).lower()
    plain = re.sub(r"\s+", " ", spaced)
    assert [part for part in word.replace("-", " ").split(", ") if part not in plain] == []


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


def test_failure_modes_quote_reasons_of_the_code() -> None:
    """A sentence that failure_modes.md quotes as a reason is one of the code, apart from its numbers."""
    quoted = re.findall(r"(?:the reason|or)\s+`([a-z][a-z0-9, ]+)`", FAILURE_MODES)
    parts = [part.strip(" ,") for sentence in quoted for part in re.split(r"\d+", sentence) if part.strip()]
    assert [part for part in parts if part not in SOURCES] == []
    assert len(quoted) > 3
