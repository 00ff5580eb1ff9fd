"""How values lie in memory: pitches and spans by hand, views against torch's own, and what kernels of a program read and write where it lies."""

import random
from dataclasses import replace

import pytest

from autopar.graph.kernel import Kernel, kernel_node
from autopar.graph.layouts import _in_order, _made_by, lay_out, row_pitch, span
from autopar.graph.node import Ref
from autopar.graph.tensor import Kind, num_elements
from autopar.graph.view_strides import is_copied, packed

from .drafts import make_graph, node, value

# --- by hand


def test_rows_of_wide_16_bit_results_begin_at_16_bytes():
    assert row_pitch(50257, "bfloat16") == row_pitch(50257, "float16") == 50264
    assert row_pitch(1025, "bfloat16") == 1032 and row_pitch(1032, "bfloat16") == 1032
    assert row_pitch(1023, "bfloat16") == 1023 and row_pitch(50257, "float32") == 50257, "narrow rows and other dtypes are packed"


def test_packed_is_row_by_row():
    assert packed((2, 3, 4)) == (12, 4, 1) and packed(()) == () and packed((5,)) == (1,) and packed((2, 1, 3)) == (3, 3, 1)
    assert packed((2, 0, 3)) == (3, 3, 1)


@pytest.mark.parametrize(
    ("shape", "strides", "elements"),
    [
        ((), (), 1), ((7,), (1,), 7), ((3, 0), (1, 1), 0), ((2, 3, 4), (12, 4, 1), 24),
        ((3, 1030), (1032, 1), 3 * 1032),  # what is behind the last row is as behind the others
        ((2, 16, 1030), (16 * 1032, 1032, 1), 32 * 1032), ((1, 1030), (1032, 1), 1030),
        ((2, 4, 16, 8), (512, 8, 32, 1), 1024),  # heads of rows that hold all of them
        ((4, 3), (1, 4), 12), ((4, 5), (0, 1), 5), ((3, 4), (8, 2), 23),
    ],
    ids=str,
)  # fmt: skip
def test_spans_by_hand(shape, strides, elements):
    assert span(shape, strides) == elements


def test_a_packed_value_takes_its_elements():
    """Also where the last dim holds one: there are no rows that something is behind."""
    for seed in range(50):
        rng = random.Random(seed)
        shape = tuple(rng.randint(0, 4) for _ in range(rng.randint(0, 4))) + (1,) * rng.randint(0, 2)
        assert span(shape, packed(shape)) == num_elements(shape), shape


def test_dims_keep_the_order_in_which_they_lie():
    assert _in_order((2, 4, 16, 8), (512, 8, 32, 1)) == (512, 8, 32, 1)
    assert _in_order((2, 4, 16, 8), (1536, 8, 96, 1)) == (512, 8, 32, 1), "of rows that hold queries, keys and values"
    assert _in_order((3, 1030), (1032, 1)) == (1030, 1) and _in_order((), ()) == ()
    for seed in range(50):
        rng = random.Random(seed)
        shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 4)))
        order = rng.sample(range(len(shape)), len(shape))
        inner = packed([shape[d] for d in order])
        dense = tuple(inner[order.index(d)] for d in range(len(shape)))
        found = _in_order(shape, tuple(step * 3 for step in dense))
        assert span(shape, found) == num_elements(shape) and all(size == 1 or a == b for size, a, b in zip(shape, found, dense))


def test_what_several_heads_share_is_a_copy_in_another_shape():
    assert is_copied((2, 2, 4, 16, 8), (256, 128, 0, 8, 1), (2, 8, 16, 8))
    assert not is_copied((2, 2, 1, 16, 8), (256, 128, 128, 8, 1), (2, 2, 16, 8))
    assert not is_copied((2, 4, 16), (64, 16, 1), (8, 16)) and is_copied((2, 4, 16), (64, 1, 4), (2, 64)) and not is_copied((), (), (1, 1))


# --- against torch


