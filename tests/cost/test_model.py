"""Formulas against numbers worked out by hand, on figures made up to be round."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from autopar.cluster import Link, list_devices, list_links, num_devices, parse_cluster
from autopar.cost.meshes import list_meshes
from autopar.cost.model import build_cost_model, matmul_flops_per_s
from autopar.cost.ops import estimate_node_s, estimate_op_s, estimate_strategies_s, site_dtypes
from autopar.cost.wires import axis_link, estimate_comm_s, estimate_reshard_s
from autopar.graph.graph import value_table
from autopar.graph.mesh import Mesh, MeshAxis, axis_groups, axis_sizes, num_ranks
from autopar.graph.reshard import Step, StepKind, reshard_steps
from autopar.graph.sharding import PARTIAL, REPLICATE, Shard, Sharding
from autopar.graph.strategy import list_strategies
from autopar.graph.tensor import Kind, Value

from .steps import estimate_step_s
from .toy import CLUSTER, DEVICE, Made

MODEL = build_cost_model(CLUSTER)  # 1e9 flop/s, 1e8 B/s, launch 1e-5; link 1e-4 s, 1e7 B/s
FOUR = Mesh((MeshAxis("a", 4),))
F32 = "float32"


def test_a_large_matmul_is_bound_by_flops():
    n = 256
    seconds = estimate_op_s(MODEL, "aten.mm.default", 2 * n**3, [((n, n), F32), ((n, n), F32)], [((n, n), F32)])
    assert seconds == 2 * n**3 / 1e9 + 1e-5


def test_a_thin_matmul_is_bound_by_bytes():
    seconds = estimate_op_s(MODEL, "aten.mm.default", 2 * 1 * 100 * 1000, [((1, 100), F32), ((100, 1000), F32)], [((1, 1000), F32)])
    assert seconds == pytest.approx(4 * (100 + 100_000 + 1000) / 1e8 + 1e-5, rel=1e-12)


def test_the_dtype_of_the_first_floating_tensor_sets_the_peak():
    big = ((1000, 1000), "bfloat16")
    assert estimate_op_s(MODEL, "aten.mm.default", 2e9, [big, big], [big]) == 2e9 / 4e9 + 1e-5
    assert matmul_flops_per_s(MODEL, "float64") == 1e9  # no figure: as float32


def test_pointwise_ops_pay_bytes_and_views_nothing():
    t = ((10, 100), F32)
    assert estimate_op_s(MODEL, "aten.add.Tensor", 0.0, [t, t], [t]) == 12_000 / 1e8 + 1e-5
    assert estimate_op_s(MODEL, "aten.permute.default", 0.0, [t], [t]) == 0.0
    assert estimate_op_s(MODEL, "aten.clone.default", 0.0, [t], [t]) == 8000 / 1e8 + 1e-5


def test_a_lookup_reads_no_more_of_its_table_than_it_writes():
    table, ids, out = ((50257, 64), F32), ((8,), "int64"), ((8, 64), F32)
    assert estimate_op_s(MODEL, "aten.embedding.default", 0.0, [table, ids], [out]) == (2 * 8 * 64 * 4 + 64) / 1e8 + 1e-5


def _step(kind, shape_in, shape_out, from_=(-1, -1), to=(-1, -1)):
    return Step(kind, 0, "sum" if "reduce" in kind.value else "", *from_, *to, shape_in, shape_out)


def test_ring_formulas_by_hand():
    # 4 ranks: 3 hops of 1e-4 s; 400 float32 = 1600 bytes, three quarters of them sent at 1e7 B/s
    ring = 1e-5 + 3e-4 + 1200 / 1e7
    gather = _step(StepKind.ALL_GATHER, (100,), (400,), from_=(0, 100))
    scatter = _step(StepKind.REDUCE_SCATTER, (400,), (100,), to=(0, 100))
    assert estimate_step_s(MODEL, gather, FOUR, F32) == pytest.approx(ring, rel=1e-12)
    assert estimate_step_s(MODEL, scatter, FOUR, F32) == pytest.approx(ring, rel=1e-12)


def test_all_reduce_takes_the_tree_when_small_and_the_ring_when_large():
    small, large = _step(StepKind.ALL_REDUCE, (1,), (1,)), _step(StepKind.ALL_REDUCE, (10**6,), (10**6,))
    assert estimate_step_s(MODEL, small, FOUR, F32) == pytest.approx(1e-5 + 2 * (2e-4 + 4 / 1e7), rel=1e-12)
    assert estimate_step_s(MODEL, large, FOUR, F32) == pytest.approx(1e-5 + 2 * (3e-4 + 3e6 / 1e7), rel=1e-12)


def test_all_to_all_packs_and_unpacks_what_is_not_outermost():
    step = _step(StepKind.ALL_TO_ALL, (4, 100), (16, 25), from_=(0, 4), to=(1, 25))
    sent = 1e-5 + 3e-4 + 1200 / 1e7
    # dim 1 is inner: the input is packed (read and written once); dim 0 is outermost: it arrives in place
    assert estimate_step_s(MODEL, step, FOUR, F32) == pytest.approx(sent + 2 * 1600 / 1e8 + 1e-5, rel=1e-12)


def test_a_gather_of_an_inner_dim_copies_once_more():
    outer = _step(StepKind.ALL_GATHER, (25, 16), (100, 16), from_=(0, 25))
    inner = _step(StepKind.ALL_GATHER, (100, 4), (100, 16), from_=(1, 4))
    strided = _step(StepKind.ALL_GATHER, (25, 16), (100, 16), from_=(0, 5))
    cost = estimate_step_s(MODEL, outer, FOUR, F32)
    for step in (inner, strided):
        assert estimate_step_s(MODEL, step, FOUR, F32) == pytest.approx(cost + 2 * 6400 / 1e8 + 1e-5, rel=1e-12)


def test_local_steps_cost_their_bytes():
    cut = _step(StepKind.SLICE, (400,), (100,), to=(0, 100))
    keep = _step(StepKind.KEEP, (400,), (400,))
    assert estimate_step_s(MODEL, cut, FOUR, F32) == pytest.approx(800 / 1e8 + 1e-5, rel=1e-12)
    assert estimate_step_s(MODEL, keep, FOUR, F32) == pytest.approx(3200 / 1e8 + 1e-5, rel=1e-12)


def test_a_reshard_is_the_sum_of_its_steps():
    mesh = Mesh((MeshAxis("a", 2), MeshAxis("b", 2)))
    source, target = Sharding((PARTIAL, Shard(1, 8))), Sharding((Shard(0, 4), REPLICATE))
    steps = reshard_steps((8, 16), source, target, (2, 2))
    assert len(steps) == 2
    value = Value("x", "x", 0, (8, 16), F32, Kind.ACTIVATION)
    assert estimate_reshard_s(MODEL, value, source, target, mesh) == (sum(estimate_step_s(MODEL, s, mesh, F32) for s in steps), 0.0)
    assert estimate_reshard_s(MODEL, value, source, source, mesh) == (0.0, 0.0)


# --- which link, how many ports -----------------------------------------------------------------------------------------------


def _two_hosts(axes):
    cluster = replace(CLUSTER, num_hosts=2, devices_per_host=4)
    mesh = next(m for m in list_meshes(cluster) if axis_sizes(m) == axes)
    return build_cost_model(cluster), mesh


def test_an_axis_inside_a_host_uses_the_inside_link_only():
    model, mesh = _two_hosts((2, 4))
    assert [a.link for a in mesh.axes] == ["across", "inside"]
    inside, across = axis_link(model, mesh, 1), axis_link(model, mesh, 0)
    assert (inside.per_host, across.per_host) == (4, 1)
    assert estimate_comm_s(model, StepKind.ALL_GATHER, inside, 400, 1600) == pytest.approx(1e-5 + 3e-4 + 1200 / 1e7, rel=1e-12)
    assert estimate_comm_s(model, StepKind.ALL_GATHER, across, 800, 1600) == pytest.approx(1e-5 + 1e-3 + 800 / 1e6, rel=1e-12)


def test_a_group_with_several_ranks_per_host_uses_their_ports_together():
    model, mesh = _two_hosts((8,))
    link = axis_link(model, mesh, 0)
    assert link.per_host == 4
    # 6 hops inside, 1 across; four ports of 1e6 B/s
    assert estimate_comm_s(model, StepKind.ALL_GATHER, link, 200, 1600) == pytest.approx(1e-5 + 6e-4 + 1e-3 + 1400 / 4e6, rel=1e-12)
    # pairwise exchange: half of 1600 bytes leave the host through the rank's own port
    assert estimate_comm_s(model, StepKind.ALL_TO_ALL, link, 1600, 1600) == pytest.approx(1e-5 + 6e-4 + 1e-3 + 800 / 1e6, rel=1e-12)


def test_ports_together_are_no_faster_than_the_inside_link():
    cluster = replace(CLUSTER, num_hosts=2, devices_per_host=4, across=Link("own", 0.0, 9e6, "made up"))
    model = build_cost_model(cluster)
    link = axis_link(model, list_meshes(cluster)[0], 0)
    assert estimate_comm_s(model, StepKind.ALL_GATHER, link, 200, 1600) == pytest.approx(1e-5 + 6e-4 + 1400 / 1e7, rel=1e-12)


def test_large_all_reduce_over_two_h100_hosts_is_near_what_was_measured():
    """aws nccl-tests, p5, 2 x 8 H100 (collectives.csv p5_2n_ar_536870912): 2559 us; ours uses no NVLS, so somewhat slower."""
    cluster = parse_cluster("2x8xH100-80GB")
    model = build_cost_model(cluster)
    seconds = estimate_comm_s(model, StepKind.ALL_REDUCE, axis_link(model, list_meshes(cluster)[0], 0), 2**29, 2**29)
    assert 1.0 <= seconds / 2559.2e-6 <= 1.2


def test_large_all_reduce_inside_an_a100_host_is_near_what_was_measured():
    """stas00, A100 NVLink3, 8 GPUs (collectives.csv a100_ar_536870912): 4218 us."""
    cluster = parse_cluster("8xA100-80GB")
    model = build_cost_model(cluster)
    seconds = estimate_comm_s(model, StepKind.ALL_REDUCE, axis_link(model, list_meshes(cluster)[0], 0), 2**29, 2**29)
    assert abs(seconds / 4218.4e-6 - 1) < 0.1


@pytest.mark.parametrize("kind", list(StepKind))
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_more_bandwidth_or_less_latency_is_never_slower(kind, hosts):
    cluster = replace(CLUSTER, num_hosts=hosts)
    better = (
        replace(cluster, inside=replace(cluster.inside, bandwidth_bytes_per_s=2e7)),
        replace(cluster, across=replace(cluster.across, bandwidth_bytes_per_s=3e6)),
        replace(cluster, inside=replace(cluster.inside, latency_s=1e-5)),
        replace(cluster, across=replace(cluster.across, latency_s=0.0)),
        replace(cluster, device=replace(DEVICE, memory_bytes_per_s=1e9)),
        replace(cluster, device=replace(DEVICE, launch_s=0.0)),
    )
    for mesh in list_meshes(cluster):
        for axis in range(len(mesh.axes)):
            for size in (4, 4096, 10**7):
                slow = build_cost_model(cluster)
                before = estimate_comm_s(slow, kind, axis_link(slow, mesh, axis), size, size, size)
                assert before > 0
                for fast in map(build_cost_model, better):
                    assert estimate_comm_s(fast, kind, axis_link(fast, mesh, axis), size, size, size) <= before
                bigger = estimate_comm_s(slow, kind, axis_link(slow, mesh, axis), 2 * size, 2 * size, 2 * size)
                assert bigger > before


# --- nodes --------------------------------------------------------------------------------------------------------------------


def test_a_node_under_each_of_its_strategies():
    made = Made(FOUR, {}, {})
    index = next(i for i, n in enumerate(made.graph.nodes) if n.name == "h")
    site, signature = made.sites[index], made.signatures[index]  # (8, 16) x (16, 32)
    dtypes = site_dtypes(site.node, value_table(made.graph))
    assert dtypes == (F32, F32, F32)
    cheap_flops = replace(MODEL, flops_per_s=(("float32", 1e7),))
    by_choice = {s.choices: s for s in list_strategies(signature, site, (4,), {})[0]}

    def seconds(model, choice):
        return estimate_node_s(model, signature, site, dtypes, by_choice[(choice,)], (4,))

    flops = 2 * 8 * 16 * 32
    assert seconds(cheap_flops, "R") == pytest.approx(flops / 1e7 + 1e-5, rel=1e-12)
    assert seconds(cheap_flops, "m") == pytest.approx(flops / 4 / 1e7 + 1e-5, rel=1e-12)
    assert seconds(cheap_flops, "P(self)") == seconds(cheap_flops, "R")  # a Partial that passes is computed by all
    by_bytes = replace(MODEL, flops_per_s=(("float32", 1e12),))
    assert seconds(by_bytes, "m") == pytest.approx(4 * (2 * 16 + 16 * 32 + 2 * 32) / 1e8 + 1e-5, rel=1e-12)
    assert seconds(by_bytes, "k") == pytest.approx(4 * (8 * 4 + 4 * 32 + 8 * 32) / 1e8 + 1e-5, rel=1e-12)
    together = estimate_strategies_s(MODEL, signature, site, dtypes, by_choice.values(), (4,))
    assert together == tuple(seconds(MODEL, c[0]) for c in by_choice)


# --- presets and meshes -------------------------------------------------------------------------------------------------------


def test_every_preset_gives_a_model_below_its_data_sheet():
    for device in list_devices():
        cluster = parse_cluster(f"2x8x{device.name}")
        model = build_cost_model(cluster)
        assert dict(model.flops_per_s).keys() == dict(device.flops_per_s).keys()
        assert all(0 < rate <= dict(device.flops_per_s)[d] for d, rate in model.flops_per_s)
        assert 0 < model.links.inside_bytes_per_s <= cluster.inside.bandwidth_bytes_per_s
        assert 0 < model.links.across_bytes_per_s <= cluster.across.bandwidth_bytes_per_s
        assert device.source and model.source
    assert all(link.source for link in list_links())


def test_own_link_figures_are_taken_as_they_are():
    assert MODEL.links.inside_bytes_per_s == 1e7 and MODEL.reserve_bytes == 0


def _sizes(spec):
    return [axis_sizes(m) for m in list_meshes(parse_cluster(spec))]


def test_meshes_of_one_host():
    assert _sizes("cpu:1") == [()]
    assert _sizes("cpu:2") == [(2,)]
    assert _sizes("cpu:4") == [(4,), (2, 2)]
    assert _sizes("cpu:6") == [(6,), (3, 2)]
    assert _sizes("cpu:8") == [(8,), (4, 2), (2, 2, 2)]
    assert _sizes("cpu:7") == [(7,)]
    assert all(a.link == "inside" for m in list_meshes(parse_cluster("cpu:12")) for a in m.axes)


def test_meshes_of_two_hosts_keep_the_orders_that_differ():
    found = [tuple((a.size, a.link) for a in m.axes) for m in list_meshes(parse_cluster("2x4xH100"))]
    assert found == [
        ((8, "across"),),
        ((4, "across"), (2, "inside")),
        ((2, "across"), (4, "inside")),
        ((2, "across"), (2, "inside"), (2, "inside")),
    ]


@pytest.mark.parametrize("spec", ["cpu:8", "2x8xH100", "4x4xA100", "3x6xV100", "16x8xH100", "5x1xL40S", "2x3xH100"])
def test_links_are_what_the_groups_really_cross(spec):
    cluster = parse_cluster(spec)
    meshes = list_meshes(cluster)
    assert len(set(meshes)) == len(meshes)
    for mesh in meshes:
        assert num_ranks(mesh) == prod(axis_sizes(mesh)) == num_devices(cluster)
        assert [a.name for a in mesh.axes] == list("abc")[: len(mesh.axes)]
        for k, axis in enumerate(mesh.axes):
            crosses = any(len({r // cluster.devices_per_host for r in g}) > 1 for g in axis_groups(mesh, k))
            assert axis.link == ("across" if crosses else "inside")


@pytest.mark.torch
def test_bytes_per_element_are_torchs_own():
    import torch

    from autopar.graph.tensor import DTYPE_BYTES

    for name, size in DTYPE_BYTES.items():
        assert torch.empty(3, dtype=getattr(torch, name)).nbytes == 3 * size
