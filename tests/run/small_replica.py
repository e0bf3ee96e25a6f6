"""A small server that answers as vLLM with the keep-mode plugin does, for tests of whole runs.

    python small_replica.py [--stock] [--answer-until N] [--then hang|fail] [--bodies FILE]

It listens on a free port of 127.0.0.1, prints the port, and keeps a prefix cache: a prompt whose
first tokens it has seen since the last reset takes 2 ms, any other 20 ms, and each token 5 ms.
After N completions have begun it hangs (accepts and never answers) or fails (500). The bodies of
completions are appended to FILE, one a line. How late it was with its tokens, and its CPU seconds,
it tells at ``/lateness``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic
from urllib.parse import parse_qs, urlsplit

HEAD = 32
"""Tokens that decide whether two prompts share their prefix."""
TOKEN = 0.005
"""Seconds from one token to the next."""


@dataclass
class Replica:
    stock: bool
    answer_until: int
    then: str
    cached: set[tuple[object, ...]] = field(default_factory=set)
    running: int = 0
    begun: int = 0
    preempted: int = 0
    wipes: int = 0
    pace: float = 1.0
    """Times as long as usual that a completion takes."""
    bodies: Path | None = None
    late: Counter[int] = field(default_factory=Counter)
    """How many tokens were late by so many whole milliseconds."""

    def metrics(self) -> str:
        engine = '{engine="0",model_name="small"}'
        return "".join(
            f"vllm:{name}{engine} {value}\n"
            for name, value in {
                "num_requests_running": self.running,
                "num_requests_waiting": 0,
                "num_preemptions_total": self.preempted,
                "prefix_cache_queries_total": self.begun,
            }.items()
        )

    def schema(self) -> dict[str, object]:
        names = ["reset_running_requests", "reset_external"]
        names += [] if self.stock else ["keep_running_requests"]
        parameters = [{"name": name, "in": "query"} for name in names]
        return {"paths": {"/reset_prefix_cache": {"post": {"parameters": parameters}}}}

    def reset(self, query: dict[str, list[str]]) -> dict[str, object]:
        asked = [name for name in ("reset_running_requests", "keep_running_requests")
                 if query.get(name) == ["true"]]  # fmt: skip
        mode = {"reset_running_requests": "preempt", "keep_running_requests": "keep"}.get(
            asked[0] if asked else "", "default"
        )
        success = mode != "default" or self.running == 0
        if success:
            self.cached.clear()
            self.wipes += 1
        preempted = self.running if mode == "preempt" else 0
        self.preempted += preempted
        if self.stock:
            return {"success": success}
        return {
            "success": success, "mode": mode, "running": self.running, "waiting": 0,
            "preempted": preempted, "discarded_tokens": 0, "cached_blocks": len(self.cached),
            "held_blocks": self.running, "stall_seconds": 0.001, "engines": 1,
        }  # fmt: skip

    async def complete(self, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
        self.begun += 1
        if self.begun > self.answer_until:
            if self.then == "hang":
                await asyncio.sleep(3600)
            respond(writer, {"error": {"message": "out of memory"}}, 500)
            return
        prompt, tokens = body["prompt"], body["max_tokens"]
        words = prompt.split() if isinstance(prompt, str) else prompt
        assert isinstance(words, list)
        assert isinstance(tokens, int)
        head = tuple(words[:HEAD])
        hit, wipes = head in self.cached, self.wipes
        self.running += 1
        try:
            await asyncio.sleep(self.pace * (0.002 if hit else 0.02))
            if self.wipes == wipes:  # what a wipe found computed, or half so, is not cached again
                self.cached.add(head)
            stream_head(writer)
            await self.say("" if words is prompt else " so", tokens, writer)
        finally:
            self.running -= 1
        usage = event({"choices": [], "usage": {
            "prompt_tokens": len(words), "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": HEAD if hit else 0},
        }})  # fmt: skip
        writer.write(usage + chunk(b"data: [DONE]\n\n") + chunk(b""))

    async def say(self, text: str, tokens: int, writer: asyncio.StreamWriter) -> None:
        """Each token has an instant of its own: a late one delays no other."""
        due = monotonic()
        for left in reversed(range(tokens)):
            self.late[int(1e3 * (monotonic() - due))] += 1
            writer.write(token(text, last=left == 0))
            await writer.drain()
            due += self.pace * TOKEN
            await asyncio.sleep(due - monotonic())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                _, *lines = head.split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.answer(head, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        url = urlsplit(head.split(" ")[1])
        match url.path:
            case "/v1/completions":
                if self.bodies is not None:
                    with self.bodies.open("ab") as kept:
                        kept.write(body + b"\n")
                await self.complete(json.loads(body), writer)
            case "/reset_prefix_cache":
                respond(writer, self.reset(parse_qs(url.query)))
            case "/v1/models":
                respond(writer, {"data": [{"id": "small", "max_model_len": 8192}]})
            case "/version":
                respond(writer, {"version": "0.32.0"})
            case "/openapi.json":
                respond(writer, self.schema())
            case "/metrics":
                respond(writer, self.metrics())
            case "/health":
                respond(writer, "")
            case "/lateness":
                used = resource.getrusage(resource.RUSAGE_SELF)
                cpu = used.ru_utime + used.ru_stime
                respond(writer, {"cpu": cpu, "late_ms": self.late})
            case _:
                respond(writer, {"detail": "Not Found"}, 404)


def respond(writer: asyncio.StreamWriter, value: object, status: int = 200) -> None:
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    writer.write(f"HTTP/1.1 {status} S\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def stream_head(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


@cache
def token(text: str, *, last: bool) -> bytes:
    finish = "length" if last else None
    return event({"choices": [{"text": text, "token_ids": [7], "finish_reason": finish}]})


def event(value: object) -> bytes:
    return chunk(f"data: {json.dumps(value)}\n\n".encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--answer-until", type=int, default=10**9)
    parser.add_argument("--then", choices=["hang", "fail"], default="hang")
    parser.add_argument("--bodies", type=Path)
    options = parser.parse_args()
    replica = Replica(options.stock, options.answer_until, options.then, bodies=options.bodies)
    server = await asyncio.start_server(replica.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
