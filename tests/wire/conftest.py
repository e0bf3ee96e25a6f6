"""A server on a real socket that says exactly what a test scripts."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import pytest

from harness.records import Arrival, RequestRecord
from harness.scenario import PromptForm, TimeoutSpec
from harness.wire.client import open_client
from harness.wire.completions import Completions

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def chunked(data: bytes) -> bytes:
    """``data`` as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: object) -> bytes:
    """A server-sent event of a JSON document, or of ``[DONE]``."""
    text = document if isinstance(document, str) else json.dumps(document)
    return b"data: " + text.encode() + b"\n\n"


def text(words: str | None, finish: str | None = None, **more: object) -> dict[str, object]:
    """A completions chunk."""
    return {"choices": [{"index": 0, "text": words, "finish_reason": finish, **more}]}


def delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    """A chat chunk."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(prompt: int = 7, completion: int = 2, cached: int | None = None) -> dict[str, object]:
    """The last chunk, which has no choices."""
    details = None if cached is None else {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"choices": [], "usage": {**counts, "prompt_tokens_details": details}}


def reply(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole response with a content length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Asked:
    """A request as the server received it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.asked = Asked("", "", {}, b"")

    async def receive(self) -> Asked:
        """The next request; IncompleteReadError if the client has closed."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {
            name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:-2])
        }
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        self.asked = Asked(method, target, headers, body)
        return self.asked

    async def say(self, *parts: bytes) -> None:
        """Send the parts as they are; ConnectionError if the client has gone."""
        if self.writer.is_closing():  # uvloop would raise a RuntimeError
            raise ConnectionResetError
        self.writer.write(b"".join(parts))
        await self.writer.drain()

    async def stream(self, *documents: object, gap: float = 0.0) -> None:
        """Head, one chunk per event, ``gap`` seconds before each, and the end."""
        await self.say(SSE_HEAD)
        for document in documents:
            await asyncio.sleep(gap)
            await self.say(chunked(event(document)))
        await self.say(LAST_CHUNK)

    async def gone(self) -> None:
        """Return when the client has closed."""
        while await self.reader.read(1 << 16):
            pass

    def close(self) -> None:
        """End the connection in order (FIN)."""
        self.writer.close()

    def reset(self) -> None:
        """Break the connection (RST)."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


def once_all_ask(count: int, answer: Script, within: float) -> Script:
    """Give everybody the same answer, but nobody before ``count`` peers are there."""
    everybody = asyncio.Event()
    waiting = 0

    async def script(peer: Peer) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == count:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), within)
        await answer(peer)

    return script


@dataclass
class Server:
    """A running server: its address, and what it saw."""

    url: str
    requests: list[Asked] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def serving(
    script: Script,
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    sock: socket.socket | None = None,
    uds: Path | None = None,
    raw: bool = False,
) -> AsyncIterator[Server]:
    """Run ``script`` for every request, or with ``raw`` once for every connection."""
    faults: list[BaseException] = []
    tasks: set[asyncio.Task[None]] = set()
    server = Server("")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        peer = Peer(reader, writer)
        try:
            while raw or server.requests.append(await peer.receive()) is None:
                await script(peer)
                if raw:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        except Exception as fault:  # noqa: BLE001 - raised again where the test sees it
            faults.append(fault)
        finally:
            writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if uds is not None:
        listener = await asyncio.start_unix_server(connected, uds, ssl=tls)
    else:
        sock = sock or socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=4096
        )
        listener = await asyncio.start_server(connected, sock=sock, ssl=tls, backlog=4096)
        port = listener.sockets[0].getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        server.url = f"{'https' if tls else 'http'}://{name}:{port}"
    try:
        yield server
    finally:
        listener.close()
        waiting = list(tasks)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.sleep(0.01)
    assert not faults, faults


async def send(
    url: str,
    *,
    form: PromptForm = PromptForm.TOKEN_IDS,
    timeouts: TimeoutSpec | None = None,
    tokens: int = 2,
    **client: object,
) -> RequestRecord:
    """One request by a client of its own."""
    zero = perf_counter()
    async with open_client(timeouts or TimeoutSpec(), **client) as opened:
        completions = Completions(opened, url, model="model", form=form, ignore_eos=True, zero=zero)
        prompt = [1, 2, 3] if form is PromptForm.TOKEN_IDS else "prompt"
        return await completions.send(Arrival(5, 0.0, 1, tokens), prompt)


def open_sockets() -> int:
    """Sockets this process holds."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue  # the listing's own descriptor
    return count


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return ("asyncio", {"use_uvloop": request.param == "uvloop"})


@dataclass(frozen=True)
class Authority:
    """A certificate authority of our own, and a server it vouches for as 127.0.0.1."""

    ca: Path
    server: ssl.SSLContext


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Test CA",
            "-days", "2")  # fmt: skip
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-out", "server.pem", "-days", "2", "-extfile", "names")  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return Authority(folder / "ca.pem", context)
