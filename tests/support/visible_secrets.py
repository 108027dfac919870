"""Look for secrets where others than a process itself can read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import psutil

_OWN_MEMORY: Final = 0x3  # anonymous mappings; a JVM adds those of its files


def secrets_of(directory: Path) -> dict[str, bytes]:
    """Return what the files of Secrets hold: each line long enough to be no accident, without what is public in a certificate."""
    found: dict[str, bytes] = {}
    for file in sorted(path for path in directory.rglob("*") if path.is_file() and path.suffix != ".crt"):
        lines = [line for line in file.read_bytes().split(b"\n") if len(line) >= 24 and b"-----" not in line]
        found |= {f"{file.name}:{number}": line for number, line in enumerate(lines)}
    return found


def places_of(process: psutil.Process) -> dict[str, bytes]:
    """Return the arguments and the environment of a process and of all that it has started."""
    places = {}
    for each in (process, *process.children(recursive=True)):
        for name in ("cmdline", "environ"):
            try:
                places[f"{name} of {each.pid}"] = Path(f"/proc/{each.pid}/{name}").read_bytes()
            except OSError:  # it has ended
                continue
    return places


def visible(secrets: Mapping[str, bytes], places: Mapping[str, bytes]) -> list[str]:
    """Return which secret is in which place."""
    return [
        f"{name} in {place}"
        for place, text in places.items()
        for name, secret in secrets.items()
        if secret in text
    ]


def dumpable(processes: Iterable[psutil.Process]) -> list[str]:
    """Return the processes that could leave a core dump with memory in it."""
    found = []
    for process in processes:
        try:
            limits = Path(f"/proc/{process.pid}/limits").read_text()
            memory = Path(f"/proc/{process.pid}/coredump_filter").read_text()
            name = " ".join(process.cmdline()[:6])
        except (OSError, psutil.Error):  # it has ended
            continue
        (limit,) = [line.split() for line in limits.splitlines() if line.startswith("Max core file size")]
        if limit[4:6] != ["0", "0"] or int(memory or "0", 16) & _OWN_MEMORY:
            found.append(f"{process.pid} {name}: {limit[4:6]}, {memory.strip()}")
    return found
