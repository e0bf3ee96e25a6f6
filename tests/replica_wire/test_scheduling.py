"""The client before its replica, where the machine permits and where it does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import harness
from harness.replica.scheduling import Policy, Scheduling, client_first

REPORT = """
import os
from harness.replica.scheduling import client_first
os.setuid(65534)
with client_first() as scheduling:
    print(scheduling.client, scheduling.replica, os.sched_getscheduler(0))
"""


def may_be_real_time() -> bool:
    with client_first() as scheduling:
        return scheduling.client is Policy.REAL_TIME


def test_what_is_said_is_what_is_so() -> None:
    with client_first() as scheduling:
        policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        assert (policy == os.SCHED_RR) is (scheduling.client is Policy.REAL_TIME)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_real_time_client_does_not_pass_it_on() -> None:
    if not may_be_real_time():
        pytest.skip("this user may not schedule in real time")
    policies: list[int] = []
    with client_first():
        command = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]
        child = subprocess.run(command, capture_output=True, check=True, text=True)
        thread = threading.Thread(target=lambda: policies.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join()
    assert child.stdout.strip() == str(os.SCHED_OTHER)
    assert policies == [os.SCHED_OTHER]


def test_an_ordinary_user_gets_a_batch_replica() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user to try it")
    source = {"PYTHONPATH": str(Path(harness.__file__).parents[1])}
    command = [sys.executable, "-c", REPORT]
    done = subprocess.run(command, env=source, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["SCHED_OTHER", "SCHED_BATCH", str(os.SCHED_OTHER)], done.stderr


def test_the_words_name_the_remedy() -> None:
    permitted = Scheduling(Policy.REAL_TIME, Policy.NORMAL)
    assert "SCHED_RR" in permitted.words()
    refused = Scheduling(Policy.NORMAL, Policy.BATCH, "Operation not permitted")
    for part in ("Operation not permitted", "SCHED_BATCH", "CAP_SYS_NICE"):
        assert part in refused.words()
