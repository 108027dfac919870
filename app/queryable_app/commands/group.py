"""Define `qtopic`, the group of all commands."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from queryable_app.commands.common import with_exit_codes
from queryable_app.platform.collector import long_lived

_MODULES: Final = {
    "entries": "entries",
    "explain": "explain",
    "get": "get",
    "history": "history",
    "index": "rows",
    "prefix": "rows",
    "produce": "produce",
    "range": "rows",
    "run": "run",
    "scale": "scale",
    "scan": "rows",
    "standby": "scale",
    "status": "status",
    "top": "windows",
    "watch": "watch",
    "windows": "windows",
}


class _Commands(click.Group):
    """Import a command when it is used: importing all of them takes longer than a read."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        with long_lived():
            module = import_module(f"queryable_app.commands.{_MODULES[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help=with_exit_codes(
        """A Kafka topic as a queryable key-value store.

        \b
        qtopic run -f examples/demo.yaml     start everything on this machine
        qtopic explain examples/demo.yaml    check a resource, and say what will run where
        qtopic get user-1                    read one key
        qtopic scan --where "age >= 18"      read the rows whose values match
        qtopic index by-author --eq ada      read the rows that an index finds
        qtopic entries sensor-1              read the entries of one key by their time
        qtopic windows user-1                read the windows of one key
        qtopic top views                     read the windows or rows with the greatest values
        qtopic history user-1                print the versions of one key
        qtopic watch                         print changes as they happen
        qtopic status                        show the position and the lag of each replica
        qtopic scale 3                       change the number of nodes while they answer
        """
    ),
)
@click.version_option(package_name="queryable-topics")
def qtopic() -> None: ...
