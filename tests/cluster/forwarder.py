"""Hands connections to ports of one address on to another, as Docker does: ``forwarder.py <from> <to> <port>...``.

Says "ready" on stdout once it listens, and then the port of each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(1 << 16):
            writer.write(part)
            await writer.drain()
    writer.close()


def handing_on(target: str, port: int) -> Handler:
    async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        print(port, flush=True)
        try:
            there, back = await asyncio.open_connection(target, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, back), copy(there, writer))

    return hand_on


async def main(source: str, target: str, ports: list[int]) -> None:
    servers = [await asyncio.start_server(handing_on(target, port), source, port) for port in ports]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], list(map(int, sys.argv[3:]))))
