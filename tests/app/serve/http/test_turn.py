"""Test when the requests of one turn of the event loop are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import pytest
from uvicorn.server import ServerState

from queryable_app.errors import Failure
from queryable_app.policy.routing import not_hosted_here
from queryable_app.serve.base import background
from queryable_app.serve.base.counters import Counters
from queryable_app.serve.base.write_now import NO_SOCKET
from queryable_app.serve.http.turn import WAITING_MAX, Turn

SENT = "the forwarded reads are sent"
ABSENT, ELSEWHERE = b"absent", b"elsewhere"
REFUSAL = not_hosted_here(0)


class FakeReads:
    """Answer every key with itself, but for two, and count those that were found."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.together: list[int] = []  # the number of keys of each call
        self.lines = b""

    def found_at_once(self, keys: Sequence[bytes]) -> list[bytes | Failure | None]:
        self.together.append(len(keys))
        others: dict[bytes, Failure | None] = {ABSENT: None, ELSEWHERE: REFUSAL}
        found = [others.get(key, key) for key in keys]
        self.counters.keys_found += sum(isinstance(answer, bytes) for answer in found)
        return found

    def set_server_lines(self, lines: bytes) -> None:
        self.lines = lines


class FakeReader:
    """Stand for a connection, and for its transport."""

    sweeps: ClassVar[int] = 7

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = asyncio.get_running_loop()
        self.server_state = world.state
        self.transport: Any = self
        self.descriptor = NO_SOCKET
        self.idle_since: int | None = 1
        self.unanswered: list[tuple[bytes, bytes, Failure | None]] = []
        self.defect: Exception | None = None
        self.aborted = False
        self.name = ""

    def write(self, answer: bytes) -> None:
        self.world.written.append(answer)

    def abort(self) -> None:
        self.aborted = True

    def take_unanswered(self, key: bytes, data: bytes, found: Failure | None) -> None:
        self.unanswered.append((key, data, found))
        self.world.steps.append(self.name)
        self.loop.call_soon(self.world.steps.append, f"scheduled by {self.name}")
        if self.defect is not None:
            raise self.defect

    def read(self, key: bytes) -> None:
        self.world.turn.read(self, key, b"GET " + key)


class World:
    """A turn with its reads and what it wrote."""

    def __init__(self) -> None:
        self.counters, self.state = Counters(), ServerState()
        self.reads = FakeReads(self.counters)
        self.turn = Turn(cast("Any", self.reads), self.counters, lambda: self.steps.append(SENT))
        self.written: list[bytes] = []
        self.steps: list[str] = []


def in_a_turn(steps: Callable[[World, FakeReader], None]) -> World:
    """Run steps in one turn of a loop, and return what there is before its next turn is over."""
    world = World()

    async def run() -> None:
        steps(world, FakeReader(world))
        await asyncio.sleep(0)

    asyncio.run(run())
    return world


def test_first_read_of_a_turn_is_answered_at_once() -> None:
    """A lone read waits for nothing; those after it are looked up together, and answered in their order."""

    def steps(world: World, reader: FakeReader) -> None:
        for key in (b"1", b"2", b"3"):
            reader.read(key)
        assert world.written == [b"1"]

    world = in_a_turn(steps)
    assert world.written == [b"1", b"2", b"3"]
    assert (world.reads.together, world.counters.fast_answers) == ([1, 2], 3)


def test_each_turn_has_a_first_read() -> None:
    """The first read of the next turn is answered at once as well."""
    world = World()

    async def run() -> None:
        reader = FakeReader(world)
        for _ in range(2):
            reader.read(b"first")
            reader.read(b"second")
            assert world.written[-1] == b"first"
            await asyncio.sleep(0)

    asyncio.run(run())
    assert world.written == [b"first", b"second"] * 2


def test_many_reads_are_answered_before_the_end() -> None:
    """A read waits for a bounded number of others."""

    def steps(world: World, reader: FakeReader) -> None:
        for number in range(WAITING_MAX + 2):
            reader.read(b"%d" % number)
        assert len(world.written) == WAITING_MAX + 1

    assert in_a_turn(steps).written == [b"%d" % number for number in range(WAITING_MAX + 2)]


