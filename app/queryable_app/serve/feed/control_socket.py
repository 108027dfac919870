"""Listen on control.sock, the Unix socket on which serve and ingest agree where to start.

Strategy: JSON, one object a line; docs/protocols.md has the messages. One ingest is connected at a time, and the newest one wins.
Every start gets a new generation. Before its positions are read, all connections of older generations are closed, so rows arrive
from exactly these positions, whatever process still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from queryable_app.config.topic_spec import OnDataLoss
from queryable_app.contract import CONTROL_PROTOCOL, GENERATION_FILE, ObservedTopic
from queryable_app.platform.log import event
from queryable_app.serve.base.atomic_file import write_atomically
from queryable_app.serve.base.background import guarded, note_failure
from queryable_app.serve.feed.control_messages import (
    LINE_BYTES_MAX,
    count,
    line,
    observed_topic,
    receive,
    send,
)
from queryable_app.serve.feed.data_loss import check_topic
from queryable_app.serve.feed.ingest_status import IngestStatus
from queryable_app.serve.feed.row_socket import RowSocket
from queryable_app.serve.store.replicas import Replicas
from queryable_app.wire.checked import Malformed, field
from queryable_app.wire.ingest_failures import parse_failure

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
_HYDRATED: Final = line({"type": "hydrated"})
_SETTLE_SECONDS: Final = 1.0
_WRITE_RETRY_SECONDS: Final = 0.5


class ControlSocket:
    """Serve the control socket from `start` to `stop`."""

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
        self._sent_partitions: list[int] = []
        self._streaming: set[int] = set()
        """The partitions of ingest's running query. Its rows are in the log, even beyond the end offset that ingest saw."""
        self._announcement: asyncio.TimerHandle | None = None
        self._conversations: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)  # of a process that was killed
        self._server = await asyncio.start_unix_server(self._accept, self._path, limit=LINE_BYTES_MAX)
        self._path.chmod(0o600)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._announcement is not None:
            self._announcement.cancel()
        for conversation in self._conversations:
            conversation.cancel()
        if self._conversations:
            await asyncio.wait(self._conversations)
        self._path.unlink(missing_ok=True)

    def restart(self) -> None:
        """Make ingest restart its query, from the present positions and in a new generation."""
        if self._current is not None:
            self._current.write(self._wanted())

    def announce(self) -> None:
        """Send the wanted partitions soon, so that several changes lead to one restart of ingest's query."""
        if self._announcement is None:
            self._announcement = asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._announce)

    def send_hydrated(self) -> None:
        """Tell ingest that all replicas are complete, so that it may do work that would have slowed down hydration."""
        if self._current is not None:
            self._current.write(_HYDRATED)

    def _announce(self) -> None:
        self._announcement = None
        wanted, replicas = self._replicas.partitions_to_ingest(), self._replicas.by_partition
        unfed = any(not replicas[p].accepts_slices and replicas[p].writable for p in wanted)
        if self._current is not None and (unfed or wanted != self._sent_partitions):
            self._current.write(self._wanted())

    def _wanted(self) -> bytes:
        self._sent_partitions = self._replicas.partitions_to_ingest()
        event("wanted", partitions=self._sent_partitions)
        return line({"type": "wanted", "topic": self._topic, "partitions": self._sent_partitions})

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.create_task(self._serve(reader, writer))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._converse(reader, writer)
        except Malformed as error:
            event("refused", socket=self._path.name, reason=str(error))
        except (ConnectionError, TimeoutError):
            pass  # ingest has ended, and its supervisor restarts it
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
        hello = await receive(reader)
        if hello is None:
            return
        if hello.get("type") != "hello" or hello.get("protocol") != CONTROL_PROTOCOL:
            raise Malformed(f"a first message that is no hello of protocol {CONTROL_PROTOCOL}")
        pid = field(hello, "pid", count)
        older, self._current = self._current, writer
        if older is not None:
            event("refused", socket=self._path.name, pid=self._status.pid, reason=f"ingest {pid} is newer")
            older.write(line({"type": "superseded"}))
            older.close()
        self._status.pid, self._status.starts, self._status.mode = pid, 0, ""
        self._streaming = set()
        self._status.enter("starting")
        await send(writer, self._wanted())
        if self._replicas.ready:
            await send(writer, _HYDRATED)
        while (message := await receive(reader)) is not None and self._current is writer:
            kind = message.get("type")
            if kind == "state":
                self._note_state(message)
            elif kind == "topic":
                if message.get("id") is not None:
                    topic = observed_topic(message)
                    generation = await self._next_generation(writer)
                    await send(writer, line(await self._next_start(generation, topic)))
            else:
                raise Malformed(f"a message of type {str(kind)[:40]!r}")

    def _note_state(self, message: Mapping[str, Any]) -> None:
        state, detail = message.get("state"), message.get("detail")
        if state not in INGEST_STATES:
            raise Malformed(f"a state that is none of {', '.join(INGEST_STATES)}")
        self._status.mode = str(message.get("mode") or "")[:40]
        self._status.starts = field(message, "starts", count)
        detail = "" if detail is None else str(detail)[:_DETAIL_CHARS_MAX]
        self._status.enter(state, detail)
        if state == "failed":
            # Without a reason the failure may be transient.
            self._status.failure = parse_failure({"reason": message.get("reason"), "message": detail})
        elif state != "starting":
            self._status.failure = None
        if state not in ("starting", "streaming"):
            self._streaming = set()
        if state == "waiting-for-topic":
            loop, since_ms = asyncio.get_running_loop(), self._status.since_ms
            loop.call_later(self._topic_wait_seconds, self._note_missing, since_ms)

    def _note_missing(self, since_ms: int) -> None:
        """Report the missing topic as a failure. Ingest continues to look for it, and reads it once it exists."""
        if (self._status.state, self._status.since_ms) != ("waiting-for-topic", since_ms):
            return
        missing = f"there is no topic {self._topic}, and it was waited for {self._topic_wait_seconds} s"
        advice = "create it, or correct spec.topic; it is read as soon as it is there"
        event("topic-missing", reason=missing, advice=advice)
        self._status.enter("failed", f"{missing}: {advice}")

    async def _next_start(self, generation: int, topic: ObservedTopic) -> dict[str, Any]:
        """Close all older row connections, then return the positions of the next start."""
        self._rows.generation = generation
        await self._rows.close_connections()
        if not self._replicas.source_partitions:  # the rekey job reports those of the source
            self._replicas.note_topic_partitions(topic.partitions)
        positions = {}
        for partition in self._replicas.partitions_to_ingest():
            replica = self._replicas.by_partition[partition]
            if partition < topic.partitions and partition not in topic.latest:
                continue  # assigned since ingest looked, which it will do again
            if replica.writable:
                with guarded("ControlSocket.check"):
                    check_topic(replica, topic, partition in self._streaming, self._on_data_loss)
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

    async def _next_generation(self, writer: asyncio.StreamWriter) -> int:
        """Raise the generation. If the disk refuses the write, retry; meanwhile ingest waits and its running query continues."""
        logged = False
        while True:
            try:
                return self._raise_generation()
            except OSError as error:
                if not logged:
                    event("generation-unwritten", path=self._generation_path, reason=str(error))
                logged = True
            await asyncio.sleep(_WRITE_RETRY_SECONDS)
            if self._current is not writer:
                raise ConnectionAbortedError("a newer ingest has connected")

    def _raise_generation(self) -> int:
        """Return a generation that was never used before, not even before a restart."""
        try:
            retained = int(self._generation_path.read_text())
        except (
            FileNotFoundError,
            ValueError,
        ):  # none yet, or lost in a machine crash, which also ended all writers
            retained = 0
        generation = max(retained, self._rows.generation) + 1
        write_atomically(self._generation_path, str(generation))
        return generation
