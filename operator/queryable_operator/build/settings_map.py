"""Build and parse a revision's ConfigMap: the nodes' settings, and the operator's record of the revision.

A revision exists if its ConfigMap exists. The ConfigMap contains a digest of all its contents. One that a user edited counts as
missing, since its placement could omit an existing replica.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queryable_app.placement.assignment import Placement
from queryable_app.wire.disk_format import FORMAT_VERSION
from queryable_operator.build.children import child
from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.pods import PodIndex, PodLayout
from queryable_operator.spec.resource import View

SPEC_KEY: Final = "spec.json"
PLACEMENT_KEY: Final = "placement.json"
_TEMPLATE_KEY: Final = "template.json"
_REKEY_KEY: Final = "rekey.json"
GROUP_KEY_FORMAT_KEY: Final = "group-key-format"
_DOMAINS_KEY: Final = "domains.json"

_SPEC_HASH: Final = f"{names.GROUP}/spec-hash"
_ROLL_HASH: Final = f"{names.GROUP}/roll-hash"
_PARTITIONS: Final = f"{names.GROUP}/partitions"
_DISK_FORMAT: Final = f"{names.GROUP}/disk-format"
_IMAGE: Final = f"{names.GROUP}/image"
_DIGEST: Final = f"{names.GROUP}/digest"
_DIGESTED: Final = (_SPEC_HASH, _ROLL_HASH, _PARTITIONS, _DISK_FORMAT, _IMAGE)


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    spec: Mapping[str, Any]
    """The spec that the revision's nodes follow."""

    placement: Placement
    template: Manifest
    """The pod template that was built last."""

    domains: Mapping[PodIndex, str]
    """The failure domain in which each pod was seen last."""

    spec_hash: str
    roll_hash: str
    partitions: int
    image: str
    disk_format: int = FORMAT_VERSION
    rekey_template: Manifest | None = None
    """The pod template of the rekey job that was built last. None: the view is not rekeyed."""

    group_key_format: str = ""
    """The format of group keys, which Spark's types decide. Empty: the rekey job has not reported it yet, or there is no job."""

    @property
    def layout(self) -> PodLayout:
        return PodLayout.of(self.spec)


def config_map(view: View, revision: int, record: RevisionRecord) -> Manifest:
    data = {
        SPEC_KEY: _json(record.spec),
        PLACEMENT_KEY: record.placement.to_json(),
        _TEMPLATE_KEY: _json(record.template),
        _DOMAINS_KEY: _json({str(pod): domain for pod, domain in record.domains.items()}),
    }
    if record.rekey_template is not None:
        data[_REKEY_KEY] = _json(record.rekey_template)
    if record.group_key_format:
        data[GROUP_KEY_FORMAT_KEY] = record.group_key_format
    annotations = {
        _SPEC_HASH: record.spec_hash,
        _ROLL_HASH: record.roll_hash,
        _PARTITIONS: str(record.partitions),
        _DISK_FORMAT: str(record.disk_format),
        _IMAGE: record.image,
    }
    annotations[_DIGEST] = _digest(data, annotations)
    return child(view, revision, "ConfigMap", {"data": data}, annotations)


def record_of(live: Manifest) -> RevisionRecord:
    """Parse a ConfigMap. Raises ValueError if it was edited."""
    try:
        data, annotations = live["data"], live["metadata"]["annotations"]
        if annotations[_DIGEST] != _digest(data, annotations):
            raise ValueError("it was edited")
        record = RevisionRecord(
            spec=_object(data[SPEC_KEY]),
            placement=Placement.from_json(data[PLACEMENT_KEY]),
            template=_object(data[_TEMPLATE_KEY]),
            domains={PodIndex(int(pod)): str(domain) for pod, domain in _object(data[_DOMAINS_KEY]).items()},
            spec_hash=annotations[_SPEC_HASH],
            roll_hash=annotations[_ROLL_HASH],
            partitions=int(annotations[_PARTITIONS]),
            image=annotations[_IMAGE],
            disk_format=int(annotations[_DISK_FORMAT]),
            rekey_template=_object(data[_REKEY_KEY]) if _REKEY_KEY in data else None,
            group_key_format=str(data.get(GROUP_KEY_FORMAT_KEY, "")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise ValueError(f"ConfigMap {live['metadata']['name']} is invalid: {e!r}") from e
    placement = record.placement
    if not placement.partitions == len(placement.hydrating) == record.partitions:
        raise ValueError(
            f"ConfigMap {live['metadata']['name']} does not place {record.partitions} partitions"
        )
    return record


def _digest(data: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    whole = {"data": dict(data), "annotations": {name: annotations[name] for name in _DIGESTED}}
    return hashlib.sha256(_json(whole).encode()).hexdigest()[:16]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value
