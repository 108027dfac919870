"""Run the serving side of a pod: `python -m queryable_app.serve`, configured by the variables of contract.NodeSettings.

A pod without workers is one node, which this process serves. A pod with workers is a parent process, and one process for each.
"""

from __future__ import annotations

import sys

from queryable_app.contract import NodeSettings, SettingsError, worker_settings
from queryable_app.platform.collector import long_lived
from queryable_app.platform.core_dumps import forbid_core_dumps
from queryable_app.platform.log import configure, event


def main() -> int:
    forbid_core_dumps()
    configure()
    try:
        settings = NodeSettings.from_env()
        workers = worker_settings(settings)
    except SettingsError as error:
        event("failed", reason=str(error))
        return 1
    if settings.worker_ports:  # the parent of workers needs little memory, so it loads none of a node's code
        from queryable_app.serve.pod import run_pod

        return run_pod(settings, workers)
    with long_lived():
        from queryable_app.serve.process import run_node

    return run_node(settings)


if __name__ == "__main__":
    sys.exit(main())
