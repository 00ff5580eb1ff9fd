"""What guesses grow by, by hand."""

from __future__ import annotations

import pytest

from autopar.graph.mesh import Mesh, MeshAxis
from autopar.solver.growths import _TIGHT, _USUAL, Growths
from autopar.solver.layout_prices import Tier
from autopar.solver.layouts import Layout, Place
from autopar.solver.open_layouts import Open, OpenPlace, Step


def make_row(tp=2, tier=Tier.ALL, base=2, count=4, **known):
    place = Place(2, Mesh((MeshAxis("dp", 2), MeshAxis("tp", tp))))
    each = Open(Layout(place, count), 0.0, guess_s=10.0, tier=tier, base=base, **known)
    return OpenPlace(place, [each], tier=Tier.ALL), each


def test_what_is_usual_until_something_was_seen():
    growths, (place, each) = Growths(), make_row()
    _, run, own, simulated, solved = _USUAL
    assert growths.expect(place, each) == pytest.approx(10.0 * run * own * simulated * solved)
    place, each = make_row(tier=Tier.RUN, base=4, simulated=True, tight=True)
    assert growths.expect(place, each) == pytest.approx(10.0 * _TIGHT)


def test_runs_are_learnt_of_meshes_that_divide_alike():
    growths, (place, each), (other, there) = Growths(), make_row(tp=4), make_row(tp=2)
    before, elsewhere = growths.expect(place, each), growths.expect(other, there)
    for _ in range(3):
        growths.note(place, False, Step.RUN, 1.2)
    assert growths.expect(place, each) == pytest.approx(before * 1.2 / _USUAL[Step.RUN])
    assert growths.expect(other, there) == elsewhere


def test_a_price_alone_trusts_what_was_seen_once():
    place, each = make_row(tier=Tier.RUN, base=4, simulated=True)
    trusting, other = Growths(True), Growths()
    for growths in (trusting, other):
        growths.note(place, False, Step.SOLVE, 1.3)
    assert trusting.expect(place, each) == pytest.approx(13.0)
    assert other.expect(place, each) == pytest.approx(10.0 * _USUAL[Step.SOLVE])
