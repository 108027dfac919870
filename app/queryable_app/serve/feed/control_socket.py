"""The Unix socket on which serve and ingest agree where to start: control.sock.

Strategy: JSON, one object a line; docs/protocols.md has the messages. There is one ingest at a time and the newest wins.
Every start gets a new generation, and before its positions are read nobody of an older one can write any more: so rows
arrive from exactly there, whatever still runs.

What has become of the topic is judged here: if records that the copy still needs are gone, `onDataLoss` says what
happens. `Fail` leaves the copy readable.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queryable_app.config.topic_spec import OnDataLoss
from queryable_app.contract import CONTROL_PROTOCOL, GENERATION_FILE, ObservedTopic
from queryable_app.platform.clock import monotonic_ms
from queryable_app.platform.log import event
from queryable_app.serve.base.atomic_file import write_atomically
from queryable_app.serve.base.background import guarded, note_failure
from queryable_app.serve.feed.row_socket import RowSocket
from queryable_app.serve.store.replica import Replica
from queryable_app.serve.store.replicas import Replicas
from queryable_app.wire.ingest_failures import IngestFailure, parse_failure

LINE_BYTES_MAX: Final = 1024 * 1024
EARLIEST: Final = -2
INGEST_STATES: Final = (
    "starting",
    "streaming",
    "waiting-for-topic",
    "waiting-for-kafka",
    "restarting",
    "failed",
)
_DETAIL_CHARS_MAX: Final = 2000
_SEND_SECONDS_MAX: Final = 5.0
_HYDRATED: Final = b'{"type": "hydrated"}\n'
_SETTLE_SECONDS: Final = 1.0
_WRITE_AGAIN_SECONDS: Final = 0.5


class _ProtocolError(Exception):
    """The other side does not speak the protocol."""


@dataclass(slots=True)
class IngestStatus:
    """What ingest last said of itself."""

    state: str = "absent"  # no ingest is connected
    mode: str = ""
    detail: str = ""
    pid: int = 0
    starts: int = 0
    since_ms: int = 0  # when it came into this state, a moment of `platform/clock.py`
    failure: IngestFailure | None = None
    """What waiting cannot mend. It stays while ingest is started again, until that gets further than before."""

    def enter(self, state: str, detail: str = "") -> None:
        if state != self.state:
            self.since_ms = monotonic_ms()
            event("ingest", state=state, detail=detail)
        self.state, self.detail = state, detail


class ControlSocket:
    """Listens from `start` to `stop`."""

    def __init__(
        self,
        path: Path,
        data_dir: Path,
        topic: str,
        on_data_loss: OnDataLoss,
        replicas: Replicas,
        rows: RowSocket,
        status: IngestStatus,
        topic_wait_seconds: float,
    ) -> None:
        self._path = path
        self._generation_path = data_dir / GENERATION_FILE
        self._topic = topic
        self._on_data_loss = on_data_loss
        self._replicas = replicas
        self._rows = rows
        self._status = status
        self._topic_wait_seconds = topic_wait_seconds
        self._server: asyncio.Server | None = None
        self._current: asyncio.StreamWriter | None = None
        self._told: list[int] = []
        self._streaming: set[int] = set()
        """What ingest's query reads. The log has what it sends, also when that came after ingest's look at the log's end."""
        self._announcing: asyncio.TimerHandle | None = None
        self._conversations: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)  # left behind by a process that was killed
        self._server = await asyncio.start_unix_server(self._accept, self._path, limit=LINE_BYTES_MAX)
        self._path.chmod(0o600)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._announcing is not None:
            self._announcing.cancel()
        for conversation in self._conversations:
            conversation.cancel()
        if self._conversations:
            await asyncio.wait(self._conversations)
        self._path.unlink(missing_ok=True)

    def restart(self) -> None:
        """Have ingest start its query again, from the positions as they are and in a new generation."""
        if self._current is not None:
            self._current.write(self._wanted())

    def announce(self) -> None:
        """Which partitions are wanted may have changed. Several changes go into one restart of ingest's query."""
        if self._announcing is None:
            self._announcing = asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._announce)

    def send_hydrated(self) -> None:
        """All replicas are complete: from now on ingest may do what would have slowed their hydration down."""
        if self._current is not None:
            self._current.write(_HYDRATED)

    def _announce(self) -> None:
        self._announcing = None
        wanted, replicas = self._replicas.partitions_to_ingest(), self._replicas.by_partition
        unfed = any(not replicas[p].accepts_slices and replicas[p].writable for p in wanted)
        if self._current is not None and (unfed or wanted != self._told):
            self._current.write(self._wanted())

    def _wanted(self) -> bytes:
        self._told = self._replicas.partitions_to_ingest()
        event("wanted", partitions=self._told)
        return _line({"type": "wanted", "topic": self._topic, "partitions": self._told})

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.create_task(self._serve(reader, writer))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._converse(reader, writer)
        except _ProtocolError as error:
            event("refused", socket=self._path.name, reason=str(error))
        except (ConnectionError, TimeoutError):
            pass  # ingest is gone; its supervisor starts another one
        except OSError as error:
            event("failed", socket=self._path.name, reason=str(error))
        except Exception as error:  # ingest connects again
            note_failure("ControlSocket", error)
        finally:
            writer.close()
            if self._current is writer:
                self._current = None
                self._status.enter("absent")

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await _receive(reader)
        if hello is None:
            return
        if hello.get("type") != "hello" or hello.get("protocol") != CONTROL_PROTOCOL:
            raise _ProtocolError(f"a first message that is no hello of protocol {CONTROL_PROTOCOL}")
        pid = _whole(hello, "pid")
        older, self._current = self._current, writer
        if older is not None:
            event("refused", socket=self._path.name, pid=self._status.pid, reason=f"ingest {pid} is newer")
            older.write(_line({"type": "superseded"}))
            older.close()
        self._status.pid, self._status.starts, self._status.mode = pid, 0, ""
        self._streaming = set()
        self._status.enter("starting")
        await _send(writer, self._wanted())
        if self._replicas.ready:
            await _send(writer, _HYDRATED)
        while (message := await _receive(reader)) is not None and self._current is writer:
            kind = message.get("type")
            if kind == "state":
                self._note_state(message)
            elif kind == "topic":
                if message.get("id") is not None:
                    topic = _topic_seen(message)
                    generation = await self._next_generation(writer)
                    await _send(writer, _line(await self._next_start(generation, topic)))
            else:
                raise _ProtocolError(f"a message of type {str(kind)[:40]!r}")

    def _note_state(self, message: Mapping[str, Any]) -> None:
        state, detail = message.get("state"), message.get("detail")
        if state not in INGEST_STATES:
            raise _ProtocolError(f"a state that is none of {', '.join(INGEST_STATES)}")
        self._status.mode = str(message.get("mode") or "")[:40]
        self._status.starts = _whole(message, "starts")
        detail = "" if detail is None else str(detail)[:_DETAIL_CHARS_MAX]
        self._status.enter(state, detail)
        if state == "failed":
            # An ingest that gives no reason says nothing of whether it may pass.
            self._status.failure = parse_failure({"reason": message.get("reason"), "message": detail})
        elif state != "starting":
            self._status.failure = None
        if state not in ("starting", "streaming"):
            self._streaming = set()
        if state == "waiting-for-topic":
            loop, since_ms = asyncio.get_running_loop(), self._status.since_ms
            loop.call_later(self._topic_wait_seconds, self._note_missing, since_ms)

    def _note_missing(self, since_ms: int) -> None:
        """The topic has been waited for long enough. Ingest goes on looking, and says so when it is there."""
        if (self._status.state, self._status.since_ms) != ("waiting-for-topic", since_ms):
            return
        missing = f"there is no topic {self._topic}, and it was waited for {self._topic_wait_seconds} s"
        advice = "create it, or correct spec.topic; it is read as soon as it is there"
        event("topic-missing", reason=missing, advice=advice)
        self._status.enter("failed", f"{missing}: {advice}")

    async def _next_start(self, generation: int, topic: ObservedTopic) -> dict[str, Any]:
        """Shut out everybody older, then read the positions."""
        self._rows.generation = generation
        await self._rows.close_connections()
        self._replicas.note_topic_partitions(topic.partitions)
        positions = {}
        for partition in self._replicas.partitions_to_ingest():
            replica = self._replicas.by_partition[partition]
            if partition < topic.partitions and partition not in topic.latest:
                continue  # wanted since ingest looked; it will look again
            if replica.writable:
                with guarded("ControlSocket.judge"):
                    self._judge(replica, topic)
            if replica.writable:
                positions[str(partition)] = replica.position if replica.position >= 0 else EARLIEST
                replica.accepts_slices = True
        self._streaming = set(map(int, positions))
        event("start", generation=generation, partitions=len(positions))
        retrying = sorted(
            p for p, replica in self._replicas.by_partition.items() if replica.retrying is not None
        )
        start = {"type": "start", "generation": generation, "positions": positions}
        return start | {"retrying": retrying} if retrying else start

    def _judge(self, replica: Replica, topic: ObservedTopic) -> None:
        if replica.partition not in topic.earliest or replica.partition not in topic.latest:
            replica.fail(f"the topic has {topic.partitions} partitions, and this is not one of them")
            return
        position = replica.position
        if replica.partition in self._streaming:
            position = min(position, topic.latest[replica.partition])
        loss = data_loss_reason(position, replica.store.identity.topic_id, replica.partition, topic)
        if loss is not None:
            if self._on_data_loss == "Fail":
                replica.fail(
                    f"{loss}, and onDataLoss is Fail; what is there stays readable. Rebuild would start afresh"
                )
                return
            event("rebuild", partition=replica.partition, position=replica.position, reason=loss)
            replica.rebuild()
        if replica.writable and replica.store.identity.topic_id != topic.id:
            replica.write(lambda store: store.set_topic_id(topic.id))

    async def _next_generation(self, writer: asyncio.StreamWriter) -> int:
        """While the disk takes nothing, ingest waits for its answer and the query that runs goes on."""
        said = False
        while True:
            try:
                return self._raise_generation()
            except OSError as error:
                if not said:
                    event("generation-unwritten", path=self._generation_path, reason=str(error))
                said = True
            await asyncio.sleep(_WRITE_AGAIN_SECONDS)
            if self._current is not writer:
                raise ConnectionAbortedError("a newer ingest has connected")

    def _raise_generation(self) -> int:
        """Kept on disk, so that it never comes again, not even after a restart."""
        try:
            kept = int(self._generation_path.read_text())
        except (
            FileNotFoundError,
            ValueError,
        ):  # none yet, or lost in a crash of the machine, and writers with it
            kept = 0
        generation = max(kept, self._rows.generation) + 1
        write_atomically(self._generation_path, str(generation))
        return generation


