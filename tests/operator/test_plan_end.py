"""When a pod that was asked to end is taken away without its host's word."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from queryable_operator.deletion import stuck
from queryable_operator.live import Live, Pod
from queryable_operator.observed import Host, Ref

NOW = 10_000.0
WELL, SILENT = {"host": Host(True, True, None)}, {"host": Host(False, False, None)}
Hosts = Mapping[str, Host] | None

CASES: Mapping[str, tuple[float | None, Hosts, bool]] = {
    "it was not asked to": (None, {}, False),
    "it has time left, even without its host": (NOW + 1, {}, False),
    "its host is well and may be late": (NOW - 299, WELL, False),
    "its host does not answer": (NOW, SILENT, True),
    "its host is gone": (NOW, {}, True),
    "nobody may look at hosts": (NOW - 299, None, False),
    "nobody has said anything for five minutes": (NOW - 300, None, True),
    "nor has a host that is well": (NOW - 300, WELL, True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pod_is_taken_away_when_nobody_can_say_that_it_has_ended(case: str) -> None:
    """Its process may still run for as long as it was given, and its host is believed for five minutes more."""
    ending, hosts, forced = CASES[case]
    live = Live(1, pods={0: Pod("users-r1-0", False, NOW, NOW, "host", None, ending)})

    assert tuple(stuck(live, hosts, NOW)) == ((Ref("Pod", "users-r1-0"),) if forced else ())
