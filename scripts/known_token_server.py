"""A server whose token times are known: every stream gets a token each 20 ms, and each is stamped.

Streams of completions chunks of about 200 bytes, well behaved. The n-th token of a stream is due
n × 20 ms after its request; the instant of each stream's first send is kept, on the monotonic clock
that all processes share, and told at ``GET /stamps``, which also forgets them. Started by
``client_benchmark``; prints its port.
"""

from __future__ import annotations

import asyncio
import json
import resource
from time import perf_counter
from typing import cast

import uvloop

TICK = 0.001
TICKS_BETWEEN_TOKENS = 20

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def chunk(text: str | None, finish: str | None, usage: dict[str, int] | None) -> bytes:
    """One event of a completions stream as one HTTP chunk."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    document = {
        "id": "cmpl-0123456789abcdef",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "known",
        "choices": [] if text is None else [choice | {"stop_reason": None, "token_ids": None}],
        "usage": usage,
    }
    return frame(json.dumps(document, separators=(",", ":")).encode())


def frame(data: bytes) -> bytes:
    """An event as one HTTP chunk."""
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


TOKEN = chunk(" token", None, None)


class Wheel:
    """Sends the tokens that are due, once a millisecond, and knows how late it was."""

    def __init__(self) -> None:
        self.slots: list[list[Stream]] = [[] for _ in range(TICKS_BETWEEN_TOKENS)]
        self.first_sends: dict[str, float] = {}
        self.lateness: list[float] = []
        self.tokens = 0
        self._start = perf_counter()
        self._done = 0
        self._loop = asyncio.get_running_loop()
        self._turn()

    def add(self, stream: Stream) -> None:
        """Begin a stream: its first token is due one interval from now."""
        self.slots[(self._done - 1) % TICKS_BETWEEN_TOKENS].append(stream)

    def report(self) -> dict[str, object]:
        """What was sent since the last report."""
        told = {
            "first_sends": self.first_sends,
            "lateness": sorted(self.lateness),
            "tokens": self.tokens,
            "cpu": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
        }
        self.first_sends, self.lateness, self.tokens = {}, [], 0
        return told

    def _turn(self) -> None:
        now = perf_counter()
        while (due := self._start + self._done * TICK) <= now:
            slot = self.slots[self._done % TICKS_BETWEEN_TOKENS]
            self._done += 1
            if slot:
                self.lateness.append(now - due)
                slot[:] = [stream for stream in slot if stream.send()]
        self._loop.call_later(max(0.0, due - perf_counter()), self._turn)


class Stream(asyncio.Protocol):
    """A connection, and the stream it is carrying."""

    def __init__(self, wheel: Wheel) -> None:
        self.wheel = wheel
        self.buffer = b""
        self.id = ""
        self.left = self.asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio's protocol."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's protocol: one request at a time."""
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        fields = dict(
            line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line
        )
        if len(rest) < int(fields.get(b"content-length", b"0")):
            return
        self.buffer = b""
        if head.startswith(b"POST"):
            request = json.loads(rest)
            self.id = fields.get(b"x-request-id", b"").decode() or str(request["prompt"][0])
            self.left = self.asked = request["max_tokens"]
            self.wheel.add(self)
        elif head.startswith(b"GET /stamps"):
            self.reply(b"200 OK", json.dumps(self.wheel.report()).encode())
        else:
            self.reply(b"404 Not Found", b"{}")

    def reply(self, status: bytes, body: bytes) -> None:
        """Answer with a whole body."""
        self.transport.write(
            b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
        )

    def send(self) -> bool:
        """Send the token that is due; False if it was the last, or nobody listens."""
        if self.transport.is_closing():
            return False
        self.wheel.tokens += 1
        first, last = self.left == self.asked, self.left == 1
        self.left -= 1
        data = (HEAD if first else b"") + (self.end() if last else TOKEN)
        if first:
            self.wheel.first_sends[self.id] = perf_counter()
        self.transport.write(data)
        return not last

    def end(self) -> bytes:
        """The last token, the usage, and the end of the stream."""
        usage = {"prompt_tokens": 1, "completion_tokens": self.asked}
        token = chunk(" token", "length", None)
        return token + chunk(None, None, usage) + frame(b"[DONE]") + b"0\r\n\r\n"


async def main() -> None:
    """Serve until killed."""
    wheel = Wheel()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stream(wheel), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
