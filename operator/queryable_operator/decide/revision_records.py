"""What a revision's ConfigMap shall hold: the one that is there carried on, or one made anew.

Strategy: a ConfigMap that is missing, or that somebody edited, is made again from what can be proven: the spec, if it has the
hash that status names, or else the one that the StatefulSet was made of; the placement that nodes follow; the template of the
StatefulSet. Where nothing can be proven nothing is made: pods go on with what they have until the next revision takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queryable_app.config.topic_spec import SpecError
from queryable_app.wire.disk_format import FORMAT_VERSION
from queryable_operator.build.settings_map import RevisionRecord
from queryable_operator.build.workload import ROLL_HASH_ANNOTATION, pod_template
from queryable_operator.rollout import placements
from queryable_operator.rollout.live import Live, MadeOf
from queryable_operator.rollout.placements import Situation
from queryable_operator.rollout.revisions import Named
from queryable_operator.spec.changes import carried, roll_hash, spec_hash
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.resource import View
from queryable_operator.spec.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class Makings:
    """What records are made of, beside the revision itself."""

    view: View
    settings: OperatorSettings
    situation: Situation
    kafka_secret_digest: str

    @property
    def kafka_secret_is_known(self) -> bool:
        return bool(self.kafka_secret_digest) or "secretRef" not in self.view.raw["kafka"]


def record_wanted(named: Named, live: Live, makings: Makings) -> RevisionRecord | None:
    """None: it cannot be made."""
    if live.record is not None:
        return _carried_on(live.record, live, makings)
    return _made_anew(named, live, makings)


def made_of(record: RevisionRecord) -> MadeOf:
    return MadeOf(carried(record.spec, {}), record.spec_hash, record.partitions, record.disk_format)


def following(view: View, spec: Mapping[str, Any]) -> View:
    """The view as a revision follows it that was made earlier."""
    try:
        return view.following(spec)
    except SpecError:  # its own fields do not go together with the new ones: then with those that it had
        return view


def _carried_on(record: RevisionRecord, live: Live, makings: Makings) -> RevisionRecord:
    view, application_id = makings.view, record.placement.application_id
    spec: Mapping[str, Any] = carried(record.spec, view.raw)
    if not makings.kafka_secret_is_known:  # pods keep their image, and what says where it is from
        spec = _with_image_of(record.spec, spec)
    image, rolled = _rolled(record, spec, makings)
    template = record.template
    if rolled != record.roll_hash:
        template = pod_template(
            following(view, spec), live.number, application_id, image, rolled, makings.settings
        )
    placement = placements.followed(live, application_id, record.partitions, record.placement)
    if placement is None or placement == record.placement:
        placement = placements.next_placement(view, live, record.placement, makings.situation)
    return RevisionRecord(
        spec=spec,
        placement=placement,
        template=template,
        domains=placements.domains_seen(live, makings.situation.hosts),
        spec_hash=record.spec_hash,
        roll_hash=rolled,
        partitions=record.partitions,
        image=image,
        disk_format=record.disk_format,
    )


def template_changes(live: Live, makings: Makings) -> bool:
    """Whether the pods of a revision are to be made by another template than its StatefulSet has."""
    record, there = live.record, _template_of(live)
    if record is None or there is None:
        return False
    return there[2] != _rolled(record, carried(record.spec, makings.view.raw), makings)[1]


def _rolled(record: RevisionRecord, spec: Mapping[str, Any], makings: Makings) -> tuple[str, str]:
    """The image, and the hash of all that restarts pods."""
    if makings.kafka_secret_is_known:
        image = _image(record, makings)
        rolled = roll_hash(spec, image, makings.kafka_secret_digest)
        if rolled != record.roll_hash:
            return image, rolled
    return record.image, record.roll_hash


def _image(record: RevisionRecord, makings: Makings) -> str:
    if record.disk_format != FORMAT_VERSION:
        return record.image  # another image may read the disk in another way; then it is for a new revision
    if makings.view.image is not None:
        return makings.view.image
    # What the spec named once and no longer does may never have run: it is not what the revision was made with.
    return makings.settings.node_image if record.spec.get("image") else record.image


def _with_image_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in [*new.items(), ("image", old.get("image"))] if value is not None}


def _made_anew(named: Named, live: Live, makings: Makings) -> RevisionRecord | None:
    view, number = makings.view, named.number
    spec, disk_format = _proven(named, live, view) or (None, FORMAT_VERSION)
    if spec is None:
        return None
    application_id, domain = named.application_id, makings.settings.cluster_domain
    placement = placements.followed(live, application_id, named.partitions, None)
    if placement is None:
        placement = placements.first(view, number, application_id, named.partitions, domain)
    there = _template_of(live)
    if there is None:
        image = view.image or makings.settings.node_image
        rolled = roll_hash(spec, image, makings.kafka_secret_digest)
        followed = following(view, spec)
        template = pod_template(followed, number, application_id, image, rolled, makings.settings)
        there = template, image, rolled
    template, image, rolled = there
    return RevisionRecord(
        spec=spec,
        placement=placement,
        template=template,
        domains=placements.domains_seen(live, makings.situation.hosts),
        spec_hash=named.spec_hash,
        roll_hash=rolled,
        partitions=named.partitions,
        image=image,
        disk_format=disk_format,
    )


def _proven(named: Named, live: Live, view: View) -> tuple[Mapping[str, Any], int] | None:
    """The spec that has the revision's hash, with its disk format."""
    made_of = live.made_of
    known = [(view.raw, made_of.disk_format if made_of else FORMAT_VERSION)]
    if made_of is not None:
        known.append((carried(made_of.spec, view.raw), made_of.disk_format))
    for spec, disk_format in known:
        if spec_hash(spec, named.partitions, disk_format) == named.spec_hash:
            return spec, disk_format
    return None


def _template_of(live: Live) -> tuple[Manifest, str, str] | None:
    """The template by which the revision's pods are made now, with its image and its hash."""
    template = live.objects.get("StatefulSet", {}).get("spec", {}).get("template")
    try:
        return (
            template,
            template["spec"]["containers"][0]["image"],
            template["metadata"]["annotations"][ROLL_HASH_ANNOTATION],
        )
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
