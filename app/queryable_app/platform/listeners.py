"""Listen for TCP connections over IPv4 and IPv6.

A pod of an IPv6-only cluster has no IPv4 address, and a host may have no IPv6. So a listener on every address takes both families
if the kernel has both, and otherwise the one that it has.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

EVERY_ADDRESS: Final = "::"
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_IPV4_ONLY: Final = "0.0.0.0"  # noqa: S104  (for a listener on every address)


def listen(host: str, port: int, backlog: int = 128, shared: bool = False) -> socket.socket:
    """Return a socket that listens on an address, or raise OSError. An IPv6 address may stand in brackets.

    Several processes can listen on a shared port: the kernel gives each new connection to one of them.
    """
    host = host.removeprefix("[").removesuffix("]")
    if host == EVERY_ADDRESS:
        if socket.has_dualstack_ipv6():
            try:
                return _listen(socket.AF_INET6, host, port, backlog, shared, both=True)
            except OSError as error:
                if error.errno not in _NO_IPV6:
                    raise
        host = _IPV4_ONLY
    return _listen(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port, backlog, shared)


def _listen(
    family: socket.AddressFamily, host: str, port: int, backlog: int, shared: bool, both: bool = False
) -> socket.socket:
    return socket.create_server(
        (host, port), family=family, backlog=backlog, reuse_port=shared, dualstack_ipv6=both
    )
