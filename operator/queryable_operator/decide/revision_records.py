"""Decide the contents of a revision's ConfigMap: the existing record updated, or a recovered one.

A ConfigMap that is missing or edited is recovered from what can be proven: the spec, if it or the StatefulSet's build inputs
have the hash in status; the placement that nodes follow; the StatefulSet's template. Without proof there is no recovery: pods
keep what they have until the next revision takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from queryable_app.config.topic_spec import SpecError
from queryable_app.wire.disk_format import FORMAT_VERSION
from queryable_operator.build.rekey_job import rekey_template
from queryable_operator.build.settings_map import RevisionRecord
from queryable_operator.build.workload import ROLL_HASH_ANNOTATION, pod_template
from queryable_operator.rollout import placements
from queryable_operator.rollout.live_revision import BuildInputs, LiveRevision
from queryable_operator.rollout.placements import PlacementInputs
from queryable_operator.rollout.rollout_state import RevisionReference
from queryable_operator.spec.changes import effective_spec, roll_hash, spec_hash
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.pods import PodLayout
from queryable_operator.spec.rekeying import is_rekeyed
from queryable_operator.spec.resource import View
from queryable_operator.spec.settings import OperatorSettings
from queryable_operator.spec.workers import desired_workers, with_workers


@dataclass(frozen=True, slots=True)
class TemplateInputs:
    """Hold the inputs of a record beside the revision itself."""

    view: View
    settings: OperatorSettings
    placement_inputs: PlacementInputs
    kafka_secret_digest: str

    @property
    def kafka_secret_is_known(self) -> bool:
        return bool(self.kafka_secret_digest) or "secretRef" not in self.view.raw["kafka"]


def desired_record(
    reference: RevisionReference, live: LiveRevision, template_inputs: TemplateInputs
) -> RevisionRecord | None:
    """Return the desired record, or None if it cannot be recovered."""
    if live.record is not None:
        return _updated_record(live.record, live, template_inputs)
    return _recovered_record(reference, live, template_inputs)


def build_inputs(record: RevisionRecord) -> BuildInputs:
    return BuildInputs(
        effective_spec(record.spec, {}), record.spec_hash, record.partitions, record.disk_format
    )


def view_of_revision(view: View, spec: Mapping[str, Any]) -> View:
    """Return the view as a revision made from an earlier spec follows it."""
    try:
        return view.following(spec)
    except SpecError:  # the earlier fields do not fit the new ones; use the new ones only, in the same pods
        return replace(view, raw=with_workers(view.raw, PodLayout.of(spec).workers))


def _updated_record(
    record: RevisionRecord, live: LiveRevision, template_inputs: TemplateInputs
) -> RevisionRecord:
    view, application_id = template_inputs.view, record.placement.application_id
    spec: Mapping[str, Any] = effective_spec(record.spec, view.raw)
    if not template_inputs.kafka_secret_is_known:  # pods keep their image, and the field that names it
        spec = _with_image_of(record.spec, spec)
    image, rolled = _image_and_hash(record, spec, template_inputs)
    template, of_job = record.template, record.rekey_template
    if rolled != record.roll_hash:
        inputs = (
            view_of_revision(view, spec),
            live.number,
            application_id,
            image,
            rolled,
            template_inputs.settings,
        )
        template, of_job = pod_template(*inputs), rekey_template(*inputs) if is_rekeyed(spec) else None
    placement = placements.latest_placement(live, application_id, record.partitions, record.placement)
    if placement is None or placement == record.placement:
        placement = placements.next_placement(view, live, record.placement, template_inputs.placement_inputs)
    return replace(
        record,
        spec=spec,
        placement=placement,
        template=template,
        domains=placements.domains_seen(live, template_inputs.placement_inputs.hosts),
        roll_hash=rolled,
        image=image,
        rekey_template=of_job,
        group_key_format=record.group_key_format or live.rekey_job.group_key_format or "",
    )


def template_changes(live: LiveRevision, template_inputs: TemplateInputs) -> bool:
    """Return whether the StatefulSet's template is outdated."""
    record, there = live.record, _template_of(live.objects.get("StatefulSet"))
    if record is None or there is None:
        return False
    return (
        there[2]
        != _image_and_hash(record, effective_spec(record.spec, template_inputs.view.raw), template_inputs)[1]
    )


