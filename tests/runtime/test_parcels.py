"""Parcels: every name has its turn once, between its neighbours."""

import pytest

torch = pytest.importorskip("torch")

from autopar.runtime.ops import parcels  # noqa: E402

pytestmark = pytest.mark.torch
STATE = {"a": torch.zeros(4), "b": torch.zeros(2), "c": torch.zeros(9), "d": torch.zeros(1), "e": torch.zeros(1, dtype=torch.float64)}


@pytest.mark.parametrize(("most", "lots"), [(24, ["ab", "c", "d", "e"]), (10**6, ["abcd", "e"]), (1, ["a", "b", "c", "d", "e"])])
def test_lots(most, lots):
    rows = list(parcels(STATE, list("abcde"), most))
    assert ["".join(here) for _, here, _ in rows] == ["", *lots, ""]
    for (_, _, before), (_, here, _), (ahead, _, _) in zip(rows[2:], rows[1:], rows):
        assert before == here == ahead
    assert (rows[0][2], rows[1][2], rows[-1][0], rows[-2][0]) == ([], [], [], [])


def test_no_names():
    assert not any(lot for row in parcels(STATE, [], 1) for lot in row)
