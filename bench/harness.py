"""Provide what every benchmark needs: figures with quantiles, processes with their cost, and a broker."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil


@dataclass
class Result:
    """Contain one line of the table: the measured quantity, the result and the target."""

    bench: str
    case: str
    figures: dict[str, float | int | str]
    target: str = ""
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 1))

    def line(self) -> str:
        figures = "  ".join(f"{name} {_short(value)}" for name, value in self.figures.items())
        target = f"   [target: {self.target}]" if self.target else ""
        return f"{self.bench:<14} {self.case:<34} {figures}   load {self.load}{target}"

    def row(self) -> str:
        """Return the result as a line of the table in docs/benchmarks.md."""
        figures = ", ".join(f"{name} {_short(value)}" for name, value in self.figures.items())
        return f"| {self.case} | {figures} | {self.target} | {self.load} |"


def _short(value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{value:,.{2 if value < 10 else 1 if value < 1000 else 0}f}"
    return f"{value:,}" if isinstance(value, int) else value


def quantiles(samples: Sequence[float]) -> dict[str, float]:
    """Return p50, p99 and the maximum of samples in milliseconds."""
    ordered = sorted(samples)

    def quantile(part: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 2)

    return {"p50": quantile(0.5), "p99": quantile(0.99), "max": round(ordered[-1], 2)}


class Meter:
    """Measure CPU and memory of a process and of its JVM, from one reading to the next."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self.since, self.cpu_s = time.monotonic(), self._cpu_s()

    def _family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def _cpu_s(self) -> float:
        total = 0.0
        for member in self._family():
            times = member.cpu_times()
            total += times.user + times.system
        return total

    def rss_mb(self) -> int:
        return sum(int(p.memory_info().rss) for p in self._family()) >> 20

    def cpu_percent(self) -> float:
        """Return the percentage of one core since the last call."""
        now, cpu_s = time.monotonic(), self._cpu_s()
        percent = 100 * (cpu_s - self.cpu_s) / max(0.001, now - self.since)
        self.since, self.cpu_s = now, cpu_s
        return round(percent, 1)


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def document(topic: str, bootstrap: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "queryabletopics.io/v1alpha1",
        "kind": "QueryableTopic",
        "metadata": {"name": topic},
        "spec": {"kafka": {"bootstrapServers": bootstrap}, "topic": topic, **spec},
    }
