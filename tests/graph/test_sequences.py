"""Sequences: which numbered containers hold blocks, so that a model with numbers is planned as the same model with names; and which names are numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar.graph.graph import graph_hash  # noqa: E402
from autopar.graph.repeats import MANY, block_of, block_path, find_repeats, fold_graph, numbers_on, relative_name, shift_name, state_blocks  # noqa: E402
from autopar.graph.stages import list_units  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402

pytestmark = pytest.mark.torch


class Mlp(nn.Module):
    """A block: two matrices and a residual, or something more in front."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8) if first else nn.Identity()

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Holder(nn.Module):
    """A model whose only module is `net`."""

    def __init__(self, *entries: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*entries)

    def forward(self, x):
        return self.net(x)


class Heads(nn.Module):
    """As many heads side by side."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(8, 2) for _ in range(count)])

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], -1)[:, :8]


def graph_of(model):
    return trace_step(Workload(model, (torch.randn(4, 8),), (torch.randn(4, 8),), F.mse_loss, torch.optim.AdamW)).graph


def rows_of(graph):
    return {r.family: len(r.blocks) for r in find_repeats(graph)}


LEAVES = [nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 8)]


@pytest.mark.parametrize(
    ("model", "sequences", "rows"),
    [
        (nn.Sequential(*LEAVES), ("",), {}),
        (Holder(*LEAVES), ("net",), {}),
        (Holder(Mlp(), Mlp(), Mlp()), (), {"net": 3}),
        (Holder(Mlp(first=True), Mlp(), Mlp()), (), {"net": 2}),  # the first has an op more
        (Holder(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))), (), {"net": 3}),
        (Holder(nn.Linear(8, 8), nn.Sequential(Mlp(), Mlp()), nn.LayerNorm(8)), ("net",), {"net.1": 2}),
        (Holder(nn.Linear(8, 8), nn.LayerNorm(8), Mlp()), ("net",), {}),
        (Holder(Mlp()), (), {}),
    ],
    ids=["root", "leaves", "blocks", "another first block", "pairs", "blocks inside", "one block among leaves", "one block"],
)
def test_which_containers_hold_blocks(model, sequences, rows):
    graph = graph_of(model)
    assert graph.sequences == sequences and rows_of(graph) == rows


@pytest.mark.parametrize("count", [MANY - 1, MANY])
def test_many_equal_entries_are_decided_together(count):
    graph = graph_of(Heads(count))
    assert graph.sequences == ("heads",) and rows_of(graph) == ({"heads": count} if count == MANY else {})


class Named(nn.Module):
    """Entries with a name each."""

    def __init__(self, **entries: nn.Module) -> None:
        super().__init__()
        for name, entry in entries.items():
            self.add_module(name, entry)

    def forward(self, x):
        for entry in self.children():
            x = entry(x)
        return x


class Wide(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)


def named(*entries: nn.Module, name: str = "layer{}") -> dict[str, nn.Module]:
    return {name.format(i): entry for i, entry in enumerate(entries)}


@pytest.mark.parametrize(
    ("model", "sequences", "rows"),
    [
        (Named(**named(*(Mlp() for _ in range(4)))), ("layer*",), {"layer*": 4}),
        (Named(inner=Named(**named(*(Mlp() for _ in range(4)), name="encoder_layer_{}"))), ("inner.encoder_layer_*",), {"inner.encoder_layer_*": 4}),
        (Named(**named(Mlp(), Wide(), Mlp(), Wide(), Mlp(), Wide())), ("layer*",), {"layer*": 3}),  # the last of the two kinds
        (Named(**named(*(Mlp() for _ in range(3)))), (), {}),
        (Named(**named(*(nn.Linear(8, 8) for _ in range(6)))), (), {}),
        (Named(**named(*(nn.Sequential(nn.Linear(8 * k, 8 * k + 8), nn.GELU()) for k in range(1, 5)), nn.Linear(40, 8))), ("layer0", "layer1", "layer2", "layer3"), {}),
        (Named(**named(*(nn.Sequential(Mlp(), Mlp()) for _ in range(4)))), (), {f"layer{k}": 2 for k in range(4)}),
        (Named(**named(*(Mlp() for _ in range(4)), name="layer0{}")), (), {}),
    ],
    ids=["a row", "inside", "two kinds", "three alone", "no blocks", "other shapes", "rows inside", "no numbers"],
)
def test_which_modules_are_numbered_by_their_names(model, sequences, rows):
    graph = graph_of(model)
    assert graph.sequences == sequences and rows_of(graph) == rows


def test_a_row_that_is_numbered_by_hand_is_cut_folded_and_named_as_one_in_a_list():
    hand, listed = graph_of(Named(**named(*(Mlp() for _ in range(4))))), graph_of(Holder(*(Mlp() for _ in range(4))))
    assert [len(unit) for unit in list_units(hand)] == [len(unit) for unit in list_units(listed)]
    assert fold_graph(hand).node_class == fold_graph(listed).node_class
    assert list(state_blocks(hand).values()) == [("layer*", number) for _, number in state_blocks(listed).values()]


def test_the_path_of_a_block_has_its_family_and_number():
    assert [block_path(*place) for place in (("h", 3), ("", 3), ("layer*", 3), ("net.layer_*", "{i}"))] == ["h.3", "3", "layer3", "net.layer_{i}"]
    assert numbers_on("h.3.ln_1.layer01") == (("h", 3), ("h.3.ln_*", 1)) and numbers_on("0.w") == (("", 0),)
    assert block_of("layer3.ln_1") is None and block_of("layer3.ln_1", ("layer*",)) == ("layer*", 3) and block_of("layer10.w", ("layer1*",)) is None
    assert relative_name("exp_avg:layer1.w@0", "layer*", 1) == "exp_avg:#.w@0" and relative_name("layer10.w", "layer*", 1) is None
    assert shift_name("exp_avg:layer3.up.weight", {"layer*": 2}) == "exp_avg:layer5.up.weight"


def test_a_number_of_a_sequence_is_passed_over():
    assert block_of("net.1.h.3.up", ("net",)) == ("net.1.h", 3)
    assert block_of("net.1.up", ("net",)) is None and block_of("1.0.up", ("",)) == ("1", 0)
    assert shift_name("exp_avg:net.1.3.up.weight", {"net.1": 2}) == "exp_avg:net.1.5.up.weight"
    assert shift_name("net.1.3.up.weight", {"h": 2}) == "net.1.3.up.weight"


def test_the_model_may_be_cut_between_blocks_inside_of_a_sequence():
    inside = graph_of(Holder(nn.Linear(8, 8), nn.Sequential(Mlp(), Mlp(), Mlp()), nn.LayerNorm(8)))
    paths = [inside.nodes[unit[0]].path for unit in list_units(inside)]
    assert [path.split(".")[:3] for path in paths if path.startswith("net.1")] == [["net", "1", "0"], ["net", "1", "1"], ["net", "1", "2"]]


def test_the_hash_knows_sequences():
    graph = graph_of(Holder(*LEAVES))
    assert graph_hash(graph) != graph_hash(replace(graph, sequences=()))
