"""A small replica that behaves, until it does not: faults of a server, each at one route.

    python fault_server.py [--port N] [--after N] [--for SECONDS] [--at ROUTE FAULT ...]

After N completions have begun, and for SECONDS if given, ROUTE is answered as FAULT says; before,
after and elsewhere as by ``small_replica``. It prints its port, and answers on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import asyncio
from enum import StrEnum
from time import monotonic
from urllib.parse import urlsplit

from small_replica import Replica, respond

LATE = 0.2
"""Seconds."""
LARGE = 10_000_000
"""Bytes."""


class Fault(StrEnum):
    HANG = "hang"
    """Never answer."""
    LATE = "late"
    """Answer after LATE seconds."""
    SLOW = "slow"
    """Take ten times as long."""
    TWICE = "twice"
    """Answer, and once more unasked."""
    FAIL = "fail"
    """500, with a body."""
    VANISH = "vanish"
    """404."""
    TRICKLE = "trickle"
    """A byte every 50 ms, without end."""
    LARGE = "large"
    """Metrics of 10 MB, nearly all of them of no use here."""
    RENAME = "rename"
    """Metrics under other names."""
    ECHO = "echo"
    """500, with the headers of the request in its body."""


class FaultyReplica(Replica):
    def __init__(self, faults: dict[str, Fault], after: int, seconds: float) -> None:
        super().__init__(stock=False, answer_until=10**9, then="hang")
        self.faults, self.after, self.seconds = faults, after, seconds
        self.since: float | None = None

    def now(self, route: str) -> Fault | None:
        """The fault of ``route`` at this moment."""
        if self.begun < self.after:
            return None
        if self.since is None:
            self.since = monotonic()
        return self.faults.get(route) if monotonic() - self.since < self.seconds else None

    def reset(self, query: dict[str, list[str]]) -> dict[str, object]:
        return super().reset(query) | {"wipes": self.wipes}

    async def answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.pace = 10.0 if self.now("/v1/completions") is Fault.SLOW else 1.0
        match self.now(urlsplit(head.split(" ")[1]).path):
            case None | Fault.SLOW:
                await super().answer(head, body, writer)
            case Fault.LATE:
                await asyncio.sleep(LATE)
                await super().answer(head, body, writer)
            case Fault.TWICE:
                await super().answer(head, body, writer)
                await super().answer(head, body, writer)
            case Fault.HANG:
                await asyncio.sleep(3600)
            case Fault.FAIL:
                respond(writer, {"error": {"message": "out of memory"}}, 500)
            case Fault.ECHO:
                respond(writer, {"error": head, head: [head]}, 500)
            case Fault.VANISH:
                respond(writer, {"detail": "Not Found"}, 404)
            case Fault.TRICKLE:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n")
                while True:
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.05)
            case Fault.LARGE:
                line = 'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001"} 17.0\n'
                respond(writer, line * (LARGE // len(line)) + self.metrics())
            case Fault.RENAME:
                respond(writer, self.metrics().replace("vllm:", "engine:"))


async def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--for", type=float, default=3600.0, dest="seconds")
    parser.add_argument("--at", nargs=2, action="append", default=[])
    options, _ = parser.parse_known_args()
    faults = {route: Fault(fault) for route, fault in options.at}
    replica = FaultyReplica(faults, options.after, options.seconds)
    server = await asyncio.start_server(replica.serve, "127.0.0.1", options.port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
