"""Execute a plan, in the order of its fields.

The first request that the API server refuses ends the pass; the next pass starts with a new observation. Node updates, Kafka
cleanup, forbidden evictions and events do not end it: the next observation shows that they failed. An object that is already as
desired is not written.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from queryable_operator.act.cluster import Cluster, ClusterError
from queryable_operator.act.node_certificates import stepped
from queryable_operator.act.nodes import NodeRefused, Nodes
from queryable_operator.act.observer import Observation, Observer, revision_of
from queryable_operator.act.topics import CleanupResult, Topics
from queryable_operator.act.watch_cache import ResourceKey
from queryable_operator.build.children import WANTED_ANNOTATION
from queryable_operator.build.policies import certificate_secret, token_secret
from queryable_operator.decide.actions import CertificateWork, Event, NodeUpdate, Plan, TopicDeletion
from queryable_operator.decide.drift import difference
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest, Ref, is_owned
from queryable_operator.spec.resource import identity_of

_TOKEN_BYTES: Final = 32
_EVENT_CHARACTERS_MAX: Final = 1000
_FIGHT_SECONDS: Final = 10.0  # a field that a user edits again and again is corrected this often
_FORBIDDEN: Final = (403, 422)
_NO_SETTINGS: Final = "the Secret with the Kafka settings does not exist"
_STATUS: Final = Ref(names.KIND, "status")


class StaleObservation(Exception):
    """Report that the observation is outdated."""


@dataclass(slots=True)
class Executor:
    """Execute the plans of one resource."""

    key: ResourceKey
    cluster: Cluster
    nodes: Nodes
    topics: Topics
    observer: Observer
    log: logging.LoggerAdapter[logging.Logger]
    _normalized: dict[Ref, tuple[str, str]] = field(default_factory=dict)
    """Digests of a desired object and of what the API server stored for it, where they differ."""

    _corrected_at: dict[Ref, float] = field(default_factory=dict)
    """When drift was corrected last. The watch may lag behind, or another controller may fight for the field."""

    _last_refusals: dict[str, str] = field(default_factory=dict)
    """The last refusal by action. It is logged once."""

    async def execute(self, plan: Plan, observation: Observation) -> bool:
        """Execute a plan. Return whether there was anything to do."""
        acted = bool(
            plan.token_secrets
            or plan.certificate
            or plan.node_updates
            or plan.evict
            or plan.delete
            or plan.force_delete
            or plan.delete_topics
        )
        for wanted in plan.apply:
            acted |= await self._apply(wanted, observation, plan.expect_unchanged)
        for ref in plan.token_secrets:
            await self._make_token(ref, observation)
        if plan.certificate is not None:
            await self._write_certificate(plan.certificate, observation)
        await asyncio.gather(*(self._send_update(update, observation) for update in plan.node_updates))
        for pod in plan.evict:
            if (uid := _uid(observation, Ref("Pod", pod))) is not None:
                self._log_once(f"evict {pod}", await self.cluster.evict(self.key[0], pod, uid))
        for ref in plan.delete:
            await self._delete(ref, observation)
        for ref in plan.force_delete:
            await self._delete(ref, observation, force=True)
        for topic in plan.delete_topics:
            await self._delete_topic(topic, observation)
        if plan.clean_kafka:
            await self._clean_kafka(observation)
        resource = observation.observed.resource
        if plan.status is not None:
            resource = await self._write_status(resource, plan.status)
        for event in plan.events:
            await self.post(event, resource)
        if plan.remove_finalizer:
            await self._release(resource)
        return (
            acted
            or plan.clean_kafka
            or plan.remove_finalizer
            or resource is not observation.observed.resource
        )

    async def post(self, event: Event, resource: Manifest) -> None:
        """Log an event and write it. A failure is logged only: a namespace that is being deleted accepts no events."""
        level = logging.WARNING if event.type == "Warning" else logging.INFO
        self.log.log(level, "%s: %s", event.reason, event.message)
        try:
            await self.cluster.create(self.key[0], _event(event, resource, time.time()))
        except ClusterError as error:
            self.log.info("%s", error)

    async def _apply(
        self, wanted: Manifest, observation: Observation, expect_unchanged: frozenset[Ref]
    ) -> bool:
        ref = Ref(wanted["kind"], wanted["metadata"]["name"])
        uid = observation.observed.resource["metadata"]["uid"]
        observed = observation.observed.children.get(ref)
        live = observed
        if live is None:
            live = await self.cluster.get(ref.kind, self.key[0], ref.name)
            if live is not None and not is_owned(live, uid):
                self.observer.name_conflicts.add(ref)
                raise StaleObservation(f"{ref.kind} {ref.name} belongs to another owner")
        why = None if live is None else difference(wanted, live)
        if live is not None and (why is None or self._normalized.get(ref) == _digests(wanted, live)):
            return False
        drifted = live is not None and _marked(live) is not None and _marked(live) == _marked(wanted)
        if drifted and time.monotonic() - self._corrected_at.get(ref, -_FIGHT_SECONDS) < _FIGHT_SECONDS:
            return False
        version = None
        if ref in expect_unchanged and live is not None:
            # no watch shows an object without our label, and restoring the label is the purpose
            if observed is None and names.VIEW_LABEL in (live["metadata"].get("labels") or {}):
                raise StaleObservation(f"{ref.kind} {ref.name} was not observed yet")
            version = live["metadata"]["resourceVersion"]
        if ref.name not in self._last_refusals:
            self.log.info("Applying %s %s: %s", ref.kind, ref.name, why or "it does not exist")
        try:
            answer = await self.cluster.apply(self.key[0], wanted, version)
        except ClusterError as error:
            if ref.kind != "PersistentVolumeClaim" or error.status not in _FORBIDDEN:
                raise
            await self._report_refused_claim(ref, error, observation)
            return False
        self._last_refusals.pop(ref.name, None)
        self._remember_normalized(ref, wanted, answer)
        if drifted:
            self._corrected_at[ref] = time.monotonic()
            message = f"{ref.kind} {ref.name} was corrected: {why}"
            await self.post(Event("Normal", "DriftCorrected", message), observation.observed.resource)
        return True

    async def _report_refused_claim(self, claim: Ref, error: ClusterError, observation: Observation) -> None:
        """Report once that a volume claim cannot grow. It blocks nothing else."""
        if self._last_refusals.get(claim.name) != str(error):
            self._last_refusals[claim.name] = str(error)
            await self.post(Event("Warning", "ReconcileFailed", str(error)), observation.observed.resource)

    async def _make_token(self, ref: Ref, observation: Observation) -> None:
        resource = observation.observed.resource
        revision = revision_of(self.key[1], ref)
        assert revision is not None
        secret = token_secret(identity_of(resource), revision, secrets.token_urlsafe(_TOKEN_BYTES))
        made = await self.cluster.create(self.key[0], secret)
        self.observer.forget_token(ref.name)
        if made is None:
            live = await self.cluster.get(ref.kind, self.key[0], ref.name)
            if live is not None and not is_owned(live, resource["metadata"]["uid"]):
                self.observer.name_conflicts.add(ref)
                raise StaleObservation(f"{ref.kind} {ref.name} belongs to another owner")

    async def _write_certificate(self, work: CertificateWork, observation: Observation) -> None:
        now, stored = observation.observed.now, observation.certificates
        made = await asyncio.to_thread(stepped, stored, work.step, work.hosts, now)
        secret = certificate_secret(identity_of(observation.observed.resource), made.data)
        self.log.info("Secret %s: %s", secret["metadata"]["name"], work.step.value)
        await self.cluster.apply(self.key[0], secret)
        self.observer.secrets.forget()

    async def _send_update(self, update: NodeUpdate, observation: Observation) -> None:
        node = observation.nodes.get((update.revision, update.ordinal))
        token = observation.tokens.get(update.revision)
        if node is None or token is None:
            return
        refused = None
        try:
            if update.placement is not None:
                await self.nodes.send_placement(node, token, update.placement)
            if update.read is not None:
                await self.nodes.send_read_settings(node, token, update.read)
        except NodeRefused as error:
            refused = str(error)
        self._log_once(f"update node {update.ordinal} of r{update.revision}", refused)

    async def _delete(self, ref: Ref, observation: Observation, *, force: bool = False) -> None:
        if (uid := _uid(observation, ref)) is None:
            return
        self.log.info("Deleting %s %s", ref.kind, ref.name)
        await self.cluster.delete(self.key[0], ref, uid, force=force)
        if ref.kind == "Secret":
            self.observer.forget_token(ref.name)

    async def _delete_topic(self, deletion: TopicDeletion, observation: Observation) -> None:
        refused: str | None = _NO_SETTINGS
        if observation.kafka is not None:
            result = await self.topics.delete(
                self.key[0], deletion.bootstrap_servers, observation.kafka, deletion.topic
            )
            refused = result.refused
        self.observer.topic_deletions[deletion.key] = refused
        self._log_once(f"delete the topic {deletion.topic}", refused)

    async def _clean_kafka(self, observation: Observation) -> None:
        resource = observation.observed.resource
        kafka = resource["spec"]["kafka"]
        if observation.kafka is None:
            secret = kafka.get("secretRef", {}).get("name")
            result = CleanupResult(refused=f"the Secret {secret} with the Kafka settings does not exist")
        else:
            identity = identity_of(resource)
            result = await self.topics.clean(identity, kafka["bootstrapServers"], observation.kafka)
        self.observer.kafka_cleanup_error, self.observer.kafka_cleaned = (
            result.refused,
            result.refused is None,
        )
        self.observer.kafka_retained = result.unproven
        self._log_once("clean up in Kafka", result.refused)

    async def _write_status(self, resource: Manifest, status: Mapping[str, Any]) -> Manifest:
        live = resource.get("status", {})
        if live == status or self._normalized.get(_STATUS) == _digests(status, live):
            return resource
        answer = await self.cluster.replace_status(resource, status)
        self._remember_normalized(_STATUS, status, answer.get("status", {}))
        return answer

    async def _release(self, resource: Manifest) -> None:
        kept = [f for f in resource["metadata"].get("finalizers", ()) if f != names.FINALIZER]
        try:
            await self.cluster.set_finalizers(resource, kept)
        except ClusterError as error:
            if not error.absent:
                raise

    def _remember_normalized(self, ref: Ref, wanted: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Remember an object that the API server normalizes, so that it is not applied again and again."""
        same = answer == wanted if ref is _STATUS else difference(wanted, answer) is None
        if same:
            self._normalized.pop(ref, None)
        else:
            self._normalized[ref] = _digests(wanted, answer)

    def _log_once(self, doing: str, refused: str | None) -> None:
        if refused is None:
            self._last_refusals.pop(doing, None)
        elif self._last_refusals.get(doing) != refused:
            self._last_refusals[doing] = refused
            self.log.warning("Could not %s: %s", doing, refused)


def _uid(observation: Observation, ref: Ref) -> str | None:
    live = observation.observed.children.get(ref)
    return live["metadata"].get("uid") if live else None


def _marked(manifest: Manifest) -> str | None:
    mark: str | None = (manifest["metadata"].get("annotations") or {}).get(WANTED_ANNOTATION)
    return mark


def _digests(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> tuple[str, str]:
    return _digest(wanted), _digest(live)


def _digest(value: Mapping[str, Any]) -> str:
    """Hash what users decide, without what the API server counts and controllers report."""
    kept = dict(value)
    if "metadata" in value:
        kept.pop("status", None)
        meta = value["metadata"]
        kept["metadata"] = {
            k: meta.get(k) for k in ("labels", "annotations", "ownerReferences", "finalizers")
        }
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def _event(event: Event, resource: Manifest, now: float) -> Manifest:
    meta = resource["metadata"]
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_EVENT_CHARACTERS_MAX],
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": names.FIELD_MANAGER,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
