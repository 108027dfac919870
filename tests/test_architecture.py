"""Compare docs/architecture.md with the layer contracts and the dependencies in pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CONTRACTS = {
    contract["containers"][0]: [tuple(layer.split(" | ")) for layer in contract["layers"]]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    if contract["type"] == "layers"
}


def section(package: str) -> str:
    """Return the section of the page that shows the rooms of a package."""
    found = re.search(rf"^### The rooms of `{re.escape(package)}`\n(.*?)^##", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/architecture.md has no section `The rooms of {package}`"
    return found[1]


def diagram(package: str) -> list[tuple[str, ...]]:
    """Return the rows of a package's mermaid diagram, from the top, as its arrows chain them."""
    block = re.search(r"```mermaid\nflowchart TD\n(.*?)```", section(package), re.DOTALL)
    assert block, f"the section of {package} has no mermaid diagram"
    rows: list[tuple[str, ...]] = []
    for line in block[1].splitlines():
        sides = re.sub(r'\["[^"]*"\]', "", line).split("-->")
        upper, lower = (tuple(side.strip().split(" & ")) for side in sides)
        assert not rows or rows[-1] == upper, f"{line.strip()!r} does not continue the row above"
        rows = [*(rows or [upper]), lower]
    return rows


@pytest.mark.parametrize("package", CONTRACTS)
def test_diagram_shows_the_layer_contract(package: str) -> None:
    """The diagram of a package has the layers of its contract, in their order."""
    assert diagram(package) == CONTRACTS[package]


@pytest.mark.parametrize("package", CONTRACTS)
def test_every_room_has_one_sentence(package: str) -> None:
    """The table below a diagram describes every room once, in one sentence."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", section(package), re.MULTILINE)

    assert [room for room, _ in rows] == [room for layer in CONTRACTS[package] for room in layer]
    assert [room for room, sentence in rows if not re.fullmatch(r"[A-Z]([^.]|\.(?! ))*\.", sentence)] == []


def test_every_diagram_has_its_contract() -> None:
    """The page shows the rooms of no package that has no contract."""
    assert re.findall(r"^### The rooms of `([\w.]+)`", PAGE, re.MULTILINE) == list(CONTRACTS)


def test_every_dependency_has_its_reason() -> None:
    """The table "What we stand on" names every library that pyproject.toml requires, and no other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {
        re.split(r"[<>=]", line)[0] for extra in project["optional-dependencies"].values() for line in extra
    }
    rows = re.findall(r"^\| ([a-z0-9, .-]+) \| ", PAGE.partition("## What we stand on")[2], re.MULTILINE)
    named = {name.split(" ")[0] for row in rows for name in row.split(", ")} - {"library"}
    assert named - required == set()
    assert required - named == set()
