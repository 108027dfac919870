"""Test the examples of aggregates in a cluster. A word count has a rekey job, survives kills, and leaves nothing behind."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from queryable_operator.spec import names
from tests.support.view_on_cluster import SMALL, Platform, ViewOnCluster, is_ready

pytestmark = pytest.mark.timeout(900)

EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = ("topic", "view", "row", "key", "node", "pod", "count", "window")
REKEY = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1200Mi"}}
SEED = 20261123


def example(name: str, **spec: Any) -> dict[str, Any]:
    """Return the spec of an example with the cluster's Kafka and small pods."""
    return {**yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["spec"], **SMALL, **spec}


@pytest.fixture(scope="module")
def view(platform: Platform) -> ViewOnCluster:
    """Return the word count, with two nodes that both have every partition, and two executors. A test deletes it."""
    view = ViewOnCluster(platform, "word-count", "lines")
    platform.make_topic(view.topic)
    resources = {**SMALL["podTemplate"]["resources"], "rekey": REKEY}
    two = {
        "replicas": 2,
        "standbyReplicas": 1,
        "podTemplate": {"resources": resources},
        "ingest": {"executors": 2},
    }
    view.apply(example("word-count", **two))
    view.wait_until_available()
    return view


def job(view: ViewOnCluster) -> str:
    return names.rekey_pod(view.name, int(view.active[1:]))


def executor(view: ViewOnCluster, index: int) -> str:
    return names.executor_pod(view.name, int(view.active[1:]), index)


def runs(view: ViewOnCluster) -> int:
    """Return how many runs the present process of the job has begun."""
    return view.namespace.kubectl("logs", job(view), "--container", "rekey").count('"rekey-run"')


def counts(view: ViewOnCluster, address: str) -> dict[str, Any]:
    """Return the count of each word, or what was answered in its place."""
    return {
        answer["key"]: answer["value"]["n"]
        if answer["status"] == 200
        else (answer["status"], answer["value"])
        for answer in view.platform.clients("get", address, *WORDS)
    }


def assert_counts(view: ViewOnCluster, expected: Mapping[str, int]) -> None:
    """Check the newest counts at each node."""
    for address in view.placement()["addresses"]:
        assert counts(view, address) == expected, address


@contextmanager
def flood(view: ViewOnCluster, expected: Counter[str]) -> Iterator[None]:
    """Write lines during the block, and count their words."""
    dice, stop = random.Random(SEED), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            lines = {f"line-{number + n}": " ".join(dice.choices(WORDS, k=5)) for n in range(500)}
            number += len(lines)
            view.platform.produce(view.topic, lines)
            expected.update(word for line in lines.values() for word in line.split())

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield
        finally:
            stop.set()
        writing.result()


def kill(view: ViewOnCluster, *killed: str) -> None:
    """Kill pods at once without a grace period, and wait until their successors are ready."""
    before = {pod: pods(view)[pod]["metadata"]["uid"] for pod in killed}
    view.namespace.kubectl("delete", "pod", *killed, "--force", "--grace-period=0")
    for pod in killed:
        view.platform.eventually(f"{pod} is replaced", partial(is_replaced, view, pod, before[pod]))


def is_replaced(view: ViewOnCluster, pod: str, before: str) -> bool:
    live = pods(view).get(pod)
    return live is not None and live["metadata"]["uid"] != before and is_ready(live)


def pods(view: ViewOnCluster) -> dict[str, Mapping[str, Any]]:
    """Return the pods of the nodes, of the rekey job and of its executors."""
    return {pod["metadata"]["name"]: pod for pod in view.live("pod")}


def test_words_are_counted_exactly_while_pods_are_killed(view: ViewOnCluster) -> None:
    """Every node has the exact count of each word after an executor, the rekey job and a node were killed during a flood of
    lines."""
    expected: Counter[str] = Counter(["view", "view", "pod"])
    view.platform.produce(view.topic, {"first": "A view? The VIEW", "second": "of a pod"})
    (there,) = view.platform.clients("get", view.url, "view")
    assert (there["status"], there["value"]) == (200, {"n": 2})

    with flood(view, expected):
        before = runs(view)
        kill(view, executor(view, 0))
        view.platform.eventually("the job has begun another run", lambda: runs(view) > before)
        kill(view, job(view), view.pod(1))
    view.wait_until_settled()
    assert sum(expected.values()) > 1000
    assert_counts(view, expected)


