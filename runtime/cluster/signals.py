"""How a signal reaches a task whose main thread is inside TensorFlow."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from absl import logging

from runtime.process.end import end_process, end_with_parent
from runtime.process.environment import STOP_SIGNALS
from runtime.process.threads import start_guard

ECHO_SECS = 1.0  # who signals a whole group, and its leader passes that on, means it once
REMINDER_SECS = 5.0  # how often a task says what keeps it


class Stop(NamedTuple):
    """How a task stops in order after a signal."""

    secs: float = 0.0  # how long that may take
    describe_unsaved: Callable[[], str] = str  # says what it still has to save, if anything


_on_signal: Callable[[signal.Signals], Stop] | None = None


def start_listening() -> None:
    """End this process at the first signal from now on, or let what `listen()` was given stop it in order.

    Python's own signal handlers do not run while the main thread is inside TensorFlow. So a thread reads the signals
    from a pipe that Python's C handler writes to. A second signal, after `ECHO_SECS`, ends the process
    at once, and so does the end of the time that it has.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # as set_wakeup_fd demands
    signal.set_wakeup_fd(writer)  # first: a handler alone would pass no signal on
    # A shell lets background jobs ignore SIGINT.
    numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, lambda *_: None)
    _keep_from_forks(numbers)

    def wait_for_signals() -> None:
        while (byte := os.read(reader, 1)[0]) not in numbers:  # a signal that a user's file handles
            pass
        number = signal.Signals(byte)
        second = select.poll()  # select() takes no file number above 1023, and each connection is a file
        second.register(reader, select.POLLIN)
        stop, start = _on_signal(number) if _on_signal else Stop(), time.monotonic()
        if stop.secs:
            time.sleep(ECHO_SECS)
            os.set_blocking(reader, False)
            with contextlib.suppress(BlockingIOError):
                os.read(reader, 1000)
        while (left := start + stop.secs - time.monotonic()) > 0:
            if second.poll(1000 * min(left, REMINDER_SECS)):
                if not {*os.read(reader, 1000)}.isdisjoint(numbers):
                    break
            elif unsaved := stop.describe_unsaved():
                logging.info("%s: %.0f s left", unsaved, max(0.0, start + stop.secs - time.monotonic()))
        logging.info("%s: stopping at once", number.name)
        unsaved = stop.describe_unsaved()
        end_process(128 + number, unsaved and f"{unsaved}, and ends now: raise --stop_timeout_secs")

    start_guard("signals", wait_for_signals)


def _keep_from_forks(numbers: Sequence[int]) -> None:
    """Let a child that this process forks, such as one of a `multiprocessing.Pool`, end at a signal, and with it.

    It inherits the pipe and the handlers: a signal to the child would end its parent, and not the child. One that
    outlived its parent would keep the port, and the locks in the train directory. What is started by exec, such as a
    `subprocess`, inherits none of these.
    """
    at_fork, task = threading.local(), os.getpid()  # threads may fork at the same time

    def prepare() -> None:
        at_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # until the child is an ordinary one
        at_fork.is_of_task = os.getpid() == task  # not of a child
        at_fork.is_of_main_thread = threading.current_thread() is threading.main_thread()

    def go_on() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, at_fork.mask)

    def become_ordinary() -> None:
        if at_fork.is_of_task:
            signal.set_wakeup_fd(-1)
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)
            if at_fork.is_of_main_thread:  # another one may end long before the process
                end_with_parent()
        go_on()

    os.register_at_fork(before=prepare, after_in_parent=go_on, after_in_child=become_ordinary)


def listen(on_signal: Callable[[signal.Signals], Stop]) -> None:
    """Call `on_signal` at the first signal, in a thread, and end the process after the time that it returns."""
    global _on_signal
    _on_signal = on_signal
