"""Know of most absent keys without a request, from a filter of all keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from queryable_app.client.keys import Key, record_key
from queryable_app.wire.key_filter import KeyFilter
from queryable_app.wire.serde import KeyCodec


@dataclass(frozen=True, slots=True)
class Membership:
    """Tell which keys did not exist when the filter was read. It does not change: read another one to know of later keys."""

    _keys: KeyFilter
    _codec: KeyCodec
    read_at: float
    """When it was read, in seconds of the client's clock (`time.monotonic`)."""

    def __contains__(self, key: Key) -> bool:
        """Return False for a key that surely did not exist, and rarely True for another one that did not. Raises InvalidRequest.

        if key in members: row = users.get(key)
        """
        return self._keys.may_contain(self._codec.to_disk(record_key(key, self._codec)))

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._keys.keys

    @property
    def positions(self) -> Mapping[int, int]:
        """Partition → next offset: every key that was there is in the filter. A session or `min_position` takes it."""
        return self._keys.positions

    @property
    def rate(self) -> float:
        """The rate of absent keys that are taken for existing ones."""
        return self._keys.rate
