"""Convolution seconds: published kernels, also those that no fit saw; monotony, bounds, divisions, groups, and the way from a node to its sizes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from autopar.cluster import parse_cluster
from autopar.cost.convolution import Sizes, Windows, convolution_seconds, find_convolution_rates, find_windows, least_convolution_seconds, local_sizes, make_windows, uses_tensor_cores
from autopar.cost.matmul import find_matmul_rates, list_matmul_rates, matmul_level
from autopar.cost.model import build_cost_model
from autopar.cost.ops import estimate_op_s, estimate_strategies_s, least_node_s
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.rule import Site, count_flops, resolve
from autopar.graph.rules.convolution import ROWS as RULES
from autopar.graph.sharding import local_elements
from autopar.graph.strategy import list_strategies
from benchmarks.conv_fit import errors_of, held_out, judged_rows, predict, read_rows

ROWS = read_rows()
JUDGED = judged_rows(ROWS)
HELD = held_out([row for row in ROWS if row.source in ("a", "v")])
A100, V100 = find_matmul_rates("A100-40GB"), find_matmul_rates("V100")
ALL = ("gather", "scatter", "weight")
MODEL = build_cost_model(parse_cluster("4xA100-80GB"))


@pytest.mark.parametrize(
    ("asked", "median", "high"),
    [
        (lambda r: True, 0.09, 0.23),
        (lambda r: r.shape in HELD, 0.08, 0.13),
        (lambda r: r.passes == "forward", 0.09, 0.23),
        (lambda r: r.passes == "backward", 0.09, 0.23),
        (lambda r: r.device == "V100", 0.10, 0.27),
        (lambda r: r.layout == "contiguous", 0.09, 0.20),
    ],
)
def test_published_kernels(asked, median, high):
    error = abs(errors_of([row for row in JUDGED if asked(row)]))
    assert np.median(error) < median and np.percentile(error, 90) < high


def test_published_kernels_of_float32_and_of_groups():
    """Two rows of float32, one of 32 groups: within a quarter."""
    others = [row for row in ROWS if row.source in ("p", "g")]
    assert len(others) == 3
    assert all(abs(predict(row) / row.seconds - 1) < 0.25 for row in others)


def test_rows_that_measure_the_host_are_left_out():
    assert len(JUDGED) == 140 and len([row for row in ROWS if row.source in ("a", "v")]) == 184
    assert min(row.seconds for row in JUDGED) > 1e-4


@pytest.mark.parametrize("rates", list_matmul_rates(), ids=lambda r: r.name)
@pytest.mark.parametrize(("dtype", "groups"), [("float16", 1), ("float32", 1), ("float16", 16)])
def test_no_size_makes_it_faster(rates, dtype, groups):
    grown = np.concatenate([np.arange(1, 300), np.arange(300, 5000, 61)]).astype(float)
    windows = Windows(ALL, 27, 27 / 8, True, groups)
    for base in ((262144.0, 32768.0, 32.0, 64.0, 1.0), (4096.0, 512.0, 320.0, 320.0, 1.0), (1000.0, 1000.0, 3.0, 5.0, 16.0)):
        for place in range(5):
            sizes = [*base[:place], grown, *base[place + 1 :]]
            seconds = convolution_seconds(rates, windows, Sizes(*sizes), dtype)
            assert seconds.shape == grown.shape and (np.diff(seconds) >= -1e-15).all()


@pytest.mark.parametrize("rates", list_matmul_rates(), ids=lambda r: r.name)
@pytest.mark.parametrize(("dtype", "groups"), [("float16", 1), ("float32", 1), ("float16", 16)])
def test_devices_that_share_it_take_together_no_less_than_the_bound(rates, dtype, groups):
    windows = Windows(ALL, 27, 27 / 8, True, groups)
    whole = (262144.0, 32768.0, 64.0, 128.0, float(groups))
    least = least_convolution_seconds(rates, windows, Sizes(*whole), dtype)
    alone = convolution_seconds(rates, windows, Sizes(*whole), dtype)
    assert 0 < least <= alone
    for n in (2, 8, 64):
        for places in ((0, 1), (2,), (3,)):
            sizes = [size / n if i in places else size for i, size in enumerate(whole)]
            assert n * convolution_seconds(rates, windows, Sizes(*sizes), dtype) >= least
            assert n * convolution_seconds(rates, windows, Sizes(*sizes), dtype) >= 0.99 * alone or places == (3,)  # a shorter sum needs no splits


def test_few_channels_take_as_long_as_a_block_of_them():
    windows = make_windows(("gather",), 27, 1, 128**3, 128**3)
    few, many = (convolution_seconds(A100, windows, Sizes(2e6, 2e6, c, 64.0), "float16", channels_last=True) for c in (4.0, 32.0))
    assert few == pytest.approx(many, rel=0.05)
    by_core = [convolution_seconds(A100, windows, Sizes(2e6, 2e6, c, 64.0), "float32") for c in (4.0, 32.0)]
    assert by_core[0] < by_core[1] / 3


def test_contiguous_tensors_are_copied_for_tensor_cores_alone():
    windows = make_windows(("gather",), 9, 1, 56**2, 56**2)
    sizes = Sizes(3e5, 3e5, 64.0, 64.0)
    lies, last = (convolution_seconds(A100, windows, sizes, "float16", channels_last=word) for word in (False, True))
    copies = 2 * 2 * (2 * 3e5 * 64 + 9 * 64 * 64) / (find_convolution_rates("A100").transpose_share * A100.memory_bytes_per_s)
    assert lies - last == pytest.approx(copies + 3 * A100.kernel_s)
    assert convolution_seconds(A100, windows, sizes, "float32") == convolution_seconds(A100, windows, sizes, "float32", channels_last=True)


def test_a_float32_beyond_the_data_sheet_is_tf32():
    half = matmul_level(A100, "float16")
    assert uses_tensor_cores(A100, "float16") and not uses_tensor_cores(A100, "float32")
    assert uses_tensor_cores(replace(A100, flops_per_s=(("float16", half), ("float32", half / 2))), "float32")


def test_depthwise_takes_its_bytes():
    windows = make_windows(("gather",), 9, 1, 56**2, 56**2, 256)
    rows = 64 * 56.0**2
    seconds = convolution_seconds(A100, windows, Sizes(rows, rows, 1.0, 1.0, 256.0), "bfloat16")
    moved = 2 * 2 * rows * 256 / A100.memory_bytes_per_s
    assert moved < seconds < 3 * moved
    assert seconds < convolution_seconds(A100, make_windows(("gather",), 9, 1, 56**2, 56**2), Sizes(rows, rows, 256.0, 256.0), "bfloat16")


# --- nodes ------------------------------------------------------------------------------------------------------------------------


def conv(before, weight, after, stride=1, padding=1, transposed=False, groups=1, mask=None):
    dims = len(weight) - 2
    args = (("stride", (stride,) * dims), ("padding", (padding,) * dims), ("dilation", (1,) * dims), ("transposed", transposed), ("output_padding", (0,) * dims), ("groups", groups))
    if mask is None:
        node = Node("conv", "aten.convolution.default", ("x", "w"), (("input", Ref(0)), ("weight", Ref(1)), ("bias", None), *args), ("y",), Phase.FORWARD)
        return Site(node, (before, weight), (after,), ("bfloat16",) * 2)
    own = (("grad_output", Ref(0)), ("input", Ref(1)), ("weight", Ref(2)), ("bias_sizes", None), *args, ("output_mask", mask))
    node = Node("conv", "aten.convolution_backward.default", ("y", "x", "w"), own, ("gx" * mask[0], "gw" * mask[1], ""), Phase.BACKWARD)
    return Site(node, (after, before, weight), (before,) * mask[0] + (weight,) * mask[1], ("bfloat16",) * 3)


CASES = {
    "plain": ((8, 64, 32, 32), (128, 64, 3, 3), (8, 128, 32, 32)),
    "strided": ((8, 64, 32, 32), (128, 64, 3, 3), (8, 128, 16, 16), 2),
    "patches": ((8, 16, 32, 32), (128, 16, 4, 4), (8, 128, 8, 8), 4, 0),
    "transposed": ((8, 128, 16, 16), (128, 64, 2, 2), (8, 64, 32, 32), 2, 0, True),
    "grouped": ((8, 64, 32, 32), (128, 16, 3, 3), (8, 128, 32, 32), 1, 1, False, 4),
    "depthwise": ((8, 64, 32, 32), (64, 1, 3, 3), (8, 64, 32, 32), 1, 1, False, 64),
    "volume": ((2, 32, 16, 16, 16), (64, 32, 3, 3, 3), (2, 64, 8, 8, 8), 2),
}  # fmt: skip


def strategies_of(site, signature, mesh):
    return list_strategies(signature, site, mesh, {factor.name: () for factor in signature.factors})[0]


def test_parts_of_a_node():
    assert find_windows(conv(*CASES["plain"])) == Windows(("gather",), 9, 9.0, False, 1)
    assert find_windows(conv(*CASES["strided"], mask=(True, True, False))) == Windows(("scatter", "weight"), 9, 9 / 4, True, 1)
    assert find_windows(conv(*CASES["volume"], mask=(False, True, False))).parts == ("weight",)
    assert find_windows(conv(*CASES["transposed"])) == Windows(("scatter",), 4, 1.0, True, 1)
    assert find_windows(conv(*CASES["transposed"], mask=(True, True, False))).parts == ("gather", "weight")
    assert find_windows(conv((8, 512, 129, 129), (512, 512, 3, 3), (8, 512, 97, 97), 1, 0)).reach == pytest.approx(9 * 97**2 / 129**2)


@pytest.mark.parametrize("mask", [None, (True, True, False)])
@pytest.mark.parametrize("case", list(CASES))
def test_local_sizes_are_told_by_numbers_of_elements(case, mask):
    site = conv(*CASES[case], mask=mask)
    signature = resolve(RULES[mask is not None], site)
    windows = find_windows(site)
    before, weight, after = CASES[case][:3]
    long, short = (after, before) if case == "transposed" else (before, after)
    elements = [prod(s) for s in (*site.inputs, *site.outputs)]
    whole = local_sizes(site, windows, np.array([elements]).T)
    rows = long[0] * prod(long[2:]), short[0] * prod(short[2:])
    assert (whole.long_rows, whole.short_rows, whole.groups) == (*rows, windows.groups)
    assert (whole.long_channels * windows.groups, whole.short_channels * windows.groups) == (long[1], short[1])
    for strategy in strategies_of(site, signature, (2,)):
        local = [local_elements(s, sharding, (2,)) for s, sharding in zip((*site.inputs, *site.outputs), (*strategy.inputs, *strategy.outputs))]
        found = local_sizes(site, windows, np.array([local]).T)
        divided = {name: np.divide(getattr(whole, name), getattr(found, name)).item() for name in ("long_rows", "short_rows", "long_channels", "short_channels", "groups")}
        expected = {"n": "rows", "y0": "rows", "y1": "rows", "g": "groups", ("o" if case == "transposed" else "i"): "long_channels", ("i" if case == "transposed" else "o"): "short_channels"}
        word = expected.get(strategy.choices[0])
        assert divided == {name: pytest.approx(2.0 if word and name.endswith(word) else 1.0) for name in divided}


@pytest.mark.parametrize("mask", [None, (True, True, False), (False, True, False)])
@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("device", ["A100-80GB", "V100-16GB", "H100-80GB"])
def test_no_division_of_a_node_takes_less_than_its_share_of_the_bound(case, mask, dtype, device):
    model = build_cost_model(parse_cluster(f"4x{device}"))
    site = conv(*CASES[case], mask=mask)
    signature = resolve(RULES[mask is not None], site)
    tensors = [[(shape, dtype) for shape in shapes] for shapes in (site.inputs, site.outputs)]
    dtypes = (dtype,) * (len(site.inputs) + len(site.outputs))
    least = least_node_s(model, signature, site, dtypes)
    assert 0 < least <= estimate_op_s(model, site.node.op, count_flops(signature, site), *tensors, site)
    found = estimate_strategies_s(model, signature, site, dtypes, strategies_of(site, signature, (2, 2)), (2, 2))
    assert len(found) > 4 and min(found) >= least / 4 + model.launch_s


def test_devices_without_rates_take_their_flops():
    model = build_cost_model(parse_cluster("cpu:4"))
    site = conv(*CASES["plain"])
    flops = count_flops(resolve(RULES[0], site), site)
    seconds = estimate_op_s(model, site.node.op, flops, [(s, "float32") for s in site.inputs], [(s, "float32") for s in site.outputs], site)
    assert seconds == pytest.approx(flops / dict(model.flops_per_s)["float32"] + model.launch_s)
