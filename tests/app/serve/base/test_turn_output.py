"""Test when the answers of one turn of the event loop are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from queryable_app.serve.base.turn_output import ANSWERS_MAX, TurnOutput


def in_a_turn(steps: Callable[[TurnOutput, list[bytes], asyncio.AbstractEventLoop], None]) -> list[bytes]:
    """Return what was written before the loop's next turn is over."""
    written: list[bytes] = []

    async def run() -> None:
        steps(TurnOutput(), written, asyncio.get_running_loop())
        await asyncio.sleep(0)

    asyncio.run(run())
    return written


def test_first_answer_of_a_turn_is_written_at_once() -> None:
    """A lone answer waits for nothing, and those after it are written in their order at the end of the turn."""

    def steps(output: TurnOutput, written: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        for answer in (b"1", b"2", b"3"):
            output.add(written.append, answer, loop)
        assert written == [b"1"]

    assert in_a_turn(steps) == [b"1", b"2", b"3"]


def test_each_turn_has_a_first_answer() -> None:
    """The first answer of the next turn is written at once as well."""
    output, written = TurnOutput(), list[bytes]()

    async def run() -> None:
        for _ in range(2):
            output.add(written.append, b"first", asyncio.get_running_loop())
            output.add(written.append, b"second", asyncio.get_running_loop())
            assert written[-1] == b"first"
            await asyncio.sleep(0)

    asyncio.run(run())
    assert written == [b"first", b"second"] * 2


def test_failure_to_write_delays_no_later_answer() -> None:
    """If the first answer of a turn cannot be written, the next one is the first."""

    def refuse(_: bytes) -> None:
        raise RuntimeError

    def steps(output: TurnOutput, written: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        with pytest.raises(RuntimeError):
            output.add(refuse, b"1", loop)
        output.add(written.append, b"2", loop)
        assert written == [b"2"]

    assert in_a_turn(steps) == [b"2"]


def test_many_answers_are_written_before_the_end() -> None:
    """An answer waits for a bounded number of others."""

    def steps(output: TurnOutput, written: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        for number in range(ANSWERS_MAX + 2):
            output.add(written.append, b"%d" % number, loop)
        assert len(written) == ANSWERS_MAX + 1

    assert in_a_turn(steps) == [b"%d" % number for number in range(ANSWERS_MAX + 2)]


def test_flush_writes_each_answer_once() -> None:
    """A flush writes what is collected, and the end of the turn only what came after it."""

    def steps(output: TurnOutput, written: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        for answer in (b"1", b"2"):
            output.add(written.append, answer, loop)
        output.flush()
        assert written == [b"1", b"2"]
        output.add(written.append, b"3", loop)

    assert in_a_turn(steps) == [b"1", b"2", b"3"]
