"""Test a revision's ConfigMap: updated while it is valid, otherwise recovered from reports and objects."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from queryable_app.placement.assignment import Placement
from queryable_app.wire.disk_format import FORMAT_VERSION
from queryable_operator.build.settings_map import RevisionRecord, config_map, record_of
from queryable_operator.build.workload import application_id_in
from queryable_operator.decide.actions import Plan
from queryable_operator.decide.plan import plan
from queryable_operator.rollout.live_revision import LiveRevision
from queryable_operator.rollout.placements import domains_seen
from queryable_operator.rollout.pod import Pod
from queryable_operator.spec import names
from queryable_operator.spec.changes import spec_hash
from queryable_operator.spec.observed import Host, Observed, Ref
from queryable_operator.spec.pods import PodIndex
from queryable_operator.spec.resource import view_of
from queryable_operator.spec.settings import OperatorSettings
from tests.operator.decide.test_plan import (
    CONFIG_MAP,
    changed,
    edited,
    merge,
    standing,
    with_node_status,
    writes,
)
from tests.operator.histories.history import History
from tests.operator.histories.operator import SETTINGS

PODS = [PodIndex(0), PodIndex(1)]


def without(observed: Observed, *refs: Ref) -> Observed:
    return replace(
        observed, children={ref: live for ref, live in observed.children.items() if ref not in refs}
    )


def written(planned: Plan) -> RevisionRecord:
    (config_map,) = [m for m in planned.apply if m["kind"] == "ConfigMap"]
    return record_of(config_map)


def placement() -> Placement:
    return record_of(standing().children[CONFIG_MAP]).placement


def turned_round(epoch: int) -> Placement:
    """Return the placement with every partition on other nodes."""
    serving = tuple(tuple((ordinal + 1) % 3 for ordinal in replicas) for replicas in placement().serving)
    return replace(placement(), epoch=epoch, serving=serving)


def follows(observed: Observed, ordinal: int, what: Placement) -> Observed:
    seen = replace(observed.node_statuses[1][ordinal].seen, epoch=what.epoch)
    return with_node_status(observed, ordinal, seen=seen, placement=what)


def test_placement_replaces_the_observed_one_only() -> None:
    """A later decision of another operator is never undone."""
    assert plan(standing(), SETTINGS).expect_unchanged == {CONFIG_MAP}
    assert plan(without(standing(), CONFIG_MAP), SETTINGS).expect_unchanged == {CONFIG_MAP}


def test_recovered_placement_is_the_latest_that_a_node_follows() -> None:
    """Replicas are where that placement says, not where a new revision would put them."""
    observed = follows(without(standing(), CONFIG_MAP), 1, turned_round(5))

    assert written(plan(follows(observed, 2, turned_round(7)), SETTINGS)).placement == turned_round(7)


@pytest.mark.parametrize("other", ["default.users.r7", "more partitions"])
def test_placement_of_another_revision_is_ignored(other: str) -> None:
    """A placement of another revision has other replicas and is ignored, whatever its epoch."""
    later = turned_round(9)
    if other == "more partitions":
        later = replace(later, serving=(*later.serving, (0, 1)), hydrating=(*later.hydrating, ()))
    else:
        later = replace(later, application_id=other)
    observed = follows(without(standing(), CONFIG_MAP), 1, turned_round(5))

    assert written(plan(follows(observed, 2, later), SETTINGS)).placement == turned_round(5)


def made_from_nothing() -> Observed:
    """No node has reported since the ConfigMap was deleted; status still names placement 7."""
    silent = replace(without(standing(), CONFIG_MAP), node_statuses={})
    (made,) = [m for m in plan(silent, SETTINGS).apply if m["kind"] == "ConfigMap"]
    status = {**standing().resource["status"], "placementEpoch": 7}
    return replace(
        silent,
        resource={**standing().resource, "status": status},
        children={**silent.children, CONFIG_MAP: made},
    )


def test_rebuilt_placement_waits_for_every_node() -> None:
    """A step before every node's report could remove existing replicas."""
    planned = plan(changed(made_from_nothing(), replicas=4), SETTINGS)

    assert written(planned).placement.epoch == 1
    assert planned.status is None or planned.status["placementEpoch"] == 7


def test_rebuilt_placement_deletes_no_volume() -> None:
    """While no pod exists, a volume that a rebuilt placement does not name may have the only replica: it stays, and so does the
    epoch in status, until nodes have reported."""
    pods = [ref for ref in standing().children if ref.kind == "Pod"]
    observed = changed(without(made_from_nothing(), *pods), replicas=1)
    stateful_set = Ref("StatefulSet", "users-r1")
    scaled = edited(observed, stateful_set, lambda live: live["spec"].update(replicas=0))
    volumes = [ref for ref in scaled.children if ref.kind == "PersistentVolumeClaim"]
    planned = plan(scaled, SETTINGS)

    assert len(volumes) > 1
    assert not [ref for ref in planned.delete if ref in volumes]
    assert planned.status is None or planned.status["placementEpoch"] == 7


def test_rebuilt_placement_yields_to_the_nodes_placement() -> None:
    """The first report of a node replaces a rebuilt placement by the node's."""
    observed = replace(made_from_nothing(), node_statuses=standing().node_statuses)

    assert written(plan(follows(observed, 1, turned_round(7)), SETTINGS)).placement == turned_round(7)


