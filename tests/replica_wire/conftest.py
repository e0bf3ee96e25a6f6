"""Small real HTTP servers that answer as the servers people point a run at."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

STOCK_PARAMETERS = ("reset_running_requests", "reset_external")


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Server:
    """Answers ``(method, path)`` from a table that tests may change while it runs; else 404."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Callable[[str], Answer] | Answer] = {}
        self.key: str | None = None
        """Guards ``/v1`` and nothing else, as vLLM's does."""
        self.seen: list[str] = []
        """``METHOD /path?query`` of every request."""
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def answer(self, method: str, path: str, answer: Callable[[str], Answer] | Answer) -> None:
        self.routes[method, path] = answer

    def json(self, method: str, path: str, value: object, status: int = 200) -> None:
        self.answer(method, path, self.as_json(value, status))

    def reset(self, value: object, status: int = 200) -> None:
        self.json("POST", "/reset_prefix_cache", value, status)

    def models(self, *names: str, **more: object) -> None:
        listed = [
            {"id": name, "owned_by": "vllm", "parent": None, "max_model_len": 8192, **more}
            for name in names
        ]
        self.json("GET", "/v1/models", {"object": "list", "data": listed})

    def schema(self, *parameters: str, dev_mode: bool = True) -> None:
        """An ``/openapi.json`` as FastAPI writes it, with the reset route or without."""
        listed = [{"name": name, "in": "query", "required": False} for name in parameters]
        paths: dict[str, object] = {"/health": {"get": {}}, "/v1/models": {"get": {}}}
        if dev_mode:
            paths["/reset_prefix_cache"] = {"post": {"parameters": listed, "responses": {}}}
        self.json("GET", "/openapi.json", {"openapi": "3.1.0", "paths": paths})

    def metrics(self, *, caching: bool = True, engines: int = 1, preemptions: float = 3) -> None:
        lines = []
        for engine in range(engines):
            labels = f'engine="{engine}",model_name="m"'
            lines += [
                f"vllm:num_requests_running{{{labels}}} 2.0",
                f"vllm:num_preemptions_total{{{labels}}} {preemptions}",
                f'vllm:cache_config_info{{block_size="32",enable_prefix_caching="{caching}",'
                f'engine="{engine}"}} 1.0',
            ]
        self.answer("GET", "/metrics", Answer(200, "\n".join([*lines, ""]).encode()))

    @staticmethod
    def as_json(value: object, status: int = 200) -> Answer:
        return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    replica: Server

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        self.replica.seen.append(f"{self.command} {self.path}")
        self.replica.headers.append(dict(self.headers))
        found = self.replica.routes.get((self.command, path), Answer(404, b"no such route"))
        wanted = self.replica.key and f"Bearer {self.replica.key}"
        if wanted and path.startswith("/v1") and self.headers.get("Authorization") != wanted:
            found = Server.as_json({"error": "Unauthorized"}, 401)
        answer = found if isinstance(found, Answer) else found(query)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(replica: Server, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    handler = type("Handler", (_Handler,), {"replica": replica})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # a client that refuses our certificate is expected
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    scheme = "https" if context else "http"
    replica.url = f"{scheme}://localhost:{server.server_address[1]}"
    try:
        yield replica
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _stock() -> Server:
    """vLLM 0.26 to 0.33 in development mode, without the plugin."""
    replica = Server()
    replica.models("m")
    replica.json("GET", "/version", {"version": "0.32.0"})
    replica.answer("GET", "/health", Answer())
    replica.metrics()
    replica.schema(*STOCK_PARAMETERS)
    replica.reset({"success": True})
    return replica


def _patched() -> Server:
    """The same with the plugin: it knows keep and tells what it did, to five running requests."""
    replica = _stock()
    replica.schema(*STOCK_PARAMETERS, "keep_running_requests")

    def reset(query: str) -> Answer:
        mode = "preempt" if "reset_running" in query else "keep" if "keep" in query else "default"
        return Server.as_json(
            {
                "success": mode != "default",
                "mode": mode,
                "running": 5,
                "waiting": 1,
                "preempted": 5 if mode == "preempt" else 0,
                "discarded_tokens": 900 if mode == "preempt" else 0,
                "cached_blocks": 700,
                "held_blocks": 0 if mode == "preempt" else 300,
                "stall_seconds": 0.002,
                "engines": 1,
            }
        )

    replica.answer("POST", "/reset_prefix_cache", reset)
    return replica


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Start servers that live until the test ends."""
    with ExitStack() as servers:
        yield lambda *arguments: servers.enter_context(serving(*arguments))


@pytest.fixture
def stock(start: Callable[..., Server]) -> Server:
    return start(_stock())


@pytest.fixture
def patched(start: Callable[..., Server]) -> Server:
    return start(_patched())


@pytest.fixture
def second(start: Callable[..., Server]) -> Server:
    """Another patched one: a second pod."""
    return start(_patched())


@pytest.fixture
def before_0_26(start: Callable[..., Server]) -> Server:
    """vLLM 0.25: a reset answers 200 with nothing in it."""
    replica = _stock()
    replica.json("GET", "/version", {"version": "0.25.1"})
    replica.answer("POST", "/reset_prefix_cache", Answer())
    return start(replica)


@pytest.fixture
def other_server(start: Callable[..., Server]) -> Server:
    """A server that talks OpenAI and is not vLLM."""
    replica = Server()
    replica.json("GET", "/v1/models", {"object": "list", "data": [{"id": "m"}]})
    return start(replica)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and key for localhost in one file, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    path = folder / "localhost.pem"
    key, cert = folder / "key", folder / "cert"
    command = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        *("-keyout", str(key), "-out", str(cert)),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl, which makes the certificate, is not installed")
    path.write_bytes(key.read_bytes() + cert.read_bytes())
    return path


@pytest.fixture
def tls(start: Callable[..., Server], certificate: Path) -> Server:
    """A patched replica behind TLS with a certificate of its own making."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return start(_patched(), context)
