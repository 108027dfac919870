"""Find where runs of the rekey job begin in an internal topic."""

from __future__ import annotations

from queryable_app.wire.envelopes import decode_envelope
from tests.simulation.topic import Topic


def last_late_start(topic: Topic, partition: int) -> int | None:
    """Return the offset at which the last run begins that does not begin at the first source record; None: there is none."""
    for record in reversed(topic.records[partition]):
        if record is not None and record.value is not None:
            envelope = decode_envelope(record.value)
            if envelope.sequence == 0 and envelope.offset > 0:
                return record.offset
    return None
