"""Define what all commands share: exit codes, options, and how they find the run. It imports no client, which takes long."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from queryable_app.local import data_directory

# Scripts rely on these numbers; every --help lists them.
OK: Final = 0
NOT_FOUND: Final = 1
INVALID: Final = 2
NOT_NOW: Final = 3
UNREACHABLE: Final = 4
BROKEN: Final = 5

EXIT_CODES: Final = """
\b
Exit codes:
  0  done
  1  the key does not exist
  2  the command, the file or the request is not valid
  3  not available now, or not fresh enough: try again
  4  nothing answers
  5  something is missing on this machine, or has failed
"""

DATA: Final = click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="The data directory of a `qtopic run`."
)
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def with_exit_codes(text: str) -> str:
    """Return a command's help text with the exit codes at its end."""
    return f"{inspect.cleandoc(text)}\n{EXIT_CODES}"


def run_directory(data: Path | None) -> Path:
    """Return the directory of a run that answers: `data`, or that of the newest run."""
    directory = data or data_directory.newest_run_directory()
    if directory is None or data_directory.run_description(directory) is None:
        where = f"with the data directory {data}" if data else "on this machine"
        fail(UNREACHABLE, f"no run {where} answers: start one with `qtopic run`, or name a node with --url")
    return directory


def described_run(data: Path | None) -> dict[str, Any]:
    """Return the description that a run writes while it answers."""
    return dict(data_directory.run_description(run_directory(data)) or {})


def fail(code: int, sentence: str) -> NoReturn:
    click.echo(sentence, err=True)
    sys.exit(code)
