"""Test that a view of the kind history answers every moment as the topic says, after SIGKILL of its processes."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.integration import topics
from tests.integration.system import System, resource, running
from tests.support.fold import LogRecord
from tests.support.kafka import KafkaForTests

SEED = 20261123
KEYS = [f"key-{n}" for n in range(20)]
READS = 150


def test_every_moment_is_the_fold_after_kills(kafka: KafkaForTests, tmp_path: Path) -> None:
    """Two nodes are written to while serve and ingest are killed. Then each answers random keys as of random positions, and
    the versions of each key, as the records of the topic say."""
    dice, topic, stop = random.Random(SEED), "prices", threading.Event()
    topics.create(kafka.bootstrap, topic, 2)
    records = iter(lambda: _record(dice), None)
    producing = threading.Thread(target=topics.flood, args=(kafka.bootstrap, topic, stop, records, 5))
    view = {"kind": "history", "history": {"retention": "7d"}}
    document = resource(topic, kafka.bootstrap, view=view, replicas=2, standbyReplicas=1)
    with running(document, tmp_path, nodes=2) as system:
        producing.start()
        try:
            for role, node in (("ingest", 0), ("serve", 1), ("serve", 0), ("ingest", 1)):
                system.kill(role, node)
                system.wait_ready(nodes=2, seconds=180)
        finally:
            stop.set()
            producing.join(100)
        system.at_end(topics.ends(kafka.bootstrap, topic), 180)
        log = topics.records(kafka.bootstrap, topic)
        for number in range(READS):
            _assert_as_of(system, number % 2, dice.choice(KEYS), dice.random(), log)
        for number, key in enumerate(KEYS):
            _assert_history(system, number % 2, key, log)


def _record(dice: random.Random) -> tuple[bytes, bytes | None]:
    value = None if dice.random() < 0.1 else json.dumps({"price": dice.randrange(1000)}).encode()
    return dice.choice(KEYS).encode(), value


def _assert_as_of(system: System, node: int, key: str, part: float, log: Sequence[LogRecord]) -> None:
    versions = [each for each in log if each.key == key.encode()]
    partition = versions[0].partition
    moment = int(part * sum(each.partition == partition for each in log))
    before = [each for each in versions if each.offset < moment]
    answer = system.get(f"/v1/keys/{key}?as-of={partition}:{moment}", node)
    if before and before[-1].value is not None:
        assert (answer.status_code, answer.content) == (200, before[-1].value), answer.text
    else:
        assert (answer.status_code, answer.json()["reason"]) == (404, "key_not_found"), answer.text


def _assert_history(system: System, node: int, key: str, log: Sequence[LogRecord]) -> None:
    found = list(system.items(f"/v1/keys/{key}/history?order=asc", node))
    wanted = [each for each in log if each.key == key.encode()]
    assert [(each["offset"], each["value"]) for each in found] == [
        (each.offset, None if each.value is None else json.loads(each.value)) for each in wanted
    ]
