"""Let Spark analyse a view, in a process of its own, without a node, a broker or data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from queryable_app.contract import NodeSettings
from queryable_app.local.resource_file import Resource

_SECONDS_MAX: Final = 180
_REFUSED: Final = 2  # the exit code of ingest.check


class AnalysisRefused(Exception):
    """Spark refuses the view; the message is its sentence with the position."""


class AnalysisFailed(Exception):
    """Spark could not be asked; the message says why."""


def analyse(resource: Resource) -> dict[str, Any]:
    """Return what Spark finds: columns, inputs, and whether headers are read."""
    with tempfile.TemporaryDirectory() as scratch:
        spec = Path(scratch) / "spec.json"
        spec.write_text(json.dumps(resource.document["spec"]))
        settings = NodeSettings(
            name="explain",
            ordinal=0,
            application_id="explain",
            spec_path=str(spec),
            bootstrap_servers=resource.spec.bootstrap_servers,
            advertised_url="http://127.0.0.1:1",
            data_dir=scratch,
            run_dir=scratch,
            placement_path=str(spec),
            cache_dir=os.environ.get("QT_CACHE_DIR", ""),
        )
        command = [sys.executable, "-m", "queryable_app.ingest.check", "--describe"]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **settings.to_env()},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS_MAX,
            )
        except subprocess.TimeoutExpired as error:
            raise AnalysisFailed(f"Spark gave no answer within {_SECONDS_MAX} s") from error
    if done.returncode == _REFUSED:
        raise AnalysisRefused(done.stderr.strip())
    if done.returncode:
        raise AnalysisFailed(f"the view could not be checked: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
