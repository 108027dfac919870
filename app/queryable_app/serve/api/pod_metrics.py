"""Collect the metrics of a pod's workers, so that a scrape of the pod's front port has all of them, whichever worker it reaches.

Strategy: each worker returns its own text to the one that was scraped, which adds a label to every sample and joins the samples
of each metric, as the format requires. A worker that does not answer soon has no samples but `qt_worker_up 0`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from queryable_app.serve.node import Node
from queryable_app.serve.peers.client import PeerUnavailable

WORKER_METRICS: Final = "/internal/v1/metrics"

_SECONDS_MAX: Final = 1.0
_UP: Final = "qt_worker_up"
_UP_COMMENTS: Final = f"# HELP {_UP} 1 when the worker has returned its metrics.\n# TYPE {_UP} gauge\n"


async def pod_exposition(node: Node, own: bytes) -> bytes:
    """Return the metrics of all workers of the node's pod, or the node's `own` if it is no worker."""
    settings = node.settings
    if settings.pod_workers == 1:
        return own
    siblings = node.peers.siblings()
    texts = await asyncio.gather(*(_metrics_of(node, ordinal) for ordinal in siblings))
    first = settings.pod_ordinals.start
    workers = dict(zip((ordinal - first for ordinal in siblings), texts, strict=True))
    return join({settings.ordinal - first: own.decode(), **workers}).encode()


async def _metrics_of(node: Node, ordinal: int) -> str | None:
    deadline = asyncio.get_running_loop().time() + _SECONDS_MAX
    try:
        response = await node.peers.request(
            ordinal, b"GET", WORKER_METRICS.encode(), node.peers.node_headers, b"", deadline
        )
    except PeerUnavailable:
        return None
    return response.body.decode() if response.status == 200 else None


def join(workers: Mapping[int, str | None]) -> str:
    """Return one text of the texts of several workers, with the label `worker` on every sample."""
    samples: dict[str, list[str]] = {}  # by the comment lines of their metric
    for worker, text in sorted(workers.items()):
        comments = ""
        for line in (text or "").splitlines():
            if line.startswith("# HELP "):
                comments = f"{line}\n"
            elif line.startswith("#"):
                comments += f"{line}\n"
            elif line:
                samples.setdefault(comments, []).append(_with_worker(line, worker))
    samples[_UP_COMMENTS] = [
        f'{_UP}{{worker="{worker}"}} {float(text is not None)}' for worker, text in sorted(workers.items())
    ]
    return "".join(f"{comments}{chr(10).join(lines)}\n" for comments, lines in samples.items())


def _with_worker(line: str, worker: int) -> str:
    name, labels, rest = line.partition("{")
    if labels:
        return f'{name}{{worker="{worker}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'
