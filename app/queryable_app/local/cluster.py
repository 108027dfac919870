"""Run the pods of one machine: a node, or several workers, for the addresses of the placement, which follows the desired scale.

Strategy: `tick` never waits. A new pod starts with a placement in which its nodes build replicas, and is announced to clients
when they answer. A pod that hosts nothing any more is no longer announced. It is stopped after clients had time to read that, and
its data is removed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from queryable_app.local.data_directory import DataDirectory
from queryable_app.local.desired_scale import DESIRED_SCALE_FILE, DesiredScale
from queryable_app.local.node_tls import node_client
from queryable_app.local.placement_controller import PlacementController
from queryable_app.local.pods import Pod, desired_placement, new_address, node_addresses, pod_settings
from queryable_app.local.secrets import NO_SECRETS, Secrets
from queryable_app.placement.assignment import Placement
from queryable_app.platform.processes import Process

_NOTICE_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 15.0


class LocalCluster:
    """Own the pods of a run, whose processes start at once."""

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        data: DataDirectory,
        placement: Placement,
        desired: DesiredScale,
        port: int,
        fronts: Sequence[str] = (),
        workers: int = 1,
        group_key_format: str = "",
        secrets: Secrets = NO_SECRETS,
    ) -> None:
        """`fronts` are the addresses of the pods. A pod of one node needs none: it has the node's."""
        self._name, self._spec, self._data, self._port = name, spec, data, port
        self._fronts, self._workers = list(fronts or placement.addresses), workers
        self._group_key_format, self._secrets = group_key_format, secrets
        self.desired = desired
        self.pods: list[Pod] = []
        self._announced = 0
        self._removed: list[_RemovedPod] = []
        data.remove(DESIRED_SCALE_FILE)
        data.remove_pods_from(-(-len(placement.addresses) // workers))
        goal = desired_placement(desired, placement.addresses, workers)
        self._controller = PlacementController(data, placement, goal, node_client(data, secrets.tls))
        self._start_pods()

    @property
    def starting(self) -> list[Pod]:
        """The pods that have not answered yet."""
        return self.pods[self._announced :]

    @property
    def processes(self) -> list[Process]:
        pods = [*self.pods, *(removed.pod for removed in self._removed)]
        return [supervised.process for pod in pods for supervised in pod.supervised]

    def tick(self) -> list[str]:
        """Advance every pod, and return what has happened as lines."""
        events = [line for pod in self.pods for each in pod.supervised if (line := each.supervise())]
        events += self._controller.tick()
        events += self._follow_desired_scale()
        self._start_pods()
        while self._announced < len(self.pods) and self._follows_newest(self._announced):
            self._announced += 1
        events += self._remove_empty_pods()
        return events

    def describe(self) -> dict[str, Any]:
        """Return what `run.json` says about the nodes and the placement."""
        placement, replicas = self._controller.placement, self.desired.replicas
        assigned = [len(s) + len(h) for s, h in zip(placement.serving, placement.hydrating, strict=True)]
        return {
            "nodes": [node for pod in self.pods[: self._announced] for node in pod.describe()],
            "placement": {
                "epoch": placement.epoch,
                "settled": self._controller.settled and not self.starting and not self._removed,
                **self.desired.to_json(),
                "toBuild": sum(map(len, placement.hydrating)),
                "toLetGo": sum(max(0, count - replicas) for count in assigned),
            },
        }

    def close(self) -> None:
        self._controller.close()

    @property
    def _placed_pods(self) -> int:
        """The number of pods with a node in the placement. It loses the nodes of a pod one by one."""
        return -(-len(self._controller.placement.addresses) // self._workers)

    def _follows_newest(self, pod: int) -> bool:
        nodes = range(pod * self._workers, (pod + 1) * self._workers)
        placed = len(self._controller.placement.addresses)
        return all(self._controller.follows_newest(node) for node in nodes if node < placed)

    def _start_pods(self) -> None:
        placement, workers = self._controller.placement, self._workers
        for ordinal in range(len(self.pods), self._placed_pods):
            settings = pod_settings(
                f"{self._name}-{ordinal}",
                ordinal,
                self._spec,
                placement.application_id,
                self._fronts[ordinal],
                placement.addresses[ordinal * workers : (ordinal + 1) * workers],
                self._data,
                self._group_key_format,
                self._secrets,
            )
            self.pods.append(Pod(settings, self._data))

    def _follow_desired_scale(self) -> Iterator[str]:
        """Follow a requested scale, unless pods are being removed: a new pod may take the ordinals of one of them."""
        addresses = self._controller.placement.addresses
        if self._removed or len(self.pods) * self._workers > len(addresses):
            return
        desired = self._requested_scale()
        if desired is None or desired == self.desired or desired.refusal():
            return
        self.desired = desired
        placed, scheme = len(self.pods), "https" if self._secrets.tls else "http"
        more = [new_address(self._port, ordinal, scheme) for ordinal in range(placed, desired.nodes)]
        self._fronts[placed:] = more
        after = (*addresses, *node_addresses(more, self._workers))
        self._controller.set_desired(desired_placement(desired, after, self._workers))
        yield f"Scaling to {desired}"

    def _requested_scale(self) -> DesiredScale | None:
        try:
            raw = self._data.read(DESIRED_SCALE_FILE)
            return None if raw is None else DesiredScale.from_json(raw)
        except (ValueError, KeyError, TypeError):  # written by hand
            return None

    def _remove_empty_pods(self) -> Iterator[str]:
        placed = self._placed_pods
        if len(self.pods) > placed and self._controller.followed:
            for pod in self.pods[placed:]:
                self._removed.append(_RemovedPod(pod, self._data))
                yield f"{pod.name} hosts no replicas any more and is stopped"
            del self.pods[placed:]
            self._announced = min(self._announced, placed)
        self._removed = [removed for removed in self._removed if not removed.tick()]


class _RemovedPod:
    """Stop a pod's processes step by step, then remove its data."""

    def __init__(self, pod: Pod, data: DataDirectory) -> None:
        self.pod = pod
        self._data = data
        self._since = time.monotonic()
        self._terminated = False

    def tick(self) -> bool:
        """Take the next step, and return whether the pod is gone."""
        passed = time.monotonic() - self._since
        processes = [supervised.process for supervised in self.pod.supervised]
        if passed < _NOTICE_SECONDS:
            return False
        if not self._terminated:
            self._terminated = True
            for process in processes:
                process.terminate()
        if any(p.exit_code is None for p in processes) and passed < _NOTICE_SECONDS + _STOP_SECONDS:
            return False
        for process in processes:
            process.kill()
        shutil.rmtree(self._data.pod_data(self.pod.ordinal), ignore_errors=True)
        return True