def test_replicas_stay_while_the_view_is_suspended() -> None:
    """A change of the spec takes effect after the suspension."""
    more = changed(standing(), standbyReplicas=2)

    assert written(plan(changed(more, suspended=True), SETTINGS)).placement == placement()
    assert written(plan(more, SETTINGS)).placement != placement()


def of_another_format() -> Observed:
    """Return an observation of nodes with another disk format than this release's."""
    there, resource = record_of(standing().children[CONFIG_MAP]), copy.deepcopy(dict(standing().resource))
    other = FORMAT_VERSION + 1
    record = replace(there, disk_format=other, spec_hash=spec_hash(there.spec, there.partitions, other))
    made = config_map(view_of(resource), 1, record)
    resource["status"]["active"]["specHash"] = record.spec_hash
    return edited(replace(standing(), resource=resource), CONFIG_MAP, lambda live: merge(live, made))


def test_new_disk_format_of_a_release_changes_no_view() -> None:
    """The image of the running nodes can read what they wrote."""
    planned = plan(of_another_format(), OperatorSettings("example/node:2"))

    assert (planned.status, written(planned).image) == (None, "example/node:1")
    assert written(planned).disk_format == FORMAT_VERSION + 1


def test_image_with_another_disk_format_needs_a_new_revision() -> None:
    """An image with another disk format, which may not read the existing disks, makes a new revision."""
    planned = plan(changed(of_another_format(), image="example/node:2"), SETTINGS)

    assert written(planned).image == "example/node:1"
    assert planned.status is not None
    assert planned.status["candidate"]["revision"] == "r2"


def test_template_of_an_earlier_release_stays() -> None:
    """No pod restarts because a new release would build another template."""
    there = record_of(standing().children[CONFIG_MAP])
    spec = {**there.template["spec"], "terminationGracePeriodSeconds": 7}
    older = replace(there, template={**there.template, "spec": spec})
    made = config_map(view_of(standing().resource), 1, older)
    observed = edited(standing(), CONFIG_MAP, lambda live: merge(live, made))

    assert written(plan(observed, SETTINGS)).template == older.template


def test_failure_domain_is_the_last_observed_one() -> None:
    """A failure domain is the zone if there are several, else the host; without a host the recorded one stays."""
    record = replace(record_of(standing().children[CONFIG_MAP]), domains=dict.fromkeys(PODS, "north"))
    pod = Pod("users-r1-0", True, 0.0, 0.0, "host", None, None)
    live = LiveRevision(1, pods={PODS[0]: pod, PODS[1]: replace(pod, host=None)}, record=record)
    south, north = Host(True, True, "south"), Host(True, True, "north")

    assert domains_seen(live, {"host": south, "other": north}) == {0: "south", 1: "north"}
    assert domains_seen(live, {"host": south, "other": south}) == {0: "host", 1: "north"}
    assert domains_seen(live, None) == {0: "host", 1: "north"}


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> Observed:
    """`standing`, as a release left it that knew revisions by the names of their views alone."""
    with monkeypatch.context() as before:
        before.setattr(
            names, "application_id", lambda namespace, view, revision, _: f"{namespace}.{view}.r{revision}"
        )
        history = History.begin(3, replicas=3, standbyReplicas=1)
        history.settle()
        return history.operator.observe()


def test_revision_of_an_earlier_release_is_unchanged(early: Observed) -> None:
    """An operator upgrade restarts no pod and makes no revision; the data keeps its name."""
    planned = plan(early, SETTINGS)

    assert early.resource["status"]["active"]["applicationId"] == "default.users.r1"
    assert not writes(planned, early)
    assert planned == Plan(apply=planned.apply, expect_unchanged=planned.expect_unchanged)


def test_restarted_pods_keep_their_application_id(early: Observed) -> None:
    """Restarted pods have the same application id and find their data; only a new revision has a new id."""
    rolled = written(plan(changed(early, ingest={"driverMemory": "2g"}), SETTINGS))
    assert rolled.roll_hash != record_of(early.children[CONFIG_MAP]).roll_hash
    assert application_id_in(rolled.template) == rolled.placement.application_id == "default.users.r1"

    status = plan(changed(early, redeployNonce=1), SETTINGS).status
    assert status is not None
    assert status["active"]["applicationId"] == "default.users.r1"
    assert status["candidate"]["applicationId"] == "default.users.r2-theresource"


def test_application_id_is_recovered_from_the_stateful_set(early: Observed) -> None:
    """Status and the ConfigMap are lost, but pods have the id."""
    lost = replace(without(early, CONFIG_MAP), resource={**early.resource, "status": {}})
    status = plan(lost, SETTINGS).status
    assert status is not None
    assert status["active"]["applicationId"] == "default.users.r1"

    again = replace(lost, resource={**lost.resource, "status": status})
    assert written(plan(again, SETTINGS)).placement.application_id == "default.users.r1"


def test_foreign_application_id_in_status_is_ignored() -> None:
    """Status may have been edited; the record and the pods take precedence."""
    there = standing().resource["status"]
    status = {**there, "active": {**there["active"], "applicationId": "default.orders.r1"}}
    planned = plan(replace(standing(), resource={**standing().resource, "status": status}), SETTINGS)

    assert planned.status is not None
    assert planned.status["active"]["applicationId"] == "default.users.r1-theresource"
