"""The partitioners that records of the view have contradicted, on disk.

A node learns it from its own copies and from the other nodes. It keeps it, since a copy that showed it may be rebuilt or
placed elsewhere, and after a restart the others may be out of reach: with one partitioner too many to trust, a key that is
there would be looked for where it is not.
"""

from __future__ import annotations

import json
from pathlib import Path

from queryable_app.platform.log import event
from queryable_app.serve.base.atomic_file import write_atomically
from queryable_app.wire.partitioners import ALGORITHMS


class PartitionerInUse:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.known = self._read()
        self._unwritten = False

    def add(self, algorithms: frozenset[str]) -> None:
        if algorithms <= self.known and not self._unwritten:
            return
        self.known |= algorithms
        try:
            write_atomically(self._path, json.dumps(sorted(self.known)))
            self._unwritten = False
        except OSError as error:  # written the next time; a full disk is no reason to know less now
            self._unwritten = True
            event("failed", path=str(self._path), reason=str(error))

    def _read(self) -> frozenset[str]:
        try:
            return frozenset(json.loads(self._path.read_text())).intersection(ALGORITHMS)
        except FileNotFoundError:
            return frozenset()
        except (
            OSError,
            ValueError,
            TypeError,
        ):  # cut off by a crash: trusting no partitioner is always right
            return frozenset(ALGORITHMS)
