"""Apply `onDataLoss` to a replica whose next records are no longer in the topic.

Strategy: `Fail` fails the replica, and its rows stay readable. `Rebuild` empties it, and it starts over at the earliest record.
"""

from __future__ import annotations

from typing import Final

from queryable_app.config.topic_spec import OnDataLoss
from queryable_app.contract import ObservedTopic
from queryable_app.platform.log import event
from queryable_app.serve.store.rekeyed_replica import RekeyedReplica
from queryable_app.serve.store.replica import Replica

SOURCE_RECREATED: Final = "the source topic was deleted and made again"
_KEPT: Final = ", and onDataLoss is Fail; its rows stay readable. Rebuild would start over"


def check_topic(replica: Replica, topic: ObservedTopic, streaming: bool, on_data_loss: OnDataLoss) -> None:
    """Fail or rebuild the replica if it lost records, and bind it to the topic's id otherwise.

    While ingest's query is streaming, the position may be beyond the end offset that ingest saw before.
    """
    if replica.partition not in topic.earliest or replica.partition not in topic.latest:
        replica.fail(f"the topic has {topic.partitions} partitions, and this is not one of them")
        return
    position = replica.position
    if streaming:
        position = min(position, topic.latest[replica.partition])
    loss = data_loss_reason(position, replica.store.identity.topic_id, replica.partition, topic)
    if loss is not None:
        if on_data_loss == "Fail":
            why = loss + _KEPT
            if replica.position < topic.earliest[replica.partition]:
                replica.fail(why)
            else:
                replica.lose_log(why)
            return
        event("rebuild", partition=replica.partition, position=replica.position, reason=loss)
        replica.rebuild()
    if replica.writable and replica.store.identity.topic_id != topic.id:
        replica.write(lambda store: store.set_topic_id(topic.id))
    replica.note_compaction(topic.compacted)


def check_source(replica: RekeyedReplica, source_id: str, on_data_loss: OnDataLoss) -> None:
    """Fail a replica whose rows are of another source topic than this one. For `Rebuild` the rekey job deletes the internal
    topic, and `check_topic` does the rest."""
    own = replica.sources.topic_id.decode(errors="replace")
    if own and source_id not in ("", own) and on_data_loss == "Fail":
        replica.lose_log(SOURCE_RECREATED + _KEPT)


def data_loss_reason(position: int, topic_id: str, partition: int, topic: ObservedTopic) -> str | None:
    """Return why a replica cannot continue from its position, or None if it can."""
    if topic_id and topic_id != topic.id:
        return "the topic was deleted and made again"
    earliest, latest = topic.earliest[partition], topic.latest[partition]
    if position > latest:
        return f"the log ends at {latest}, before the position {position}"
    if 0 <= position < earliest:
        return f"records from {position} to {earliest} are gone from the log"
    return None
