"""Every object of three views, whole, as in `golden/`.

After a change that is meant: `WRITE_GOLDEN=1 .venv/bin/pytest tests/operator/test_golden.py`, and read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from queryable_app.placement import first_placement
from queryable_operator import names
from queryable_operator.changes import roll_hash, spec_hash
from queryable_operator.observed import Manifest
from queryable_operator.policies import disruption_budget, network_policy, service_account
from queryable_operator.resource import View
from queryable_operator.services import client, headless
from queryable_operator.settings import OperatorSettings
from queryable_operator.settings_map import RevisionRecord, config_map
from queryable_operator.workload import pod_template, stateful_set
from tests.support.view import FULL, view

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = OperatorSettings(node_image="example.com/queryable-topics:0.1.0")
SPECS: Mapping[str, Mapping[str, Any]] = {
    "small": {},
    "full": FULL,
    "ephemeral": {"storage": {"ephemeral": True, "size": "2Gi"}, "replicas": 2, "suspended": True},
}
DIGEST = "0123456789abcdef"  # of the Kafka Secret


def objects(of: View) -> list[Manifest]:
    """All that revision 1 of a view consists of, but its token."""
    image = of.image or SETTINGS.node_image
    roll = roll_hash(of.raw, image, DIGEST)
    template = pod_template(of, 1, image, roll, SETTINGS)
    replicas = of.spec.replicas
    addresses = [
        names.advertised_url(of.namespace, of.name, 1, o, SETTINGS.cluster_domain) for o in range(replicas)
    ]
    record = RevisionRecord(
        spec=of.raw,
        placement=first_placement(
            names.application_id(of.namespace, of.name, 1), 4, addresses, of.spec.copies
        ),
        template=template,
        domains={0: "zone-a"},
        spec_hash=spec_hash(of.raw, 4, disk_format=1),
        roll_hash=roll,
        partitions=4,
        image=image,
        disk_format=1,
    )
    return [
        config_map(of, 1, record),
        headless(of, 1),
        service_account(of),
        disruption_budget(of, 1),
        network_policy(of),
        stateful_set(of, 1, template, 0 if of.suspended else replicas),
        client(of, 1),
    ]


class _Plain(yaml.SafeDumper):
    """Without anchors: each object can be read by itself."""

    def ignore_aliases(self, data: object) -> bool:
        return True


@pytest.mark.parametrize("name", SPECS)
def test_objects_are_as_they_were(name: str) -> None:
    """A change of what is applied is seen whole, and on purpose."""
    text = yaml.dump_all(objects(view(**SPECS[name])), Dumper=_Plain, sort_keys=False, width=110)
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text(text)

    assert text == file.read_text()
