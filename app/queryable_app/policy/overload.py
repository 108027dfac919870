"""Who is refused when there is too much to do: one decision a request, when its turn comes.

Strategy: a queue that is short again and again is a burst, and whoever is in it gets an answer. One in which everybody has
waited long for a while is a backlog: it gets no shorter by being served, and only makes every answer late. From then on whoever
has waited long is refused, until for a while nobody has. What counts is the time that was waited, not how many wait: ten
requests may be a millisecond of work or a second.

Where only a few wait, nobody is refused: then it is the requests that are long, or the machine is slow, and not the queue.
Once there is a backlog both bounds are half as large, so that who is answered hardly waits.

Long reads wait again and again, at each of their pauses, so one more of them makes all of them longer. There is room for it
while they wait briefly.
"""

from __future__ import annotations

from typing import Final

LONG_WAIT_SECONDS: Final = 0.005
BACKLOG_SECONDS: Final = 0.1  # also what may be waited in a burst
WAITING_FEW: Final = (
    16  # more than a node under no great load has waiting after a moment in which others had the processor
)
LONG_READS_WAITING_FEW: Final = 4
LONG_YIELD_SECONDS: Final = 0.02


def admits_long_read(waiting: int, waited: float) -> bool:
    """For one more long read, while that many wait to go on, and the one that last did had waited so long."""
    return waiting < LONG_READS_WAITING_FEW or waited <= LONG_YIELD_SECONDS


class Backlog:
    """`now` is any clock that does not go back."""

    __slots__ = ("_all_long_since", "_long_at", "shedding")

    def __init__(self) -> None:
        self.shedding = False
        self._all_long_since: float | None = None  # None: who came last had not waited long
        self._long_at = 0.0

    def admits(self, waited: float, behind: int, now: float) -> bool:
        """Whether a request whose turn has come is worked on. `behind` are the others that wait."""
        part = 0.5 if self.shedding else 1
        if waited <= part * LONG_WAIT_SECONDS or behind < part * WAITING_FEW:
            self._all_long_since = None
            self.shedding = self.shedding and now - self._long_at <= BACKLOG_SECONDS
            return True
        self._long_at = now
        if self._all_long_since is None:
            self._all_long_since = now
        elif now - self._all_long_since > BACKLOG_SECONDS:
            self.shedding = True
        return not self.shedding and waited <= BACKLOG_SECONDS
