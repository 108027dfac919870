"""Simulate time, which passes only when the simulation advances it, and an event loop for each process.

Strategy: one heap of timers for all processes. Due callbacks run in the order of (moment, number), one after the other, and the
clock jumps from one moment to the next. A process is an event loop: the tested code sees nothing but asyncio. A stopped
process keeps its due callbacks until it continues; a killed one never runs again, not even its `finally`.

Nothing may depend on addresses or on when memory is freed: tasks are hashed by number, and the collector is off.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import traceback
from asyncio import events
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")

_AT_ONE_MOMENT_MAX = 200_000  # callbacks; more are a loop that waits without waiting
_THREAD_SECONDS = (0.0002, 0.003)
WALL_EPOCH_SECONDS = 1_700_000_000.0

_UNFINISHED: list[object] = []  # tasks that ignore their cancellation; freeing them would warn


class TimeStandsStill(Exception):
    """Report callbacks that run again and again without letting time pass."""


class Scheduler:
    def __init__(self, seed: random.Random) -> None:
        self.now = 1000.0
        self.running: Process | None = None
        self.random = seed
        self.steps = 0
        self._numbers = count()
        self._heap: list[tuple[float, int, Process | None, Callable[[], object]]] = []

    def at(self, when: float, owner: Process | None, run: Callable[[], object]) -> None:
        heappush(self._heap, (max(when, self.now), next(self._numbers), owner, run))

    def after(self, seconds: float, run: Callable[[], object]) -> None:
        """Schedule a callback of the world itself, which needs no process."""
        self.at(self.now + seconds, None, run)

    def run_until(self, when: float) -> None:
        at_once = 0
        while self._heap and self._heap[0][0] <= when:
            moment, _, owner, run = heappop(self._heap)
            at_once = at_once + 1 if moment == self.now else 0
            if at_once > _AT_ONE_MOMENT_MAX:
                raise TimeStandsStill(f"{run} of {owner}")
            self.now = moment
            self.steps += 1
            if owner is None:
                run()
            else:
                owner.take(run)
        self.now = when

    def wall_ns(self) -> int:
        """Return the wall clock of the running process; machines' clocks differ."""
        skew = self.running.skew_seconds if self.running is not None else 0.0
        return int((WALL_EPOCH_SECONDS + self.now + skew) * 1e9)

    def monotonic(self) -> float:
        return self.now


class _NumberedTask(asyncio.Task[T]):
    """Hash a task by its number, so that sets of tasks have the same order in each run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class Process(asyncio.AbstractEventLoop):
    """Simulate the part of an event loop that the product uses. `defect` is called with unhandled exceptions."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        defect: Callable[[str], None],
        connect: Callable[..., Coroutine[Any, Any, Any]],
        skew_seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.skew_seconds = skew_seconds
        self.killed = False
        self.stopped = False
        self._scheduler = scheduler
        self._defect = defect
        self._connect = connect
        self._held: list[Callable[[], object]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._numbers = count(1)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    # The world.

    def take(self, run: Callable[[], object]) -> None:
        if self.killed:
            return
        if self.stopped:
            self._held.append(run)
            return
        self._scheduler.running = self
        events._set_running_loop(self)
        try:
            run()
        finally:
            events._set_running_loop(None)
            self._scheduler.running = None

    def kill(self) -> None:
        """Kill the process; its tasks stay unfinished until `discard`."""
        self.killed = True
        self._held.clear()

    def stop_signal(self) -> None:
        self.stopped = True

    def continue_signal(self) -> None:
        self.stopped = False
        held, self._held = self._held, []
        for run in held:
            self._scheduler.at(self._scheduler.now, self, run)

    def cancel_all(self) -> None:
        """Cancel all unfinished tasks, as asyncio does at the end of a loop."""
        self.killed = False
        if self.stopped:
            self.continue_signal()
        for task in self._tasks:
            task.cancel()

    def discard(self) -> None:
        """Discard the tasks of a killed process without a warning."""
        self.killed = True
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _UNFINISHED.append(task.get_coro())
        self._tasks.clear()

    # asyncio.

    def time(self) -> float:
        return self._scheduler.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._scheduler.at(self._scheduler.now, self, _run_of(handle))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._scheduler.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._scheduler.at(when, self, _run_of(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: the scheduler skips a cancelled timer."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task: _NumberedTask[T] = _NumberedTask(coro, loop=self, name=name, context=context)
        task.number = next(self._numbers)
        self._tasks.append(task)
        if len(self._tasks) > 256:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run the call in one piece, a little later, as a thread would."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._scheduler.random.uniform(*_THREAD_SECONDS), run)
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int
    ) -> tuple[Any, Any]:
        connection: tuple[Any, Any] = await self._connect(self, protocol_factory, host)
        return connection

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.killed:
            where = "" if error is None else "".join(traceback.format_exception(error)[-6:])
            self._defect(f"{self.name}: {context.get('message')}: {error!r}\n{where}")


def _run_of(handle: asyncio.Handle) -> Callable[[], object]:
    def run() -> None:
        if not handle.cancelled():
            handle._run()

    return run
