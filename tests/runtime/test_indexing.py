"""Rows by number: torch's own `index` and `index_put`, to the bit, whichever way they go."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from autopar.runtime import indexing  # noqa: E402

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


@st.composite
def asked(draw):
    """A tensor, indices of some of its dims, and values of their shape or one that broadcasts to it."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    x = (torch.randn(shape) * 9).to(draw(st.sampled_from(DTYPES)))
    x = x.transpose(0, -1) if draw(st.booleans()) else x
    kinds = draw(st.lists(st.sampled_from(("none", "numbers", "mask")), min_size=1, max_size=x.dim()))
    numbers_of = draw(st.sampled_from(((), (3,), (1,), (0,), (2, 3))))
    indices = []
    for dim, kind in enumerate(kinds):
        size = x.shape[dim]
        numbers = torch.randint(-size if draw(st.booleans()) else 0, size, numbers_of).to(draw(st.sampled_from((torch.int64, torch.int32))))
        indices.append({"none": None, "numbers": numbers, "mask": torch.rand(size) > 0.4}[kind])
    if all(index is None for index in indices):
        indices[-1] = torch.zeros(numbers_of, dtype=torch.int64)
    return x, indices


def outcome(call):
    try:
        return call()
    except (IndexError, RuntimeError) as error:
        return type(error)


def same(ours, theirs):
    if isinstance(ours, type) or isinstance(theirs, type):
        return ours is theirs
    return ours.shape == theirs.shape and ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@settings(max_examples=300, deadline=None)
@given(asked(), st.booleans(), st.sampled_from(("whole", "one", "none")))
def test_they_are_torchs_own(drawn, accumulate, values_of):
    x, indices = drawn
    theirs = outcome(lambda: torch.ops.aten.index.Tensor(x, indices))
    assert same(outcome(lambda: indexing.index(self=x, indices=indices)), theirs)
    if isinstance(theirs, type):
        return
    values = {"whole": (torch.rand(theirs.shape) * 9).to(x.dtype), "one": torch.ones((), dtype=x.dtype), "none": torch.ones(theirs.shape[-1:], dtype=x.dtype)}[values_of]
    before = x.clone()
    found = [outcome(lambda put=put: put(x, indices, values, accumulate)) for put in (indexing.index_put, torch.ops.aten.index_put.default)]
    assert same(*found) and torch.equal(x, before)


@pytest.mark.parametrize("number", [7, -8])
def test_a_number_beyond_the_end_is_an_error(number):
    x, beyond = torch.zeros(7, 2), torch.tensor([0, number])
    with pytest.raises(IndexError):
        indexing.index(x, [beyond])
    with pytest.raises((IndexError, RuntimeError)):
        indexing.index_put(x, [beyond], torch.ones(2, 2), True)


def test_a_cpu_reads_and_adds_rows(monkeypatch):
    """One dim's numbers go the faster way; masks, several dims, the last dim of a read and whole numbers that are added do not."""
    ways = []
    for name in ("index_select", "index_add"):
        monkeypatch.setattr(torch.Tensor, name, lambda self, *args, way=name, own=getattr(torch.Tensor, name): ways.append(way) or own(self, *args))
    x, numbers = torch.randn(4, 5), torch.tensor([[0, -1], [3, 3]])
    indexing.index(x, [numbers])
    indexing.index_put(x, [numbers], torch.ones(2, 2, 5), True)
    assert ways == ["index_select", "index_add"]
    indexing.index(x, [None, numbers])
    indexing.index(x, [numbers, numbers])
    indexing.index(x, [x[:, 0] > 0])
    indexing.index_put(x, [numbers], torch.ones(2, 2, 5), False)
    indexing.index_put(x.long(), [numbers], torch.ones(2, 2, 5, dtype=torch.int64), True)
    assert ways == ["index_select", "index_add"]


def test_halves_are_added_up_as_torch_rounds_them():
    x, numbers, values = torch.tensor([[13.875]], dtype=torch.bfloat16), [torch.zeros(64, dtype=torch.int64)], torch.rand(64, 1, generator=torch.Generator().manual_seed(0)).bfloat16()
    wanted = torch.ops.aten.index_put.default(x, numbers, values, True)
    assert torch.equal(indexing.index_put(x, numbers, values, True), wanted)
    assert not torch.equal(x.index_add(0, numbers[0], values), wanted), "the other way rounds otherwise"
