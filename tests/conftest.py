"""What every test may ask for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.kafka import KafkaForTests, embedded_kafka

# Hypothesis fails a test when one example takes more than 200 ms or examples are slow to draw: on a busy machine any may.
settings.register_profile("suite", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# The JVMs of tests live for seconds.
os.environ.setdefault("QT_JVM_OPTIONS", "-XX:TieredStopAtLevel=1")

pytest_plugins = [
    "tests.support.distribution",
    "tests.support.failures",
    "tests.support.leftovers",
    "tests.support.tiers",
]

# A shell ignores SIGINT for what it starts in the background, and programs that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaForTests]:
    """One real Kafka for the whole run; topics are the tests' own. A test that kills it starts it again."""
    with embedded_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
