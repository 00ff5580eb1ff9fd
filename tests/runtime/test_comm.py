"""Collectives against their definition: piece c along an axis holds the indices i with (i // stride) % N == c."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import RankError
from autopar.graph.mesh import axis_groups, axis_sizes, coordinates, num_ranks
from autopar.graph.reshard import reshard_steps
from autopar.graph.sharding import REPLICATE, Partial, Shard, Sharding
from autopar.runtime.shards import cut, join
from autopar.runtime.steps import apply_steps
from autopar.runtime.threads import run_ranks, solo_comm

from .conftest import all_shardings, mesh_of, some

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
MESHES = [(2,), (4,), (2, 2), (2, 3), (2, 2, 2)]


def pieces_by_definition(x, dim, stride, size):
    """Piece c of the split, by index lists and nothing else."""
    return [x.index_select(dim, torch.tensor([i for i in range(x.shape[dim]) if (i // stride) % size == c])) for c in range(size)]


def test_what_a_rank_cuts_or_keeps_of_a_tensor_is_no_part_of_it():
    """A state may be rewritten before it is read: Prodigy's distance is made of parameters as they were."""

    def main(comm):
        state = torch.ones(4, 6)
        found = comm.keep(state, "a"), comm.slice(state, "a", 0, 2), comm.keep(state.t(), "a")
        state.zero_()
        return [float(x.sum()) for x in found]

    assert run_ranks(mesh_of(2), main) == [[24.0, 12.0, 24.0], [0.0, 12.0, 0.0]]


@pytest.mark.parametrize("sizes", MESHES)
def test_collectives_are_what_they_say(sizes):
    mesh = mesh_of(*sizes)
    rng = random.Random(0)
    for index, axis in enumerate(mesh.axes):
        n = axis.size
        for dim in (0, 1):
            length = 12 if dim == 0 else 24
            for stride in [s for s in range(1, length) if length % (s * n) == 0]:
                other = 1 - dim
                to_length = 24 if dim == 0 else 12
                to_stride = rng.choice([s for s in range(1, to_length) if to_length % (s * n) == 0])
                torch.manual_seed(stride)
                data = torch.randint(-9, 9, (len(axis_groups(mesh, index)) * n, 12, 24, 3)).double()  # one whole tensor per rank
                group_of = {r: g for g in axis_groups(mesh, index) for r in g}

                def main(comm):
                    me = data[comm.rank]
                    whole = data[group_of[comm.rank][0]]
                    piece = comm.slice(whole, axis.name, dim, stride)
                    return {
                        "slice": piece,
                        "keep": comm.keep(me, axis.name),
                        "gather": comm.all_gather(piece, axis.name, dim, stride),
                        "sum": comm.all_reduce(me, axis.name),
                        "max": comm.all_reduce(me, axis.name, "max"),
                        "scatter": comm.reduce_scatter(me, axis.name, dim, stride),
                        "scatter max": comm.reduce_scatter(me, axis.name, dim, stride, "max"),
                        "exchange": comm.all_to_all(piece, axis.name, dim, stride, other, to_stride),
                    }

                for rank, got in enumerate(run_ranks(mesh, main)):
                    group = group_of[rank]
                    c = coordinates(mesh, rank)[index]
                    whole, mine = data[group[0]], data[list(group)]
                    want = {
                        "slice": pieces_by_definition(whole, dim, stride, n)[c],
                        "keep": data[rank] if c == 0 else torch.zeros_like(data[rank]),
                        "gather": whole,
                        "sum": mine.sum(0),
                        "max": mine.amax(0),
                        "scatter": pieces_by_definition(mine.sum(0), dim, stride, n)[c],
                        "scatter max": pieces_by_definition(mine.amax(0), dim, stride, n)[c],
                        "exchange": pieces_by_definition(whole, other, to_stride, n)[c],
                    }
                    for name, value in want.items():
                        assert torch.equal(got[name], value), (name, axis, dim, stride)
                        assert got[name].is_contiguous(), name


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.bfloat16, torch.complex64])
def test_other_dtypes(dtype):
    whole = (torch.arange(24).view(4, 6) % 3).to(dtype)

    def main(comm):
        piece = comm.slice(whole, "a", 1, 3)
        return comm.all_gather(piece, "a", 1, 3), comm.all_reduce(comm.keep(whole, "a"), "a"), comm.all_to_all(piece, "a", 1, 3, 0, 2)

    for rank, (gathered, summed, exchanged) in enumerate(run_ranks(mesh_of(2), main)):
        assert torch.equal(gathered, whole) and torch.equal(summed, whole) and torch.equal(exchanged, whole[2 * rank : 2 * rank + 2])