def _factors(rng, elements):
    """A shape of so many elements, ones among its dims."""
    shape = []
    while elements > 1 and rng.random() < 0.8:
        shape.append(rng.choice([d for d in range(1, elements + 1) if elements % d == 0]))
        elements //= shape[-1]
    return (*shape, elements) if elements > 1 or rng.random() < 0.2 else tuple(shape)


def _strided(torch, rng, shape):
    """A tensor of this shape: packed, permuted, with gaps or expanded."""
    kind = rng.choice(("packed", "permuted", "gaps", "expanded"))
    if kind == "permuted":
        order = rng.sample(range(len(shape)), len(shape))
        return torch.empty([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])
    if kind == "gaps":
        return torch.empty([size + rng.choice((0, 0, 1, 3)) for size in shape])[tuple(slice(0, size) for size in shape)]
    return torch.empty([rng.choice((1, size)) for size in shape]).expand(shape) if kind == "expanded" else torch.empty(shape)


def _view_strides(op, x, shape, **attributes):
    """The strides of a view, as `lay_out` finds them."""
    return _made_by(node(op, ("x",), "y", **attributes), [x.stride()], [tuple(x.shape)], {"y": tuple(shape)})["y"]


def _alike(shape, found, wanted):
    return all(size == 1 or a == b for size, a, b in zip(shape, found, wanted, strict=True))


@pytest.mark.torch
def test_another_shape_is_a_view_where_it_is_torchs():
    torch = pytest.importorskip("torch")
    rng, copies = random.Random(0), 0
    for _ in range(4000):
        elements = rng.choice((1, 2, 4, 6, 12, 24, 36, 60))
        x, shape = _strided(torch, rng, _factors(rng, elements)), _factors(rng, elements)
        found = _view_strides("aten.view.default", x, shape, size=shape)
        try:
            wanted = x.view(shape).stride()
        except RuntimeError:
            wanted = None
        assert is_copied(tuple(x.shape), x.stride(), shape) == (found is None) == (wanted is None), (x.shape, x.stride(), shape)
        assert found is None or _alike(shape, found, wanted), (x.shape, x.stride(), shape, found)
        copies += found is None
    assert 400 < copies < 3600


@pytest.mark.torch
def test_other_views_lie_as_torchs():
    torch = pytest.importorskip("torch")
    rng = random.Random(1)
    for _ in range(400):
        shape = tuple(rng.randint(1, 5) for _ in range(rng.randint(1, 4)))
        x, rank = _strided(torch, rng, shape), len(shape)
        a, b, step = rng.randrange(-rank, rank), rng.randrange(-rank, rank), rng.randint(1, 3)
        start, dims = rng.randrange(shape[a]), tuple(d - rng.choice((0, rank)) for d in rng.sample(range(rank), rank))
        wide = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2))) + tuple(rng.randint(2, 4) if size == 1 else size for size in shape)
        cases = [
            (x.permute(dims), "aten.permute.default", {"dims": dims}),
            (x.transpose(a, b), "aten.transpose.int", {"dim0": a, "dim1": b}),
            (x.narrow(a, start, shape[a] - start)[(slice(None),) * (a % rank) + (slice(None, None, step),)], "aten.slice.Tensor", {"dim": a, "start": start, "step": step}),
            (x.select(a, start), "aten.select.int", {"dim": a, "index": start}),
            (x.expand(wide), "aten.expand.default", {"size": wide}),
            (x.unsqueeze(a), "aten.unsqueeze.default", {"dim": a}),
            (x.squeeze(), "aten.squeeze.default", {}),
            (x.detach(), "aten.detach.default", {}),
        ]
        cases += [(x.t(), "aten.t.default", {})] if rank <= 2 else []
        for wanted, op, attributes in cases:
            found = _view_strides(op, x, wanted.shape, **attributes)
            assert _alike(wanted.shape, found, wanted.stride()), (op, attributes, x.shape, x.stride(), found, wanted.stride())


