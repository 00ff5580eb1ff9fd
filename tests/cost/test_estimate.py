"""What a whole program costs: time against the solver's own sum, memory against a walk written another way."""

from __future__ import annotations

from dataclasses import replace
from math import fsum

import pytest

from autopar.cluster import parse_cluster
from autopar.cost import memory as memory_file
from autopar.cost.estimate import count_samples, estimate_program, node_seconds
from autopar.cost.memory import HOLDERS, estimate_memory, list_lives
from autopar.cost.model import build_cost_model
from autopar.cost.prices import build_prices
from autopar.graph.graph import Graph, value_table
from autopar.graph.liveness import is_view
from autopar.graph.mesh import Mesh, MeshAxis, axis_sizes
from autopar.graph.node import Phase
from autopar.graph.program import Program
from autopar.graph.sharding import REPLICATE, Shard, Sharding
from autopar.graph.tensor import Kind, count_batch, size_bytes

from .toy import CLUSTER, DATA_PARALLEL, Made, build_toy

ONE, FOUR, SQUARE = Mesh(()), Mesh((MeshAxis("a", 4),)), Mesh((MeshAxis("a", 2), MeshAxis("b", 2)))
MODEL = build_cost_model(CLUSTER)
ZERO = {"w1@0": Sharding((Shard(0, 4),)), "w2@0": Sharding((Shard(0, 8),))}  # (16, 32) and (32, 16) in quarters
BATCH = {"x": Sharding((Shard(0, 2),)), "ones": Sharding((Shard(0, 2),))}
UPDATE = {"w1@1": (".1",), "w2@1": (".1",)}
TENSOR = {"h": ("n",), "r": (".0",), "y": ("k",), "rt": ("b",), "g2": ("m",), "w2t": ("a",), "dr": ("n",), "dh": (".0",), "g1": ("n",), "w1@1": (".0",), "w2@1": (".1",)}  # fmt: skip
TENSOR_STORE = {"w1@0": Sharding((Shard(1, 8),)), "w2@0": Sharding((Shard(0, 8),))}


def _twice(choices, axis):
    return {n: (c[0], "R") if axis == 0 else ("R", c[0]) for n, c in choices.items()}


PLANS = {
    "one rank": (ONE, {}, {}),
    "replicated": (FOUR, {}, {}),
    "data parallel": (FOUR, DATA_PARALLEL, BATCH),
    "zero-1": (FOUR, DATA_PARALLEL | UPDATE, BATCH),
    "zero-3": (FOUR, DATA_PARALLEL | UPDATE, BATCH | ZERO),
    "tensor parallel": (FOUR, TENSOR, TENSOR_STORE),
    "data on b of 2 x 2": (SQUARE, _twice(DATA_PARALLEL, 1), {}),
    "mixed up": (SQUARE, {"h": ("m", "n"), "r": (".0", ".1"), "g2": ("k", "m"), "g1": ("n", "k"), "w1@1": (".1", ".1")}, {}),
}


@pytest.fixture(params=list(PLANS), ids=lambda name: name.replace(" ", "-"))
def made(request):
    return Made(*PLANS[request.param])


def _cost(made, model=MODEL):
    return estimate_program(model, made.program, made.sites, made.signatures, made.strategies)


def _solver_s(made, model):
    """What a solver adds: each node under its choice, each shared reshard once per phase, each write of a state."""
    graph, mesh = made.graph, made.assignment.mesh
    values, sizes = value_table(graph), axis_sizes(mesh)
    prices = build_prices(model, mesh, graph, made.sites, made.signatures)
    total = 0.0
    has = dict(made.assignment.storages)
    paid = set()

    def bring(name, wanted, phase):
        if (name, wanted, phase) in paid or has[name] == wanted:
            return 0.0
        paid.add((name, wanted, phase))
        return prices.reshard_seconds(values[name], has[name], wanted)

    final = [(new, has[old]) for old, new in graph.updates] + [(graph.loss, Sharding((REPLICATE,) * len(sizes)))]
    for i, node in enumerate(graph.nodes):
        strategy = made.strategies[node.name]
        total += sum(bring(n, w, node.phase) for n, w in zip(node.inputs, strategy.inputs))
        total += prices.node_seconds(i, (strategy,))[0]
        has.update(zip(node.outputs, strategy.outputs))
        total += sum(bring(n, w, Phase.UPDATE) for n, w in final if n in node.outputs)
    return total + sum(prices.write_seconds(values[old], made.assignment.storages[i][1]) for i, (old, _) in enumerate(graph.updates))


