"""Compile modules when a wheel is built.

Strategy: pyproject.toml lists the modules through which each plain read goes. mypyc makes C of them, by the types that
`make check` checks, and the wheel has the compiled modules, which Python imports first, beside the sources. Where there is no C
compiler, or Python has no headers, the wheel has the sources alone, and works in the same way. An editable installation is never
compiled, so that a change of a source counts.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SETTING: Final = "QT_COMPILE"
"""In the environment of a build: `always` fails without a compiler, `never` does not look for one."""

_CHOICES: Final = ("", "always", "never")


class CompileModules(BuildHookInterface[Any]):  # type: ignore[misc]  # hatchling is there when a wheel is built
    """Add compiled modules to a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        setting = os.environ.get(SETTING, "")
        if setting not in _CHOICES:
            raise ValueError(f"{SETTING} is {setting!r}: leave it out, or set it to always or never")
        if version == "editable" or setting == "never":
            return
        self._directory = tempfile.TemporaryDirectory(prefix="queryable-topics-build-")
        try:
            compiled = _compiled(Path(self.root, "app"), self.config["modules"], Path(self._directory.name))
        except _NotCompiled as error:
            if setting == "always":
                raise
            self.app.display_warning(f"The wheel has no compiled modules, so reads take more CPU: {error}")
            return
        build_data["force_include"].update(compiled)
        build_data["infer_tag"] = True
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_directory"):
            self._directory.cleanup()


class _NotCompiled(Exception):
    """The modules cannot be compiled here; the message says why."""


def _compiled(sources: Path, modules: list[str], directory: Path) -> dict[str, str]:
    """Compile the modules. Return the path in the wheel of each file that came out."""
    from mypyc.build import mypycify
    from setuptools import Extension

    probe = directory / "probe.c"  # mypyc works for long before it needs the compiler
    probe.write_text("#include <Python.h>\n")
    _build([Extension("probe", [str(probe)])], directory / "probe")
    files = [f"{module.replace('.', '/')}.py" for module in modules]
    before = Path.cwd()
    os.chdir(sources)  # mypyc names modules by their paths
    try:
        # The build has none of the project's dependencies; make check has checked the types with them.
        extensions = mypycify(
            ["--config-file=", "--cache-dir=/dev/null", "--ignore-missing-imports", *files],
            debug_level="0",
            target_dir=str(directory / "c"),
            group_name="queryable_app",
        )
        built = _build(extensions, directory)
    finally:
        os.chdir(before)
    return {file: os.path.relpath(file, directory / "lib") for file in built}


def _build(extensions: list[Any], directory: Path) -> list[str]:
    """Compile and link extension modules into `lib` in the directory, and return their files."""
    from setuptools import Distribution
    from setuptools.errors import CCompilerError, ExecError, PlatformError

    distribution = Distribution({"name": "queryable-topics", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(directory / "lib"), str(directory / "objects")
    command.ensure_finalized()
    try:
        command.run()
    except (CCompilerError, ExecError, PlatformError) as error:
        raise _NotCompiled(error) from error
    outputs: list[str] = command.get_outputs()
    return outputs
