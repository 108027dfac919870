"""The broker of one machine."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.kafka import embedded_kafka


def test_a_killed_broker_comes_back_with_its_topics_at_the_same_address(tmp_path: Path) -> None:
    """After kill -9 and another start, address and topics are what they were."""
    with embedded_kafka(tmp_path) as broker:
        address = broker.bootstrap
        broker.create_topic("kept", 3)
        broker.kill()
        broker.start()

        assert broker.bootstrap == address
        assert broker.partitions_of("kept") == 3


def test_a_later_broker_over_the_same_directory_has_the_same_address(tmp_path: Path) -> None:
    """Ports and records belong to the directory, not to the process."""
    with embedded_kafka(tmp_path) as broker:
        address = broker.bootstrap
        broker.create_topic("kept", 1)
    with embedded_kafka(tmp_path) as broker:
        assert broker.bootstrap == address
        assert broker.partitions_of("kept") == 1


def test_a_taken_port_does_not_keep_a_broker_from_its_records(tmp_path: Path) -> None:
    """When another program listens at the kept address, the broker comes back at another one with its topics."""
    with embedded_kafka(tmp_path) as broker:
        broker.create_topic("kept", 1)
        port = int(broker.bootstrap.split(":")[1])
    with socket.create_server(("127.0.0.1", port)), embedded_kafka(tmp_path) as broker:
        assert broker.bootstrap != f"127.0.0.1:{port}"
        assert broker.partitions_of("kept") == 1
