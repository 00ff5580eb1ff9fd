"""Every row against the referee, the referee against rows that are wrong on purpose, and what the rows do not offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import GraphError  # noqa: E402
from autopar.graph.node import Node, Phase, Ref  # noqa: E402
from autopar.graph.rule import Rule, Site, count_flops, find_rule, resolve  # noqa: E402
from autopar.graph.rules import RULES, join_rows  # noqa: E402
from autopar.graph.strategy import build_strategy, list_strategies  # noqa: E402

from . import (  # noqa: E402
    missed,
    samples_core,
    samples_layers,
    samples_ragged,
    samples_random,
    samples_shapes,
    samples_space,
    samples_special,
    samples_turns,
    samples_vocabulary,
)
from .referee import Sample, check_sample, find_missed, input_placements, output_placements, site_of  # noqa: E402

pytestmark = pytest.mark.torch

FAMILIES: dict[str, Callable[[], Iterator[Sample]]] = {
    "pointwise": samples_core.pointwise_samples,
    "linear_pointwise": samples_core.linear_pointwise_samples,
    "matmul": samples_core.matmul_samples,
    "reduction": samples_core.reduction_samples,
    "creation": samples_core.creation_samples,
    "random": samples_random.random_samples,
    "view": samples_shapes.view_samples,
    "slice": samples_shapes.slice_samples,
    "index": samples_shapes.index_samples,
    "norm": samples_layers.norm_samples,
    "attention": samples_layers.attention_samples,
    "convolution": samples_layers.convolution_samples,
    "pooling": samples_layers.pooling_samples,
    "resample": samples_layers.resample_samples,
    "loss": samples_layers.loss_samples,
    "vocabulary": samples_vocabulary.vocabulary_samples,
    "turns": samples_turns.turn_samples,
    "special": samples_special.special_samples,
    "complex": samples_special.complex_samples,
    "distance": samples_special.distance_samples,
    "decomposition": samples_special.decomposition_samples,
    "diagonal": samples_shapes.diagonal_samples,
    "copy": samples_shapes.copy_samples,
    "counting": samples_ragged.counting_samples,
    "scatter": samples_ragged.scatter_samples,
    "bag": samples_ragged.bag_samples,
    "segment": samples_ragged.segment_samples,
    "expert": samples_ragged.expert_samples,
    "pad": samples_space.pad_samples,
    "sampler": samples_space.sampler_samples,
    "pixel": samples_space.pixel_samples,
    "unpool": samples_space.unpool_samples,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the pieces are tiny
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def samples() -> dict[str, list[Sample]]:
    return {family: list(make()) for family, make in FAMILIES.items()}


def find(samples: dict[str, list[Sample]], name: str) -> Sample:
    return next(s for many in samples.values() for s in many if s.name == name)


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_joined_equal_the_whole(samples: dict[str, list[Sample]], family: str) -> None:
    checked, wrong = 0, []
    for sample in samples[family]:
        count, found = check_sample(sample, RULES)
        checked += count
        wrong += found
    print(f"{family}: {len(samples[family])} samples, {checked} strategies")
    assert not wrong, f"{len(wrong)} of {checked} strategies are wrong:\n" + "\n".join(wrong[:20])


PLANNED_ONLY = {"pipe.send", "pipe.receive"}  # stages are planned, not yet run: nothing to run on pieces until they are


def test_every_row_has_a_sample(samples: dict[str, list[Sample]]) -> None:
    seen = {find_rule(RULES, s.node).op for many in samples.values() for s in many}
    assert sorted(set(RULES) - seen) == sorted(PLANNED_ONLY)


def test_sample_names_are_unique(samples: dict[str, list[Sample]]) -> None:
    names = [s.name for many in samples.values() for s in many]
    assert len(names) == len(set(names)), sorted({n for n in names if names.count(n) > 1})


WRONG = {
    "exp is not linear": ("aten.exp", {"linear": (("self",),)}),
    "adding a tensor is not linear in one side": ("aten.add.Tensor", {"linear": (("self",),)}),
    "multiplying is not linear in both sides together": ("aten.mul.Tensor", {"linear": (("self", "other"),)}),
    "a divisor is not linear": ("aten.div.Tensor", {"linear": (("other",),)}),
    "filling a constant is not linear": ("aten.masked_fill.Scalar", {"linear": (("self",),)}),
    "rounding is not linear": ("aten._to_copy to integer", {"linear": (("self",),)}),
    "addmm adds its bias once": ("aten.addmm bias (9,)", {"owed": ()}),
    "a linear adds its bias once": ("autopar.linear plain bias", {"owed": ()}),
    "scatter_add adds to its base once": ("aten.scatter_add", {"owed": ()}),
    "maxima do not add": ("aten.amax", {"reduce": "sum"}),
    "sums are not maxima": ("aten.sum.dim_IntList [0] False", {"reduce": "max"}),
    "minima are not sums": ("aten.amin", {"reduce": "sum"}),
    "any is not all": ("aten.any", {"reduce": "min"}),
    "a 2-norm has a root": ("aten.linalg_vector_norm 2.0-norm", {"text": "d0 d1 d2 -> d0 d2"}),
    "a distance has a root": ("aten._cdist_forward 3.0-norm", {"text": "... p m, ... r m -> ... p r"}),
    "a transform needs its dim": ("aten._fft_c2c [2]", {"text": "... -> ..."}),
    "an inverse needs its matrix": ("aten.linalg_inv_ex", {"text": "b m [n] -> b m [n], b"}),
    "the pivots are not summed over columns": (
        "aten._linalg_solve_ex",
        {"text": "b [m] [n], b [n] k -> b [m] k, b [x] [y], b [z], b"},
    ),
    "what a bag holds is not summed over features": (
        "aten._embedding_bag sum",
        {"text": "weight: [v] d, indices: [n], offsets: [b] -> [b] d, [w], [s], [l]"},
    ),
    "a scatter that replaces its base is not a sum": (
        "aten.scatter_reduce.two sum alone",
        {"text": "d0 [v] d2, d0 j d2, d0 j d2 -> d0 [v] d2"},
    ),
    "minima that are scattered": ("aten.scatter_reduce.two amin", {"reduce": "max"}),
    "found anywhere is a maximum": ("aten.isin.Tensor_Tensor", {"reduce": "min"}),
    "a mirror needs the ends": ("aten.reflection_pad2d no batch", {"text": "c [h] (a x:3) -> c [z] (a y)"}),
    "a sampled image is whole": (
        "aten.grid_sampler_2d mode 0 padding 0",
        {"text": "n c h [w], n y x [xy] -> n c y x"},
    ),
    "blocks of pixels have an order": ("aten.pixel_shuffle", {"text": "n ([p:2] [q:2] c) h w -> n c (h [p:2]) (w [q:2])"}),
    "a softmax needs its row": ("aten._softmax -1", {"text": "... -> ..."}),
    "a layer norm needs its row": ("aten.native_layer_norm [9] bare", {"text": "... c -> ... c, ... 1, ... 1"}),
    "a scan needs its past": ("aten.cumsum", {"text": "... -> ..."}),
    "a sort needs all": ("aten.sort", {"text": "... -> ..., ..."}),
    "a triangle counts positions": ("aten.tril", {"text": "... -> ..."}),
    "a range counts positions": ("aten.arange", {"text": " -> n"}),
    "views have local sizes": ("aten.view (4, 6, 9) (24, 9)", {"localise": None}),
    "merged dims have an order": ("aten.view (4, 6, 9) (24, 9)", {"text": "b s c -> (s b) c"}),
    "slices have local ends": ("aten.slice.Tensor 4:8:1", {"localise": None}),
    "a slice takes chunks": ("aten.slice.Tensor 4:8:1", {"text": "d0 (g c:4) -> d0 c"}),
    "groups are local": ("aten.convolution grouped", {"localise": None}),
    "windows need a halo": ("aten.convolution 3x3", {"text": "n i h w, o i [k] [l] -> n o h w"}),
    "a bias gradient has no input channels": (
        "aten.convolution_backward 3x3 bias",
        {"text": "n o [y] [z], n i [h] [w], o i [k] [l] -> n i [h] [w], o i [k] [l], o"},  # lacks {i}
    ),
    "a causal mask counts rows": (
        "autopar.attention causal",
        {"text": "b h s [d], b h [t] [d], b h [t] [d] -> b h s [d], b h s"},
    ),
    "rows with gaps are no run": (
        "autopar.attention causal long rows",
        {"text": "b h s [d], b h [t] [d], b h [t] [d], s -> b h s [d], b h s"},
    ),
    "gradients of keys are sums over rows": (
        "autopar.attention_backward causal long rows",
        {"text": "b h <s> [d], b h <s> [d], b h [t] [d], b h [t] [d], b h <s> [d], b h <s>, <s> -> b h <s> [d], b h {s} [t] [d], b h {s} [t] [d]"},
    ),
    "keys need their softmax": ("autopar.attention plain", {"text": "b h s [d], b h t [d], b h t [d] -> b h s [d], b h s"}),
    "grouped heads have an order": (
        "autopar.attention grouped",
        {"text": "b (r:6 g:2) s [d], b g [t] [d], b g [t] [d] -> b (r:6 g:2) s [d], b (r:6 g:2) s"},
    ),
    "a mean divides by its own count": ("aten.mse_loss reduction 1", {"text": "..., ... ->"}),
    "random numbers know their row": ("autopar.uniform (6, 6)", {"text": ", d1, d0 -> d0 d1"}),
    "random numbers know their place": ("autopar.uniform (6, 6)", {"text": ", d0, [x] -> d0 d1"}),
    "rows of a split table are its own": ("autopar.embedding (4, 6)", {"text": "v d, ..., [v2] -> ... d"}),
    "classes of a split loss are its own": ("autopar.pick (4, 6)", {"text": "... v, ..., [v2] -> ..."}),
    "sums over classes are not maxima": ("autopar.sum_exp (4, 6)", {"reduce": "max"}),
    "an embedding needs its rows": ("aten.embedding_dense_backward by frequency", {"text": "... d, ... -> [v] d"}),
}


@pytest.mark.parametrize("what", WRONG)
def test_referee_sees_wrong_rows(samples: dict[str, list[Sample]], what: str) -> None:
    name, change = WRONG[what]
    sample = find(samples, name)
    row: Rule = replace(find_rule(RULES, sample.node), **change)
    _, wrong = check_sample(sample, {row.op: row})
    assert wrong, f"{what}: the referee let it pass"


MISSED_LIMIT = 400  # placements tried per sample; larger ops are left out of the search


def test_what_rows_do_not_offer_is_known(samples: dict[str, list[Sample]]) -> None:
    unknown, searched = [], set()
    for family in missed.FAMILIES:
        for sample in samples[family]:
            op = find_rule(RULES, sample.node).op
            if op in missed.UNSAFE or sample.compare != "values":
                continue
            tries = prod(len(p) for p in input_placements(sample, 2))
            if RULES[op].localise is not None:
                tries *= len(output_placements(sample, 2))
            if tries > MISSED_LIMIT:
                continue
            searched.add(op)
            unknown += [f"{sample.name}: {text}" for text in find_missed(sample, RULES) if not missed.why_not_offered(op, sample.name, text)]
    print(f"{len(searched)} rows searched")
    assert not unknown, f"{len(unknown)} sound placements are neither offered nor explained:\n" + "\n".join(unknown[:40])


def test_rows_are_unique() -> None:
    with pytest.raises(GraphError, match="two rule rows for aten.mm: one op, one row"):
        join_rows([RULES["aten.mm"]], [RULES["aten.mm"]])


def test_choices_that_the_row_does_not_allow_are_refused_with_the_reason() -> None:
    node = Node("n", "aten._softmax.default", ("x",), (("self", Ref(0)), ("dim", 1), ("half_to_float", False)), ("y",), Phase.FORWARD)
    site = Site(node, ((4, 6),), ((4, 6),))
    signature = resolve(RULES["aten._softmax"], site)
    assert build_strategy(signature, site, ("d1",), (2,), {}) == "d1 stays whole: the sum of exponentials needs all of it"
    assert build_strategy(signature, site, ("P(self)",), (2,), {}) == "aten._softmax is not linear in self here"


def test_adding_a_number_is_not_linear() -> None:
    node = Node("n", "aten.add.Tensor", ("x",), (("self", Ref(0)), ("other", 1.0)), ("y",), Phase.FORWARD)
    site = Site(node, ((4,),), ((4,),))
    strategies, _ = list_strategies(resolve(RULES["aten.add"], site), site, (2,), {})
    assert [s.choices for s in strategies] == [("R",), (".0",)]


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("aten.mm", 2 * 6 * 12 * 9),
        ("autopar.linear plain bias", 2 * 2 * 6 * 12 * 9),
        ("autopar.attention plain", 4 * 2 * 6 * 6 * 9 * 4),
        ("autopar.attention causal", 4 * 2 * 6 * 9 * 9 * 4 / 2),
        ("autopar.attention_backward grouped", 10 * 2 * 12 * 6 * 9 * 4),
        ("aten.convolution 3x3", 2 * 4 * 9 * 6 * 6 * 6 * 3 * 3),
        ("aten.convolution depthwise", 2 * 2 * 12 * 5 * 5 * 9),
        ("aten.view (4, 6) (24,)", 0),
    ],
)
def test_flops(samples: dict[str, list[Sample]], name: str, flops: float) -> None:
    site = site_of(find(samples, name))
    assert count_flops(resolve(find_rule(RULES, site.node), site), site) == flops


def test_hidden_outputs_have_no_operand(samples: dict[str, list[Sample]]) -> None:
    site = site_of(find(samples, "aten.native_layer_norm_backward [9] [True, False, True]"))
    signature = resolve(find_rule(RULES, site.node), site)
    assert signature.outputs == ((("d0",), ("d1",), ("d2",)), (("d2",),))