@pytest.mark.parametrize("sizes", MESHES)
def test_reshards_bring_every_rank_its_piece(sizes):
    """The engine: cut by the source, run the steps, and it is the cut by the target."""
    mesh, rng = mesh_of(*sizes), random.Random(1)
    for shape in [(12,), (24, 4), (6, 8, 12)] if len(sizes) < 3 else [(16, 8), (8, 4, 2)]:
        whole = torch.randint(-50, 50, shape)
        for source in some(rng, all_shardings(shape, mesh, partial=True), 12):
            targets = all_shardings(shape, mesh)
            for target in some(rng, targets, 6):
                steps = reshard_steps(shape, source, target, axis_sizes(mesh))
                start = partial_pieces(whole, source, mesh)
                for rank, piece in enumerate(run_ranks(mesh, lambda comm: apply_steps(comm, start[comm.rank], steps))):
                    assert torch.equal(piece, cut(whole, target, mesh, rank)), (shape, source, target, rank)


@pytest.mark.parametrize("sizes", MESHES)
def test_reshard_to_partial(sizes):
    mesh, rng = mesh_of(*sizes), random.Random(2)
    shape = (12, 8)
    whole = torch.randint(-50, 50, shape)
    plain = all_shardings(shape, mesh)
    for source in some(rng, plain, 20):
        target = Sharding(tuple(Partial() if not isinstance(p, Shard) else p for p in source.placements))
        steps = reshard_steps(shape, source, target, axis_sizes(mesh))
        back = reshard_steps(shape, target, source, axis_sizes(mesh))
        got = run_ranks(mesh, lambda comm: apply_steps(comm, apply_steps(comm, cut(whole, source, mesh, comm.rank), steps), back))
        assert torch.equal(join(got, shape, source, mesh), whole)


def partial_pieces(whole, sharding, mesh):
    """Pieces of a sharding that may be Partial: along a partial axis all but the last rank hold constants, the last one the rest."""
    split = Sharding(tuple(REPLICATE if isinstance(p, Partial) else p for p in sharding.placements))
    pieces = [cut(whole, split, mesh, rank) for rank in range(num_ranks(mesh))]
    for index, placement in enumerate(sharding.placements):
        if isinstance(placement, Partial):
            for group in axis_groups(mesh, index):
                total = pieces[group[-1]]
                for position, rank in enumerate(group[:-1]):
                    pieces[rank] = torch.full_like(total, 3 * position - 4)
                pieces[group[-1]] = total - sum(3 * position - 4 for position in range(len(group) - 1))
    return pieces


def test_a_failing_rank_ends_all():
    def main(comm):
        if comm.rank == 2:
            raise ValueError("boom on rank 2")
        comm.all_reduce(torch.ones(2), "a")

    with pytest.raises(ValueError, match="boom on rank 2"):
        run_ranks(mesh_of(4), main)


def test_a_rank_that_leaves_is_named():
    with pytest.raises(RankError, match="waits in all_reduce.*rank 1 has finished"):
        run_ranks(mesh_of(2), lambda comm: comm.all_reduce(torch.ones(2), "a") if comm.rank == 0 else None)


def test_ranks_that_disagree_are_named():
    with pytest.raises(RankError, match=r"ranks disagree: rank 0: all_reduce\(a, sum\) of float32\[2\]; rank 1: .*float32\[3\]"):
        run_ranks(mesh_of(2), lambda comm: comm.all_reduce(torch.ones(2 + comm.rank), "a"))


def test_inputs_may_be_overwritten_right_after():
    def main(comm):
        x = torch.full((4,), float(comm.rank + 1))
        seen = []
        for _ in range(50):
            seen.append(comm.all_reduce(x, "a"))
            x.add_(1.0)
        return seen

    for seen in run_ranks(mesh_of(4), main):
        assert [float(s[0]) for s in seen] == [10.0 + 4 * k for k in range(50)]


def test_objects_and_one_rank():
    got = run_ranks(mesh_of(2, 2), lambda comm: (comm.collect(comm.rank * 10), comm.share(comm.rank), comm.barrier()))
    assert got == [([0, 10, 20, 30], 0, None)] * 4
    assert solo_comm().collect("x") == ["x"]
    with pytest.raises(RankError, match="mesh of one rank, found 2"):
        solo_comm(mesh_of(2))
