"""Simulate the API server: objects with uids, generations and owner references, pods that terminate slowly, and volumes that
stay while a pod uses them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from queryable_operator.rollout.pod import text_of
from queryable_operator.spec.observed import Manifest, Ref

LiveRevision = dict[str, Any]
_NO_COPY: Manifest = {"metadata": {"resourceVersion": ""}}


class Conflict(Exception):
    """Report that the object is missing or has another version than expected."""


@dataclass
class Api:
    now: Callable[[], float]
    owners: set[str] = field(default_factory=set)
    """The uids of owners that this API does not store."""

    objects: dict[Ref, LiveRevision] = field(default_factory=dict)
    _copies: dict[Ref, Manifest] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def of(self, kind: str) -> list[LiveRevision]:
        return [live for ref, live in self.objects.items() if ref.kind == kind]

    def get(self, kind: str, name: str) -> LiveRevision | None:
        return self.objects.get(Ref(kind, name))

    def snapshot(self) -> dict[Ref, Manifest]:
        """Return copies of all objects; an unchanged object keeps its copy."""
        for ref, live in self.objects.items():
            version = live["metadata"]["resourceVersion"]
            if self._copies.get(ref, _NO_COPY)["metadata"]["resourceVersion"] != version:
                self._copies[ref] = json.loads(json.dumps(live))
        return {ref: self._copies[ref] for ref in self.objects}

    def create(self, manifest: Manifest) -> LiveRevision:
        live: LiveRevision = json.loads(json.dumps(manifest))
        ref = Ref(live["kind"], live["metadata"]["name"])
        if ref in self.objects:
            raise Conflict(f"{ref} is there")
        meta = live["metadata"]
        meta.update(uid=f"u{next(self._numbers)}", generation=1, creationTimestamp=text_of(self.now()))
        self.objects[ref] = live
        self.touch(live)
        return live

    def apply(self, manifest: Manifest, version: str | None = None) -> LiveRevision:
        ref = Ref(manifest["kind"], manifest["metadata"]["name"])
        live = self.objects.get(ref)
        if live is None:
            if version is not None or ref.kind == "PersistentVolumeClaim":
                raise Conflict(f"{ref} has gone")
            return self.create(manifest)
        if version is not None and live["metadata"]["resourceVersion"] != version:
            raise Conflict(f"{ref} has changed")
        if "deletionTimestamp" in live["metadata"]:
            return live
        before = json.loads(json.dumps(live))
        given = json.loads(json.dumps(manifest))
        for name in ("labels", "annotations"):
            live["metadata"][name] = {**live["metadata"].get(name, {}), **given["metadata"].get(name, {})}
        if "ownerReferences" in given["metadata"]:
            live["metadata"]["ownerReferences"] = given["metadata"]["ownerReferences"]
        for name, value in given.items():
            if name not in ("metadata", "kind", "apiVersion"):
                live[name] = _merged(live.get(name), value) if ref.kind == "PersistentVolumeClaim" else value
        if live != before:
            self.touch(live, live.get("spec") != before.get("spec"))
        return live

    def touch(self, live: LiveRevision, new_generation: bool = False) -> None:
        meta = live["metadata"]
        meta["resourceVersion"] = str(next(self._numbers))
        if new_generation:
            meta["generation"] += 1

    def delete(self, ref: Ref, uid: str | None = None, force: bool = False) -> None:
        live = self.objects.get(ref)
        if live is None:
            return
        if uid is not None and live["metadata"]["uid"] != uid:
            raise Conflict(f"{ref} is another one")
        if live["metadata"].get("finalizers") or (ref.kind in ("Pod", "PersistentVolumeClaim") and not force):
            if "deletionTimestamp" not in live["metadata"]:
                live["metadata"]["deletionTimestamp"] = text_of(self.now() + (45 if ref.kind == "Pod" else 0))
                self.touch(live)
        else:
            self.remove(ref)

    def remove(self, ref: Ref) -> None:
        """Delete an object at once, and soon its dependents."""
        self.objects.pop(ref, None)

    def collect_garbage(self) -> None:
        uids = self.owners | {live["metadata"]["uid"] for live in self.objects.values()}
        for ref, live in list(self.objects.items()):
            owners = live["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.delete(ref)
            if ref.kind == "PersistentVolumeClaim" and self._is_unused(ref, live):
                self.remove(ref)

    def _is_unused(self, ref: Ref, live: LiveRevision) -> bool:
        pod = Ref("Pod", ref.name.removeprefix("data-"))
        return "deletionTimestamp" in live["metadata"] and pod not in self.objects


def _merged(there: Any, given: Any) -> Any:
    if not isinstance(there, Mapping) or not isinstance(given, Mapping):
        return given
    return {**there, **{name: _merged(there.get(name), value) for name, value in given.items()}}
