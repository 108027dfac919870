"""Test the placement controller with small nodes that listen on real sockets and follow the placement."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from queryable_app.contract import NODE_HEADER, PLACEMENT_PATH
from queryable_app.local.data_directory import DataDirectory
from queryable_app.local.node_tls import node_client
from queryable_app.local.placement_controller import PLACEMENT_FILE, PlacementController
from queryable_app.placement.assignment import DesiredPlacement, Placement, initial_placement
from tests.support.waiting import eventually

SECONDS = 10.0


class ListeningNode(ThreadingHTTPServer):
    """Follow a placement, and report replicas as the test sets them."""

    def __init__(self, ordinal: int, token: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ordinal, self.token = ordinal, token
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.placement: Placement | None = None
        self.catches_up = True
        self.accepts = True
        self.refusals = 0
        self.hangs = threading.Event()
        self.resumes = threading.Event()

    def status(self) -> dict[str, object]:
        assigned = self.placement.assigned_to(self.ordinal) if self.placement else ()
        state = {"complete": self.catches_up, "failed": None, "lagMs": 300}
        epoch = self.placement.epoch if self.placement else 0
        return {"epoch": epoch, "partitions": [{"partition": p, **state} for p in assigned]}

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that has closed its connection."""


class Handler(BaseHTTPRequestHandler):
    server: ListeningNode

    def do_GET(self) -> None:
        if self.server.hangs.is_set():
            self.server.resumes.wait(SECONDS)
        assert self.path == "/v1/status"
        self._answer(200, self.server.status())

    def do_PUT(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if (self.path, self.headers[NODE_HEADER]) != (PLACEMENT_PATH, self.server.token):
            self._answer(403, {})
        elif not self.server.accepts:
            self.server.refusals += 1
            self._answer(503, {"reason": "not_available"})
        else:
            self.server.placement = Placement.from_json(text)
            self._answer(200, {"epoch": self.server.placement.epoch})

    def _answer(self, status: int, body: dict[str, object]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return DataDirectory(tmp_path, tmp_path, 0)


@contextmanager
def listening(count: int, data: DataDirectory) -> Iterator[list[ListeningNode]]:
    with ExitStack() as stack:
        nodes = []
        for ordinal in range(count):
            node = stack.enter_context(ListeningNode(ordinal, data.internal_token().read_text()))
            thread = threading.Thread(target=node.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(node.shutdown)
            stack.callback(node.resumes.set)
            nodes.append(node)
        yield nodes


@contextmanager
def controlling(
    nodes: list[ListeningNode], data: DataDirectory, first: int, desired: int, replicas: int = 1
) -> Iterator[PlacementController]:
    """Run a controller from a placement on the `first` nodes to one on the `desired` nodes."""
    urls = tuple(node.url for node in nodes)
    placement = initial_placement("tests.users.r1", 6, urls[:first], replicas)
    for node in nodes[:first]:
        node.placement = placement
    controller = PlacementController(
        data, placement, DesiredPlacement(urls[:desired], replicas), node_client(data, "")
    )
    try:
        yield controller
    finally:
        controller.close()


def tick_until(what: str, controller: PlacementController, check: Callable[[], bool]) -> list[str]:
    """Advance the controller until `check` is true, and return its lines."""
    lines: list[str] = []

    def checked() -> bool:
        if check():
            return True
        lines.extend(controller.tick())
        return False

    eventually(what, checked, SECONDS, story=lambda: str(controller.placement))
    return lines


@pytest.mark.parametrize(("first", "desired"), [(1, 3), (3, 1), (2, 2)], ids=["up", "down", "same"])
def test_placement_reaches_the_desired_one(data: DataDirectory, first: int, desired: int) -> None:
    """Every remaining node follows the last placement, which is also on disk."""
    with listening(3, data) as nodes, controlling(nodes, data, first, desired) as controller:
        tick_until("settled", controller, lambda: controller.settled)

        assert len(controller.placement.addresses) == desired
        assert all(node.placement == controller.placement for node in nodes[:desired])
        assert Placement.from_json((data.path / PLACEMENT_FILE).read_text()) == controller.placement


def test_replica_that_is_not_caught_up_replaces_none(data: DataDirectory) -> None:
    """The nodes know that the replica is being built, and the old replicas still serve."""
    with listening(2, data) as nodes, controlling(nodes, data, 1, 2) as controller:
        nodes[1].catches_up = False
        tick_until("both follow", controller, lambda: controller.placement.epoch == 2 and controller.followed)

        assert not controller.settled
        assert controller.placement.serving == ((0,),) * 6
        nodes[1].catches_up = True
        tick_until("settled", controller, lambda: controller.settled)


def test_node_that_was_unreachable_gets_the_placement_later(data: DataDirectory) -> None:
    """Until the node follows, no further step is taken, since it may forward reads to former replicas."""
    with listening(2, data) as nodes, controlling(nodes, data, 2, 1) as controller:
        nodes[0].accepts = False
        tick_until(
            "the other node follows",
            controller,
            lambda: controller.placement.epoch == 2 and controller.follows_newest(1),
        )
        assert not controller.follows_newest(0)

        nodes[0].accepts = True
        tick_until("settled", controller, lambda: controller.settled)
        assert nodes[0].placement == controller.placement


def test_refusal_of_a_node_is_reported_once(data: DataDirectory) -> None:
    """The line has the node's own words, since the change waits for the node."""
    with listening(1, data) as nodes, controlling(nodes, data, 1, 1) as controller:
        nodes[0].placement, nodes[0].accepts = None, False
        lines = tick_until("the node has refused three times", controller, lambda: nodes[0].refusals >= 3)

        assert lines == ['Node 0 does not take the placement: {"reason": "not_available"}']


def test_hanging_node_delays_no_other(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick does not wait for the node's response, and the replicas that others build are served."""
    monkeypatch.setattr("queryable_app.local.node_tls._TIMEOUT_SECONDS", 60)

    def all_but_the_last_have_built() -> bool:
        building = {ordinal for hydrating in controller.placement.hydrating for ordinal in hydrating}
        return building == {2} and controller.follows_newest(0) and controller.follows_newest(1)

    with listening(3, data) as nodes, controlling(nodes, data, 3, 3) as controller:
        nodes[2].hangs.set()
        controller.set_desired(DesiredPlacement(tuple(node.url for node in nodes), 2))
        tick_until("the others have built", controller, all_but_the_last_have_built)
        began = time.monotonic()
        controller.tick()

        assert time.monotonic() - began < SECONDS / 2
        assert not controller.settled
        nodes[2].hangs.clear()
        nodes[2].resumes.set()
        tick_until("settled", controller, lambda: controller.settled)


def test_no_replica_is_removed_for_one_on_an_unreachable_node(data: DataDirectory) -> None:
    """If fewer replicas are desired, those on reachable nodes stay: an unreachable node no longer counts as caught up."""
    with listening(2, data) as nodes, controlling(nodes, data, 2, 2, replicas=2) as controller:
        tick_until("settled", controller, lambda: controller.settled)
        nodes[1].shutdown()
        nodes[1].server_close()
        tick_until("node 1 is unreachable", controller, lambda: not controller._observations[1].caught_up)

        epoch = controller.placement.epoch
        controller.set_desired(DesiredPlacement(controller.placement.addresses, 1))
        tick_until("a step", controller, lambda: controller.placement.epoch > epoch)

        assert all(0 in replicas for replicas in controller.placement.serving)


def test_desired_placement_may_change_during_a_change(data: DataDirectory) -> None:
    """The controller follows the newest desired placement from wherever the replicas are."""
    with listening(3, data) as nodes, controlling(nodes, data, 1, 3) as controller:
        nodes[1].catches_up = nodes[2].catches_up = False
        tick_until("begun", controller, lambda: controller.placement.epoch == 2)
        controller.set_desired(DesiredPlacement((nodes[0].url,), 1))
        tick_until("settled", controller, lambda: controller.settled)

        assert controller.placement.serving == ((0,),) * 6
        assert controller.placement.addresses == (nodes[0].url,)
