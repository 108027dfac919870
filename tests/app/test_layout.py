"""Guards of the house: what must not be in the tree, and what thinking files may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "app" / "queryable_app"

# They live beside the thinking files, and each acts on what its docstring says.
ACTING = {"cli.py", "descriptors.py", "jars.py", "kafka_clients.py", "listeners.py", "log.py", "mounted.py"}
THINKING = sorted(p for p in PACKAGE.glob("*.py") if p.name not in ACTING)
ALLOWED = sys.stdlib_module_names | {"murmurhash2", "queryable_app"}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_no_folder_shadows_the_standard_library() -> None:
    """operator/, app/ and tests/ are no packages: one called `operator` would break the interpreter."""
    inits = [
        ROOT / "operator" / "__init__.py",
        ROOT / "app" / "__init__.py",
        *(ROOT / "tests").rglob("__init__.py"),
    ]
    assert [str(p.relative_to(ROOT)) for p in inits if p.exists()] == []


def test_operator_is_pythons() -> None:
    """From the project's own folder, `operator` is still the standard library's."""
    code = "import operator; print(operator.itemgetter(1)('ab'))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (run.stdout, run.stderr) == ("b\n", "")


@pytest.mark.parametrize("path", THINKING, ids=lambda path: path.name)
def test_a_thinking_file_imports_nothing_foreign(path: Path) -> None:
    """A thinking file imports the standard library, other thinking files, and murmurhash2 for its speed."""
    names = imported(path)
    assert {name for name in names if name.split(".")[0] not in ALLOWED} == set()
    rooms = {f"queryable_app.{p.name}" for p in PACKAGE.iterdir() if p.is_dir()}
    assert {name for name in names if ".".join(name.split(".")[:2]) in rooms} == set()


def test_every_room_says_who_may_enter() -> None:
    """Each package's `__init__` has a docstring."""
    inits = sorted(PACKAGE.rglob("__init__.py"))
    assert inits
    assert [
        str(p.relative_to(PACKAGE)) for p in inits if not ast.get_docstring(ast.parse(p.read_text()))
    ] == []
