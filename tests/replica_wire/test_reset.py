"""What each reply of the reset route means."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from harness.records import AttemptOutcome, ResetAttempt, ResetMode
from harness.replica.reset import Resetter
from harness.target import Endpoint

pytestmark = pytest.mark.anyio


async def attempt(
    *servers: object, mode: ResetMode = ResetMode.KEEP, external: bool = False, limit: float = 5
) -> ResetAttempt:
    endpoints = [Endpoint(server.url) for server in servers]
    async with Resetter(endpoints, limit) as resetter:
        return await resetter.attempt(mode, external=external, zero=time.perf_counter())


@pytest.mark.parametrize(
    ("mode", "external", "request_line"),
    [
        (ResetMode.DEFAULT, False, "POST /reset_prefix_cache"),
        (ResetMode.PREEMPT, False, "POST /reset_prefix_cache?reset_running_requests=true"),
        (ResetMode.KEEP, False, "POST /reset_prefix_cache?keep_running_requests=true"),
        (
            ResetMode.KEEP,
            True,
            "POST /reset_prefix_cache?keep_running_requests=true&reset_external=true",
        ),
    ],
)
async def test_each_mode_is_one_request(patched, mode, external, request_line) -> None:
    await attempt(patched, mode=mode, external=external)
    assert patched.seen == [request_line]


async def test_the_plugin_tells_what_it_did(patched) -> None:
    cleared = await attempt(patched, mode=ResetMode.PREEMPT)
    assert cleared.outcome is AttemptOutcome.CLEARED
    assert cleared.preemptions == 5
    assert cleared.reply["stall_seconds"] == 0.002
    assert 0 <= cleared.called <= cleared.replied < 5


async def test_stock_vllm_tells_success_only(stock) -> None:
    cleared = await attempt(stock, mode=ResetMode.PREEMPT)
    assert (cleared.outcome, cleared.preemptions) == (AttemptOutcome.CLEARED, None)
    stock.reset({"success": False})
    refused = await attempt(stock, mode=ResetMode.DEFAULT)
    assert (refused.outcome, refused.http_status) == (AttemptOutcome.REFUSED, 200)


REPLIES = [
    # status, body, mode asked for, outcome, preemptions, what the error says
    (200, b"", ResetMode.DEFAULT, AttemptOutcome.FAILED, None, "before 0.26"),
    (200, b"ok", ResetMode.DEFAULT, AttemptOutcome.FAILED, None, "success"),
    (200, b"[true]", ResetMode.DEFAULT, AttemptOutcome.FAILED, None, "success"),
    (200, b'{"success": "true"}', ResetMode.DEFAULT, AttemptOutcome.FAILED, None, "success"),
    (200, b'{"status": "ok"}', ResetMode.DEFAULT, AttemptOutcome.FAILED, None, "success"),
    (
        *(200, b'{"success": true, "mode": "default", "preempted": 0}', ResetMode.KEEP),
        *(AttemptOutcome.IGNORED, 0, "'default'"),
    ),
    (200, b'{"success": true, "mode": 7}', ResetMode.KEEP, AttemptOutcome.IGNORED, None, "7"),
    (
        *(500, b'{"success": false, "mode": "preempt", "preempted": 7, "error": "held"}'),
        *(ResetMode.PREEMPT, AttemptOutcome.REJECTED, 7, "held"),
    ),
    (500, b"Internal Server Error", ResetMode.PREEMPT, AttemptOutcome.REJECTED, None, "HTTP 500"),
    (404, b"no", ResetMode.DEFAULT, AttemptOutcome.REJECTED, None, "VLLM_SERVER_DEV_MODE=1"),
    (400, b"both flags", ResetMode.KEEP, AttemptOutcome.REJECTED, None, "both flags"),
    (201, b'{"success": true}', ResetMode.KEEP, AttemptOutcome.REJECTED, None, "HTTP 201"),
    (
        *(200, b'{"success": true, "preempted": true}', ResetMode.KEEP),
        *(AttemptOutcome.CLEARED, None, ""),
    ),
]


@pytest.mark.parametrize(("status", "body", "mode", "outcome", "preemptions", "says"), REPLIES)
async def test_what_a_reply_means(stock, status, body, mode, outcome, preemptions, says) -> None:
    stock.answer("POST", "/reset_prefix_cache", type(stock.as_json(0))(status, body))
    seen = await attempt(stock, mode=mode)
    assert (seen.outcome, seen.preemptions, seen.http_status) == (outcome, preemptions, status)
    assert says in (seen.error or "")
    assert (seen.error is None) is (outcome is AttemptOutcome.CLEARED)
    assert seen.replied is not None


async def test_a_long_reason_is_cut(stock) -> None:
    stock.reset({"error": "x" * 9000}, 500)
    assert len((await attempt(stock)).error) == 500


async def test_a_redirect_is_not_followed(stock, patched) -> None:
    away = type(stock.as_json(0))(307, b"", {"Location": f"{patched.url}/reset_prefix_cache"})
    stock.answer("POST", "/reset_prefix_cache", away)
    assert (await attempt(stock)).outcome is AttemptOutcome.REJECTED
    assert patched.seen == []


async def test_no_answer_in_time_is_a_failure(stock) -> None:
    def slow(_query: str) -> object:
        time.sleep(0.5)
        return stock.as_json({"success": True})

    stock.answer("POST", "/reset_prefix_cache", slow)
    failed = await attempt(stock, limit=0.1)
    assert (failed.outcome, failed.replied) == (AttemptOutcome.FAILED, None)
    assert "Timeout" in failed.error


async def test_nobody_there_is_a_failure(stock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        stock.url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert (await attempt(stock)).outcome is AttemptOutcome.FAILED


async def test_pods_are_reset_at_the_same_time_and_summed(patched, second) -> None:
    entered: list[float] = []

    def slow(answer: Callable[[str], object]) -> Callable[[str], object]:
        def wait(query: str) -> object:
            entered.append(time.perf_counter())
            time.sleep(0.3)
            return answer(query)

        return wait

    for server in (patched, second):
        route = ("POST", "/reset_prefix_cache")
        server.answer(*route, slow(server.routes[route]))
    both = await attempt(patched, second, mode=ResetMode.PREEMPT)
    assert abs(entered[0] - entered[1]) < 0.25
    assert (both.outcome, both.preemptions) == (AttemptOutcome.CLEARED, 10)
    assert [pod["reply"]["preempted"] for pod in both.reply["pods"]] == [5, 5]
    assert [pod["url"] for pod in both.reply["pods"]] == [patched.url, second.url]


@pytest.mark.parametrize(
    ("status", "reply", "outcome"),
    [
        (200, {"success": False, "mode": "keep", "preempted": 0}, AttemptOutcome.REFUSED),
        (200, {"success": True, "mode": "default", "preempted": 0}, AttemptOutcome.IGNORED),
        (500, {"success": False, "mode": "keep", "preempted": 0}, AttemptOutcome.REJECTED),
        (200, {}, AttemptOutcome.FAILED),
    ],
)
async def test_the_worst_pod_is_the_outcome(patched, second, status, reply, outcome) -> None:
    second.reset(reply, status)
    for order in ((patched, second), (second, patched)):
        assert (await attempt(*order)).outcome is outcome


async def test_a_pod_that_tells_no_count_leaves_the_sum_unknown(patched, stock) -> None:
    both = await attempt(patched, stock)
    assert (both.outcome, both.preemptions) == (AttemptOutcome.CLEARED, None)


async def test_a_pod_that_does_not_answer_leaves_the_reply_time_unknown(patched, stock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        stock.url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    both = await attempt(patched, stock)
    assert (both.outcome, both.replied) == (AttemptOutcome.FAILED, None)
    assert stock.url in both.error


async def test_each_pod_gets_its_own_headers(patched, second) -> None:
    endpoints = [
        Endpoint(patched.url, {"Authorization": "Bearer one"}),
        Endpoint(second.url, {"X-Pod": "two"}),
    ]
    async with Resetter(endpoints, 5) as resetter:
        await resetter.attempt(ResetMode.KEEP, external=False, zero=0.0)
    assert patched.headers[0]["Authorization"] == "Bearer one"
    assert "X-Pod" not in patched.headers[0]
    assert second.headers[0]["X-Pod"] == "two"
    assert "Authorization" not in second.headers[0]


async def test_a_base_path_and_an_own_authority(tls, certificate) -> None:
    tls.answer("POST", "/pod/a/reset_prefix_cache", tls.as_json({"success": True}))
    async with Resetter([Endpoint(f"{tls.url}/pod/a/", ca=certificate)], 5) as resetter:
        seen = await resetter.attempt(ResetMode.KEEP, external=False, zero=0.0)
    assert seen.outcome is AttemptOutcome.CLEARED


@contextlib.contextmanager
def answering(answer: bytes, *, gap: float = 0.0) -> Iterator[Endpoint]:
    """A server that says ``answer`` to every request; with a gap, then a space each ``gap`` s."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                while self.request.recv(1 << 16):
                    self.request.sendall(answer)
                    while gap:
                        time.sleep(gap)
                        self.request.sendall(b" ")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield Endpoint(f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
        thread.join()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


async def test_a_trickle_is_bounded_as_a_whole() -> None:
    began = time.perf_counter()
    with answering(HEAD % 10**6, gap=0.02) as endpoint:
        async with Resetter([endpoint], 0.3) as resetter:
            seen = await resetter.attempt(ResetMode.KEEP, external=False, zero=0.0)
    assert (seen.outcome, seen.replied) == (AttemptOutcome.FAILED, None)
    assert "no whole answer within 0.3 s" in seen.error
    assert time.perf_counter() - began < 2


async def test_an_answer_said_twice_answers_one_reset_only() -> None:
    yes, no = b'{"success": true}', b'{"success": false}'
    with answering(HEAD % len(yes) + yes + HEAD % len(no) + no) as endpoint:
        async with Resetter([endpoint], 5) as resetter:
            for _ in range(3):
                seen = await resetter.attempt(ResetMode.KEEP, external=False, zero=0.0)
                assert seen.outcome is AttemptOutcome.CLEARED


@pytest.mark.parametrize(
    "answer",
    [
        HEAD % 200_000 + b"[" * 200_000,
        HEAD % 7 + b'{"a":"\xff',
        HEAD.replace(b"OK", b"OK\r\nContent-Encoding: gzip") % 5 + b"plain",
    ],
    ids=["deep", "no UTF-8", "no gzip"],
)
async def test_nonsense_is_a_failure(answer: bytes) -> None:
    with answering(answer) as endpoint:
        async with Resetter([endpoint], 5) as resetter:
            seen = await resetter.attempt(ResetMode.KEEP, external=False, zero=0.0)
    assert seen.outcome is AttemptOutcome.FAILED
    assert len(seen.error) <= 500


async def test_a_secret_that_a_server_echoes_is_in_no_attempt(stock) -> None:
    heard = "got Bearer sk-very-secret and tenant-token-7"
    stock.reset({"success": False, "error": heard, "x" * 470 + "sk-very-secret": [heard]}, 500)
    headers = {"Authorization": "Bearer sk-very-secret", "X-Tenant": "tenant-token-7"}
    async with Resetter([Endpoint(stock.url, headers)], 5) as resetter:
        seen = await resetter.attempt(ResetMode.KEEP, external=False, zero=0.0)
    assert seen.outcome is AttemptOutcome.REJECTED
    told = f"{seen.error} {seen.reply}"
    assert "***" in told
    assert not any(part in told for part in ("sk-very", "very-secret", "tenant-token"))
