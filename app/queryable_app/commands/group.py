"""`qtopic` and its commands. Each one teaches itself with --help."""

from __future__ import annotations

import click

from queryable_app.commands.common import with_exit_codes
from queryable_app.commands.produce import produce_command
from queryable_app.commands.read import get_command, status_command
from queryable_app.commands.run import run_command
from queryable_app.commands.scale import scale_command, standby_command


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help=with_exit_codes(
        """A Kafka topic as a queryable key-value store.

        \b
        qtopic run -f examples/demo.yaml     starts everything on this machine
        qtopic get user-1                    reads one key
        qtopic status                        shows how far each copy is
        qtopic scale 3                       changes the number of nodes while they answer
        """
    ),
)
@click.version_option(package_name="queryable-topics")
def qtopic() -> None:
    pass


for _command in (run_command, get_command, status_command, produce_command, scale_command, standby_command):
    qtopic.add_command(_command)
