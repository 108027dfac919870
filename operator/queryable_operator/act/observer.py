"""Observe one resource: collect everything that `plan` needs.

Objects come from the watch cache. The resource itself is read anew, and nodes and Kafka are requested at the same time. What
the observer remembers between passes only saves requests; a new process observes the same.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queryable_app.placement.assignment import Placement
from queryable_operator.act.cluster import Cluster
from queryable_operator.act.node_certificates import StoredCertificates
from queryable_operator.act.nodes import Node, NodeKey, Nodes
from queryable_operator.act.topics import Topics
from queryable_operator.act.view_secrets import ViewSecrets
from queryable_operator.act.watch_cache import ResourceKey, WatchCache, endpoints_of, trimmed
from queryable_operator.rollout.live_revision import layout_of
from queryable_operator.spec import names
from queryable_operator.spec.observed import (
    KafkaSettingsInvalid,
    Manifest,
    NodeStatus,
    Observed,
    Ref,
    TopicObservation,
    is_owned,
)
from queryable_operator.spec.pods import PodIndex, PodLayout

_TOKEN_SECONDS: Final = 60.0  # how long a token Secret counts as existing without a read
_SETTINGS_SECONDS: Final = 30.0  # how long the contents of the user's Secret count as current
_UNOWNED: Final = (
    "Pod",
    "PersistentVolumeClaim",
)  # a StatefulSet owns the first, and nothing owns the second


@dataclass(slots=True)
class Observation:
    """Hold one observation: the input of `plan`, and what the execution of the plan needs beside it."""

    observed: Observed
    tokens: Mapping[int, str]
    """By revision: the token shared by the operator and the nodes."""

    nodes: Mapping[tuple[int, int], Node]
    """By revision and ordinal: the nodes that can be reached."""

    kafka: Mapping[str, str] | None
    """Settings of the Kafka clients. None: the Secret is missing."""

    certificates: StoredCertificates | None = None
    """The certificates that the nodes show each other."""


@dataclass(slots=True)
class _Token:
    at: float
    manifest: Manifest
    token: str


@dataclass(slots=True)
class _Settings:
    at: float = float("-inf")
    key: str = ""  # of the spec fields that they came from
    config: dict[str, str] | None = None
    digest: str = ""
    wrong: str | None = None


@dataclass(slots=True)
class Observer:
    """Observe one resource."""

    key: ResourceKey
    cluster: Cluster
    watch_cache: WatchCache
    nodes: Nodes
    topics: Topics
    name_conflicts: set[Ref] = field(default_factory=set)
    """Names of our children that belong to other owners."""

    topic_deletions: dict[str, str | None] = field(default_factory=dict)
    """Why the last deletion of each topic failed; None if it has been deleted."""

    kafka_cleaned: bool = False
    kafka_retained: tuple[str, ...] = ()
    kafka_cleanup_error: str | None = None
    secrets: ViewSecrets = field(init=False)
    _tokens: dict[str, _Token] = field(default_factory=dict)
    _settings: _Settings = field(default_factory=_Settings)
    _last_statuses: dict[NodeKey, NodeStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.secrets = ViewSecrets(self.key, self.cluster)

    async def observe(self, resource: Manifest) -> Observation:
        resource = await self._with_schema(resource)
        uid = resource["metadata"]["uid"]
        objects = self.watch_cache.objects_of(self.key)
        children, name_conflicts = _split_by_owner(objects, uid, self.key[1])
        name_conflicts |= await self._remaining_conflicts(uid)
        revisions = sorted({r for ref in children if (r := revision_of(self.key[1], ref)) is not None})
        tokens = await self._token_secrets(uid, revisions, children, name_conflicts)
        nodes = _reachable_nodes(self.key[1], children)
        settings = await self._kafka_settings(resource)
        seen = await self.secrets.seen(resource["spec"], uid, any(node.is_tls for node in nodes.values()))
        if seen.conflict is not None:
            name_conflicts.add(seen.conflict)
        nodes = {key: replace(node, ca=seen.ca) if node.is_tls else node for key, node in nodes.items()}
        topic, node_statuses = await asyncio.gather(
            self._topic(resource, settings),
            self.nodes.statuses(
                {node: tokens.get(node.revision, "") for node in nodes.values()},
                self._last_statuses,
            ),
        )
        self._last_statuses = {
            node.key: node_statuses[r][o] for (r, o), node in nodes.items() if o in node_statuses.get(r, {})
        }
        observed = Observed(
            now=time.time(),
            resource=resource,
            children=children,
            name_conflicts=frozenset(name_conflicts),
            hosts=self.watch_cache.hosts,
            topic=topic,
            kafka_secret_digest=settings.digest,
            node_certificate=seen.certificate,
            secret_problem=seen.problem,
            node_statuses=node_statuses,
            endpoints=endpoints_of(self.key[1], objects),
            topic_deletions=dict(self.topic_deletions),
            kafka_cleaned=self.kafka_cleaned,
            kafka_retained=self.kafka_retained,
            kafka_cleanup_error=self.kafka_cleanup_error,
        )
        return Observation(observed, tokens, nodes, settings.config, seen.stored)

    async def _with_schema(self, resource: Manifest) -> Manifest:
        """Return the resource with the schema's text in place of the ConfigMap that has it, so that another text is another
        spec. Without the ConfigMap the reference stays, which is refused by name."""
        value = resource["spec"].get("value", {})
        source = value.get("schemaFrom", {})
        reference = source.get("configMapRef")
        if not reference:
            return resource
        live = await self.cluster.get("ConfigMap", self.key[0], reference["name"])
        text = ((live or {}).get("data") or {}).get(reference["key"])
        if not text:
            return resource
        resolved = {name: part for name, part in source.items() if name != "configMapRef"} | {"inline": text}
        spec = {**resource["spec"], "value": {**value, "schemaFrom": resolved}}
        return {**resource, "spec": spec}

    def forget_token(self, name: str) -> None:
        """Drop a token after its Secret was created or deleted."""
        self._tokens.pop(name, None)

    async def _remaining_conflicts(self, uid: str) -> set[Ref]:
        for ref in list(self.name_conflicts):
            live = await self.cluster.get(ref.kind, self.key[0], ref.name)
            if live is None or is_owned(live, uid):
                self.name_conflicts.discard(ref)
        return set(self.name_conflicts)

    async def _token_secrets(
        self, uid: str, revisions: list[int], children: dict[Ref, Manifest], name_conflicts: set[Ref]
    ) -> dict[int, str]:
        """Return the tokens by revision, and add their Secrets to `children` without contents. Secrets are not watched and
        rarely read."""
        now, tokens = time.monotonic(), {}
        for revision in revisions:
            name = names.child(self.key[1], revision)
            known = self._tokens.get(name)
            if known is None or now - known.at > _TOKEN_SECONDS:
                self._tokens.pop(name, None)
                live = await self.cluster.get("Secret", self.key[0], name)
                if live is None:
                    continue
                if not is_owned(live, uid):
                    name_conflicts.add(Ref("Secret", name))
                    continue
                known = _Token(now, trimmed("Secret", live), _decoded(live).get("token", ""))
                self._tokens[name] = known
            children[Ref("Secret", name)] = known.manifest
            tokens[revision] = known.token
        return tokens

    async def _kafka_settings(self, resource: Manifest) -> _Settings:
        """Return the spec's settings, overridden by the Secret's. After the deletion of the Secret with its namespace, the last
        known settings still serve the Kafka cleanup."""
        kafka = resource["spec"].get("kafka", {})
        key = json.dumps(kafka, sort_keys=True)
        now, before = time.monotonic(), self._settings
        if before.key == key and now - before.at < _SETTINGS_SECONDS and before.wrong is None:
            return before
        config = {name: str(value) for name, value in kafka.get("config", {}).items()}
        digest, wrong = "", None
        if reference := kafka.get("secretRef"):
            live = await self.cluster.get("Secret", self.key[0], reference["name"])
            if live is None:
                wrong = f"the Secret {reference['name']} does not exist"
            else:
                digest = hashlib.sha256(json.dumps(live.get("data"), sort_keys=True).encode()).hexdigest()
                config |= _decoded(live)
        if wrong is None:
            self._settings = _Settings(now, key, config, digest)
        elif before.key == key:
            self._settings = _Settings(now, key, before.config, before.digest, wrong)
        else:
            self._settings = _Settings(now, key, None, "", wrong)
        return self._settings

    async def _topic(self, resource: Manifest, settings: _Settings) -> TopicObservation | None:
        if "deletionTimestamp" in resource["metadata"]:
            return None
        if settings.wrong is not None or settings.config is None:
            return KafkaSettingsInvalid(settings.wrong or "the settings are missing")
        spec = resource["spec"]
        bootstrap_servers = spec["kafka"]["bootstrapServers"]
        return await self.topics.seen(self.key[0], bootstrap_servers, settings.config, spec["topic"])


def revision_of(view: str, ref: Ref) -> int | None:
    """Return the revision in a child's name."""
    prefix, _, text = ref.name.rpartition("-")
    return names.revision_number(text) if prefix == view else None