def test_what_is_no_view_has_no_strides():
    add = node("aten.add.Tensor", ("x", "y"), "z")
    assert _made_by(add, [(1, 4), (1, 4)], [(4, 4), (4, 4)], {"z": (4, 4)}) == {}
    assert _made_by(node("comm.all_reduce", ("x",), "z", axis="a"), [(1, 4)], [(4, 4)], {"z": (4, 4)}) == {}


# --- a program

QUERY = (2, 4, 16, 8)  # batch, heads, seq, d
ROWS = (16 * 32, 8, 32, 1)  # as it lies in rows that hold all heads


def _kernel(name, shape, **rest):
    """A kernel of two operands of one shape."""
    entering = [value(k, shape, Kind.BATCH, "bfloat16") for k in ("a", "b")]
    graph = make_graph(entering, [(node("aten.add.Tensor", ("a", "b"), "add"), value("add", shape, dtype="bfloat16"))], outputs=("add",))
    return Kernel(name, graph, rest.get("into", ()), rest.get("any_shape", False), ())


def _call(kernel, a, b, out):
    return kernel_node(kernel, (a, b), (out,), node("aten.add.Tensor", (a, b), out))


def _attend(query, key, made, summed):
    refs = tuple((name, Ref(k)) for k, name in enumerate(("query", "key", "value")))
    return replace(node("autopar.attention", (), made), inputs=(query, key, key), args=refs, outputs=(made, summed))


def _laid(inputs, steps, kernels, made=()):
    graph = make_graph(inputs, steps)
    graph = replace(graph, values=(*graph.values, *made))
    found = lay_out(graph, {f"kernel.{k.name}": k for k in kernels})
    return [dict(found[number].layouts) for number in sorted(found)]


def _half(name, shape, kind=Kind.ACTIVATION):
    return value(name, shape, kind, "bfloat16")


def test_kernels_read_a_query_as_it_lies_and_attention_leaves_it_so():
    kernel, after = _kernel("rotate", QUERY), _kernel("scale", (2, 16, 32))
    steps = [
        (node("autopar.linear", ("x", "w"), "linear", names=("input", "weight")), _half("linear", (2, 16, 32))),
        (node("aten.view.default", ("linear",), "heads", size=(2, 16, 4, 8)), _half("heads", (2, 16, 4, 8))),
        (node("aten.permute.default", ("heads",), "query", dims=(0, 2, 1, 3)), _half("query", QUERY)),
        (_call(kernel, "query", "other", "rotated"), _half("rotated", QUERY)),
        (_attend("rotated", "other", "out", "summed"), _half("out", QUERY)),
        (_call(kernel, "out", "out", "twice"), _half("twice", QUERY)),
        (node("aten.permute.default", ("out",), "back", dims=(0, 2, 1, 3)), _half("back", (2, 16, 4, 8))),
        (node("aten.view.default", ("back",), "rows", size=(2, 16, 32)), _half("rows", (2, 16, 32))),
        (_call(after, "rows", "linear", "end"), _half("end", (2, 16, 32))),
    ]
    entering = [_half("x", (2, 16, 32), Kind.BATCH), _half("w", (32, 32), Kind.PARAM), _half("other", QUERY, Kind.BATCH)]
    rotated, twice, end = _laid(entering, steps, [kernel, after], [value("summed", QUERY[:-1])])
    assert rotated == {"a": ROWS, "add": ROWS} and twice == {"a": ROWS, "b": ROWS, "add": ROWS}
    assert end == {}, "what was turned back lies row by row"


def test_what_lies_like_the_second_operand_alone_is_left_row_by_row():
    kernel = _kernel("rotate", QUERY)
    steps = [
        (node("aten.permute.default", ("x",), "query", dims=(0, 2, 1, 3)), _half("query", QUERY)),
        (_call(kernel, "other", "query", "rotated"), _half("rotated", QUERY)),
    ]
    [rotated] = _laid([_half("x", (2, 16, 4, 8), Kind.BATCH), _half("other", QUERY, Kind.BATCH)], steps, [kernel])
    assert rotated == {"b": ROWS}


