"""kill -9 at random moments, and at the end the store is the plain fold of the topic."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

from queryable_app.fold import fold
from tests.integration import topics
from tests.integration.system import resource, running

TOPIC = "ledger"
SEED = 20261121


def load(bootstrap: str, stop: threading.Event) -> None:
    """Updates and deletes over few keys, so that nearly every record replaces another."""
    dice = random.Random(SEED)
    client = topics.producer(bootstrap)
    number = 0
    while not stop.is_set():
        for _ in range(20):
            number += 1
            key = f"key-{dice.randrange(400)}".encode()
            value = (
                None
                if dice.random() < 0.2
                else json.dumps({"number": number, "pad": "x" * dice.randrange(200)})
            )
            client.produce(TOPIC, key=key, value=value and value.encode())
        client.poll(0)
        stop.wait(0.02)
    assert client.flush(60) == 0


def test_the_store_is_the_fold_of_the_topic_whatever_dies(kafka: Any, tmp_path: Path) -> None:
    """Under load, with serve and ingest killed at random moments: equal, no key missing, none too many, no count off."""
    dice = random.Random(SEED)
    topics.create(kafka.bootstrap, TOPIC, 6)
    stop = threading.Event()
    producing = threading.Thread(target=load, args=(kafka.bootstrap, stop))
    producing.start()
    try:
        with running(resource(TOPIC, kafka.bootstrap), tmp_path) as system:
            for role in ["ingest", "serve", "serve", "ingest", "serve"]:
                before = sum(p["position"] for p in system.status()["partitions"])
                stop.wait(dice.uniform(0.2, 2.0))
                system.kill(role)
                system.wait_ready()
                system.at_end(topics.ends(kafka.bootstrap, TOPIC))
                assert sum(p["position"] for p in system.status()["partitions"]) > before
            stop.set()
            producing.join(70)
            system.at_end(topics.ends(kafka.bootstrap, TOPIC))

            log = topics.records(kafka.bootstrap, TOPIC)
            expected = {
                k.decode(): json.loads(row.value) for k, row in fold(log).items() if row.value is not None
            }
            served = {item["key"]: item["value"] for item in system.items()}
            partitions = system.status()["partitions"]

            assert served == expected
            assert system.get("/v1/count").json()["count"] == len(expected)
            assert sum(p["rows"] + p["deletes"] for p in partitions) == len(log)
    finally:
        stop.set()
        producing.join(70)
