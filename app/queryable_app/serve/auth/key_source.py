"""Describe where the keys come from that tokens are verified with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from queryable_app.policy.tokens import VerificationKey
from queryable_app.serve.base.background import Background


class KeySource(Background):
    """Keep keys, and replace them as their owner does. The last good ones stay while there are no new ones."""

    def __init__(self) -> None:
        self.keys: Sequence[VerificationKey] = ()
        self.on_change: Callable[[], None] = lambda: None
        """Called when the keys are others."""

    @abstractmethod
    def may_fetch(self) -> bool:
        """Return whether a fetch now could bring a key that is unknown so far."""

    @abstractmethod
    async def fetch(self) -> None:
        """Fetch the keys now, or wait for the fetch that is under way. A failure leaves the keys as they are."""

    def _replace(self, keys: Sequence[VerificationKey]) -> None:
        self.keys = tuple(keys)
        self.on_change()
