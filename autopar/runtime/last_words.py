"""What a rank says when it is told to end: SIGTERM, which torchrun sends to all ranks that are left as soon as one has stopped.

In: the frames of the main thread. Out: a line on stderr that names the place in the step, the rank, and the communication that it is in; the same in
torchrun's error file. Then the process ends by SIGTERM as it would have done. While the main thread is inside of gloo no Python handler runs there, so a
thread hears of the signal. What the main thread does is read off its frames: nothing is noted while nothing is wrong.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from types import FrameType

from .comm import ProcessComm
from .place import find_place
from .stages import run_step

_STDERR = 2
_LATER_S = 2


def tell_place(frame: FrameType | None) -> tuple[str, str]:
    """Where in a step a rank is, and the communication that it is in.

    Args:
        frame: the innermost one of the thread that runs the step.
    Returns:
        `stage 1, in 1B3 (backward of microbatch 3), waiting for stage 2`, or without stages `in its backward (program.py, line 120)`, or `outside of a step`;
        and `all_reduce along mesh axis 'dp' with rank 1`, or nothing.
    """
    frames = [found for found, _ in traceback.walk_stack(frame)] if frame is not None else []
    calls = [f for f in frames if f.f_code is ProcessComm._call.__code__]
    what = calls[0].f_locals["self"].call_text(calls[0].f_locals["what"], calls[0].f_locals["axis"]) if calls else ""
    stages = [f.f_locals["mine"].place for f in frames if f.f_code is run_step.__code__ and "mine" in f.f_locals]
    place = find_place((f, f.f_lineno) for f in reversed(frames))
    return (stages[0] if stages else str(place) if place else "outside of a step"), what


def write_error_file(path: str | None, text: str, is_cause: bool) -> None:
    """Tell torchrun what a rank ended with, for its summary.

    Args:
        path: where torchrun wants to read it; None: nowhere.
        is_cause: false for what follows from the end of another rank. torchrun takes the earliest for the cause, and a rank that leaves no file (it was killed)
            counts from when torchrun notices: so what follows from it gets a later time.
    """
    if path is None or os.path.exists(path):
        return
    stamp = int(time.time()) + (0 if is_cause else _LATER_S)
    with contextlib.suppress(OSError), open(path, "w") as file:
        json.dump({"message": {"message": text, "extraInfo": {"timestamp": str(stamp)}}}, file)


class LastWords:
    """Hears SIGTERM between `listen` and `close`; both belong to the main thread.

    Args:
        rank: of this process.
        error_file: as of `write_error_file`.
    """

    def __init__(self, rank: int, error_file: str | None) -> None:
        self._rank, self._error_file = rank, error_file
        self._main = threading.get_ident()
        self._once = threading.Lock()
        self._ear, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        self._wakeup_fd = self._mouth.fileno()

    def listen(self) -> None:
        """Begin. Who already listens to wake-ups (an event loop) keeps them: then the words come when the main thread runs Python again."""
        signal.signal(signal.SIGTERM, self._hear)
        before = signal.set_wakeup_fd(self._wakeup_fd, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
        os.register_at_fork(after_in_child=self.close)  # a child's signals are its own, and it has no such thread
        threading.Thread(target=self._wait, name="last words", daemon=True).start()

    def close(self) -> None:
        """Leave SIGTERM as it was."""
        if not self._is_listening():
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        found = signal.set_wakeup_fd(-1)
        if found != self._wakeup_fd:
            signal.set_wakeup_fd(found)
        self._mouth.close()

    def begin(self) -> bool:
        """True for the first who wants to speak."""
        return self._once.acquire(blocking=False)

    def _is_listening(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._hear

    def _wait(self) -> None:
        while heard := self._ear.recv(64):
            if signal.SIGTERM in heard and self._is_listening():
                self._end(sys._current_frames().get(self._main))
        self._ear.close()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._end(frame)

    def _end(self, frame: FrameType | None) -> None:
        if not self.begin():
            return
        try:
            if getattr(sys, "last_value", None) is not None:  # Python has told of an exception that ends the process: this follows from it
                return
            place, what = tell_place(frame)
            during = f" in the midst of {what}" if what else ""
            told = f"{place}: rank {self._rank}: ended by SIGTERM{during}. torchrun sends it when another rank has stopped: the first one that stopped says why"
            text = f"RankError: {told}; restart from the last checkpoint."
            os.write(_STDERR, f"{text}\n".encode())
            write_error_file(self._error_file, text, is_cause=False)
        finally:
            ctypes.pythonapi.PyOS_setsig(int(signal.SIGTERM), None)  # `signal.signal` belongs to the main thread, which may never come back
            os.kill(os.getpid(), signal.SIGTERM)


def listen(rank: int, error_file: str | None) -> None:
    """Have this process say its last words, if SIGTERM is nobody else's and this is the main thread."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        LastWords(rank, error_file).listen()


def keep_silent() -> None:
    """From here on this process says itself why it ends, and SIGTERM, which may come meanwhile, adds nothing and ends nothing. Who is saying his last words already says no more."""
    found = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(found, LastWords) and not found.begin():
        time.sleep(_LATER_S)  # SIGTERM ends it before


def stop_listening() -> None:
    """Leave SIGTERM as it was before `listen`; only the main thread may, others leave it to the end of the process."""
    if threading.current_thread() is not threading.main_thread():
        return
    found = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(found, LastWords):
        found.close()
