"""Addresses: normal forms, defaults, files, and secrets that stay out of sight."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.records import ResetMode
from harness.target import Endpoint, headers_from, permit_resets, read_target, target

WHOLE = """
model = "m"
[load]
url = "https://router.example/base/v1/"
key_env = "ROUTER_KEY"
[[control]]
url = "http://10.0.0.1:8000"
headers = { X-Team = "latency" }
header_env = { X-Token = "POD_TOKEN" }
ca = "pods.pem"
[[control]]
url = "http://10.0.0.2:8000"
[[metrics]]
url = "http://10.0.0.1:9000"
"""


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        ("http://h:1/v1", "http://h:1"),
        ("https://h/base/v1/", "https://h/base"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_a_trailing_v1_is_dropped(given: str, kept: str) -> None:
    assert Endpoint(given).url == kept


@pytest.mark.parametrize("bad", ["h:1", "ftp://h", "http://", "http://user:word@h"])
def test_what_is_no_address_is_refused(bad: str) -> None:
    with pytest.raises(UsageError):
        Endpoint(bad)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://localhost:1", True),
        ("http://127.0.0.9", True),
        ("http://LocalHost:1/base", True),
        ("http://[::1]", True),
        ("http://10.0.0.1", False),
        ("http://0.0.0.0", False),
        ("http://[2001:db8::1]", False),
        ("http://localhost.example", False),
        ("http://127.0.0.1.example", False),
    ],
)
def test_loopback_is_told_from_the_rest(url: str, loopback: bool) -> None:
    assert Endpoint(url).is_loopback is loopback


def test_pods_default_to_the_load_and_scrapes_to_the_pods() -> None:
    load, pod, other = (Endpoint(f"http://{name}") for name in ("load", "pod", "other"))
    assert target(load, [], [], None).control == (load,)
    assert target(load, [pod], [], None).metrics == (pod,)
    assert target(load, [pod], [other], None).metrics == (other,)


def test_a_file_gives_each_address_its_own(tmp_path: Path) -> None:
    file = tmp_path / "target.toml"
    file.write_text(WHOLE)
    read = read_target(file, {"ROUTER_KEY": "k1", "POD_TOKEN": "t1"})
    assert read.model == "m"
    assert read.load.headers == {"Authorization": "Bearer k1"}
    assert read.control[0].headers == {"X-Team": "latency", "X-Token": "t1"}
    assert read.control[0].ca == Path("pods.pem")
    assert read.control[1].headers == {}
    assert read.metrics[0].url == "http://10.0.0.1:9000"
    assert "k1" not in repr(read)
    assert "t1" not in repr(read)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WHOLE, "ROUTER_KEY is not set"),
        ("[load]\nurl = 'http://h'\nkey = 'x'\n", "unknown field `key`"),
        ("model = 'm'\n", "missing required field `load`"),
        ("[load\n", "target.toml"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "target.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_target(file, {"POD_TOKEN": "t1"})


def test_headers_are_lines_with_a_colon() -> None:
    assert headers_from(["X-A: b: c"], "k") == {"X-A": "b: c", "Authorization": "Bearer k"}
    with pytest.raises(UsageError) as refusal:
        headers_from(["secret-without-colon"], None)
    assert "secret" not in str(refusal.value)


HERE, THERE, BEYOND = Endpoint("http://localhost:1"), Endpoint("http://a:1"), Endpoint("http://b:1")
WIPES = [ResetMode.DEFAULT, ResetMode.PREEMPT, ResetMode.KEEP]


@pytest.mark.parametrize("mode", WIPES)
def test_wiping_another_hosts_cache_has_to_be_allowed(mode: ResetMode) -> None:
    where = target(HERE, [HERE, THERE, BEYOND, THERE], [], None)
    for modes in ([mode], [ResetMode.SHAM, mode]):
        with pytest.raises(UsageError, match=r"of a, b .*--allow-reset-on-remote"):
            permit_resets(where, modes, allowed=False)
        assert permit_resets(where, modes, allowed=True).resets_allowed


@pytest.mark.parametrize("modes", [[], [ResetMode.NONE], [ResetMode.NONE, ResetMode.SHAM]])
def test_a_control_elsewhere_needs_no_leave_and_empties_nothing(modes: list[ResetMode]) -> None:
    assert not permit_resets(target(THERE, [], [], None), modes, allowed=False).resets_allowed
    assert permit_resets(target(THERE, [], [], None), modes, allowed=True).resets_allowed


def test_only_where_resets_go_matters() -> None:
    assert permit_resets(target(THERE, [HERE], [BEYOND], None), WIPES, allowed=False).resets_allowed
