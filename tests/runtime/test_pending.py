"""How several tensors travel: what nobody else reads goes where it lies, the rest as one copy."""

import pytest

torch = pytest.importorskip("torch")

from autopar.graph.tensor import IN_PLACE_BYTES  # noqa: E402
from autopar.runtime.pending import pack_around  # noqa: E402

pytestmark = pytest.mark.torch
LARGE = IN_PLACE_BYTES // 8


def test_large_ones_of_ones_own_go_alone_and_the_rest_as_one():
    xs = [torch.ones(3), torch.ones(LARGE), torch.ones(2, LARGE // 2).to(torch.float64), torch.ones(LARGE, 2)]
    xs = [x.to(torch.float64) for x in xs]
    found = pack_around(xs, (0, 2, 3))
    assert [list(views) for _, views in found] == [[2], [3], [0, 1]]
    for (flat, views), place in zip(found, (2, 3)):
        assert flat.dim() == 1 and flat.data_ptr() == xs[place].data_ptr() and views[place] is xs[place]
    flat, views = found[-1]
    flat.zero_()
    assert flat.numel() == 3 + LARGE and not views[0].any() and views[1].shape == xs[1].shape
    assert all(x.all() for x in xs)


def test_what_has_gaps_goes_alone_as_a_copy():
    """So that the number of messages does not hang on how a rank's tensor lies."""
    x = torch.ones(LARGE, 2, dtype=torch.float64).transpose(0, 1)
    [(flat, views), _] = pack_around([torch.ones(2, dtype=torch.float64), x], (1,))
    flat.zero_()
    assert x.all() and not views[1].any() and views[1].shape == x.shape


@pytest.mark.parametrize("own", [(), (0,)])
def test_a_single_one(own):
    x = torch.ones(5)
    [(flat, views)] = pack_around([x], own)
    assert (flat.data_ptr() == x.data_ptr()) == bool(own) and views[0].shape == x.shape