def test_job_checks_the_view_once(view: ViewOnCluster) -> None:
    """The check of a restarted job finds the format of group keys in the revision's ConfigMap, and starts no Spark."""
    (status,) = pods(view)[job(view)]["status"]["initContainerStatuses"]
    ended = status["state"]["terminated"]

    assert json.loads(ended["message"]) == {"groupKeyFormat": "string"}
    assert "Spark" not in view.namespace.kubectl("logs", job(view), "--container", "check")


def test_refused_sql_ends_a_candidate(view: ViewOnCluster) -> None:
    """A change that Spark refuses is reported with its sentence before any node of the candidate starts."""
    view.patch(transform={"sql": "SELECT explode(split(nope, ' ')) AS word FROM records"})
    view.platform.eventually("the change has failed", lambda: "failure" in view.status)

    assert view.status["failure"]["reason"] == "TransformRefused"
    assert "`nope`" in view.status["failure"]["message"]
    assert view.active == "r1"
    assert not any(name.startswith(f"{view.name}-r2-") for name in view.pods())


def test_deleted_view_leaves_no_internal_topic(view: ViewOnCluster) -> None:
    """The deletion of the resource deletes the job's pod and the internal topic."""
    prefix = f"{view.namespace.name}.{view.name}."
    assert any(name.endswith(names.REKEY_SUFFIX) for name in view.platform.in_kafka(prefix))
    view.delete()
    view.platform.eventually("its pods have ended", lambda: not pods(view))
    assert view.platform.in_kafka(prefix) == []


def test_users_who_move_leave_nothing_behind_while_an_executor_is_killed(platform: Platform) -> None:
    """Two executors write users under their addresses, and one is killed while users move: each address has its user, and the
    addresses that were left have none."""
    view = ViewOnCluster(platform, "users-by-email", "moving-users")
    platform.make_topic(view.topic)
    resources = {**SMALL["podTemplate"]["resources"], "rekey": REKEY}
    executors = {"podTemplate": {"resources": resources}, "ingest": {"executors": 2}}
    view.apply(example(view.name, topic=view.topic, **executors))
    view.wait_until_available()
    dice, addresses = random.Random(SEED), {}

    def move(users: int) -> None:
        moved = {f"u{user}": f"{dice.randrange(3)}.u{user}@x" for user in dice.sample(range(200), users)}
        records = {user: json.dumps({"email": address, "name": user}) for user, address in moved.items()}
        view.platform.produce(view.topic, records)
        addresses.update(moved)

    move(200)
    kill(view, executor(view, 0))
    for _ in range(5):
        move(100)

    def users() -> dict[str, str]:
        (asked,) = platform.clients("ask", f"{view.url}/v1/scan?limit=1000")
        return {each["key"]: each["value"]["id"] for each in asked["answer"].get("items", ())}

    there = {address: user for user, address in addresses.items()}
    platform.eventually("each address has its user, and no other one is there", lambda: users() == there)
    view.delete()


def test_examples_of_orders_and_page_views_answer(platform: Platform) -> None:
    """The examples of orders by customer and of page views per minute answer in a cluster as on one machine."""
    orders = ViewOnCluster(platform, "customer-totals", "new-orders")
    views = ViewOnCluster(platform, "page-views", "views-by-page")
    for view in (orders, views):
        platform.make_topic(view.topic)
        view.apply(example(view.name))
    amounts = {"o-1": ("ann", 12.5), "o-2": ("bob", 5), "o-3": ("ann", 99.99)}
    platform.produce(
        orders.topic,
        {
            order: json.dumps({"customer": customer, "amount": amount, "paid": order != "o-3"})
            for order, (customer, amount) in amounts.items()
        },
    )
    for n in range(3):
        content = json.dumps({"user": f"u{n}", "bot": n == 0, "at": f"2026-11-22T10:00:0{n}Z"})
        platform.produce(views.topic, {"/cart": content, **({"/docs": content} if n == 2 else {})})
    for view in (orders, views):
        view.wait_until_available()

    totals = {"orders": 2, "paid": 12.5, "largest": 99.99}
    platform.eventually("ann has her totals", lambda: orders.values("ann") == {"ann": (200, totals)})
    minute = "from=2026-11-22T10:00:00Z&to=2026-11-22T10:01:00Z"

    def top() -> list[tuple[str, Any]]:
        (asked,) = platform.clients("ask", f"{views.url}/v1/top?by=views&k=1&{minute}")
        return [(each["key"], each["value"]) for each in asked["answer"].get("items", ())]

    value = {"views": 2, "bots": 1, "last_user": "u2"}
    platform.eventually("the page that was viewed most", lambda: top() == [("/cart", value)])
    for view in (orders, views):
        view.delete()
