"""Ports for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket


def free_ports(count: int) -> list[str]:
    """So many ports of this host that nobody uses, as texts, and that the kernel gives to no connection meanwhile."""
    drawn, ports = random.SystemRandom(), list[str]()  # not as a test may have seeded it
    while len(ports) < count:
        port = str(drawn.randrange(10_000, 20_000))
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", int(port)))
            ports += [port] if port not in ports else []
    return ports
