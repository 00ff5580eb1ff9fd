"""Stdout belongs to the user: what HiGHS prints with printf goes nowhere."""

import ctypes

from autopar.solver.ilp import _quiet_stdout


def test_native_prints_go_nowhere(capfd):
    libc = ctypes.CDLL(None)
    with _quiet_stdout():
        libc.printf(b"from the solver\n")
    libc.printf(b"after\n")
    libc.fflush(None)
    out, err = capfd.readouterr()
    assert "from the solver" not in out + err and "after" in out