def _split_by_owner(
    objects: Mapping[Ref, Manifest], uid: str, view: str
) -> tuple[dict[Ref, Manifest], set[Ref]]:
    """Split objects into our children and names that other owners use. A label alone makes no child."""
    children: dict[Ref, Manifest] = {}
    name_conflicts: set[Ref] = set()
    for ref, live in objects.items():
        if ref.kind == "EndpointSlice":
            continue
        if ref.kind in _UNOWNED:
            if _revision_and_pod(view, ref, live) is not None or _is_pod_of_job(view, ref, live):
                children[ref] = live
        elif is_owned(live, uid):
            children[ref] = live
        elif ref.name == view or revision_of(view, ref) is not None or _is_of_job(view, ref):
            name_conflicts.add(ref)
    return children, name_conflicts


def _revision_and_pod(view: str, ref: Ref, live: Manifest) -> tuple[int, PodIndex] | None:
    """Return revision and index of a pod or volume claim of this view's StatefulSets, else None."""
    revision = names.revision_number(live["metadata"].get("labels", {}).get(names.REVISION_LABEL))
    text = ref.name.rpartition("-")[2]
    if revision is None or not (text.isascii() and text.isdecimal()) or len(text) > 6:
        return None
    make = names.pod if ref.kind == "Pod" else names.volume_claim
    if ref.name != make(view, revision, int(text)):
        return None
    if ref.kind == "Pod" and not _is_of_stateful_set(live):
        return None
    return revision, PodIndex(int(text))


