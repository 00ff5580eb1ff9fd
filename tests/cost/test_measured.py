"""Measured rows: which family a node is, at which shape; what bounds it; collectives by group; the laws that the solver needs of that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopar.cluster import parse_cluster
from autopar.cost.estimate import estimate_program, estimate_roofline
from autopar.cost.lookup import comm_seconds, op_seconds
from autopar.cost.measured import copy_seconds, measured_rows, meeting_seconds, node_seconds, rising, wire_seconds, write_least_s, write_seconds
from autopar.cost.measured_parts import node_parts
from autopar.cost.model import build_cost_model
from autopar.cost.ops import estimate_strategies_s, estimate_write_s, least_node_s, least_write_s, site_dtypes
from autopar.cost.profile_grid import comm_jobs, op_jobs
from autopar.cost.rows import MEETING, ProfileRows, op_work
from autopar.cost.wires import AxisLink, axis_link, estimate_comm_s
from autopar.graph.case import build_case
from autopar.graph.graph import value_table
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.partition import node_cuts
from autopar.graph.reshard import StepKind
from autopar.graph.rule import Site
from autopar.graph.strategy import list_strategies
from autopar.graph.transfer import Transfer

from .test_estimate import PLANS, _solver_s
from .test_rows import MACHINE, comm, op
from .toy import RULES, Made, build_toy

LAUNCH, BANDWIDTH, RANKS = 2e-6, 1e10, 4


def true_s(family, dtype, shape):
    """A machine with a cache: what is small moves five times as fast; kernels of their own speed."""
    flops, moved = op_work(family, dtype, shape)
    rate = 4e10 * np.prod([d / (d + 32) for d in shape]) if flops else 1.0
    slower = {"gelu": 2.0, "softmax": 4.0, "layer_norm": 3.0}.get(family, 1.0)
    return max(flops / rate, slower * moved / (BANDWIDTH if moved > 2**25 else 5 * BANDWIDTH)) + LAUNCH


def wire_s(kind, group, size):
    return (1 + len(kind) / 20) * (1e-4 * group[0] * group[1] + size / 1e9)


ROWS = ProfileRows(
    MACHINE,
    tuple(op(j.family, j.dtype, j.shape, RANKS, true_s(j.family, j.dtype, j.shape)) for j in op_jobs("cpu")),
    tuple(comm(j.kind, j.group, RANKS, j.num_bytes, wire_s(j.kind, j.group, j.num_bytes)) for j in comm_jobs("cpu", RANKS) if not j.beside),
)
MODEL = build_cost_model(parse_cluster("cpu:4"), ROWS)
MEASURED = MODEL.measured


def site(name, inputs, outputs, args=(), phase=Phase.FORWARD):
    node = Node("n", name, tuple("abcdefg"[: len(inputs)]), tuple(args), ("o",) * len(outputs), phase)
    return Site(node, inputs, outputs, ("float32",) * len(inputs))


def elements(s, parts=1):
    """Local sizes of one case: every operand is cut into so many."""
    return np.array([[int(np.prod(shape)) // parts] for shape in (*s.inputs, *s.outputs)])


def parts_of(s, flops=0.0):
    found = elements(s)
    moved = 4.0 * found.sum(axis=0)
    return [(p.family, tuple(np.round(p.shapes[0], 6)), float(np.asarray(p.times).max())) for p in
            node_parts(s.node.op, s, found, len(s.inputs), np.array([flops]), moved)]  # fmt: skip


T = (("transposed", True),)
X, W, Y, WT = (2, 64, 512), (256, 512), (2, 64, 256), (512, 256)  # 128 tokens, 512 in, 256 out


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "args", "expected"),
    [
        ("autopar.linear", (X, W), (Y,), (), [("matmul", (128, 256, 512))]),
        ("autopar.linear", (X, W, (256,)), (Y,), (), [("matmul", (128, 256, 512))]),
        ("autopar.linear", (X, WT), (Y,), T, [("matmul_input_grad", (128, 512, 256))]),  # its weight lies as that of a gradient
        ("autopar.linear_input_grad", (Y, W), (X,), (), [("matmul_input_grad", (128, 256, 512))]),
        ("autopar.linear_input_grad", (Y, WT), (X,), T, [("matmul", (128, 512, 256))]),
        ("autopar.linear_weight_grad", (Y, X), (W,), (), [("matmul_weight_grad", (128, 256, 512))]),
        ("autopar.linear_weight_grad", (X, Y), (WT,), (), [("matmul_weight_grad", (128, 512, 256))]),
        ("aten.mm.default", ((8, 16), (16, 32)), ((8, 32),), (), [("matmul_plain", (16, 8, 32))]),
        ("aten.addmm.default", ((32,), (8, 16), (16, 32)), ((8, 32),), (), [("matmul_plain", (16, 8, 32))]),
        ("aten.bmm.default", ((6, 8, 16), (6, 16, 32)), ((6, 8, 32),), (), [("matmul_plain", (16, 48, 32))]),
        ("autopar.attention", ((2, 4, 64, 32),) * 3, ((2, 4, 64, 32), (2, 4, 64)), (("is_causal", True),), [("attention", (8, 64, 32))]),
        ("autopar.attention", ((2, 4, 64, 32),) * 3, ((2, 4, 64, 32), (2, 4, 64)), (), [("attention_full", (8, 64, 32))]),
        ("autopar.attention_backward", ((2, 4, 64, 32),) * 5 + ((2, 4, 64),), ((2, 4, 64, 32),) * 3, (("is_causal", True),),
         [("attention_backward", (8, 64, 32))]),
        ("aten.native_layer_norm.default", ((4, 8, 32), (32,), (32,)), ((4, 8, 32), (4, 8, 1), (4, 8, 1)), (("normalized_shape", (32,)),),
         [("layer_norm", (32, 32))]),
        ("aten.native_layer_norm_backward.default", ((4, 8, 32), (4, 8, 32), (4, 8, 1), (4, 8, 1), (32,), (32,)), ((4, 8, 32), (32,), (32,)),
         (("normalized_shape", (32,)),), [("layer_norm_backward", (32, 32))]),
        ("aten._softmax.default", ((4, 8, 32),), ((4, 8, 32),), (("dim", -1),), [("softmax", (32, 32))]),
        ("aten.sum.dim_IntList", ((4, 8, 32),), ((32,),), (("dim", (0, 1)),), [("column_sum", (32, 32))]),
        ("aten.sum.dim_IntList", ((4, 8, 32),), ((4, 8),), (("dim", (-1,)),), [("row_sum", (32, 32))]),
        ("aten.sum.default", ((4, 8, 32),), ((),), (), [("row_sum", (1, 1024))]),
        ("aten.gelu.default", ((4, 32),), ((4, 32),), (), [("gelu", (1024,))]),
        ("aten.gelu_backward.default", ((4, 32),) * 2, ((4, 32),), (), [("gelu_backward", (1536,))]),
        ("aten.add.Tensor", ((4, 32),) * 2, ((4, 32),), (), [("pointwise", (1536,))]),
        ("aten.addcmul.default", ((4, 32),) * 3, ((4, 32),), (), [("pointwise", (2048,))]),
        ("autopar.sum_exp", ((4, 32), (4,)), ((4,),), (("num_classes", 32),), [("softmax", (4, 32)), ("row_sum", (4, 32))]),
        ("autopar.cross_entropy_backward", ((4,), (4, 32), (4,), (4,), (4,), (32,)), ((4, 32),), (("num_rows", 32),),
         [("softmax", (4, 32)), ("row_sum", (4, 32)), ("add_into", (1024,))]),
    ],
)  # fmt: skip
def test_which_rows_price_an_op(name, inputs, outputs, args, expected):
    assert [found[:2] for found in parts_of(site(name, inputs, outputs, args))] == expected


@pytest.mark.parametrize("name, whole, some", [("sum_exp", 1, 2), ("cross_entropy_backward", 0, 2)])
def test_a_loss_of_some_of_the_classes_looks_for_the_largest_of_what_it_has(name, whole, some):
    shapes = ((4, 32), (4,)) if name == "sum_exp" else ((4,), (4, 32), (4,), (4,), (4,), (32,))
    made = ((4,),) if name == "sum_exp" else ((4, 32),)
    for num_classes, walks in ((32, whole), (64, some)):
        found = parts_of(site(f"autopar.{name}", shapes, made, (("num_classes" if name == "sum_exp" else "num_rows", num_classes),)))
        assert [times for family, _, times in found if family == "row_sum"] == [walks]


def test_the_last_rank_of_a_split_sequence_has_most_of_causal_attention():
    node = Node("n", "autopar.attention", tuple("abcd"), (("query", Ref(0)), ("key", Ref(1)), ("value", Ref(2)), ("is_causal", True), ("rows", Ref(3))), ("o", "p"), Phase.FORWARD)
    s = Site(node, ((2, 4, 64, 32),) * 3 + ((64,),), ((2, 4, 64, 32), (2, 4, 64)), ("float32",) * 3 + ("int64",))
    split, heads = (2 * 4 * 32 * 32, 2 * 4 * 64 * 32, 2 * 4 * 64 * 32, 32), (4 * 64 * 32,) * 3 + (64,)
    (part,) = node_parts(node.op, s, np.array([split, heads]).T, 4, np.zeros(2), np.zeros(2))
    assert part.family == "attention" and part.shapes[:, 0].tolist() == [8, 4]
    assert part.shapes[:, 1] ** 2 == pytest.approx([64 * 64 * 0.75, 64 * 64])  # three quarters of the pairs on the last of two


def test_convolutions_are_squares_with_their_own_flops():
    given = (("groups", 1), ("stride", (2, 2)))
    s = site("aten.convolution.default", ((2, 8, 16, 16), (32, 8, 3, 3)), ((2, 32, 8, 8),), given)
    ((family, shape, times),) = parts_of(s, flops=2.0 * 2 * 8 * 32 * 64 * 9)
    assert (family, shape, times) == ("conv", (2, 8, 32, 8, 3), pytest.approx(1))
    both = (("output_mask", (True, True, False)), ("groups", 1))
    s = site("aten.convolution_backward.default", ((2, 32, 16, 16), (2, 8, 16, 16), (32, 8, 3, 3)), ((2, 8, 16, 16), (32, 8, 3, 3)), both)
    found = parts_of(s, flops=2 * 2.0 * 2 * 8 * 32 * 256 * 9)
    assert [f[0] for f in found] == ["conv_input_grad", "conv_weight_grad"]
    assert all(f[1:] == ((2, 8, 32, 16, 3), pytest.approx(1)) for f in found)


def seconds_of(s, flops=0.0, parts=1):
    found = elements(s, parts)
    given = np.array([flops / parts]), 4.0 * found.sum(axis=0)
    return float(node_seconds(MEASURED, s.node.op, s, "float32", found, len(s.inputs), *given)[0])


def test_a_measured_shape_costs_what_was_measured():
    s = site("autopar.linear", ((512, 512), (512, 512)), ((512, 512),))
    assert seconds_of(s, 2.0 * 512**3) == pytest.approx(true_s("matmul", "float32", (512, 512, 512)), rel=1e-12)
    large = site("aten.neg.default", ((2**23,),), ((2**23,),))
    assert seconds_of(large) == pytest.approx(op_seconds(ROWS, "pointwise", "float32", (2**26,), RANKS).seconds, rel=1e-3)


def test_what_a_cache_holds_in_a_profile_comes_from_memory_in_a_step():
    s = site("aten.neg.default", ((2**18,),), ((2**18,),))
    hot = op_seconds(ROWS, "pointwise", "float32", (2**21,), RANKS).seconds
    assert hot == pytest.approx(LAUNCH + 2**21 / (5 * BANDWIDTH), rel=1e-6)
    assert seconds_of(s) == pytest.approx(LAUNCH + 2**21 / MODEL.memory_bytes_per_s, rel=1e-3)
    gelu = site("aten.gelu.default", ((2**23,),), ((2**23,),))
    assert seconds_of(gelu) == pytest.approx(true_s("gelu", "float32", (2**26,)), rel=1e-9)


def test_bytes_never_cost_less_when_there_are_more():
    noisy = replace(ROWS, ops=tuple(replace(r, seconds=r.seconds * (3 if r.shape == (2**21,) else 1)) for r in ROWS.ops),
                    comms=tuple(replace(r, seconds=r.seconds * (30 if r.num_bytes == 2**16 else 1)) for r in ROWS.comms))  # fmt: skip
    model = build_cost_model(parse_cluster("cpu:4"), noisy)
    sizes = np.unique(np.exp(np.linspace(0, 20, 400)).astype(np.int64))
    copied = copy_seconds(model.measured, sizes)
    sent = wire_seconds(model.measured, "all_reduce", (4, 1), sizes)
    written = np.array([write_seconds(model.measured, int(n)) for n in sizes])
    for found in (copied, sent, written):
        assert (found > 0).all() and (np.diff(found) >= -1e-12 * found[1:]).all()
    assert copy_seconds(model.measured, np.array([0, 4])).tolist()[0] == 0.0


def test_rising_averages_what_falls():
    assert rising([1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]
    assert rising([1.0, 4.0, 1.0, 8.0]) == pytest.approx([1.0, 2.0, 2.0, 8.0])
    assert rising([4.0, 2.0, 1.0]) == pytest.approx([2.0, 2.0, 2.0])


# --- the laws of the solver ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", list(PLANS))
def test_the_solver_and_the_estimate_add_up_to_the_same(plan):
    made = Made(*PLANS[plan])
    cost = estimate_program(MODEL, made.program, made.sites, made.signatures, made.strategies)
    assert cost.step_s == pytest.approx(_solver_s(made, MODEL), rel=1e-12)
    assert cost.step_s != pytest.approx(_solver_s(made, replace(MODEL, measured=None)), rel=1e-6)


@pytest.mark.parametrize("size", [(8, 16, 32), (4096, 512, 2048)])
def test_no_division_of_a_node_takes_less_than_its_share_of_the_bound(size):
    graph = build_toy(*size)
    case = build_case(graph, RULES)
    values = value_table(graph)
    mesh = (2, 2)
    for node, s, signature in zip(graph.nodes, case.sites, case.signatures):
        dtypes = site_dtypes(node, values)
        least = least_node_s(MODEL, signature, s, dtypes)
        strategies = list_strategies(signature, s, mesh, node_cuts(s, signature, case.cuts))[0]
        found = estimate_strategies_s(MODEL, signature, s, dtypes, strategies, mesh)
        views = node.op == "aten.permute.default"
        assert views or min(found) >= least / 4 + MODEL.launch_s
    for n in (1, 2, 16):
        assert estimate_write_s(MODEL, 2**24 // n) >= least_write_s(MODEL, 2**24) / n + MODEL.launch_s
    roofline = estimate_roofline(MODEL, case)
    assert roofline.loop_s > 0 and roofline.once_s > 0
    assert write_least_s(MEASURED, 2**24) > 0


def test_equal_profiles_are_one_object():
    again = ProfileRows(MACHINE, tuple(ROWS.ops), tuple(ROWS.comms))
    assert measured_rows(again, 4, 1e-6, 1e10) is measured_rows(ROWS, 4, 1e-6, 1e10)
    assert build_cost_model(parse_cluster("cpu:4"), again) == MODEL


# --- collectives ----------------------------------------------------------------------------------------------------------------


def test_collectives_go_by_group():
    mesh = Mesh((MeshAxis("a", 2), MeshAxis("b", 2)))
    links = [axis_link(MODEL, mesh, axis) for axis in (0, 1)]
    assert links == [AxisLink(2, 2, 2), AxisLink(2, 2, 1)]
    for link, group in zip(links, ((2, 2), (2, 1))):
        found = estimate_comm_s(MODEL, StepKind.ALL_GATHER, link, 2**15, 2**16)
        assert found == pytest.approx(comm_seconds(ROWS, "all_gather", group, RANKS, 2**16).seconds, rel=1e-12)
        assert found == pytest.approx(wire_s("all_gather", group, 2**16), rel=1e-12)
    reduced = estimate_comm_s(MODEL, StepKind.ALL_REDUCE, AxisLink(4, 4), 2**20, 2**20)
    copied = float(copy_seconds(MEASURED, np.array([2**21]))[0])
    assert reduced == pytest.approx(wire_s("all_reduce", (4, 1), 2**20) + copied, rel=1e-12), "the runtime reduces a copy"


def test_ranks_that_wait_for_each_other_pay_for_meeting():
    """On the axis that was measured; not what travels in buckets beside compute. Less than nothing is nothing."""
    alone = wire_s("all_reduce", (2, 1), 2**16)
    rows = [comm(MEETING, (2, 1), RANKS, 2**16, 1e-2 + alone + 3e-3, beside_s=1e-2), comm(MEETING, (2, 1), RANKS, 2**20, 1e-2, beside_s=2e-2)]
    model = build_cost_model(parse_cluster("cpu:4"), replace(ROWS, comms=(*ROWS.comms, *rows)))
    assert meeting_seconds(model.measured, (2, 1)) == pytest.approx(1.5e-3) and meeting_seconds(model.measured, (2, 2)) == 0.0
    sizes = 2**18, 2**18
    for link, met in ((AxisLink(2, 2, 1), 1.5e-3), (AxisLink(2, 2, 2), 0.0)):
        found = [estimate_comm_s(model, StepKind.ALL_REDUCE, link, *sizes, transfer=way) - estimate_comm_s(MODEL, StepKind.ALL_REDUCE, link, *sizes, transfer=way) for way in Transfer]
        assert dict(zip(Transfer, found)) == {Transfer.BLOCKING: pytest.approx(met), Transfer.STATE: pytest.approx(0), Transfer.GRAD: pytest.approx(0)}
        assert estimate_comm_s(model, StepKind.SLICE, link, *sizes) == estimate_comm_s(MODEL, StepKind.SLICE, link, *sizes)


def test_a_gather_of_states_is_a_meeting_that_its_bucket_shares():
    """Every block waits for its gathers before it works. A reduction of gradients only the update waits for."""
    alone = wire_s("all_reduce", (2, 1), 2**16)
    rows = ROWS.comms + (comm(MEETING, (2, 1), RANKS, 2**16, 1e-2 + alone + 4e-3, beside_s=1e-2),)
    with_states = {"bucket_bytes": 2**20, "state_bucket_bytes": 2**20}
    model = replace(build_cost_model(parse_cluster("cpu:4"), replace(ROWS, comms=rows)), **with_states)
    plain = replace(MODEL, **with_states)
    link, sizes = AxisLink(2, 2, 1), (2**17, 2**18)  # a quarter of a bucket

    def longer(kind, way, ends):
        return estimate_comm_s(model, kind, link, *ends, transfer=way) - estimate_comm_s(plain, kind, link, *ends, transfer=way)

    assert longer(StepKind.ALL_GATHER, Transfer.STATE, sizes) == pytest.approx(1e-3)
    assert longer(StepKind.ALL_GATHER, Transfer.BLOCKING, sizes) == pytest.approx(4e-3)
    assert longer(StepKind.REDUCE_SCATTER, Transfer.GRAD, sizes[::-1]) == pytest.approx(0)


def test_what_the_profile_lacks_is_priced_by_the_formula():
    few = replace(ROWS, ops=tuple(r for r in ROWS.ops if r.family in ("launch", "copy", "add_into")), comms=())
    model = build_cost_model(parse_cluster("cpu:4"), few)
    plain = replace(model, measured=None)
    s = site("aten.neg.default", ((64, 64),), ((64, 64),))
    assert node_seconds(model.measured, s.node.op, s, "float32", elements(s), 1, np.zeros(1), np.array([2.0**15])) is None
    assert len({estimate_comm_s(m, StepKind.ALL_GATHER, AxisLink(4, 4), 64, 256) for m in (model, plain)}) == 1
    half = replace(ROWS, ops=tuple(r for r in ROWS.ops if r.dtype == "float32"))
    found = build_cost_model(parse_cluster("cpu:4"), half).measured
    s = site("autopar.linear", ((512, 512), (512, 512)), ((512, 512),))
    args = (s.node.op, s)
    given = elements(s), 2, np.array([2.0 * 512**3]), np.array([1.0])
    assert node_seconds(found, *args, "bfloat16", *given) == node_seconds(found, *args, "float32", *given)
    assert node_seconds(found, *args, "float64", *given) == pytest.approx(2 * node_seconds(found, *args, "float32", *given))
