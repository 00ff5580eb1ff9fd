"""What a collective rearranges for its wire: what it costs is copied once each, what it holds is the more of the two; how the groups of an axis lie on hosts."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.collectives import collective_seconds
from autopar.cost.meshes import list_meshes
from autopar.cost.model import build_cost_model
from autopar.cost.wires import STEP_S, AxisLink, axis_link, estimate_comm_s, estimate_reshard_s, joint_link, step_copied_bytes, step_held_bytes
from autopar.graph.mesh import Mesh, MeshAxis, joint_group, num_ranks
from autopar.graph.reshard import StepKind
from autopar.graph.sharding import Partial, Replicate, Shard, Sharding
from autopar.graph.tensor import Kind, Value
from autopar.graph.transfer import Transfer

INNER, OUTER, NONE = (1, 3), (0, 2), (-1, -1)  # of a tensor [4, 6] that is whole along an axis of two
WHOLE, ROWS, COLS = (4, 6), (2, 6), (4, 3)


@pytest.mark.parametrize(
    ("kind", "before", "after", "ends", "copied", "held"),
    [
        (StepKind.ALL_GATHER, ROWS, WHOLE, (OUTER, NONE), 0, 0),
        (StepKind.ALL_GATHER, COLS, WHOLE, (INNER, NONE), 96, 96),
        (StepKind.REDUCE_SCATTER, WHOLE, COLS, (NONE, INNER), 96, 96),
        (StepKind.ALL_TO_ALL, ROWS, COLS, (OUTER, INNER), 48, 48),  # packed; what comes lies as it should
        (StepKind.ALL_TO_ALL, COLS, ROWS, (INNER, OUTER), 48, 48),  # the other way about
        (StepKind.ALL_TO_ALL, (2, 4, 3), (2, 2, 6), ((2, 3), (1, 2)), 192, 96),  # both: what was packed has gone when the other is unpacked
    ],
)
def test_what_is_copied_and_what_is_held(kind, before, after, ends, copied, held):
    assert step_copied_bytes(kind, before, after, "float32", 2, ends) == copied
    assert step_held_bytes(kind, before, after, "float32", 2, ends) == held


def test_gradients_in_float32_cost_the_cast_and_twice_the_bytes():
    model, link, size = build_cost_model(parse_cluster("8xH100-80GB")), AxisLink(8, 8), 2**28  # more than a bucket: the message is its own
    wide = replace(model, grad_width=2)

    def send(kind, bytes_in, bytes_out, transfer, of):
        return estimate_comm_s(of, kind, link, bytes_in, bytes_out, 0, transfer)

    cast_s = 3 * size / model.memory_bytes_per_s
    for kind, out in ((StepKind.REDUCE_SCATTER, size // 8), (StepKind.ALL_REDUCE, size)):
        assert send(kind, size, out, Transfer.GRAD, wide) == pytest.approx(send(kind, 2 * size, 2 * out, Transfer.GRAD, model) + cast_s)
    assert send(StepKind.ALL_GATHER, size // 8, size, Transfer.GRAD, wide) == send(StepKind.ALL_GATHER, size // 8, size, Transfer.GRAD, model)
    assert send(StepKind.ALL_REDUCE, size, size, Transfer.BLOCKING, wide) == send(StepKind.ALL_REDUCE, size, size, Transfer.BLOCKING, model)


@pytest.mark.parametrize("spec", ["2x8xH100", "3x8xH100", "2x6xH100", "6x8xH100", "3x4xH100", "4x6xV100", "5x9xA100"])
def test_the_group_that_lies_worst_is_priced(spec):
    """Against every group of every axis, and of every pair of axes, counted one by one."""
    cluster = parse_cluster(spec)
    model = build_cost_model(cluster)
    for mesh in list_meshes(cluster):
        for axes in [(k,) for k in range(len(mesh.axes))] + list(combinations(range(len(mesh.axes)), 2)):
            groups = {joint_group(mesh, [mesh.axes[k].name for k in axes], rank) for rank in range(num_ranks(mesh))}
            counts = [Counter(rank // cluster.devices_per_host for rank in group).values() for group in groups]
            link = joint_link(model, mesh, axes)
            hosts = -(-link.ranks // link.per_host)
            assert link.ranks == len(next(iter(groups))) and hosts >= max(map(len, counts)) and (hosts == 1) == (max(map(len, counts)) == 1)
            assert (link.fewest or link.per_host) == min(min(count) for count in counts if len(count) == max(map(len, counts)))


def test_a_degree_that_does_not_divide_a_host_leaves_it():
    """dp=4 tp=3 dp_2=2 on three hosts of eight: tp is 0, 2, 4, which is on one host, and 6, 8, 10, which is on two and has one rank on the first."""
    model = build_cost_model(parse_cluster("3x8xH100-80GB"))
    mesh = Mesh((MeshAxis("dp", 4, "across"), MeshAxis("tp", 3, "across"), MeshAxis("dp_2", 2)))
    link, size = axis_link(model, mesh, 1), 9437184
    assert link == AxisLink(3, 2, 2, 1)
    found = estimate_comm_s(model, StepKind.ALL_REDUCE, link, size, size)
    assert found == float(collective_seconds(model.links, "all_reduce", 3, 2, size, 1)) > 4 * float(collective_seconds(model.links, "all_reduce", 3, 3, size))


@pytest.mark.parametrize("spec", ["4xA100-40GB", "2x2xH100-80GB"])
@pytest.mark.parametrize("kind", [Kind.PARAM, Kind.GRAD])
def test_an_axis_in_two_factors_costs_what_it_does_whole(spec, kind):
    """One collective of the same ranks and bytes, alone or in a bucket, from a few KiB to more than a bucket; but for what tells equal ways apart."""
    model = build_cost_model(parse_cluster(spec))
    across = "across" if spec.startswith("2x") else "inside"
    whole, factors = Mesh((MeshAxis("dp", 4, across),)), Mesh((MeshAxis("dp", 2, across), MeshAxis("dp_2", 2)))
    for rows in (16, 1024, 4096, 16384):
        value, outer = Value("w", "w", 0, (rows, 1024), "bfloat16", kind), rows // 4
        ways = [
            (Sharding((Shard(0, outer),)), Sharding((Replicate(),)), Sharding((Shard(0, 2 * outer), Shard(0, outer))), Sharding((Replicate(), Replicate()))),
            (Sharding((Partial(),)), Sharding((Replicate(),)), Sharding((Partial(), Partial())), Sharding((Replicate(), Replicate()))),
            (Sharding((Partial(),)), Sharding((Shard(0, outer),)), Sharding((Partial(), Partial())), Sharding((Shard(0, 2 * outer), Shard(0, outer)))),
        ]  # fmt: skip
        for source, target, source_2, target_2 in ways:
            one, two = estimate_reshard_s(model, value, source, target, whole), estimate_reshard_s(model, value, source_2, target_2, factors)
            assert two == pytest.approx((one[0] + STEP_S, one[1]), rel=1e-9)