def test_the_solver_and_the_estimate_add_up_to_the_same(made):
    assert _cost(made).step_s == pytest.approx(_solver_s(made, MODEL), rel=1e-12)


def test_the_table_adds_up_to_the_step(made):
    cost, table = _cost(made), node_seconds(MODEL, made.program, made.sites, made.signatures, made.strategies)
    assert list(table) == [n.name for n in made.program.graph.nodes]
    assert cost.step_s == fsum(table.values())
    assert cost.exposed_comm_s == fsum(s for n, s in table.items() if ":" in n and not n.startswith("write:"))
    assert cost.compute_s + cost.exposed_comm_s + cost.bubble_s == pytest.approx(cost.step_s, rel=1e-12)


def test_flops_are_the_models_own_whatever_the_plan(made):
    cost = _cost(made)
    assert cost.flops == 2 * 8 * 16 * 32 * 5  # five matmuls of the same size
    ranks = 4 if made.assignment.mesh.axes else 1
    assert cost.mfu == pytest.approx(cost.flops / (cost.step_s * 1e9 * ranks), rel=1e-12)
    assert cost.tokens_per_s == pytest.approx(8 / cost.step_s, rel=1e-12)
    assert cost.relative_error is None and cost.error_source.startswith("default figures: run `autopar profile`")


def test_calls_of_a_step_too_small_for_its_host_are_told(made):
    model = build_cost_model(parse_cluster("1x4xH100-80GB"))
    cost = estimate_program(model, made.program, made.sites, made.signatures, made.strategies)
    table = node_seconds(model, made.program, made.sites, made.signatures, made.strategies)
    asked = sum(n.phase in (Phase.FORWARD, Phase.BACKWARD) and table[n.name] > 0 for n in made.program.graph.nodes)
    assert cost.relative_error is None and f"it asks for {asked} kernels" in cost.error_source


# --- memory -------------------------------------------------------------------------------------------------------------------


def _brute_force(program, reserve):
    """Bytes at each node, by asking of every value at every node whether anybody still needs it."""
    graph = program.graph
    values = value_table(graph)
    root = {n: n for n in graph.inputs}
    made_at = {n: -1 for n in graph.inputs}
    for i, node in enumerate(graph.nodes):
        for out in node.outputs:
            root[out] = root[node.inputs[0]] if is_view(node.op) else out
            made_at[out] = i
    ends = {graph.loss, *graph.outputs}
    readers = {out: [other.op for other in graph.nodes if out in other.inputs] for node in graph.nodes for out in node.outputs}
    in_place = {n.outputs[0] for n in graph.nodes if n.op == "aten.sub.Tensor" and set(readers[n.outputs[0]]) == {"state.write"}}  # the step, written where the parameter is
    totals = []
    for i, node in enumerate(graph.nodes):
        needed = set(graph.inputs)
        needed |= {root[n] for n in node.outputs}
        for name, born in made_at.items():
            later = any(name in other.inputs for other in graph.nodes[i:])
            if born <= i and (later or name in ends):
                needed.add(root[name])
        totals.append(sum(size_bytes(values[n]) for n in needed - in_place) + reserve)
    return totals


def test_memory_equals_brute_force(made):
    found = estimate_memory(made.program, 1000)
    nodes = made.program.graph.nodes
    scratch = [memory_file.scratch_bytes(made.program, n, value_table(made.program.graph)) for n in nodes]
    wanted = [a + b for a, b in zip(_brute_force(made.program, 1000), scratch)]
    assert [m.bytes for m in found.moments] == wanted
    assert found.peak_bytes == max(wanted) and found.peak == wanted.index(max(wanted))
    assert [m.node for m in found.moments] == [n.name for n in nodes]
    for moment in found.moments:
        assert sum(h.bytes for h in moment.holders) == moment.bytes
        assert {h.name for h in moment.holders} <= set(HOLDERS)
    assert found.holders == found.moments[found.peak].holders


