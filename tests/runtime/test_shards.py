"""Cutting, joining and naming the parts of a whole."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import PlanError
from autopar.graph.mesh import num_ranks
from autopar.graph.sharding import is_uneven, parse_sharding
from autopar.runtime.shards import cut, inside, join, owned_runs, regions

from .conftest import all_shardings, mesh_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
CASES = [(mesh_of(*sizes), shape) for sizes in [(2,), (4,), (2, 2), (2, 3), (2, 2, 2)] for shape in [(24,), (12, 4), (3, 8, 6), (), (5,), (7, 10)]]


@st.composite
def sharded(draw):
    mesh, shape = draw(st.sampled_from(CASES))
    return mesh, shape, draw(st.sampled_from(all_shardings(shape, mesh)))


@settings(deadline=None, max_examples=300)
@given(sharded())
def test_join_undoes_cut(case):
    mesh, shape, sharding = case
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    pieces = [cut(whole, sharding, mesh, rank) for rank in range(num_ranks(mesh))]
    assert all(p.is_contiguous() for p in pieces)
    assert torch.equal(join(pieces, shape, sharding, mesh), whole)


@settings(deadline=None, max_examples=300)
@given(sharded())
def test_regions_are_the_piece(case):
    mesh, shape, sharding = case
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for rank in range(num_ranks(mesh)):
        piece = cut(whole, sharding, mesh, rank)
        rebuilt = torch.full_like(piece, -1)
        for r in regions(shape, sharding, mesh, rank):
            there = tuple(slice(o, o + n) for o, n in zip(r.offsets, r.sizes))
            here = tuple(slice(o, o + n) for o, n in zip(r.local_offsets, r.sizes))
            rebuilt[here] = whole[there]
        assert torch.equal(rebuilt.clamp(min=0), piece) and (is_uneven(sharding) or (rebuilt >= 0).all())  # padding is in no region


@settings(deadline=None, max_examples=300)
@given(sharded(), st.integers(1, 50))
def test_runs_taken_chunk_by_chunk_are_the_piece(case, chunk):
    mesh, shape, sharding = case
    whole = torch.arange(torch.Size(shape).numel())
    for rank in range(num_ranks(mesh)):
        runs = owned_runs(shape, sharding, mesh, rank)
        taken = [runs.take(part, k * chunk) for k, part in enumerate(whole.split(chunk))]
        for k, part in enumerate(taken):
            assert runs.touches(k * chunk, min((k + 1) * chunk, whole.numel())) or not part.numel()
        piece = inside(cut(whole.reshape(shape), sharding, mesh, rank), shape, sharding, mesh, rank)
        assert torch.equal(torch.cat(taken), piece.reshape(-1))


def test_transposed_tensors_are_cut_by_their_indices():
    whole = torch.arange(24).view(4, 6).t()
    assert torch.equal(cut(whole, parse_sharding("S0/3"), mesh_of(2), 1), whole[3:])


def test_an_empty_dim_has_empty_pieces():
    """A constant of no elements may be in pieces as any other tensor."""
    whole, sharding = torch.zeros(3, 0), parse_sharding("S1/1")
    pieces = [cut(whole, sharding, mesh_of(2), rank) for rank in range(2)]
    assert [p.shape for p in pieces] == [(3, 0), (3, 0)] and torch.equal(join(pieces, (3, 0), sharding, mesh_of(2)), whole)


def test_fused_heads_are_few_regions():
    assert len(regions((2304, 768), parse_sharding("S0/384"), mesh_of(2), 0)) == 3  # q, k and v, half of the heads each
    assert len(regions((50256, 768), parse_sharding("S0/25128"), mesh_of(2), 0)) == 1


@pytest.mark.parametrize("text, why", [("S0/3", "is not a multiple of 3 x 2"), ("P", "a partial value has no pieces"), ("S2/1", "dim 2 of a 2-dim tensor")])
def test_what_cannot_be_cut(text, why):
    with pytest.raises(PlanError, match=why):
        cut(torch.zeros(4, 4), parse_sharding(text), mesh_of(2), 0)
