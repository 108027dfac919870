"""`qtopic explain`: check a resource, and say what will run where."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from queryable_app.commands.common import BROKEN, INVALID, JSON, fail, with_exit_codes
from queryable_app.config.kafka_settings import KafkaSettingsError, kafka_connection
from queryable_app.local.analysis import AnalysisFailed, AnalysisRefused, analyse
from queryable_app.local.explanation import as_text, explanation
from queryable_app.local.resource_file import Resource, ResourceError, load_resource
from queryable_app.local.topics import KafkaUnreachable, TopicSize, size_of
from queryable_app.platform.jars import JarsError


@click.command(
    name="explain",
    short_help="Check a resource, and say what will run where.",
    help=with_exit_codes(
        """Check a resource, and say what will run where: stages, inputs, windows, internal topics, and estimates.

        FILE is a QueryableTopic. Spark analyses it, and what cannot work is refused with Spark's sentence and its
        position. Nothing is started. With --kafka the topic's size is looked up.

        \b
        qtopic explain topic.yaml
        qtopic explain topic.yaml --kafka broker:9092 --json
        """
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--kafka", metavar="file|HOST:PORT", help="Look up the topic there; `file` uses the file's address."
)
@JSON
def explain_command(file: Path, kafka: str | None, as_json: bool) -> None:
    try:
        resource = load_resource(file)
        analysis = analyse(resource)
    except ResourceError as e:
        fail(INVALID, str(e))
    except AnalysisRefused as e:
        fail(INVALID, f"{file}: {e}")
    except (AnalysisFailed, JarsError, OSError) as e:
        fail(BROKEN, str(e))
    size, problem = _size(file, resource, kafka) if kafka else (None, None)
    known = explanation(
        resource.name,
        resource.spec,
        analysis,
        size.partitions if size else None,
        size.records if size else None,
    )
    if problem:
        known["unknown"][0] = f"the topic's partitions and records: {problem}"
    click.echo(json.dumps(known, indent=2, ensure_ascii=False) if as_json else as_text(known))


def _size(file: Path, resource: Resource, kafka: str) -> tuple[TopicSize | None, str | None]:
    """Return the topic's size, or why it is not known."""
    spec = resource.spec
    address = spec.bootstrap_servers if kafka == "file" else kafka
    try:
        size = asyncio.run(size_of(kafka_connection(address, spec.kafka_config), spec.topic))
    except KafkaSettingsError as e:
        fail(INVALID, f"{file}: spec.kafka.config: {e}")
    except KafkaUnreachable as e:
        return None, str(e)
    return size, None if size else f"there is no topic {spec.topic!r} at {address}"