def test_answers_keep_their_place_among_reads() -> None:
    """An answer that needs no look-up is written with those of the turn."""

    def steps(world: World, reader: FakeReader) -> None:
        world.turn.write(reader, b"1")
        assert world.written == [b"1"]
        world.turn.write(reader, b"2")
        assert world.written == [b"1"]

    assert in_a_turn(steps).written == [b"1", b"2"]


def test_flush_answers_each_read_once() -> None:
    """A flush answers what is collected, and the end of the turn only what came after it."""

    def steps(world: World, reader: FakeReader) -> None:
        for key in (b"1", b"2"):
            reader.read(key)
        world.turn.flush()
        assert world.written == [b"1", b"2"]
        reader.read(b"3")

    assert in_a_turn(steps).written == [b"1", b"2", b"3"]


@pytest.mark.parametrize("position", [0, 1], ids=["first", "later"])
@pytest.mark.parametrize(("key", "found"), [(ABSENT, None), (ELSEWHERE, REFUSAL)])
def test_read_without_an_answer_goes_back(position: int, key: bytes, found: Failure | None) -> None:
    """A read that is not answered at once goes back to its connection, with its bytes and what is known."""
    readers: list[FakeReader] = []

    def steps(world: World, reader: FakeReader) -> None:
        readers.append(reader)
        for _ in range(position):
            FakeReader(world).read(b"other")
        reader.read(key)

    world = in_a_turn(steps)
    assert readers[0].unanswered == [(key, b"GET " + key, found)]
    assert world.written == [b"other"] * position


def test_read_behind_a_request_in_progress_goes_back() -> None:
    """If an earlier request of the connection takes a task in the meantime, the next read waits behind it, uncounted."""
    readers: list[FakeReader] = []

    def steps(world: World, reader: FakeReader) -> None:
        readers.append(reader)
        FakeReader(world).read(b"other")
        reader.read(b"a")
        reader.idle_since = None

    world = in_a_turn(steps)
    assert world.written == [b"other"]
    assert readers[0].unanswered == [(b"a", b"GET a", None)]
    assert world.counters.keys_found == 1


def test_defect_of_one_connection_delays_no_other() -> None:
    """A connection that fails to take its read back is closed and reported; the others are answered."""
    readers: list[FakeReader] = []
    before = background.FAILURES["Turn"]

    def steps(world: World, reader: FakeReader) -> None:
        readers.append(reader)
        reader.defect = RuntimeError("defect")
        FakeReader(world).read(b"1")
        reader.read(ABSENT)
        FakeReader(world).read(b"2")

    assert in_a_turn(steps).written == [b"1", b"2"]
    assert readers[0].aborted
    assert background.FAILURES["Turn"] == before + 1


def test_defect_of_the_first_read_delays_none_for_long() -> None:
    """If the first read of a turn meets a defect, the others are answered at its end."""

    def steps(world: World, reader: FakeReader) -> None:
        reader.defect = RuntimeError("defect")
        with pytest.raises(RuntimeError):
            reader.read(ABSENT)
        FakeReader(world).read(b"2")

    assert in_a_turn(steps).written == [b"2"]


def test_forwarded_reads_of_a_turn_are_sent_together() -> None:
    """Reads that other nodes answer are sent once all of the turn are known, before what their start has scheduled."""

    def steps(world: World, reader: FakeReader) -> None:
        for name in ("first", "second"):
            forwarding = FakeReader(world)
            forwarding.name = name
            forwarding.read(ELSEWHERE)

    assert in_a_turn(steps).steps[:4] == ["first", "second", SENT, "scheduled by first"]


def test_server_lines_are_rendered_when_uvicorn_replaces_them() -> None:
    """The answers begin with the header lines that the server has at that moment."""

    def steps(world: World, reader: FakeReader) -> None:
        for date in (b"today", b"tomorrow"):
            world.state.default_headers = [(b"date", date), (b"server", b"x")]
            reader.read(b"a")
            world.turn.flush()
            assert world.reads.lines == b"date: %b\r\nserver: x\r\n" % date

    in_a_turn(steps)
