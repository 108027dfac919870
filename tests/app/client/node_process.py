"""Run a node as a process that a test can kill or stop: `node_process.py DIRECTORY ORDINAL PORT PLACEMENT`."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from queryable_app.placement.assignment import Placement
from tests.support.served import served

if __name__ == "__main__":
    directory, ordinal, port, placement = sys.argv[1:]
    with served(
        Path(directory),
        ordinal=int(ordinal),
        placement=Placement.from_json(placement),
        listener=socket.create_server(("127.0.0.1", int(port))),
        settings={"internal_token_path": str(Path(directory).parent / "token")},
    ) as node:
        node.fill(100)
        print("ready", flush=True)
        signal.pause()
