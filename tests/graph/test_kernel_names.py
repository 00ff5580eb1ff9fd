"""Names of kernels: what several ops spell goes by the name that it has."""

import keyword

import pytest

from autopar.graph.kernel import Kernel, _identifier, suggest_name
from autopar.graph.node import Phase
from autopar.graph.tensor import Kind

from .drafts import make_graph, node, value

WIDE, ROW = (8, 16), (8, 1)
MEAN = {"dim": (1,), "keepdim": True}


def name_of(*steps, given=("x",), phase=Phase.FORWARD, outputs=()):
    """The name of a kernel whose nodes are `result op operands`, in order; results are rows where a sum or what is made of sums alone made them.

    Args:
        given: what enters, `name` or `name/row`.
    """
    shapes = {name.partition("/")[0]: ROW if "/" in name else WIDE for name in given}
    made = []
    for step in steps:
        out, op, *operands = step.split()
        along = {"sum/row": ("sum.dim_IntList", MEAN, ROW), "mean/row": ("mean.dim", MEAN, ROW), "sum/col": ("sum.dim_IntList", {"dim": (0,), "keepdim": True}, (1, 16))}
        name, attributes, shape = along.get(op, (f"{op}.default", {}, ROW if all(shapes[o] == ROW for o in operands) else WIDE))
        shapes[out] = shape
        space = "autopar" if op in ("sum_exp", "pick") else "aten"
        made.append((node(f"{space}.{name}", tuple(operands), out, phase=phase, **attributes), value(out, shape)))
    entering = [value(name, shapes[name], Kind.BATCH) for name in (n.partition("/")[0] for n in given)]
    return suggest_name(Kernel("", make_graph(entering, made, outputs=tuple(outputs) or (made[-1][0].outputs[0],)), (), False, ()))


RMS = ("p pow x", "s mean/row p", "e add s", "r rsqrt e", "y mul x r")
CENTRED = ("m mean/row x", "c sub x m", "p pow c", "s mean/row p", "e add s", "r rsqrt e", "y mul c r")


def test_a_sum_of_a_number_is_none_along_rows():
    entering, made = value("x", (), Kind.BATCH), [(node("aten.amax.default", ("x",), "s", dim=(0,)), value("s", ())), (node("aten.sum.dim_IntList", ("s",), "t", dim=(0,)), value("t", ()))]
    assert suggest_name(Kernel("", make_graph([entering], made, outputs=("t",)), (), False, ())) == "amax_sum"


@pytest.mark.parametrize("square", ["pow x", "mul x x", "square x"])
@pytest.mark.parametrize("total", ["mean/row p", "sum/row p"])
def test_a_norm_by_the_root_mean_square(square, total):
    assert name_of(f"p {square}", f"s {total}", *RMS[2:]) == "rms_norm"


def test_what_stands_around_a_norm_is_named_too():
    assert name_of("x add a b", *RMS, "z mul y w", given=("a", "b", "w")) == "add_rms_norm_mul"
    assert name_of("t tanh a", "x add t a", *RMS, "z mul y w", given=("a", "w")) == "tanh_add_rms_norm_mul"
    assert name_of("x _to_copy a", *RMS, "z _to_copy y", given=("a",)) == "rms_norm", "casts are no words"
    assert name_of("u silu a", "v tanh u", "q exp v", "x add q a", *RMS, "z neg y", "k gelu y", given=("a",)) == "silu_rms_norm_gelu", "of many words the first, the norm and the last"


def test_a_root_of_other_means_is_no_norm():
    """An optimizer's means of squares over many steps, of rows and of columns: what is kept of earlier steps goes into the root, or the root is of the columns' means alone."""
    means = ("p pow g", "s mean/row p", "d sub s r", "n add r d")
    given = ("g", "r/row", "c")
    assert name_of(*means, "q rsqrt n", "y mul g q", given=given, phase=Phase.UPDATE) == "pow_mean_sub_mul"
    assert name_of(*means, "t sum/col p", "q rsqrt t", given=given, phase=Phase.UPDATE, outputs=("n", "q")) == "pow_mean_sub_rsqrt"
    assert name_of("p pow g", "s mean/row p", "q rsqrt s", "y mul g q", given=("g",), phase=Phase.UPDATE) == "rms_norm", "rows that an optimizer scales are one"
    assert name_of("t mul c c", "u rsqrt t", *RMS, given=("x", "c"), outputs=("u", "y")) == "mul_rsqrt_rms_norm", "a root before it"