def _is_of_job(view: str, ref: Ref) -> bool:
    """Return whether the name is that of an object of a rekey job of this view, or of its executors."""
    if ref.kind == "StatefulSet" and names.revision_of_executors(view, ref.name) is not None:
        return True
    return ref.kind in ("Service", "StatefulSet") and names.revision_of_rekey_job(view, ref.name) is not None


def _is_pod_of_job(view: str, ref: Ref, live: Manifest) -> bool:
    """Return whether this is the pod of a rekey job of this view, or of one of its executors."""
    labels = live["metadata"].get("labels", {})
    of_job = names.revision_number(labels.get(names.REKEY_LABEL))
    of_executors = names.revision_number(labels.get(names.EXECUTOR_LABEL))
    is_named = (of_job is not None and ref.name == names.rekey_pod(view, of_job)) or (
        of_executors is not None
        and names.revision_of_executors(view, ref.name.rpartition("-")[0]) == of_executors
    )
    return ref.kind == "Pod" and is_named and _is_of_stateful_set(live)


def _is_of_stateful_set(pod: Manifest) -> bool:
    return any(owner["kind"] == "StatefulSet" for owner in pod["metadata"].get("ownerReferences") or ())


def _reachable_nodes(view: str, children: Mapping[Ref, Manifest]) -> dict[tuple[int, int], Node]:
    """Return the nodes of pods that have an address and may answer, including terminating ones, since they drain."""
    nodes: dict[tuple[int, int], Node] = {}
    layouts: dict[int, PodLayout] = {}
    for ref, live in children.items():
        ip = live.get("status", {}).get("podIP")
        if ref.kind != "Pod" or not ip or live["status"].get("phase") != "Running":
            continue
        if (place := _revision_and_pod(view, ref, live)) is None:
            continue
        revision, pod = place
        epoch = _epoch(children.get(Ref("ConfigMap", names.child(view, revision))))
        if revision not in layouts:
            layouts[revision] = layout_of(view, revision, children)
        layout, uid = layouts[revision], live["metadata"]["uid"]
        for ordinal in layout.nodes_of(pod):
            port = layout.port_of(ordinal)
            name = names.node_tls_name(live["metadata"]["namespace"], view) if layout.tls else ""
            nodes[revision, ordinal] = Node(revision, ordinal, uid, ip, epoch, port, name)
    return nodes


def _epoch(record: Manifest | None) -> int | None:
    try:
        return Placement.from_json((record or {})["data"]["placement.json"]).epoch
    except (KeyError, ValueError, TypeError):
        return None


def _decoded(secret: Mapping[str, Any]) -> dict[str, str]:
    """Decode a Secret's values. Values that are no text are left out: no Kafka setting is binary."""
    decoded = {}
    for name, value in (secret.get("data") or {}).items():
        try:
            decoded[name] = base64.b64decode(value).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return decoded
