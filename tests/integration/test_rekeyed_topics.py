"""Test what a rekeyed view makes of topics that are deleted, truncated and grown while it runs and while it is stopped."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration import topics
from tests.integration.system import System, running
from tests.integration.test_rekey import folded, record, served, view
from tests.support.kafka import KafkaForTests
from tests.support.waiting import eventually

SEED = 20261125


def _produce(kafka: KafkaForTests, topic: str, count: int) -> None:
    dice = random.Random(f"{SEED}-{topic}-{count}")
    topics.produce(kafka.bootstrap, topic, [record(dice) for _ in range(count)])


def _refusal(system: System, path: str) -> str:
    answer = system.get(path)
    return "" if answer.status_code == 200 else str(answer.json()["reason"])


@pytest.mark.parametrize("on_data_loss", ["Fail", "Rebuild"])
def test_source_topic_made_again_at_once_gives_no_silent_number(
    kafka: KafkaForTests, tmp_path: Path, on_data_loss: str
) -> None:
    """A source topic that is made again with as many records fails every replica, and reads that need the log are refused; or
    the view is that of the new records alone."""
    topic = f"made-again-{on_data_loss.lower()}"
    topics.create(kafka.bootstrap, topic, 2)
    _produce(kafka, topic, 200)
    with running(view(topic, kafka.bootstrap, ["page"], onDataLoss=on_data_loss), tmp_path) as system:
        assert served(system) == folded(topics.records(kafka.bootstrap, topic), ["page"])

        topics.delete(kafka.bootstrap, topic)
        topics.create(kafka.bootstrap, topic, 2)
        _produce(kafka, topic, 400)

        if on_data_loss == "Fail":
            why = "the source topic was deleted and made again"
            eventually(
                "every replica fails",
                lambda: all(why in str(each["failed"]) for each in system.status()["partitions"]),
                60,
                story=system.tail,
            )
            eventually("the job fails", lambda: system.status()["rekey"]["state"] == "failed", 60)
            assert not system.ready()
            assert _refusal(system, "/v1/scan?consistency=strong&deadline-ms=5000") == "not_fresh_enough"
            assert _refusal(system, "/v1/scan?max-lag-ms=1000&deadline-ms=5000") == "not_fresh_enough"
            assert _refusal(system, "/v1/scan") == ""
        else:
            expected = folded(topics.records(kafka.bootstrap, topic), ["page"])
            eventually(
                "the view is that of the new records",
                lambda: _reads(system, expected),
                120,
                story=system.tail,
            )


def _reads(system: System, expected: object) -> bool:
    return (
        _refusal(system, "/v1/scan?limit=1&consistency=strong&deadline-ms=500") == ""
        and served(system) == expected
    )


def _delete(kafka: KafkaForTests, internal: str) -> None:
    topics.delete(kafka.bootstrap, internal)


def _truncate(kafka: KafkaForTests, internal: str) -> None:
    topics.truncate(kafka.bootstrap, internal, topics.ends(kafka.bootstrap, internal))


def _grow(kafka: KafkaForTests, internal: str) -> None:
    topics.grow(kafka.bootstrap, internal, 4)


@pytest.mark.parametrize(
    ("change", "on_data_loss"),
    [(_delete, "Fail"), (_delete, "Rebuild"), (_truncate, "Fail"), (_grow, "Rebuild")],
)
def test_internal_topic_that_changes_while_the_view_is_stopped(
    kafka: KafkaForTests, tmp_path: Path, change: Callable[[KafkaForTests, str], None], on_data_loss: str
) -> None:
    """If the internal topic was truncated or has more partitions when a view starts again, every number is exact, whatever the
    policy. If it was deleted, every number is exact with `Rebuild`, and every replica names the reason with `Fail`."""
    topic = f"stopped{change.__name__.replace('_', '-')}-{on_data_loss.lower()}"
    topics.create(kafka.bootstrap, topic, 2)
    _produce(kafka, topic, 200)
    document = view(topic, kafka.bootstrap, ["page"], onDataLoss=on_data_loss)
    with running(document, tmp_path) as system:
        before = served(system)

    change(kafka, f"local.{topic}.r1.rekey")
    _produce(kafka, topic, 300)

    with running(document, tmp_path, wait=False) as system:
        eventually("the nodes answer", (system.data / "run.json").exists, 120, story=system.tail)
        if change is _delete and on_data_loss == "Fail":
            eventually(
                "every replica fails",
                lambda: all(
                    "deleted and made again" in str(each["failed"]) for each in system.status()["partitions"]
                ),
                60,
                story=system.tail,
            )
            assert _refusal(system, "/v1/scan?consistency=strong&deadline-ms=5000") == "not_fresh_enough"
            assert {item["key"]: item["value"] for item in system.items()} == before
        else:
            expected = folded(topics.records(kafka.bootstrap, topic), ["page"])
            eventually("every number is exact", lambda: _reads(system, expected), 120, story=system.tail)
