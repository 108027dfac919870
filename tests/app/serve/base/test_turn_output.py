"""Test that the answers of one turn of the event loop are written together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from queryable_app.serve.base.turn_output import ANSWERS_MAX, TurnOutput


def in_a_turn(steps: Callable[[TurnOutput, list[bytes], asyncio.AbstractEventLoop], None]) -> list[bytes]:
    """Return what was written before the loop's next turn is over."""
    written: list[bytes] = []

    async def run() -> None:
        steps(TurnOutput(), written, asyncio.get_running_loop())
        await asyncio.sleep(0)

    asyncio.run(run())
    return written


def test_answers_are_written_in_order_at_the_end_of_the_turn() -> None:
    """Answers are written in their order, and none before the turn is over."""

    def steps(output: TurnOutput, written: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        output.add(written.append, b"1", loop)
        output.add(written.append, b"2", loop)
        assert written == []

    assert in_a_turn(steps) == [b"1", b"2"]


def test_many_answers_are_written_before_the_end() -> None:
    """An answer waits for a bounded number of others."""

    def steps(output: TurnOutput, written: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        for number in range(ANSWERS_MAX + 1):
            output.add(written.append, b"%d" % number, loop)
        assert len(written) == ANSWERS_MAX

    assert in_a_turn(steps) == [b"%d" % number for number in range(ANSWERS_MAX + 1)]


def test_flush_writes_each_answer_once() -> None:
    """A flush writes what is collected, and the end of the turn only what came after it."""

    def steps(output: TurnOutput, written: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        output.add(written.append, b"1", loop)
        output.flush()
        assert written == [b"1"]
        output.add(written.append, b"2", loop)

    assert in_a_turn(steps) == [b"1", b"2"]
