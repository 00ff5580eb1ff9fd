"""What is read off the frames of a step, and who hears SIGTERM: this process alone, only while it listens, and nobody who has a handler of his own."""

from __future__ import annotations

import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

pytest.importorskip("torch")

from autopar.runtime import compile_program
from autopar.runtime.place import find_place

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

PROGRAM = """
def block(x):
    return 1 / x


def backward(comm, turn):
    return block(0)


def update(comm):
    block(0)


def step(comm, turns):
    for turn in range(turns):
        backward(comm, turn) if turn == 2 else None
    update(comm)
"""


@pytest.mark.parametrize("turns, phase", [(4, "backward of microbatch 2"), (1, "update")])
def test_the_place_of_an_error(turns, phase):
    step = compile_program({"program.py": PROGRAM})["step"]
    with pytest.raises(ZeroDivisionError) as raised:
        step(None, turns)
    place = find_place(traceback.walk_tb(raised.value.__traceback__))
    assert (place.phase, place.line, place.text) == (phase, "program.py, line 3", "return 1 / x")
    assert str(place) == f"in its {phase} (program.py, line 3)"


def test_no_place_outside_of_a_program():
    with pytest.raises(ZeroDivisionError) as raised:
        1 / 0  # noqa: B018
    assert find_place(traceback.walk_tb(raised.value.__traceback__)) is None


def run(text, timeout=60):
    """A process of its own: signals belong to a whole process."""
    head = "import multiprocessing, os, signal, sys, time\nfrom autopar.runtime.last_words import keep_silent, listen, stop_listening\n"
    return subprocess.run([sys.executable, "-c", head + text], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=timeout)


SELF = "os.kill(os.getpid(), signal.SIGTERM)\n"


def test_the_last_words_and_the_end():
    done = run(f"listen(3, None)\n{SELF}time.sleep(30)\n")
    assert done.returncode == -signal.SIGTERM
    assert done.stderr == (
        "RankError: outside of a step: rank 3: ended by SIGTERM. torchrun sends it when another rank has stopped: the first one that stopped says why; "
        "restart from the last checkpoint.\n"
    )


def test_one_who_ends_by_an_exception_of_his_own_has_said_why():
    """SIGTERM comes while the process is on its way out: torchrun heard first of somebody who waited for it."""
    done = run("""
import atexit
listen(3, None)
atexit.register(lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(30)))
raise ValueError("no such thing")
""")
    assert done.returncode == -signal.SIGTERM
    assert "ValueError: no such thing" in done.stderr and "ended by SIGTERM" not in done.stderr


def test_one_who_has_stopped_listening_is_silent():
    done = run(f"listen(3, None)\nstop_listening()\nassert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n{SELF}time.sleep(30)\n")
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")


def test_one_who_says_himself_why_he_ends_comes_to_the_end_of_it():
    done = run(f"listen(3, None)\nkeep_silent()\n{SELF}time.sleep(0.5)\nprint('why', flush=True)\nstop_listening()\nos._exit(2)\n")
    assert (done.returncode, done.stdout, done.stderr) == (2, "why\n", "")


@pytest.mark.parametrize("order", ["own\nlisten(0, None)\n", "listen(0, None)\nown\n"])
def test_a_handler_of_the_users_own_stays(order):
    own = "signal.signal(signal.SIGTERM, lambda *_: heard.append(1))"
    done = run(f"heard = []\n{order.replace('own', own)}{SELF}time.sleep(0.5)\nassert heard == [1]\nstop_listening()\nprint('goes on')\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", "")


def test_a_forked_child_ends_alone():
    """Its signals would wake up the parent's thread by the socket that both have."""
    text = """listen(0, None)
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
child.start()
time.sleep(0.3)
child.terminate()
child.join()
time.sleep(0.3)
print(child.exitcode, flush=True)
"""
    done = run(text)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{-signal.SIGTERM}\n", "")