def data_loss_reason(position: int, topic_id: str, partition: int, topic: ObservedTopic) -> str | None:
    """Why the copy cannot go on from its position; None when it can."""
    if topic_id and topic_id != topic.id:
        return "the topic was deleted and made again"
    earliest, latest = topic.earliest[partition], topic.latest[partition]
    if position > latest:
        return f"the log ends at {latest}, before the position {position}"
    if 0 <= position < earliest:
        return f"records from {position} to {earliest} are gone from the log"
    return None


def _topic_seen(message: Mapping[str, Any]) -> ObservedTopic:
    id = message.get("id")
    if not isinstance(id, str) or not 0 < len(id) <= 200:
        raise _ProtocolError("a topic whose id is no text")
    return ObservedTopic(
        id, _whole(message, "partitions"), _offsets(message, "earliest"), _offsets(message, "latest")
    )


def _offsets(message: Mapping[str, Any], field: str) -> dict[int, int]:
    raw = message.get(field)
    if not isinstance(raw, dict):
        raise _ProtocolError(f"{field} is no object of partition and offset")
    try:
        return {int(partition): _whole(raw, partition) for partition in raw}
    except ValueError:
        raise _ProtocolError(f"{field} has a partition that is no number") from None


def _whole(message: Mapping[str, Any], field: str) -> int:
    value = message.get(field)
    if type(value) is not int or not 0 <= value < 2**63:
        raise _ProtocolError(f"{field[:40]} is no whole number")
    return value


async def _receive(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    try:
        line = await reader.readline()
    except ValueError:
        raise _ProtocolError(f"a line of more than {LINE_BYTES_MAX} bytes") from None
    if not line.endswith(b"\n"):
        return None  # the other side has closed; half a line is none
    try:
        message = json.loads(line)
    except ValueError:
        raise _ProtocolError("a line that is no JSON") from None
    if not isinstance(message, dict):
        raise _ProtocolError("a line that is no JSON object")
    return message


async def _send(writer: asyncio.StreamWriter, line: bytes) -> None:
    writer.write(line)
    async with asyncio.timeout(_SEND_SECONDS_MAX):
        await writer.drain()


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
