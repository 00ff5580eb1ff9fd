"""A loop over numbered modules that is written in the model's own forward is the same step as one over modules of its body."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import autopar  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.repeats import block_of, blocks_in_step, fold_graph, state_blocks  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402

pytestmark = pytest.mark.torch
WIDTH, HEADS, TOKENS = 16, 2, 24
VARIES = ("moments", "step_s", "compute_s", "exposed_comm_s", "bubble_s", "tokens_per_s", "mfu")  # names of modules; seconds that are added up in another order


def attend(qkv):
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in qkv.chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def parts() -> dict[str, nn.Module]:
    return {
        "ln": nn.LayerNorm(WIDTH), "qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(WIDTH, WIDTH),
        "up": nn.Linear(WIDTH, 4 * WIDTH), "down": nn.Linear(4 * WIDTH, WIDTH),
    }  # fmt: skip


class Block(nn.Module):
    def __init__(self, body) -> None:
        super().__init__()
        self.body = body
        for name, module in parts().items():
            setattr(self, name, module)

    def forward(self, x):
        return self.body(vars(self)["_modules"], x)


class Model(nn.Module):
    """The body of each turn in modules, or inline."""

    def __init__(self, body, is_inline: bool, first=lambda x: x, last=lambda x: x, num: int = 3) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.h = nn.ModuleList(nn.ModuleDict(parts()) if is_inline else Block(body) for _ in range(num))
        self.body, self.is_inline, self.first, self.last = body, is_inline, first, last

    def forward(self, tokens):
        x = self.first(self.embed(tokens))
        for block in self.h:
            x = self.body(block, x) if self.is_inline else block(x)
        return self.head(self.last(x))


def workload(model) -> Workload:
    torch.manual_seed(0)
    tokens = torch.randint(0, TOKENS, (4, 9))
    return Workload(
        model=model, example_inputs=(tokens[:, :-1],), example_targets=(tokens[:, 1:],), optimizer=torch.optim.SGD,
        loss=lambda out, target: F.cross_entropy(out.flatten(0, 1), target.flatten()),
    )  # fmt: skip


def norm(x):
    return F.layer_norm(x, (WIDTH,))


def residual(block, x):
    x = x + block["out"](attend(block["qkv"](block["ln"](x))))
    return x + block["down"](F.gelu(block["up"](x)))


def begins_with_a_function(block, x):
    x = x + block["out"](attend(block["qkv"](norm(x))))
    return x + block["down"](F.gelu(block["up"](block["ln"](x))))


def ends_with_a_norm(block, x):
    return norm(x + block["down"](F.relu(block["up"](block["ln"](x)))))


def is_on_both_sides(block, x):
    return torch.tanh(block["down"](F.relu(block["up"](x * 2)))) * 3 + x


BODIES = {
    "residual": (residual, {}),
    "final norm": (residual, {"last": norm}),
    "begins with a function": (begins_with_a_function, {}),
    "begins with the function that follows the loop": (begins_with_a_function, {"last": norm}),
    "begins with the function that stands around the loop": (begins_with_a_function, {"first": norm, "last": norm}),
    "ends with a norm": (ends_with_a_norm, {}),
    "ends with the norm that precedes the loop": (ends_with_a_norm, {"first": norm}),
    "functions on both sides": (is_on_both_sides, {}),
    "functions on both sides and around": (is_on_both_sides, {"first": lambda x: x * 2, "last": lambda x: torch.tanh(x) * 3}),
}


@pytest.mark.parametrize("name", BODIES)
def test_inline_blocks_are_the_blocks_of_the_spelling_in_modules(name):
    body, around = BODIES[name]
    ours, theirs = (trace_step(workload(Model(body, is_inline, **around))).graph for is_inline in (True, False))
    assert [(n.name, n.op, n.inputs, n.phase) for n in ours.nodes] == [(n.name, n.op, n.inputs, n.phase) for n in theirs.nodes]
    assert [block_of(n.path, ours.sequences) for n in ours.nodes] == [block_of(n.path, theirs.sequences) for n in theirs.nodes]
    assert fold_graph(ours) == fold_graph(theirs)


def test_the_container_may_lie_in_modules_that_are_never_called():
    class Nested(Model):
        def __init__(self) -> None:
            super().__init__(residual, True)
            self.deep = nn.ModuleDict({"h": self.h, "drop": nn.Identity()})
            del self.h

        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.deep.h:
                x = residual(block, x)
            return self.head(x)

    graph = trace_step(workload(Nested())).graph
    assert {n.path for n in graph.nodes if n.op == "autopar.attention"} == {f"deep.h.{i}" for i in range(3)}
    assert not [n for n in graph.nodes if n.op == "aten.gelu.default" and block_of(n.path) is None]


def test_a_shared_module_without_parameters_is_of_the_block_in_which_it_runs():
    class Shared(Model):
        def __init__(self) -> None:
            super().__init__(self.turn, True)
            self.act = nn.ReLU()

        def turn(self, block, x):
            return x + block["down"](self.act(block["up"](block["ln"](x))))

    graph = trace_step(workload(Shared())).graph
    assert [n.path for n in graph.nodes if n.op == "aten.relu.default"] == [f"h.{i}.act" for i in range(3)]


def test_the_backward_pass_is_of_the_block_too():
    graph = trace_step(workload(Model(residual, True))).graph
    backward = [n.path for n in graph.nodes if n.op in ("autopar.attention_backward", "aten.gelu_backward.default") and n.phase is Phase.BACKWARD]
    assert backward and {block_of(path) for path in backward} == {("h", i) for i in range(3)}


def test_rows_whose_residual_alone_is_inline():
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
            self.h = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)) for _ in range(9))

        def forward(self, tokens):
            x = self.embed(tokens)
            for f in self.h:
                x = x + f(x)
            return self.head(x)

    graph = trace_step(workload(Residual())).graph
    assert [n.path for n in graph.nodes if n.op == "aten.add.Tensor" and n.phase is Phase.FORWARD] == [f"h.{i}" for i in range(9)]


def test_modules_in_two_lists_take_what_follows_them():
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
            self.mix = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)) for _ in range(3))
            self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(3))

        def forward(self, tokens):
            x = self.embed(tokens)
            for mix, mlp in zip(self.mix, self.mlp):
                x = x + torch.tanh(mix(norm(x)))
                x = x + mlp(norm(x))
            return self.head(norm(x))

    graph = trace_step(workload(Lists())).graph
    assert [n.path for n in graph.nodes if n.op == "aten.tanh.default"] == [f"mix.{i}" for i in range(3)]
    assert [n.path for n in graph.nodes if n.op == "aten.add.Tensor" and n.phase is Phase.FORWARD] == [f"{f}.{i}" for i in range(3) for f in ("mix", "mlp")]


NAMES = tuple(parts())


class SideBySide(Model):
    """A list for each part."""

    def __init__(self, num: int = 3) -> None:
        super().__init__(residual, True, num=num)
        for name in parts():
            setattr(self, name, nn.ModuleList(block[name] for block in self.h))
        del self.h

    def forward(self, tokens):
        x = self.embed(tokens)
        for i in range(len(self.qkv)):
            x = residual({name: getattr(self, name)[i] for name in NAMES}, x)
        return self.head(x)


def test_what_is_inline_in_lists_side_by_side_is_of_the_module_before():
    graph = trace_step(workload(SideBySide())).graph
    assert [n.path for n in graph.nodes if n.op == "autopar.attention"] == [f"qkv.{i}" for i in range(3)]
    assert [n.path for n in graph.nodes if n.op == "aten.add.Tensor" and n.phase is Phase.FORWARD] == [f"{f}.{i}" for i in range(3) for f in ("out", "down")]
    assert graph.sequences == ()  # a list of norms is no row by itself, but part of one
    blocks = blocks_in_step(graph)
    assert {blocks[k] for k, n in enumerate(graph.nodes) if n.path.startswith(tuple(f"{name}.1" for name in parts()))} == {("ln", 1)}
    assert state_blocks(graph) == {f"{name}.{i}.{kind}": ("ln", i) for name in parts() for i in range(3) for kind in ("weight", "bias")}


class Skips(Model):
    """Not the same in each turn."""

    def forward(self, tokens):
        x = self.embed(tokens)
        for i, block in enumerate(self.h):
            x = block["down"](block["up"](x))
            x = F.relu(x) if i < 2 else x
        return self.head(x)


class Twice(Model):
    """Each block runs twice."""

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in (*self.h, *self.h):
            x = F.relu(block["down"](block["up"](x)))
        return self.head(x)


class Linears(Model):
    """A container of single linears is no row of blocks."""

    def __init__(self, body, is_inline) -> None:
        super().__init__(body, is_inline)
        self.h = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for linear in self.h:
            x = F.relu(linear(x))
        return self.head(x)


@pytest.mark.parametrize("model", [Skips, Twice, Linears])
def test_other_loops_are_left_alone(model):
    graph = trace_step(workload(model(residual, True))).graph
    paths = {n.path for n in graph.nodes if n.op == "aten.relu.default"}
    assert paths == {""}


def plan(model, words):
    tokens = torch.randint(0, TOKENS, (4, 9))
    return autopar.plan(
        model, f"cpu:{words.get('pp', 2)}", example_inputs=(tokens[:, :-1],), example_targets=(tokens[:, 1:],), optimizer=torch.optim.SGD,
        loss=lambda out, target: F.cross_entropy(out.flatten(0, 1), target.flatten()), options=autopar.Options(constraints=autopar.constrain(**words)),
    )  # fmt: skip


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Model(residual, True), {"recompute": "selective"}),
        (lambda: Model(residual, True), {"recompute": "full"}),
        (lambda: Model(residual, True), {"pp": 3, "microbatches": 2}),
        (SideBySide, {"recompute": "selective"}),
        (SideBySide, {"recompute": "full"}),
    ],
)
def test_plans_are_those_of_the_spelling_in_modules(make, words):
    ours, theirs = (plan(model, words) for model in (make(), Model(residual, False)))
    assert ours.cost.step_s == pytest.approx(theirs.cost.step_s, rel=1e-9)
    assert replace(ours.cost, **dict.fromkeys(VARIES)) == replace(theirs.cost, **dict.fromkeys(VARIES))


def test_stages_of_lists_side_by_side_may_be_cut_inside_of_a_turn():
    words = {"pp": 3, "microbatches": 2}
    assert plan(SideBySide(), words).cost.step_s <= plan(Model(residual, False), words).cost.step_s