def test_a_moment_by_hand():
    """One rank; all sizes in float32: x and ones 8 x 16 = 512 bytes, h, r, dr, dh 8 x 32 = 1024, weights and gradients 2048."""
    made = Made(*PLANS["one rank"])
    found = estimate_memory(made.program, 0)
    at = {m.node: {h.name: h.bytes for h in m.holders} for m in found.moments}
    assert at["h"] == {"parameters": 4096, "batch": 1024, "temporaries": 1024}
    assert at["r"] == {"parameters": 4096, "batch": 1024, "temporaries": 1024, "activations": 1024}  # h dies here
    assert at["y"] == {"parameters": 4096, "batch": 1024, "temporaries": 512, "activations": 1024}
    # g2 is made; rt is a view and keeps r; the loss (4 bytes) stays
    assert at["g2"] == {"parameters": 4096, "batch": 1024, "activations": 1024, "gradients": 2048, "temporaries": 4}
    # r dies here
    assert at["dh"] == {"parameters": 4096, "batch": 1024, "activations": 1024, "gradients": 2048, "temporaries": 4 + 2048}
    # a new version where the old one is, its gradient still there
    assert at["w1@1"] == {"parameters": 4096, "batch": 1024, "gradients": 4096, "temporaries": 4}
    assert at["write:w1@0"] == {"parameters": 4096, "batch": 1024, "gradients": 2048, "temporaries": 4}  # g1 died
    assert at["w2@1"] == {"parameters": 4096, "batch": 1024, "gradients": 2048, "temporaries": 4}


def test_zero_3_stores_a_quarter_and_gathers_for_a_while():
    replicated_, zero = Made(*PLANS["data parallel"]), Made(*PLANS["zero-3"])
    assert _cost(replicated_).state_bytes == (4096,) and _cost(zero).state_bytes == (1024,)
    lives = {life.name: life for life in list_lives(zero.program)}
    gathered = [life for life in lives.values() if life.holder == "gathered"]
    assert sorted(life.bytes for life in gathered) == [2048, 2048, 2048]  # w1 for the forward, w2 for both phases
    nodes = zero.program.graph.nodes
    assert all(nodes[life.first].phase is nodes[life.last].phase for life in gathered)
    assert _cost(zero).peak_bytes < _cost(replicated_).peak_bytes


def test_the_gathered_update_of_zero_1_is_counted_while_it_lasts():
    made = Made(*PLANS["zero-1"])
    gathered = [life for life in list_lives(made.program) if life.holder == "gathered"]
    assert {made.program.graph.nodes[life.first].op for life in gathered} == {"comm.all_gather", "comm.slice"}
    assert all(life.last - life.first <= 1 for life in gathered)


def test_nothing_needs_less_than_its_state_and_reserve(made):
    cost = _cost(made, replace(MODEL, reserve_bytes=12345))
    assert cost.peak_bytes[0] > cost.state_bytes[0] + 12345
    assert ("reserve", 12345) in [(h.name, h.bytes) for h in cost.holders]


def test_a_long_program_keeps_at_most_so_many_moments_and_always_the_peak(monkeypatch, made):
    whole = estimate_memory(made.program, 0)
    monkeypatch.setattr(memory_file, "MAX_MOMENTS", 5)
    few = estimate_memory(made.program, 0)
    assert len(few.moments) == 5
    assert max(m.bytes for m in few.moments) == whole.peak_bytes == few.peak_bytes
    order = [m.node for m in whole.moments]
    assert [order.index(m.node) for m in few.moments] == sorted(order.index(m.node) for m in few.moments)


def test_a_program_without_nodes():
    graph = build_toy()
    values = tuple(v for v in graph.values if v.name in graph.inputs)
    empty = Program(Graph("empty", values, (), graph.inputs), ONE, (), tuple((v.name, v.name, Sharding(())) for v in values), ())
    cost = estimate_program(MODEL, empty, (), (), {})
    assert cost.step_s == 0.0 and cost.peak_bytes == (4096 + 1024,) and cost.mfu is None and cost.tokens_per_s is None
    assert cost.moments == ()


def test_tokens_are_the_elements_of_the_first_text():
    made = Made(*PLANS["data parallel"])
    values = tuple(replace(v, dtype="int64") if v.name == "ones" else v for v in made.program.graph.values)
    program = replace(made.program, graph=replace(made.program.graph, values=values))
    assert count_samples(program) == 8 * 16  # the whole tensor, not this rank's piece
    assert count_samples(made.program) == 8
    assert count_batch([((8, 4, 4), "float32"), ((8, 6, 6), "int64")]) == (8, "samples")  # a mask of classes is no text
    none = tuple(replace(v, kind=Kind.BUFFER) if v.kind is Kind.BATCH else v for v in values)
    assert count_samples(replace(program, graph=replace(program.graph, values=none))) is None
