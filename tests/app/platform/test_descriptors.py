"""Test the limit of open descriptors, in child processes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

_RAISE = """
import json, resource, sys
from queryable_app.platform.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(json.loads(sys.argv[1])))
limit = raise_descriptor_limit()
print(json.dumps([limit, *resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


@pytest.mark.parametrize(("soft", "hard"), [(128, 512), (512, 512)])
def test_soft_limit_is_raised_to_the_hard_limit(soft: int, hard: int) -> None:
    """A process raises its soft limit to its hard limit and returns it."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= hard

    run = subprocess.run(
        [sys.executable, "-c", _RAISE, json.dumps([soft, hard])], capture_output=True, text=True, check=True
    )

    assert json.loads(run.stdout) == [hard, hard, hard]