@pytest.mark.parametrize(("width", "pitch"), [(1030, 1032), (1032, 0), (30, 0)])
def test_an_odd_linear_is_read_and_left_with_its_pitch(width, pitch):
    shape, strides = (2, 3, width), (3 * pitch, pitch, 1)
    kernel = _kernel("act", shape)
    steps = [
        (node("autopar.linear", ("x", "w"), "linear", names=("input", "weight")), _half("linear", shape)),
        (_call(kernel, "linear", "other", "act"), _half("act", shape)),
        (node("aten.view.default", ("act",), "flat", size=(6, width)), _half("flat", (6, width))),
        (_call(_kernel("flat", (6, width)), "flat", "flat", "end"), _half("end", (6, width))),
    ]
    entering = [_half("x", (2, 3, 8), Kind.BATCH), _half("w", (width, 8), Kind.PARAM), _half("other", shape, Kind.BATCH)]
    first, second = _laid(entering, steps, [kernel, _kernel("flat", (6, width))])
    assert first == ({"a": strides, "add": strides} if pitch else {})
    assert second == ({"a": (pitch, 1), "b": (pitch, 1), "add": (pitch, 1)} if pitch else {})


@pytest.mark.parametrize("kept", ["expanded", "into", "any shape", "half of it"])
def test_what_is_left_row_by_row(kept):
    """Values of which elements share a place, states that are rewritten, what kernels of any shape read; results where most of the memory would be nobody's."""
    shape = (4, 6)
    kernel = _kernel("k", shape, into=((0, 0),) if kept == "into" else (), any_shape=kept == "any shape")
    view = {
        "expanded": node("aten.expand.default", ("row",), "seen", size=shape),
        "half of it": node("aten.slice.Tensor", ("wide",), "seen", dim=1, start=0, end=6),
    }.get(kept, node("aten.t.default", ("x",), "seen"))
    steps = [(view, _half("seen", shape)), (_call(kernel, "seen", "seen", "made"), _half("made", shape))]
    entering = [_half("x", (6, 4), Kind.BATCH), _half("row", (1, 6), Kind.BATCH), _half("wide", (4, 12), Kind.BATCH)]
    [found] = _laid(entering, steps, [kernel])
    assert found == {"expanded": {}, "any shape": {}, "into": {"a": (1, 4), "b": (1, 4)}, "half of it": {"a": (12, 1), "b": (12, 1)}}[kept]


@pytest.mark.parametrize(
    ("base", "view", "shape", "strides", "roomy"),
    [
        ((6, 10000), ("slice.Tensor", {"dim": 1, "start": 0, "end": 9001}), (6, 9001), (10000, 1), True),
        ((6, 10000), ("slice.Tensor", {"dim": 1, "start": 999, "end": 10000}), (6, 9001), (10000, 1), False),
        ((6, 10000), ("slice.Tensor", {"dim": 1, "start": -9001, "end": 10000}), (6, 9001), (10000, 1), False),
        ((5, 10000), ("slice.Tensor", {"dim": 0, "start": 0, "end": 5, "step": 2}), (3, 10000), (20000, 1), False),
        ((6, 10000), ("slice.Tensor", {"dim": 0, "start": 0, "end": 5, "step": 2}), (3, 10000), (20000, 1), True),
        ((6, 3, 10000), ("select.int", {"dim": 1, "index": 1}), (6, 10000), (30000, 1), False),
        ((6, 3, 10000), ("select.int", {"dim": 1, "index": 0}), (6, 10000), (30000, 1), True),
        ((6, 3, 100), ("select.int", {"dim": 1, "index": 0}), (6, 100), (300, 1), False),
        ((2, 3, 10000), ("transpose.int", {"dim0": 0, "dim1": 1}), (3, 2, 10000), (10000, 30000, 1), False),
    ],
)
def test_a_kernel_walks_on_behind_rows_that_have_memory_there(base, view, shape, strides, roomy):
    """Not where a view begins within a row, where the last row ends the memory, or where rows of others lie between. Of rows that no kernel walks along it is not said: so
    kernels of the thirds of one tensor are one."""
    kernel = _kernel("k", shape)
    steps = [(node(f"aten.{view[0]}", ("x",), "seen", **view[1]), _half("seen", shape)), (_call(kernel, "seen", "seen", "made"), _half("made", shape))]
    [found] = lay_out(make_graph([_half("x", base, Kind.BATCH)], steps), {"kernel.k": kernel}).values()
    assert dict(found.layouts)["a"] == strides and [name for name in found.roomy if name != "add"] == (["a", "b"] if roomy else [])
    assert "add" not in found.roomy or dict(found.layouts)["add"] == strides


