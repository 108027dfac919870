"""Define the options of the commands that read from nodes: their addresses, the token, and the files of TLS."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from queryable_app.client.credentials import BearerToken, bearer_token
from queryable_app.client.transport import TlsFiles

F = TypeVar("F", bound=Callable[..., Any])

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
