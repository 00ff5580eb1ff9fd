"""What a loop in the model's own forward makes beside its blocks, turn by turn, does not hide that its turns are the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.repeats import block_of, blocks_in_step, find_repeats, fold_graph  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402

pytestmark = pytest.mark.torch
WIDTH, TOKENS, TURNS = 16, 24, 4
STARTS: dict[str, Callable] = {"0.": lambda x: 0.0, "zeros": lambda x: x.new_zeros(()), "nothing": lambda x: None}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Mixture(nn.Module):
    """Every expert sees every token; beside the sum a number that says how even the router is."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList(Mlp() for _ in range(2))

    def forward(self, x):
        return mix(self.router, self.experts, x)


def mix(router, experts, x):
    p = router(x).softmax(-1)
    y = sum(p[..., i : i + 1] * expert(x) for i, expert in enumerate(experts))
    return y, (p.mean((0, 1)) ** 2).sum() * len(experts)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixture = nn.LayerNorm(WIDTH), Mixture()

    def forward(self, x):
        y, a = self.mixture(self.norm(x))
        return x + y, a


class Model(nn.Module):
    """A number beside the blocks of a turn is added up in the model's own forward."""

    def __init__(self, start=STARTS["0."], num: int = TURNS) -> None:
        super().__init__()
        self.embed, self.head, self.start = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS), start
        self.fill(num)

    def fill(self, num: int) -> None:
        self.h = nn.ModuleList(Block() for _ in range(num))

    def turns(self, x):
        for block in self.h:
            x, a = block(x)
            yield x, a

    def forward(self, tokens):
        x = self.embed(tokens)
        total = self.start(x)
        for x, a in self.turns(x):
            total = a if total is None else total + a
        return self.head(x), total


class Dicts(Model):
    def fill(self, num: int) -> None:
        self.h = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "mixture": Mixture()}) for _ in range(num))

    def turns(self, x):
        for block in self.h:
            y, a = block["mixture"](block["norm"](x))
            x = x + y
            yield x, a


class Lists(Model):
    def fill(self, num: int) -> None:
        self.norm, self.mixture = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(num)), nn.ModuleList(Mixture() for _ in range(num))

    def turns(self, x):
        for norm, mixture in zip(self.norm, self.mixture):
            y, a = mixture(norm(x))
            x = x + y
            yield x, a


class Parts(Model):
    """The mixture itself is written in the model's forward."""

    def fill(self, num: int) -> None:
        self.norm, self.router = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(num)), nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(num))
        self.experts = nn.ModuleList(nn.ModuleList(Mlp() for _ in range(2)) for _ in range(num))

    def turns(self, x):
        for norm, router, experts in zip(self.norm, self.router, self.experts):
            y, a = mix(router, experts, norm(x))
            x = x + y
            yield x, a


class Listed(Lists):
    """Numbers are put into a list, and stacked."""

    def forward(self, tokens):
        x, numbers = self.embed(tokens), []
        for x, a in self.turns(x):
            numbers.append(a)
        return self.head(x), torch.stack(numbers).mean()


class Decays(Lists):
    """Several ops for each step."""

    def forward(self, tokens):
        x, total = self.embed(tokens), 0.0
        for x, a in self.turns(x):
            total = (total + a) * 0.9
        return self.head(x), total


class Skips(Lists):
    """What each turn leaves is added up whole, and read behind the loop alone."""

    def forward(self, tokens):
        x, skip = self.embed(tokens), self.start(x=torch.zeros(()))
        for i, (norm, mixture) in enumerate(zip(self.norm, self.mixture)):
            y, _ = mixture(norm(x))
            x = x + y
            skip = torch.tanh(y) if skip is None else skip + torch.tanh(y)
        return self.head(torch.relu(skip)), x.square().mean()


class Two(Lists):
    """Two residual streams; what begins a turn is the model's own."""

    def forward(self, tokens):
        x = self.embed(tokens)
        z = torch.tanh(x)
        for norm, mixture in zip(self.norm, self.mixture):
            y, _ = mixture(norm(x + z))
            x = x + y
            z = z + torch.sin(y)
        return self.head(x + z), x.square().mean()


def loss(out, target):
    return F.cross_entropy(out[0].flatten(0, 1), target.flatten()) + 0.01 * out[1]


def workload(model) -> Workload:
    torch.manual_seed(0)
    tokens = torch.randint(0, TOKENS, (4, 97))  # a value of a token is larger than what is a number
    return Workload(model, (tokens[:, :-1],), (tokens[:, 1:],), loss, torch.optim.SGD)


def rows(graph, phase: Phase = Phase.FORWARD) -> list[list[int]]:
    return [[block.index for block in repeat.blocks] for repeat in find_repeats(graph, blocks_in_step(graph)) if repeat.phase is phase]


def sizes(graph) -> list[int]:
    """Nodes of each block of the forward and the backward pass."""
    return [len(block.nodes) for repeat in find_repeats(graph, blocks_in_step(graph)) if repeat.phase in (Phase.FORWARD, Phase.BACKWARD) for block in repeat.blocks]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("spelling", [Dicts, Lists, Parts])
def test_turns_are_the_blocks_of_the_spelling_in_modules(spelling, start):
    ours, theirs = (trace_step(workload(make(STARTS[start]))).graph for make in (spelling, Model))
    ops = [sorted((n.op, n.phase.value) for n in graph.nodes) for graph in (ours, theirs)]
    assert ops[0] == ops[1]
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert rows(ours, phase) == rows(theirs, phase) == [list(range(TURNS))]
    assert sizes(ours) == sizes(theirs)
    fold = fold_graph(ours).node_class
    alike = [fold[i] for i, n in enumerate(ours.nodes) if n.op == "aten.native_layer_norm.default"]
    assert len(alike) == TURNS and len(set(alike)) == 1  # a list of norms decides as the blocks do that it is a part of


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("spelling", [Model, Dicts, Lists, Parts])
def test_a_running_number_is_the_models(spelling, start):
    graph = trace_step(workload(spelling(STARTS[start]))).graph
    shapes = {value.name: value.shape for value in graph.values}
    sums = [n for n in graph.nodes if n.op == "aten.add.Tensor" and n.phase is Phase.FORWARD and shapes[n.outputs[0]] == ()]
    assert len(sums) == TURNS + (start != "nothing") and not any(n.path for n in sums)  # one is the loss


@pytest.mark.parametrize("make", [Listed, Decays, Two])
def test_other_values_beside_the_blocks(make):
    assert rows(trace_step(workload(make())).graph) == [list(range(TURNS))]


@pytest.mark.parametrize("start", ["0.", "nothing"])
def test_a_running_sum_of_tensors_is_of_the_blocks(start):
    graph = trace_step(workload(Skips(STARTS[start]))).graph
    assert rows(graph) == [list(range(1, TURNS))]  # the first has nothing to add to
    assert {n.path for n in graph.nodes if n.op == "aten.tanh.default"} == {f"mixture.{i}" for i in range(TURNS)}
    assert [n.path for n in graph.nodes if n.op == "aten.relu.default"] == [""]
    assert not [n for n in graph.nodes if n.op == "aten.add.Tensor" and n.phase is Phase.FORWARD and block_of(n.path) is None][1:]  # the loss's alone


def test_what_begins_a_turn_is_of_the_first_of_lists_side_by_side():
    graph = trace_step(workload(Two())).graph
    begins = [n for n, after in zip(graph.nodes, graph.nodes[1:]) if after.op == "aten.native_layer_norm.default" and n.phase is Phase.FORWARD]
    assert [n.path for n in begins] == [f"norm.{i}" for i in range(TURNS)]
