"""Resolve broker names like a pod in the resource's namespace.

An event loop has its own `getaddrinfo`. A Kafka client connects by name to the given addresses and to those that brokers
advertise, and both go through the loop. TLS still verifies the name as written.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

_RESOLV_CONF: Final = Path("/etc/resolv.conf")
_DOTS: Final = 5  # Kubernetes' `ndots`: a name with fewer dots is looked up below the search path first


@dataclass(frozen=True, slots=True)
class SearchPath:
    """Hold the domains below which a pod looks a name up."""

    domains: tuple[str, ...]
    own: bool
    """Whether the operator's own search path comes last: outside of a cluster it is not a namespace's."""

    def names(self, host: str) -> list[str]:
        """Return the names to look up for a host, in order."""
        if host.endswith(".") or host == "localhost" or _is_address(host):
            return [host]
        as_written = host if self.own else f"{host}."
        searched = [f"{host}.{domain}." for domain in self.domains]
        return [*searched, as_written] if host.count(".") < _DOTS else [as_written, *searched]


def search_path(namespace: str, cluster_domain: str, own: Sequence[str]) -> SearchPath:
    """Return the search path of a namespace's pods. `own` is the one of this process: what a pod has from its host is in both."""
    ours = (f"{namespace}.svc.{cluster_domain}", f"svc.{cluster_domain}", cluster_domain)
    if f"svc.{cluster_domain}" not in own:
        return SearchPath(ours, own=True)
    hosts = [name for name in own if name not in ours and not name.endswith(f".svc.{cluster_domain}")]
    return SearchPath((*ours, *hosts), own=False)


def own_search_path(file: Path = _RESOLV_CONF) -> tuple[str, ...]:
    """Return the domains of this process' resolver. As in the resolver, the last line wins."""
    found: tuple[str, ...] = ()
    with suppress(OSError):
        for line in file.read_text(errors="replace").splitlines():
            keyword, *domains = line.split() or [""]
            if keyword in ("search", "domain"):
                found = tuple(domain.rstrip(".") for domain in domains)
    return found


class NamespaceLoop(asyncio.SelectorEventLoop):
    """Resolve names along a search path. A look-up blocks the loop, so it runs in its own thread."""

    def __init__(self, path: SearchPath) -> None:
        super().__init__()
        self._path = path

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        if not isinstance(host, str):
            return socket.getaddrinfo(host, port, family, type, proto, flags)
        unknown: OSError | None = None
        for name in self._path.names(host):
            try:
                return socket.getaddrinfo(name, port, family, type, proto, flags)
            except (socket.gaierror, ValueError) as error:  # a label that is too long is no name
                unknown = error if isinstance(error, OSError) else socket.gaierror(str(error))
        raise unknown or socket.gaierror(f"{host} is no name")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
