"""What hides behind compute and what travels in buckets, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import fsum

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.estimate import estimate_program, hidden_seconds, node_seconds
from autopar.cost.meshes import list_meshes
from autopar.cost.model import build_cost_model
from autopar.cost.wires import axis_link, estimate_comm_s, estimate_hidden_s, estimate_reshard_s
from autopar.graph.mesh import Mesh
from autopar.graph.node import Phase
from autopar.graph.reshard import StepKind
from autopar.graph.sharding import PARTIAL, REPLICATE, Shard, Sharding
from autopar.graph.tensor import Kind, Value
from autopar.graph.transfer import Transfer, may_hide, outside_blocks, transfer_of
from tests.graph.drafts import make_graph, value

from .test_estimate import PLANS
from .toy import CLUSTER, Made

GPUS = parse_cluster("8xH100-80GB")
EIGHT = list_meshes(GPUS)[0]
MODEL = build_cost_model(GPUS)
WHOLE, OWED, SPLIT = Sharding((REPLICATE,)), Sharding((PARTIAL,)), Sharding((Shard(0, 512),))
BUCKET = 25 * 2**20


def value_of(kind, elements=4096, version=0):
    return Value("v", "v", version, (elements,), "float32", kind)


def test_what_moves_says_how_it_travels():
    states = {Kind.PARAM, Kind.BUFFER}
    for kind in Kind:
        moved = Transfer.STATE if kind in states else Transfer.GRAD if kind is Kind.GRAD else Transfer.BLOCKING
        assert transfer_of(value_of(kind)) is moved
    assert may_hide(value_of(Kind.PARAM), Phase.FORWARD, (), None) and may_hide(value_of(Kind.GRAD), Phase.BACKWARD, (), Phase.BACKWARD)
    assert not may_hide(value_of(Kind.PARAM), Phase.UPDATE, (), None) and not may_hide(value_of(Kind.PARAM, version=1), Phase.FORWARD, (), Phase.FORWARD)
    assert not may_hide(value_of(Kind.PARAM), Phase.FORWARD, ["v"], None)
    saved = value_of(Kind.ACTIVATION)
    assert may_hide(saved, Phase.BACKWARD, (), Phase.FORWARD) and not may_hide(saved, Phase.BACKWARD, (), Phase.BACKWARD) and not may_hide(saved, Phase.FORWARD, (), Phase.FORWARD)


def test_what_is_in_no_block_is_waited_for():
    """An embedding and a head; of a model without blocks everything is fetched when it begins to run."""
    names = ("embed@0", "h.0.w@0", "h.1.w@0", "head@0")
    assert outside_blocks(make_graph([value(name, (4,), Kind.PARAM) for name in names], [])) == {"embed@0", "head@0"}
    assert outside_blocks(make_graph([value(name, (4,), Kind.PARAM) for name in ("embed@0", "head@0")], [])) == frozenset()


def test_the_gradient_of_a_norm_pays_its_share_of_a_bucket():
    alone, _ = estimate_reshard_s(MODEL, value_of(Kind.ACTIVATION), OWED, WHOLE, EIGHT)
    seconds, hidden = estimate_reshard_s(MODEL, value_of(Kind.GRAD), OWED, WHOLE, EIGHT)
    size = 16384
    bucket = estimate_comm_s(MODEL, StepKind.ALL_REDUCE, axis_link(MODEL, EIGHT, 0), BUCKET, BUCKET)
    assert seconds == pytest.approx(size / BUCKET * bucket, rel=1e-12)
    assert hidden == pytest.approx(seconds / 2, rel=1e-12) and seconds < alone / 50


def test_tensors_that_fill_a_bucket_cost_together_what_one_of_that_size_costs():
    for kind in (StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_REDUCE):
        link = axis_link(MODEL, EIGHT, 0)
        sides = {StepKind.ALL_GATHER: (1 / 8, 1), StepKind.REDUCE_SCATTER: (1, 1 / 8)}.get(kind, (1, 1))
        small, whole = ([int(n * s) for s in sides] for n in (BUCKET / 100, BUCKET))
        together = 100 * estimate_comm_s(MODEL, kind, link, *small, 0, Transfer.GRAD)
        assert together == pytest.approx(estimate_comm_s(MODEL, kind, link, *whole), rel=1e-6)
        twice = [2 * n for n in whole]
        assert estimate_comm_s(MODEL, kind, link, *twice, 0, Transfer.STATE) == estimate_comm_s(MODEL, kind, link, *twice)


def test_local_cuts_and_exchanges_neither_hide_nor_wait_for_others():
    link = axis_link(MODEL, EIGHT, 0)
    for kind in (StepKind.SLICE, StepKind.KEEP, StepKind.ALL_TO_ALL):
        assert estimate_comm_s(MODEL, kind, link, 4096, 4096, 0, Transfer.STATE) == estimate_comm_s(MODEL, kind, link, 4096, 4096)
        hidden = estimate_hidden_s(MODEL, kind, link, 4096, 4096, Transfer.STATE)
        assert (hidden > 0) == (kind is StepKind.ALL_TO_ALL)


def test_on_cpu_each_is_sent_alone_and_nothing_hides():
    cpu = build_cost_model(parse_cluster("cpu:8"))
    assert cpu.bucket_bytes == 0 and cpu.exposed_share == 1.0
    for source, target in ((OWED, WHOLE), (SPLIT, WHOLE), (OWED, SPLIT)):
        prices = {estimate_reshard_s(cpu, value_of(kind), source, target, EIGHT) for kind in (Kind.ACTIVATION, Kind.PARAM, Kind.GRAD)}
        assert len(prices) == 1 and prices.pop()[1] == 0.0


# --- whole programs: the toy's 4 ranks as if they were GPUs


def cost_of(made, **figures):
    model = build_cost_model(CLUSTER)
    model = replace(model, links=replace(model.links, inside_bytes_per_s=figures.pop("inside_bytes_per_s", model.links.inside_bytes_per_s)), **figures)
    return model, node_seconds(model, made.program, made.sites, made.signatures, made.strategies)


@pytest.mark.parametrize("name", ["data parallel", "zero-1", "zero-3", "tensor parallel"])
def test_hidden_is_the_share_of_the_gathers_and_reductions_and_never_more_than_compute(name):
    made = Made(*PLANS[name])
    nodes = {n.name: n for n in made.program.graph.nodes}
    for bandwidth in (1e12, 1e3):  # communication fits beside compute, or does not
        model, seconds = cost_of(made, exposed_share=0.25, inside_bytes_per_s=bandwidth, launch_s=1e-3 if bandwidth > 1e9 else 1e-9)
        hidden = hidden_seconds(model, made.program, seconds)
        assert all(nodes[n].op in ("comm.all_gather", "comm.all_reduce", "comm.reduce_scatter") for n in hidden)
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            compute = fsum(seconds[n.name] for n in nodes.values() if n.phase is phase and ":" not in n.name)
            beside = {n: s for n, s in hidden.items() if nodes[n].phase is phase}
            whole = fsum(0.75 * seconds[n] for n in beside)
            assert fsum(beside.values()) == pytest.approx(min(whole, compute), rel=1e-12)
        assert not any(nodes[n].phase is Phase.UPDATE for n in hidden)
        cost = estimate_program(model, made.program, made.sites, made.signatures, made.strategies)
        assert cost.step_s == pytest.approx(fsum(seconds.values()) - fsum(hidden.values()), rel=1e-12)
        assert cost.exposed_comm_s >= 0.25 * fsum(s for n, s in seconds.items() if nodes[n].op.startswith("comm."))


def test_zero_3_hides_its_gathers_and_data_parallel_its_reductions():
    hidden = {}
    for name in ("data parallel", "zero-3", "tensor parallel"):
        made = Made(*PLANS[name])
        model, seconds = cost_of(made, exposed_share=0.5, launch_s=1.0)
        origins = {n.name: o.value for n, o in zip(made.program.graph.nodes, made.program.origins)}
        hidden[name] = sorted(origins[n] for n in hidden_seconds(model, made.program, seconds))
    assert hidden["data parallel"] == ["g1", "g2"]
    assert hidden["zero-3"] == ["g1", "g2", "w1@0", "w2@0", "w2@0"]
    assert hidden["tensor parallel"] == []  # activations block


def test_a_mesh_of_one_rank_hides_nothing():
    made = Made(Mesh(()), {}, {})
    model, seconds = cost_of(made, exposed_share=0.5)
    assert hidden_seconds(model, made.program, seconds) == {}