def _image_and_hash(
    record: RevisionRecord, spec: Mapping[str, Any], template_inputs: TemplateInputs
) -> tuple[str, str]:
    """Return the image, and the hash of all that restarts pods."""
    if template_inputs.kafka_secret_is_known:
        image = _image(record, template_inputs)
        rolled = roll_hash(spec, image, template_inputs.kafka_secret_digest)
        if rolled != record.roll_hash:
            return image, rolled
    return record.image, record.roll_hash


def _image(record: RevisionRecord, template_inputs: TemplateInputs) -> str:
    if record.disk_format != FORMAT_VERSION:
        return record.image  # another image may read the disk differently; it needs a new revision
    if template_inputs.view.image is not None:
        return template_inputs.view.image
    # An image that the spec no longer names may never have run.
    return template_inputs.settings.node_image if record.spec.get("image") else record.image


def _with_image_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in [*new.items(), ("image", old.get("image"))] if value is not None}


def _recovered_record(
    reference: RevisionReference, live: LiveRevision, template_inputs: TemplateInputs
) -> RevisionRecord | None:
    view, number = template_inputs.view, reference.number
    spec, disk_format = _proven_spec(reference, live, view) or (None, FORMAT_VERSION)
    if spec is None:
        return None
    application_id, domain = reference.application_id, template_inputs.settings.cluster_domain
    placement = placements.latest_placement(live, application_id, reference.partitions, None)
    if placement is None:
        placement = placements.new_placement(
            view, number, application_id, reference.partitions, domain, PodLayout.of(spec)
        )
    there, followed = _template_of(live.objects.get("StatefulSet")), view_of_revision(view, spec)
    if there is None:
        image = view.image or template_inputs.settings.node_image
        rolled = roll_hash(spec, image, template_inputs.kafka_secret_digest)
        template = pod_template(followed, number, application_id, image, rolled, template_inputs.settings)
        there = template, image, rolled
    template, image, rolled = there
    of_job = None
    if is_rekeyed(spec):
        of_job = rekey_template(followed, number, application_id, image, rolled, template_inputs.settings)
        job = _template_of(live.rekey_job.stateful_set)
        if job is not None and job[1:] == (image, rolled):
            of_job = job[0]
    return RevisionRecord(
        spec=spec,
        placement=placement,
        template=template,
        domains=placements.domains_seen(live, template_inputs.placement_inputs.hosts),
        spec_hash=reference.spec_hash,
        roll_hash=rolled,
        partitions=reference.partitions,
        image=image,
        disk_format=disk_format,
        rekey_template=of_job,
        group_key_format=live.rekey_job.group_key_format or "",
    )


def _proven_spec(
    reference: RevisionReference, live: LiveRevision, view: View
) -> tuple[Mapping[str, Any], int] | None:
    """Return the spec with the revision's hash, and its disk format. None: there is no proof."""
    build_inputs = live.build_inputs
    recorded = None if build_inputs is None else live.layout.workers
    workers = desired_workers(view.raw, reference.partitions, recorded)
    disk_format = build_inputs.disk_format if build_inputs else FORMAT_VERSION
    known: list[tuple[Mapping[str, Any], int]] = [(with_workers(view.raw, workers), disk_format)]
    if build_inputs is not None:
        known.append((effective_spec(build_inputs.spec, view.raw), build_inputs.disk_format))
    for spec, disk_format in known:
        if spec_hash(spec, reference.partitions, disk_format) == reference.spec_hash:
            return spec, disk_format
    return None


def _template_of(stateful_set: Manifest | None) -> tuple[Manifest, str, str] | None:
    """Return a StatefulSet's template, its image and its hash."""
    template = (stateful_set or {}).get("spec", {}).get("template")
    try:
        return (
            template,
            template["spec"]["containers"][0]["image"],
            template["metadata"]["annotations"][ROLL_HASH_ANNOTATION],
        )
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