def test_a_copy_has_memory_of_its_own():
    """Of another size than what it was copied from: behind its last row there is nothing, though there was."""
    kernel = _kernel("k", (3, 9001))
    steps = [
        (node("aten.slice.Tensor", ("x",), "part", dim=1, start=0, end=10000), _half("part", (6, 10000))),
        (node("aten.reshape.default", ("part",), "copy", shape=(3, 20000)), _half("copy", (3, 20000))),
        (node("aten.slice.Tensor", ("copy",), "seen", dim=1, start=10000, end=19001), _half("seen", (3, 9001))),
        (_call(kernel, "seen", "seen", "made"), _half("made", (3, 9001))),
    ]
    [found] = lay_out(make_graph([_half("x", (6, 12000), Kind.BATCH)], steps), {"kernel.k": kernel}).values()
    assert dict(found.layouts)["a"] == (20000, 1) and "a" not in found.roomy


def test_a_result_like_a_linear_has_room_behind_its_rows():
    shape, pitch, kernel = (2, 3, 9001), 9008, _kernel("act", (2, 3, 9001))
    steps = [
        (node("autopar.linear", ("x", "w"), "linear", names=("input", "weight")), _half("linear", shape)),
        (_call(kernel, "linear", "other", "act"), _half("act", shape)),
        (node("aten.slice.Tensor", ("act",), "second", dim=0, start=1, end=2), _half("second", (1, 3, 9001))),
        (_call(_kernel("next", (1, 3, 9001)), "second", "second", "end"), _half("end", (1, 3, 9001))),
    ]
    entering = [_half("x", (2, 3, 8), Kind.BATCH), _half("w", (9001, 8), Kind.PARAM), _half("other", shape, Kind.BATCH)]
    first, second = lay_out(make_graph(entering, steps), {"kernel.act": kernel, "kernel.next": _kernel("next", (1, 3, 9001))}).values()
    assert dict(first.layouts) == {"a": (3 * pitch, pitch, 1), "add": (3 * pitch, pitch, 1)} and first.roomy == ("a", "add")
    assert dict(second.layouts)["a"] == (3 * pitch, pitch, 1) and second.roomy == ("a", "b", "add"), "its last row is the last of all"


@pytest.mark.torch
def test_kernels_of_a_gpt_with_rotary_embeddings():
    """Traced: the rotary kernel reads the query and both its halves, and the key and its, as they lie in the linear's rows, and leaves its results so; so does its gradient's."""
    torch = pytest.importorskip("torch")
    from codegen.kernel_cases import ADAMW, RotaryAttention, kernels_of

    from autopar import Workload

    workload = Workload(RotaryAttention(4, 4, 8, 1030), (torch.zeros(2, 16, 32),), (), lambda y: (y * y).mean(), ADAMW)
    kernels = {k.name: dict(k.layouts) for k in kernels_of(workload, "bf16")}
    assert kernels["mul_div_cos_add"] == dict.fromkeys(("permute", "slice", "slice_2", "add", "permute_2", "slice_3", "slice_4", "add_2"), ROWS)
    assert kernels["mul_cat_add"] == dict.fromkeys(("attention_backward", "add"), ROWS)
    wide = (16 * 1032, 1032, 1)
    assert kernels["sigmoid_mul_sum"] == dict.fromkeys(("linear", "sigmoid"), wide)
    assert kernels["div_mul_add_sum"] == dict.fromkeys(("sigmoid", "sigmoid_backward"), wide), "a number that is expanded is in the kernel: it lies in no way"
