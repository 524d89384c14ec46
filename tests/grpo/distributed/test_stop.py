"""SIGTERM: noted, agreed on by all ranks, and not waited for when a neighbour is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from grpo.distributed import EXIT_STOPPED, Ranks, StopRequest, start_ranks
from tests.recipes.rank_runs import on_ranks


@pytest.fixture(autouse=True)
def no_handler() -> Iterator[None]:
    """As a process begins; and the test's own handler does not outlive it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Queue[int]:
    """Statuses with which a watcher wanted to end this process; it ends its own thread instead."""
    statuses: Queue[int] = Queue()

    def note(status: int) -> None:
        statuses.put(status)
        sys.exit()

    monkeypatch.setattr(os, "_exit", note)
    return statuses


def terminate_self() -> list[threading.Thread]:
    """Send SIGTERM to this process; returns the threads that it started."""
    before = set(threading.enumerate())
    os.kill(os.getpid(), signal.SIGTERM)
    return [thread for thread in threading.enumerate() if thread not in before]


def test_without_a_signal_nothing_is_stopped() -> None:
    stop = StopRequest()
    assert not stop.agreed() and not stop.agreed()


def test_a_signal_is_noted_and_the_step_goes_on() -> None:
    stop = StopRequest()
    terminate_self()
    assert stop.agreed()
    assert stop.agreed()  # for good


def test_further_signals_change_nothing(ended: Queue[int]) -> None:
    """An impatient scheduler sends more than one; the save that goes on must not be cut short."""
    stop = StopRequest()
    assert len(terminate_self()) == 1
    assert terminate_self() == []
    assert stop.agreed()
    assert terminate_self() == []
    assert stop.agreed() and ended.empty()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_signal_the_loss_of_a_neighbour_ends_this_rank(ended: Queue[int]) -> None:
    """It would wait for the dead one in its next sum."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    StopRequest(Ranks(size=2, neighbours=[os.getpid(), gone.pid]))
    time.sleep(0.1)
    assert ended.empty()  # without a signal nobody watches
    watchers = terminate_self()  # none that is there still, where it was quick
    assert ended.get(timeout=5) == 128 + signal.SIGTERM
    for watcher in watchers:
        watcher.join()


def test_living_neighbours_are_watched_until_all_have_agreed(ended: Queue[int]) -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stop = StopRequest(Ranks(neighbours=[neighbour.pid]))
    [watcher] = terminate_self()
    watcher.join(timeout=0.7)
    assert watcher.is_alive() and ended.empty()
    assert stop.agreed()
    neighbour.communicate(b"\n")  # may end now, since nobody waits for it any more
    watcher.join(timeout=5)
    assert not watcher.is_alive() and ended.empty()


def test_it_exits_with_the_status_that_asks_to_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRPO_STOPPED_FILE", raising=False)
    with pytest.raises(SystemExit) as caught:
        StopRequest().exit()
    assert caught.value.code == EXIT_STOPPED == 75
    monkeypatch.setenv("GRPO_STOPPED_FILE", str(tmp_path / "stopped"))
    with pytest.raises(SystemExit) as caught:
        StopRequest().exit()
    assert caught.value.code == EXIT_STOPPED and (tmp_path / "stopped").exists()


def answers_before_and_after_a_signal_to_rank_1() -> list[bool]:
    ranks = start_ranks("cpu")
    stop = StopRequest(ranks)
    before = stop.agreed()
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    answers = [before, stop.agreed()]
    ranks.close()
    return answers


def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    assert on_ranks(2, tmp_path, answers_before_and_after_a_signal_to_rank_1) == [[False, True]] * 2
