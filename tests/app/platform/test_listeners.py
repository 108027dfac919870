"""Test which addresses a listening socket accepts."""

from __future__ import annotations

import socket

import pytest

from queryable_app.platform.listeners import EVERY_ADDRESS, listen


def reachable(listener: socket.socket, host: str) -> bool:
    """Return whether a connection to the listener's port at the host is one to this listener, and not to another program's."""
    try:
        with socket.create_connection((host, listener.getsockname()[1]), timeout=10) as client:
            listener.settimeout(10)
            accepted, _ = listener.accept()
            with accepted:
                return bool(accepted.getpeername()[1] == client.getsockname()[1])
    except OSError:
        return False


@pytest.mark.parametrize(
    ("host", "over_ipv4", "over_ipv6"),
    [
        (EVERY_ADDRESS, True, True),
        ("127.0.0.1", True, False),
        ("0.0.0.0", True, False),
        ("::1", False, True),
        ("[::1]", False, True),
    ],
)
def test_listener_accepts_the_families_of_its_address(host: str, over_ipv4: bool, over_ipv6: bool) -> None:
    """A listener on every address accepts both families, and one on an address only its own."""
    with listen(host, 0) as listener:
        assert (reachable(listener, "127.0.0.1"), reachable(listener, "::1")) == (over_ipv4, over_ipv6)


def test_every_address_is_ipv4_on_a_host_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without IPv6 listens on all of its IPv4 addresses."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    with listen(EVERY_ADDRESS, 0) as listener:
        assert (listener.family, reachable(listener, "127.0.0.1")) == (socket.AF_INET, True)


def test_port_in_use_over_ipv6_is_refused() -> None:
    """A listener on every address fails when its port is in use over IPv6."""
    with listen("::1", 0) as other, pytest.raises(OSError, match="in use"):
        listen(EVERY_ADDRESS, other.getsockname()[1])