def test_a_difference_before_a_norm_is_no_mean_taken_off():
    assert name_of("x sub a b", *RMS, given=("a", "b")) == "sub_rms_norm"


@pytest.mark.parametrize("square", ["pow c", "mul c c"])
def test_a_norm_by_the_variance(square):
    assert name_of(*CENTRED[:2], f"p {square}", *CENTRED[3:]) == "layer_norm"
    assert name_of("x add a b", *CENTRED, "z mul y w", given=("a", "b", "w")) == "add_layer_norm_mul"


def test_a_norm_whose_variance_has_a_mean_of_its_own():
    steps = ("m mean/row x", "c sub x m", "n mean/row x", "d sub x n", "p mul d d", "s mean/row p", "e add s", "r rsqrt e", "y mul c r")
    assert name_of(*steps) == "layer_norm"


def test_gradients_of_norms():
    steps = ("a mul grad rsqrt", "b mul grad x", "s sum/row b", "q pow rsqrt", "d mul s q", "f mul x d", "g sub a f")
    given = ("grad", "x", "rsqrt/row")
    assert name_of(*steps, given=given, phase=Phase.BACKWARD).startswith("rms_norm_backward")
    assert name_of("h add grad x", *steps, given=given, phase=Phase.BACKWARD).startswith("add_rms_norm_backward")
    centred = (*steps[:-1], "g add a f", "n neg g", "t sum/row n", "z add g t")
    assert name_of(*centred, given=given, phase=Phase.BACKWARD) == "layer_norm_backward_add"
    assert "norm" not in name_of(*steps, given=given), "a forward pass has no such gradient"


def test_a_sum_over_rows_makes_no_norm():
    assert "norm" not in name_of("p pow x", "s sum/col p", "r rsqrt s", "y mul x r")


def test_the_loss_of_a_vocabulary():
    steps = ("m amax x", "s sum_exp x m", "w where t", "k pick x w", "l log s", "d sub k m", "e sub l d")
    assert name_of(*steps, given=("x", "t")) == "cross_entropy"
    assert name_of("z ne t", *steps, "v where e", "h sum/col v", given=("x", "t")) == "ne_cross_entropy_where_sum"


def test_what_is_plain_alone_is_named_by_what_it_does():
    assert name_of("w expand x", "v view w") == "expand" and name_of("w permute x", "v view w") == "view" and name_of("w _to_copy x") == "to_copy"


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["rms", "mean taken off", "variance"])
def test_norms_as_people_write_them(kind, precision):
    """Traced: forward and backward, in float32 inside of bfloat16."""
    torch = pytest.importorskip("torch")
    from codegen.kernel_cases import ADAMW, kernels_of

    from autopar import Workload

    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.linear = torch.nn.Parameter(torch.ones(16)), torch.nn.Linear(16, 16)

        def forward(self, x):
            x = x + self.linear(x)
            wide = x.float()
            rest = wide if kind == "rms" else wide - wide.mean(-1, keepdim=True)
            spread = wide.var(-1, keepdim=True, unbiased=False) if kind == "variance" else rest.pow(2).mean(-1, keepdim=True)
            return self.linear(self.weight * (rest * torch.rsqrt(spread + 1e-5)).to(x.dtype))

    names = {k.name for k in kernels_of(Workload(Norm(), (torch.zeros(4, 3, 16),), (), lambda y: (y * y).mean(), ADAMW), precision)}
    norm = "rms_norm" if kind == "rms" else "layer_norm"
    assert {f"add_{norm}_mul", f"mul_{norm}_backward_sum"} <= names


@pytest.mark.parametrize("word", ["SIZE", "ROWS", "PROGRAMS", "M", "x_ptr", "tanh_out", "sum_sum", "amax_parts", "add_launch", "update_together", "update_seen", "col_7", "inside_2", "lambda", "in", "None"])
def test_words_that_texts_make_are_no_values_names(word):
    """A state called SIZE was read in the place of how many elements there are, so nothing was updated."""
    found = _identifier(word)
    assert found == f"{word}_" and found.isidentifier() and not keyword.iskeyword(found)


@pytest.mark.parametrize(("word", "name"), [("exp_avg", "exp_avg"), ("momentum_buffer", "momentum_buffer"), ("layers.0.weight", "layers_0_weight"), ("0", "v_0"), ("sum", "sum"), ("out", "out")])
def test_other_words_stay(word, name):
    assert _identifier(word) == name
