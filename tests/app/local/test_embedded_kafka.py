"""Test the embedded broker."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.kafka import embedded_kafka


def test_killed_broker_restarts_with_its_topics_at_the_same_address(tmp_path: Path) -> None:
    """After kill -9 and a restart the broker has the same address and topics."""
    with embedded_kafka(tmp_path) as broker:
        address = broker.bootstrap
        broker.create_topic("kept", 3)
        broker.kill()
        broker.start()

        assert broker.bootstrap == address
        assert broker.partitions_of("kept") == 3


def test_later_broker_in_the_same_directory_has_the_same_address(tmp_path: Path) -> None:
    """Ports and records belong to the directory, not to the process."""
    with embedded_kafka(tmp_path) as broker:
        address = broker.bootstrap
        broker.create_topic("kept", 1)
    with embedded_kafka(tmp_path) as broker:
        assert broker.bootstrap == address
        assert broker.partitions_of("kept") == 1


def test_broker_whose_port_is_taken_restarts_at_another_one(tmp_path: Path) -> None:
    """If another program listens at the stored address, the broker restarts at another one with its topics."""
    with embedded_kafka(tmp_path) as broker:
        broker.create_topic("kept", 1)
        port = int(broker.bootstrap.split(":")[1])
    with socket.create_server(("127.0.0.1", port)), embedded_kafka(tmp_path) as broker:
        assert broker.bootstrap != f"127.0.0.1:{port}"
        assert broker.partitions_of("kept") == 1
