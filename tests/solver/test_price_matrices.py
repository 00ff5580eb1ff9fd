"""One law, two readers: the matrices of reshards say what the scalar path says, pair by pair."""

import random
from dataclasses import replace

import numpy as np
import pytest

from autopar.cluster import parse_cluster
from autopar.cost.model import build_cost_model
from autopar.cost.wires import STEP_S, estimate_reshard_s, estimate_reshards_s
from autopar.errors import GraphError
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.reshard import StepKind, join_steps, moved_elements, reshard_steps
from autopar.graph.reshard_pairs import reshard_pairs
from autopar.graph.sharding import PARTIAL, REPLICATE, Partial, Shard, Sharding, uneven_chunks, why_illegal
from autopar.graph.tensor import Kind, Value
from autopar.graph.transfer import Transfer, transfer_of
from autopar.solver.prices import reshard_matrices
from autopar.solver.transients import transient_bytes, transient_matrix
from tests.cost.steps import estimate_step_s

SHAPES = [(), (24,), (16, 12), (48, 32), (8, 4, 6), (1, 64), (64, 1, 3), (12, 8, 8, 2), (1024, 4096), (50, 7), (96, 0)]
MODEL = build_cost_model(parse_cluster("4x8xH100-80GB"))
BLOCKS = replace(MODEL, block_elements=(3000, 2000))  # no more travels together than a block has


def draw_placement(rng, shape, size):
    splits = [Shard(d, s) for d, n in enumerate(shape) for s in range(1, n + 1) if n % (s * size) == 0 and rng.random() < 16 / n]
    splits += [uneven_chunks(d, n, size) for d, n in enumerate(shape) if n % size]
    return rng.choice([REPLICATE, PARTIAL, PARTIAL, Partial("max"), Partial("min"), *splits, *splits])


def draw_shardings(rng, shape, sizes, count):
    found = {}
    for _ in range(count):
        sharding = Sharding(tuple(draw_placement(rng, shape, n) for n in sizes))
        if not why_illegal(shape, sharding, sizes):
            found[sharding] = None
    return [*found, Sharding((REPLICATE,) * len(sizes))]


def draw_mesh(rng):
    sizes = tuple(rng.choice((2, 3, 4, 8)) for _ in range(rng.choice((1, 2, 2, 3, 3))))
    return Mesh(tuple(MeshAxis(name, n, "inside" if k == len(sizes) - 1 else "across") for k, (name, n) in enumerate(zip("abc", sizes))))


@pytest.mark.parametrize("seed", range(60))
def test_matrices_say_what_the_steps_say(seed):
    rng = random.Random(seed)
    mesh, shape, dtype = draw_mesh(rng), rng.choice(SHAPES), rng.choice(["float32", "bfloat16", "int64"])
    sizes = tuple(a.size for a in mesh.axes)
    value = Value("x", "x", 0, shape, dtype, rng.choice([Kind.ACTIVATION, Kind.PARAM, Kind.GRAD]))
    sources, targets = draw_shardings(rng, shape, sizes, 30), draw_shardings(rng, shape, sizes, 25)
    targets += sources[: len(sources) // 2]
    model = rng.choice([MODEL, BLOCKS])
    seconds, hidden = estimate_reshards_s(model, value, sources, targets, mesh)
    transients = transient_matrix(value, sources, targets, sizes)
    paths = reshard_pairs(shape, sources, targets, sizes)
    moved = np.zeros(seconds.size)
    for step in paths.steps:
        [axis] = step.axes
        size = sizes[axis]
        moved[step.pairs] += [moved_elements_of(step.kind, a, b, size) for a, b in zip(step.elements_in, step.elements_out)]
    moved = moved.reshape(seconds.shape)
    for i, source in enumerate(sources):
        for j, target in enumerate(targets):
            where = f"{shape} on {sizes}: {source} -> {target}"
            try:
                steps = reshard_steps(shape, source, target, sizes)
            except GraphError:
                assert seconds[i, j] == np.inf and hidden[i, j] == transients[i, j] == 0 and not paths.reachable[i, j], where
                continue
            assert paths.reachable[i, j], where
            joins = value.kind is not Kind.ACTIVATION or shape == ()
            if not joins or (len(join_steps(steps)) == len(steps) and (model is MODEL or value.kind is Kind.ACTIVATION)):
                priced = sum(estimate_step_s(MODEL, s, mesh, dtype, transfer_of(value)) for s in steps)
                priced += STEP_S * (len(steps) - 1) if steps and joins else 0.0
                assert seconds[i, j] == pytest.approx(priced, rel=1e-12, abs=0), where
            assert (seconds[i, j], hidden[i, j]) == pytest.approx(estimate_reshard_s(model, value, source, target, mesh), rel=1e-12, abs=0), where
            early = bool(steps) and steps[0].kind is StepKind.ALL_GATHER
            assert hidden[i, j] <= seconds[i, j] / 2 and (early or not hidden[i, j] or transfer_of(value) is not Transfer.BLOCKING), where
            assert transients[i, j] == transient_bytes(value, source, target, sizes), where
            assert moved[i, j] == pytest.approx(sum(moved_elements(s, sizes[s.axis]) for s in steps), rel=1e-12, abs=0), where


def moved_elements_of(kind, before, after, size):
    share = (size - 1) / size
    return {"all_gather": after, "reduce_scatter": before, "all_reduce": 2 * before, "all_to_all": before}.get(kind.value, 0) * share


def test_a_target_that_is_no_sharding_of_the_shape_has_no_way():
    whole, wrong = Sharding((REPLICATE,)), Sharding((Shard(0, 3),))
    assert not reshard_pairs((8,), [whole], [wrong], (2,)).reachable.any()
    with pytest.raises(GraphError, match="no reshard from R to S0/3"):
        reshard_steps((8,), whole, wrong, (2,))


def test_many_pairs_are_done_in_parts(monkeypatch):
    rng = random.Random(5)
    shardings = draw_shardings(rng, (48, 32), (2, 4), 40)
    value, mesh = Value("x", "x", 0, (48, 32), "float32", Kind.ACTIVATION), Mesh((MeshAxis("a", 2, "across"), MeshAxis("b", 4)))
    whole = estimate_reshards_s(MODEL, value, shardings, shardings, mesh)
    bytes_ = transient_matrix(value, shardings, shardings, (2, 4))
    monkeypatch.setattr("autopar.graph.reshard_pairs._CHUNK", 3 * len(shardings))
    again = estimate_reshards_s(MODEL, value, shardings, shardings, mesh)
    assert all((one == other).all() for one, other in zip(again, whole))
    assert (transient_matrix(value, shardings, shardings, (2, 4)) == bytes_).all()


def test_prices_by_hand_need_no_matrix():
    class ByHand:
        def reshard_seconds(self, value, source, target):
            return {"P": np.inf}.get(str(target), 2.0)

        def hidden_seconds(self, value, source, target):
            return 0.5 if str(target) == "R" else 0.0

    value = Value("x", "x", 0, (8,), "float32", Kind.ACTIVATION)
    whole, split, owed = Sharding((REPLICATE,)), Sharding((Shard(0, 4),)), Sharding((PARTIAL,))
    seconds, hidden = reshard_matrices(ByHand(), value, [whole, split], [whole, split, owed])
    assert seconds.tolist() == [[0.0, 2.0, np.inf], [2.0, 0.0, np.inf]]
    assert hidden.tolist() == [[0.0, 0.0, 0.0], [0.5, 0.0, 0.0]]
