"""Network namespaces on one bridge: hosts of their own, which can be cut off from the others and joined again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence


class Network:
    """Hosts ``10.77.0.1``, ``10.77.0.2``... by name; close it once no process runs in it, or use it in a ``with``.

    Their links are ports of a bridge in one more namespace. Who is cut off loses its port: its own link stays up,
    and packets are lost without a sign, as between two racks.

    Parameters
    ----------
    names : sequence of str
        One letter each.
    """

    def __init__(self, names: Sequence[str]):
        self._prefix = f"tfos{os.getpid()}"
        self._namespaces: list[str] = []
        self.addresses = {name: f"10.77.0.{i + 1}" for i, name in enumerate(names)}
        try:
            self._add_namespace("bridge")
            self._in("bridge", "link", "add", "bridge", "type", "bridge")
            self._in("bridge", "link", "set", "bridge", "up")
            for name, address in self.addresses.items():
                self._add_host(name, address)
        except BaseException:
            self.close()
            raise

    def _add_namespace(self, name: str) -> None:
        ip("netns", "add", self._namespace(name))
        self._namespaces.append(name)

    def _add_host(self, name: str, address: str) -> None:
        self._add_namespace(name)
        peer = ["peer", "name", f"port-{name}", "netns", self._namespace("bridge")]
        ip("link", "add", "eth0", "netns", self._namespace(name), "type", "veth", *peer)
        self._in(name, "link", "set", "lo", "up")
        self._in(name, "addr", "add", f"{address}/24", "dev", "eth0")
        self._in(name, "link", "set", "eth0", "up")
        self._in("bridge", "link", "set", f"port-{name}", "up")
        self.join(name)

    def add_behind(self, name: str, gateway: str, address: str) -> None:
        """Add a host in a private network of a gateway: it reaches the others through it, and they do not know it."""
        self._add_namespace(name)
        inner = ["peer", "name", "eth1", "netns", self._namespace(gateway)]
        ip("link", "add", "eth0", "netns", self._namespace(name), "type", "veth", *inner)
        first = address.rpartition(".")[0] + ".1"
        self._in(gateway, "addr", "add", f"{first}/24", "dev", "eth1")
        self._in(gateway, "link", "set", "eth1", "up")
        self._in(name, "link", "set", "lo", "up")
        self._in(name, "addr", "add", f"{address}/24", "dev", "eth0")
        self._in(name, "link", "set", "eth0", "up")
        self._in(name, "route", "add", "default", "via", first)
        subprocess.run([*self.within(gateway), "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        for other in set(self.addresses) - {gateway}:  # the way back, which a real gateway would find by itself
            self._in(other, "route", "add", f"{address}/32", "via", self.addresses[gateway])

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _in(self, name: str, *arguments: str) -> None:
        ip("-n", self._namespace(name), *arguments)

    def within(self, name: str) -> list[str]:
        """What a command is prefixed with to run on a host."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def cut_off(self, name: str) -> None:
        """Lose all packets from and to a host."""
        self._in("bridge", "link", "set", f"port-{name}", "nomaster")

    def join(self, name: str) -> None:
        """Let packets through (again)."""
        self._in("bridge", "link", "set", f"port-{name}", "master", "bridge")

    def slow_down(self, name: str) -> None:
        """Let little through to a host, with long queues that lose packets."""
        shape = ["rate", "400kbit", "burst", "4kb", "latency", "300ms"]
        self._queue(name, "tbf", *shape)

    def speed_up(self, name: str) -> None:
        self._queue(name, "pfifo")

    def _queue(self, name: str, *kind: str) -> None:
        command = ["tc", "qdisc", "replace", "dev", f"port-{name}", "root", *kind]
        subprocess.run([*self.within("bridge"), *command], check=True, capture_output=True, text=True)

    def close(self) -> None:
        while self._namespaces:
            ip("netns", "del", self._namespace(self._namespaces.pop()))

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def why_not() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    try:
        Network("x").close()
    except FileNotFoundError:
        return "there is no `ip` (iproute2)"
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted: {error.stderr.strip()}"
    return None
