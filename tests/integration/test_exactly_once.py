"""Test that the store equals the plain fold of the topic after SIGKILL at random moments."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

from tests.integration import topics
from tests.integration.system import resource, running

TOPIC = "ledger"
SEED = 20261121


def test_store_equals_the_fold_after_random_kills(kafka: Any, tmp_path: Path) -> None:
    """Under load, with serve and ingest killed at random moments, the store has every row exactly once."""
    dice = random.Random(SEED)
    topics.create(kafka.bootstrap, TOPIC, 6)
    stop = threading.Event()
    producing = threading.Thread(target=topics.churn, args=(kafka.bootstrap, TOPIC, stop, SEED))
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
            system.assert_fold(topics.records(kafka.bootstrap, TOPIC))
    finally:
        stop.set()
        producing.join(70)
