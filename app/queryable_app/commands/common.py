"""What the commands of `qtopic` have in common: exit codes, options, and which run is meant."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from queryable_app.local import data_directory

# What scripts may rely on. The same numbers are in every --help.
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
  3  not available, or not as fresh as was asked for: try again
  4  nothing answers
  5  something is missing on this machine, or broke
"""

DATA: Final = click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="The directory of the `qtopic run` to ask."
)
URL: Final = click.option(
    "--url", "urls", multiple=True, metavar="URL", help="A node to ask; may be given several times."
)
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Answers in JSON, for scripts.")


def with_exit_codes(text: str) -> str:
    """A command's help, ending with the exit codes."""
    return f"{inspect.cleandoc(text)}\n{EXIT_CODES}"


def run_directory(data: Path | None) -> Path:
    """The directory of the run that is meant: `data`, or the newest one's."""
    directory = data or data_directory.newest_run_directory()
    if directory is None or data_directory.run_description(directory) is None:
        where = f"over {data}" if data else "on this machine"
        fail(UNREACHABLE, f"no run {where} answers: start one with `qtopic run`, or name a node with --url")
    return directory


def described_run(data: Path | None) -> dict[str, Any]:
    """What that run says of itself."""
    return dict(data_directory.run_description(run_directory(data)) or {})


def fail(code: int, sentence: str) -> NoReturn:
    click.echo(sentence, err=True)
    sys.exit(code)
