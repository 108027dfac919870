"""The placer, against small nodes that listen on real sockets and follow what they are told."""

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
from queryable_app.local.placement_controller import PLACEMENT_FILE, PlacementController
from queryable_app.placement.assignment import DesiredPlacement, Placement, initial_placement
from queryable_app.placement.controller import NodeObservation, next_step, parse_observation

SECONDS = 10.0


class ListeningNode(ThreadingHTTPServer):
    """Knows a placement, and says of its copies what the test lets it say."""

    def __init__(self, ordinal: int, token: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ordinal, self.token = ordinal, token
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.placement: Placement | None = None
        self.catches_up = True
        self.accepts = True
        self.refusals = 0
        self.hangs = threading.Event()
        self.goes_on = threading.Event()

    def status(self) -> dict[str, object]:
        held = self.placement.assigned_to(self.ordinal) if self.placement else ()
        stands = {"complete": self.catches_up, "failed": None, "lagMs": 300}
        epoch = self.placement.epoch if self.placement else 0
        return {"epoch": epoch, "partitions": [{"partition": p, **stands} for p in held]}

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked has gone meanwhile."""


class Handler(BaseHTTPRequestHandler):
    server: ListeningNode

    def do_GET(self) -> None:
        if self.server.hangs.is_set():
            self.server.goes_on.wait(SECONDS)
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
            stack.callback(node.goes_on.set)
            nodes.append(node)
        yield nodes


@contextmanager
def placing(
    nodes: list[ListeningNode], data: DataDirectory, first: int, wanted: int, replicas: int = 1
) -> Iterator[PlacementController]:
    """From a placement on the `first` of the nodes to one on the `wanted`."""
    urls = tuple(node.url for node in nodes)
    placement = initial_placement("tests.users.r1", 6, urls[:first], replicas)
    for node in nodes[:first]:
        node.placement = placement
    placer = PlacementController(data, placement, DesiredPlacement(urls[:wanted], replicas))
    try:
        yield placer
    finally:
        placer.close()


def ticking_until(what: str, placer: PlacementController, check: Callable[[], bool]) -> list[str]:
    said: list[str] = []
    deadline = time.monotonic() + SECONDS
    while not check():
        assert time.monotonic() < deadline, f"{what}: {placer.placement}"
        said += placer.tick()
        time.sleep(0.01)
    return said


@pytest.mark.parametrize(("first", "wanted"), [(1, 3), (3, 1), (2, 2)], ids=["up", "down", "stays"])
def test_a_placement_goes_where_it_is_wanted(data: DataDirectory, first: int, wanted: int) -> None:
    """Every node that is left knows the last one, and so does the disk."""
    with listening(3, data) as nodes, placing(nodes, data, first, wanted) as placer:
        ticking_until("settled", placer, lambda: placer.settled)

        assert len(placer.placement.addresses) == wanted
        assert all(node.placement == placer.placement for node in nodes[:wanted])
        assert Placement.from_json((data.path / PLACEMENT_FILE).read_text()) == placer.placement


def test_a_copy_that_is_not_caught_up_replaces_none(data: DataDirectory) -> None:
    """The nodes know that it is being built, and the old copies serve on."""
    with listening(2, data) as nodes, placing(nodes, data, 1, 2) as placer:
        nodes[1].catches_up = False
        ticking_until("known", placer, lambda: placer.placement.epoch == 2 and placer.known)

        assert not placer.settled
        assert placer.placement.serving == ((0,),) * 6
        nodes[1].catches_up = True
        ticking_until("settled", placer, lambda: placer.settled)


def test_a_node_that_was_away_hears_later(data: DataDirectory) -> None:
    """Until then no further step is taken, since it may send reads to where the copies were."""
    with listening(2, data) as nodes, placing(nodes, data, 2, 1) as placer:
        nodes[0].accepts = False
        ticking_until(
            "the other knows", placer, lambda: placer.placement.epoch == 2 and placer.follows_newest(1)
        )
        assert not placer.follows_newest(0)

        nodes[0].accepts = True
        ticking_until("settled", placer, lambda: placer.settled)
        assert nodes[0].placement == placer.placement


def test_a_node_that_refuses_is_named_once(data: DataDirectory) -> None:
    """With its own words, since the change waits for it."""
    with listening(1, data) as nodes, placing(nodes, data, 1, 1) as placer:
        nodes[0].placement, nodes[0].accepts = None, False
        said = ticking_until("it has refused three times", placer, lambda: nodes[0].refusals >= 3)

        assert said == ['Node 0 does not take the placement: {"reason": "not_available"}']


def test_a_node_that_hangs_holds_up_nobody(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick does not wait for the node's answer, and what the others build is served."""
    monkeypatch.setattr("queryable_app.local.placement_controller._ANSWER_SECONDS", 60)

    def all_but_the_last_have_built() -> bool:
        building = {ordinal for hydrating in placer.placement.hydrating for ordinal in hydrating}
        return building == {2} and placer.follows_newest(0) and placer.follows_newest(1)

    with listening(3, data) as nodes, placing(nodes, data, 3, 3) as placer:
        nodes[2].hangs.set()
        placer.follow(DesiredPlacement(tuple(node.url for node in nodes), 2))
        ticking_until("the others have built", placer, all_but_the_last_have_built)
        began = time.monotonic()
        placer.tick()

        assert time.monotonic() - began < SECONDS / 2
        assert not placer.settled
        nodes[2].hangs.clear()
        nodes[2].goes_on.set()
        ticking_until("settled", placer, lambda: placer.settled)


def test_no_copy_is_given_up_for_one_whose_node_has_gone(data: DataDirectory) -> None:
    """What a node said of its copies does not outlive its answers: fewer are wanted, and those elsewhere stay."""
    with listening(2, data) as nodes, placing(nodes, data, 2, 2, replicas=2) as placer:
        ticking_until("settled", placer, lambda: placer.settled)
        nodes[1].shutdown()
        nodes[1].server_close()
        ticking_until("node 1 is missed", placer, lambda: not placer._seen[1].caught_up)

        epoch = placer.placement.epoch
        placer.follow(DesiredPlacement(placer.placement.addresses, 1))
        ticking_until("a step", placer, lambda: placer.placement.epoch > epoch)

        assert all(0 in replicas for replicas in placer.placement.serving)


def test_what_is_wanted_may_change_under_way(data: DataDirectory) -> None:
    """The newest wish is followed from wherever the copies are."""
    with listening(3, data) as nodes, placing(nodes, data, 1, 3) as placer:
        nodes[1].catches_up = nodes[2].catches_up = False
        ticking_until("begun", placer, lambda: placer.placement.epoch == 2)
        placer.follow(DesiredPlacement((nodes[0].url,), 1))
        ticking_until("settled", placer, lambda: placer.settled)

        assert placer.placement.serving == ((0,),) * 6
        assert placer.placement.addresses == (nodes[0].url,)


TWO = ("http://a", "http://b")
MOVING = Placement(5, "tests.users.r1", TWO, ((0,),), ((1,),))
ONLY_ONE = DesiredPlacement(TWO, 1)


@pytest.mark.parametrize(
    ("seen", "taken"),
    [
        ({0: NodeObservation(100, 5, frozenset({0})), 1: NodeObservation(100, 5, frozenset({0}))}, True),
        ({0: NodeObservation(100, 5, frozenset({0})), 1: NodeObservation(100, 5, frozenset())}, False),
        ({0: NodeObservation(100, 4, frozenset({0})), 1: NodeObservation(100, 5, frozenset({0}))}, False),
        ({0: NodeObservation(80, 4, frozenset({0})), 1: NodeObservation(100, 5, frozenset({0}))}, True),
        ({0: NodeObservation(100, 5, frozenset({0})), 1: NodeObservation(95, 5, frozenset({0}))}, False),
        ({1: NodeObservation(100, 5, frozenset({0}))}, True),
        ({}, False),
    ],
    ids=["caught-up", "building", "one-knows-less", "that-one-is-away", "old-news", "never-heard", "nobody"],
)
def test_when_the_next_step_is_taken(seen: dict[int, NodeObservation], taken: bool) -> None:
    """When the copy is caught up now, and every node that can be heard knows where it is being built."""
    assert (next_step(MOVING, ONLY_ONE, seen, now=100) is not MOVING) == taken


@pytest.mark.parametrize(
    ("stands", "caught_up"),
    [
        ({}, True),
        ({"lagMs": 2_000}, True),
        ({"complete": False}, False),
        ({"failed": "a bad record"}, False),
        ({"damaged": None}, True),
        ({"damaged": "Corruption: block checksum mismatch"}, False),
        ({"lagMs": 2_001}, False),
        ({"lagMs": -1}, False),
    ],
    ids=["fresh", "a-little-behind", "building", "failed", "whole", "damaged", "behind", "not-known"],
)
def test_which_copies_are_caught_up(stands: dict[str, object], caught_up: bool) -> None:
    """Complete, not stopped by a failure nor damaged, and near the end of the log."""
    replica = {"partition": 3, "complete": True, "failed": None, "lagMs": 0, **stands}

    seen = parse_observation({"epoch": 7, "partitions": [replica]}, now=100)

    assert seen == NodeObservation(100, 7, frozenset({3} if caught_up else set()))
