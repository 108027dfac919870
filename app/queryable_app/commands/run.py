"""`qtopic run`: start a run from a file and options, and turn each error into a sentence and an exit code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from queryable_app.commands.common import BROKEN, INVALID, UNREACHABLE, fail, with_exit_codes
from queryable_app.config.kafka_settings import KafkaSettingsError
from queryable_app.config.topic_spec import SpecError, duration_ms
from queryable_app.contract import WORKERS_MAX, SettingsError
from queryable_app.local.data_directory import DirectoryError
from queryable_app.local.embedded_kafka import BrokerError
from queryable_app.local.progress import Progress
from queryable_app.local.resource_file import ResourceError, load_resource
from queryable_app.local.run import Options, RunError, SpecRefused
from queryable_app.local.run import run as run_resource
from queryable_app.local.secrets import SecretError
from queryable_app.local.topics import KafkaUnreachable, TopicRefused
from queryable_app.platform.certificates import CertificateError
from queryable_app.platform.jars import JarsError

_ADDRESSES: Final = re.compile(r"[^\s,]+:\d{1,5}(,[^\s,]+:\d{1,5})*")


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return duration_ms(str(value), param.name or "" if param else "") / 1000
        except SpecError as e:
            self.fail(str(e).split(": ", 1)[-1], param, ctx)


@click.command(
    name="run",
    short_help="Run a view on this machine until Ctrl-C.",
    help=with_exit_codes(
        """Run a view on this machine until Ctrl-C, with its own Kafka, the topic, and the nodes.

        FILE is a QueryableTopic, as you apply it to a cluster. Once the nodes answer, DIR/run.json has their addresses.

        \b
        qtopic run -f topic.yaml
        qtopic run -f topic.yaml --data ./data --nodes 3
        qtopic run -f topic.yaml --kafka broker:9092
        """
    ),
)
@click.option(
    "-f",
    "--file",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The QueryableTopic to run.",
)
@click.option(
    "--kafka",
    default="embedded",
    show_default=True,
    metavar="embedded|file|HOST:PORT",
    help="`embedded` starts a Kafka and ignores the file's address; `file` uses that address.",
)
@click.option("--nodes", type=click.IntRange(1, 64), help="How many nodes.  [default: spec.replicas]")
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    help="How many processes answer reads in place of each node.  [default: spec.serve.workers, or 1]",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep records and rows here between runs.  [default: a temporary directory]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_000),
    default=8080,
    show_default=True,
    help="The port of the first node; the others use the next ones. 0 takes any free ports.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="How many partitions the topic gets if the embedded Kafka creates it.",
)
@click.option(
    "--topic-wait",
    type=_Duration(),
    default="5m",
    show_default=True,
    help="How long to wait for a topic that another Kafka does not have yet.",
)
@click.option(
    "--produce-examples",
    type=click.IntRange(0, 10_000),
    default=0,
    metavar="RATE",
    help="Produce RATE example records (page views) a second to the topic.",
)
@click.option(
    "--secrets",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The Secrets that the resource names: DIR/NAME has a file for each key of the Secret NAME.",
)
def run_command(
    file: Path,
    kafka: str,
    nodes: int | None,
    workers: int | None,
    data: Path | None,
    port: int,
    partitions: int,
    topic_wait: float,
    produce_examples: int,
    secrets: Path | None,
) -> None:
    if kafka not in ("embedded", "file") and not _ADDRESSES.fullmatch(kafka):
        raise click.BadParameter(
            f"{kafka!r} is neither embedded, nor file, nor host:port", param_hint="--kafka"
        )
    _run(file, Options(kafka, nodes, workers, data, port, partitions, topic_wait, produce_examples, secrets))


def _run(file: Path, options: Options) -> None:
    progress = Progress(Console(stderr=False))
    try:
        run_resource(load_resource(file), options, progress)
    except ResourceError as e:
        fail(INVALID, str(e))
    except SpecRefused as e:
        fail(INVALID, f"{file}: {e}")
    except KafkaSettingsError as e:
        fail(INVALID, f"{file}: spec.kafka.config: {e}")
    except (CertificateError, SecretError) as e:
        fail(INVALID, f"{file}: {e}")
    except KafkaUnreachable as e:
        fail(UNREACHABLE, str(e))
    except (RunError, DirectoryError, JarsError, BrokerError, TopicRefused, SettingsError) as e:
        fail(BROKEN, str(e))
