"""Test that a client follows the changes of a view from one revision to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration import topics
from tests.integration.followers import Follower
from tests.integration.system import resource, running
from tests.support.kafka import KafkaForTests

TOPIC = "followed"


def revision(number: int, kafka: KafkaForTests, **spec: Any) -> dict[str, Any]:
    """Return the view of the topic as it is in a revision."""
    value = {"format": "json", "schema": "n INT"}
    document = resource(TOPIC, kafka.bootstrap, view={"changes": True}, value=value, **spec)
    document["metadata"]["name"] = f"{TOPIC}-{number}"
    return document


def test_client_goes_on_at_a_new_revision(kafka: KafkaForTests, tmp_path: Path) -> None:
    """The id of a client means the same to a new revision: it gets what it has not seen, deletions too, and nothing twice."""
    topics.create(kafka.bootstrap, TOPIC, 2)
    topics.produce(kafka.bootstrap, TOPIC, [(f"k{n}".encode(), b'{"n": 1}') for n in range(20)])
    with running(revision(1, kafka), tmp_path / "one") as one:
        one.at_end(topics.ends(kafka.bootstrap, TOPIC))
        follower = Follower(one)
        follower.read_to_end(0)
        assert follower.rows == {f"k{n}": {"n": 1} for n in range(20)}

    topics.produce(kafka.bootstrap, TOPIC, [(b"k3", b'{"n": 2}'), (b"k4", None), (b"new", b'{"n": 3}')])
    tenfold = {"sql": "SELECT key, value.n * 10 AS n FROM records"}
    with running(revision(2, kafka, transform=tenfold), tmp_path / "two") as two:
        two.at_end(topics.ends(kafka.bootstrap, TOPIC))
        follower.move_to(two)
        follower.read_to_end(0)

    unseen = {f"k{n}": {"n": 1} for n in range(20) if n not in (3, 4)}
    assert follower.rows == {**unseen, "k3": {"n": 20}, "new": {"n": 30}}
