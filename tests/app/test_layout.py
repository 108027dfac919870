"""Test the layout: which files must not exist, and what pure files import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = (ROOT / "app", ROOT / "operator")
INITS = sorted(path for root in SOURCE_ROOTS for path in root.rglob("__init__.py"))
FOREIGN_ALLOWED = {"msgspec", "murmurhash2"}  # a decoder, and Kafka's murmur2, both in C for their speed
IO_MODULES = {"asyncio", "multiprocessing", "selectors", "socket", "ssl", "subprocess", "threading"}


def purpose(init: Path) -> str:
    return ast.get_docstring(ast.parse(init.read_text())) or ""


def module_name(path: Path) -> str:
    root = next(root for root in SOURCE_ROOTS if path.is_relative_to(root))
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


PURE_ROOMS = [init.parent for init in INITS if "\nPure" in purpose(init)]
PURE_FILES = sorted(path for room in PURE_ROOMS for path in room.rglob("*.py"))
PURE_FILES += [ROOT / "app" / "queryable_app" / f"{name}.py" for name in ("contract", "errors")]
PURE_MODULES = {module_name(path) for path in PURE_FILES}


def imported_modules(path: Path) -> set[str]:
    """Return the modules that a file imports; `from package import module` names the module."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            submodules = {f"{module}.{alias.name}" for alias in node.names} & PURE_MODULES
            names |= submodules or {module}
    return names


def test_no_folder_shadows_the_standard_library() -> None:
    """operator/, app/ and tests/ are no packages: a package `operator` would break the interpreter."""
    inits = [
        ROOT / "operator" / "__init__.py",
        ROOT / "app" / "__init__.py",
        *(ROOT / "tests").rglob("__init__.py"),
    ]
    assert [str(p.relative_to(ROOT)) for p in inits if p.exists()] == []


def test_operator_is_the_standard_librarys() -> None:
    """In the project's directory, `import operator` is the standard library's."""
    code = "import operator; print(operator.itemgetter(1)('ab'))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (run.stdout, run.stderr) == ("b\n", "")


def test_rooms_of_both_packages_are_pure() -> None:
    """Both packages have pure rooms, so the next test checks files of both."""
    assert {room.name for room in PURE_ROOMS} >= {
        "wire",
        "config",
        "placement",
        "policy",
        "spec",
        "build",
        "decide",
    }


@pytest.mark.parametrize("path", PURE_FILES, ids=module_name)
def test_pure_file_imports_pure_files_only(path: Path) -> None:
    """A pure file imports pure files and modules of the standard library without I/O."""
    names = imported_modules(path)
    own = {name for name in names if name.split(".")[0] in {"queryable_app", "queryable_operator"}}
    assert own - PURE_MODULES == set()
    tops = {name.split(".")[0] for name in names - own}
    assert tops - FOREIGN_ALLOWED - sys.stdlib_module_names == set()
    assert tops & IO_MODULES == set()


@pytest.mark.parametrize("init", INITS, ids=module_name)
def test_every_room_has_a_purpose(init: Path) -> None:
    """Each package's `__init__` has a docstring."""
    assert purpose(init)
