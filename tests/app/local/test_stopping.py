"""Being asked to end."""

from __future__ import annotations

import os
import signal

import pytest

from queryable_app.local.stopping import Stopped, StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_ends_what_is_being_done(number: signal.Signals) -> None:
    """Whatever runs is left by an exception that nobody handles by accident."""
    with StopRequest.on_signals(), pytest.raises(Stopped):
        os.kill(os.getpid(), number)

    assert not issubclass(Stopped, Exception)


def test_the_way_out_is_not_interrupted() -> None:
    """An impatient second Ctrl-C does not break off the cleaning up."""
    with StopRequest.on_signals():
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)

        os.kill(os.getpid(), signal.SIGINT)


def test_what_is_held_is_finished_first() -> None:
    """A process that is being started is noted before the exception is raised, so that it is stopped."""
    noted = []

    def start(stopping: StopRequest) -> None:
        with stopping.held():
            os.kill(os.getpid(), signal.SIGINT)
            noted.append("a process")

    with StopRequest.on_signals() as stopping, pytest.raises(Stopped):
        start(stopping)

    assert noted == ["a process"]


def test_a_lost_exception_is_raised_at_the_next_check() -> None:
    """The interpreter drops exceptions inside its callbacks; the wish to end is not dropped with them."""
    with StopRequest.on_signals() as stopping:
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Stopped):
            stopping.check()


def test_afterwards_signals_mean_what_they_did() -> None:
    """The handlers of before are back."""
    before = signal.getsignal(signal.SIGINT)
    with StopRequest.on_signals():
        pass

    assert signal.getsignal(signal.SIGINT) is before
