"""Define what all commands share: exit codes, options, and how they find the run."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from queryable_app.client.credentials import BearerToken, bearer_token
from queryable_app.client.transport import TlsFiles
from queryable_app.local import data_directory

F = TypeVar("F", bound=Callable[..., Any])

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
_TOKEN_FILE: Final = "qtopic.token-file"  # noqa: S105  (a key of the context)


def _note_token_file(context: click.Context, _: click.Parameter, file: Path | None) -> None:
    context.meta[_TOKEN_FILE] = file


_TOKEN: Final = click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="QTOPIC_TOKEN_FILE",
    metavar="FILE",
    expose_value=False,
    callback=_note_token_file,
    help="The file with the token of a view with authentication.  [default: $QTOPIC_TOKEN_FILE, or the token in $QTOPIC_TOKEN]",
)


_URLS = click.option(
    "--url", "urls", multiple=True, metavar="URL", help="The address of a node or of the view; repeatable."
)
_TLS_OPTIONS: Final = {
    "ca": "The CA of the nodes' certificate.  [default: that of the run]",
    "cert": "The client's own certificate, if the view needs one.",
    "key": "The key of --cert.",
}


def URL(command: F) -> F:
    """Add the options that name the nodes: addresses, the token, and the files of TLS, which `tls_files` returns."""
    for name, about in reversed(_TLS_OPTIONS.items()):
        command = click.option(
            f"--{name}",
            f"tls_{name}",  # a command may have an argument of that name
            type=click.Path(path_type=Path, dir_okay=False),
            envvar=f"QTOPIC_{name.upper()}",
            show_envvar=True,
            expose_value=False,
            callback=_note_tls_file,
            metavar="FILE",
            help=about,
        )(command)
    return _TOKEN(_URLS(command))


def _note_tls_file(context: click.Context, option: click.Parameter, given: Path | None) -> None:
    context.meta[f"queryable_app.{option.name}"] = given


def tls_files() -> TlsFiles:
    """Return the files of TLS that the command's options name."""
    given = click.get_current_context().meta
    return TlsFiles(*(given.get(f"queryable_app.tls_{name}") for name in _TLS_OPTIONS))


def credentials() -> BearerToken | None:
    """Return the token of the command that runs. No option holds it: every user of the machine sees arguments."""
    context = click.get_current_context(silent=True)
    file: Path | None = None if context is None else context.meta.get(_TOKEN_FILE)
    return bearer_token(None if file else os.environ.get("QTOPIC_TOKEN"), file)


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
