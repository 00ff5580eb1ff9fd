"""Steps that take their batch in turns: the same numbers as plain PyTorch, whatever the mesh, the plan and what is recomputed; as much memory
as predicted; and models that cannot run in turns are told so."""

import gc
import random
import re
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import autopar  # noqa: E402
from autopar.api import compile_workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.cost.memory import estimate_memory  # noqa: E402
from autopar.demo.model import Gpt, token_loss  # noqa: E402
from autopar.errors import MicrobatchError  # noqa: E402
from autopar.graph.case import build_case, split_case  # noqa: E402
from autopar.graph.in_place import add_in_place, find_added  # noqa: E402
from autopar.graph.liveness import live_ranges  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.random_plans import list_turns  # noqa: E402
from autopar.graph.repeats import fold_graph  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402
from autopar.graph.turns import ACCUMULATE, TAKE, count_microbatches  # noqa: E402
from autopar.runtime import ops  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402

from .random_plans import Assigner, Control, files_of  # noqa: E402

pytestmark = pytest.mark.torch

ADAMW = torch.optim.AdamW
MESHES = ((), (2,), (2, 2))


class Head(nn.Module):
    """The model's logits, with a weight of its own or the embedding's."""

    def __init__(self, tied):
        super().__init__()
        self.body = Gpt(vocab=16, seq=8, layers=2, hidden=16, heads=2)
        if not tied:
            self.own = nn.Linear(16, 16)

    def forward(self, ids):
        logits = self.body(ids)
        return self.own(logits) if hasattr(self, "own") else logits


class Encoder(nn.Module):
    """A padding mask for all layers; dropout."""

    def __init__(self, drop=0.0):
        super().__init__()
        self.embed = nn.Embedding(16, 16, padding_idx=0)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, dropout=drop, batch_first=True, norm_first=True) for _ in range(3))
        self.head = nn.Linear(16, 16)

    def forward(self, ids, mask):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=mask)
        return self.head(x)


def ignoring_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


class Tied(nn.Module):
    """A table that the head is, too, and an encoder whose gradients come after the table's."""

    def __init__(self):
        super().__init__()
        self.table, self.source = nn.Embedding(16, 8), nn.Embedding(16, 8)
        self.encoder, self.decoder = (nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(2))

    def forward(self, source, target):
        found = self.table(target) + self.encoder(self.source(source)).mean(1, keepdim=True)
        return F.linear(self.decoder(found), self.table.weight)


class Made(nn.Module):
    """A weight that is computed, a penalty on it, a hook that is not linear in the gradient of the whole batch."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(8, 4)), nn.Linear(8, 8)
        self.out.weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))

    def forward(self, x):
        return self.out(x @ (self.b @ self.a)), (self.a * self.a).sum()


def penalised(found, targets):
    y, penalty = found
    return 0 + F.mse_loss(y, targets) + 0.1 * penalty + 1.0


class Queries(nn.Module):
    """Learnt queries, expanded over a batch that is as large as the sequence."""

    def __init__(self):
        super().__init__()
        self.queries, self.embed, self.head = nn.Parameter(torch.randn(3, 8)), nn.Embedding(16, 8), nn.Linear(8, 4)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(F.scaled_dot_product_attention(self.queries.expand(x.shape[0], -1, -1)[:, None], x[:, None], x[:, None]).mean((1, 2)))


class Dropping(nn.Module):
    """The number of draws is added up and stored in one module, so that one kernel could do both: before the turns, which draw by the old one."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return F.dropout(self.lin(x), 0.3, self.training)


class TwoViews(nn.Module):
    """Each sample twice, one behind the other in the batch's dim: what a turn draws for its samples does not lie side by side."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        one, other = F.dropout(self.lin(torch.cat([x, x.flip(1)])), 0.3, self.training).tanh().chunk(2)
        return one * other.square()


def ids(*shape):
    return torch.randint(1, 16, shape)


def transformer(drop):
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[0, 5:] = mask[3, 2:] = True
    targets = ids(4, 8)
    targets[0, 5:] = targets[3, 2:] = 0
    return Workload(Encoder(drop), (ids(4, 8), mask), (targets,), ignoring_loss, ADAMW)


def mlp():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    return Workload(model, (torch.randn(8, 8),), (torch.randint(0, 4, (8,)),), F.cross_entropy, torch.optim.SGD)


def smoothed(weight):
    """The log-probabilities are read by more than the loss, which stays whole; some targets are ignored."""

    def loss(scores, targets):
        return F.cross_entropy(scores, targets, None if weight is None else weight.to(scores), ignore_index=3, label_smoothing=0.1)

    return Workload(nn.Linear(8, 4), (torch.randn(8, 8),), (torch.tensor([0, 1, 2, 3, 3, 1, 0, 2]),), loss, torch.optim.SGD)


def spelled(model):
    from tests.trace import zoo

    return getattr(zoo, model)()


MODELS = {
    "a tied table before an encoder": lambda: Workload(Tied(), (ids(4, 8), ids(4, 8)), (ids(4, 8),), token_loss, ADAMW),
    "mlp": mlp,
    "gpt tied": lambda: Workload(Head(True), (ids(4, 8),), (ids(4, 8),), token_loss, ADAMW),
    "gpt untied": lambda: Workload(Head(False), (ids(4, 8),), (ids(4, 8),), token_loss, ADAMW),
    "padding mask, ignored targets": lambda: transformer(0.0),
    "dropout": lambda: transformer(0.2),
    "made weights, penalty, hook": lambda: Workload(Made(), (torch.randn(4, 8),), (torch.randn(4, 8),), penalised, ADAMW),
    "learnt queries": lambda: Workload(Queries(), (ids(4, 4),), (torch.randint(0, 4, (4,)),), F.cross_entropy, ADAMW),
    "llama": lambda: spelled("llama"),
    "dropout in the model itself": lambda: Workload(Dropping(), (torch.randn(4, 8),), (torch.randn(4, 8),), F.mse_loss, ADAMW),
    "dropout of two views": lambda: Workload(TwoViews(), (torch.randn(4, 8),), (torch.randn(4, 8),), F.mse_loss, ADAMW),
    "gpt2 dropout": lambda: spelled("gpt2_dropout"),
    "weighted targets": lambda: spelled("tagger"),
    "smoothed targets": lambda: smoothed(None),
    "smoothed, weighted targets": lambda: smoothed(torch.linspace(0.5, 2.0, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_random_plans_in_turns_give_the_numbers_of_plain_pytorch(name):
    torch.manual_seed(0)
    control = Control(MODELS[name]())
    counts = [count_microbatches(case.graph) for case in list_turns(build_case(control.graph))]
    assert counts[1:], "cannot run in turns"
    rng, recomputed = random.Random(name), 0
    for turns in counts[1:]:
        for number, sizes in enumerate(MESHES):
            for again in (False, True):
                assigner = Assigner(control.graph, sizes, recompute=random.Random(5) if again else None, turns=turns)
                assignment = assigner.draw(rng, fold_graph(assigner.graph) if (number + again) % 2 else None)
                assert assignment.microbatches == turns and (again or not assignment.again)
                recomputed += len(assignment.again)
                difference, whose = control.worst(assigner.program(assignment, keep_grads=not again), assigner.graph)
                assert difference < 1e-10, (turns, sizes, again, whose)
    assert recomputed or name.startswith("made weights")  # no turn of these has anything to recompute


def test_a_wrong_turn_is_found():
    """The comparison of this file can fail: a turn that takes another's samples, a sum that forgets a turn."""
    torch.manual_seed(0)
    control = Control(mlp())
    assigner = Assigner(control.graph, (2,), turns=2)
    program = assigner.program(assigner.draw(random.Random(1)))
    files = files_of(assigner.graph, program)
    text = files["program.py"]
    assert control.worst(program, assigner.graph)[0] < 1e-10
    from . import random_plans

    for right, wrong in ((", turn, dim", ", 0, dim"), ("for turn in range(2)", "for turn in range(1)")):
        assert right in text
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(random_plans, "files_of", lambda graph, program: {**files, "program.py": text.replace(right, wrong)})
            assert control.worst(program, assigner.graph)[0] > 1e-6


def test_one_microbatch_is_the_step_itself():
    graph = trace_step(mlp(), "fp64").graph
    case = build_case(graph)
    assert split_case(case, 1) is case
    assert not {n.op for n in graph.nodes} & {TAKE, ACCUMULATE} and Phase.PREPARE not in {n.phase for n in graph.nodes}


def test_sums_in_half_precision_are_float32():
    graph = split_case(build_case(trace_step(mlp(), "bf16").graph), 4).graph
    values = {v.name: v for v in graph.values}
    sums = [n for n in graph.nodes if n.op == ACCUMULATE]
    assert "bfloat16" in {values[n.inputs[0]].dtype for n in sums} and {values[n.outputs[0]].dtype for n in sums} == {"float32"}


def test_a_sum_grows_in_place():
    sums, first = {}, torch.arange(6, dtype=torch.bfloat16).view(2, 3).t()
    ops.accumulate(sums, "w", first)
    total = sums["w"]
    ops.accumulate(sums, "w", first / 256)
    assert sums["w"] is total and total.dtype == torch.float32 and total.is_contiguous()
    assert torch.equal(total, first.float() * (1 + 1 / 256)) and torch.equal(first, torch.arange(6, dtype=torch.bfloat16).view(2, 3).t())


@pytest.mark.parametrize(
    "dtype, packed, taken",
    [(torch.float32, True, True), (torch.float64, True, True), (torch.float32, False, False), (torch.bfloat16, True, False)],
    ids=str,
)
def test_a_sum_takes_over_the_first_gradient_where_nobody_else_reads_it(dtype, packed, taken):
    sums, first = {}, torch.arange(6, dtype=dtype).view(2, 3)
    first = first if packed else first.t()
    ops.accumulate(sums, "w", first, own=True)
    assert (sums["w"] is first) == taken and sums["w"].is_contiguous()
    assert sums["w"].dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    before = first.clone()
    ops.accumulate(sums, "w", torch.ones_like(first), own=True)
    assert torch.equal(sums["w"], before.to(sums["w"].dtype) + 1)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("strided", [False, True])
def test_a_weights_gradient_is_added_by_its_matmul(transposed, strided):
    turns = [(torch.randn(3, 5, 7, dtype=torch.float64), torch.randn(3, 5, 4, dtype=torch.float64)) for _ in range(3)]
    turns = [tuple(x.transpose(0, 1) for x in turn) for turn in turns] if strided else turns
    sums = {}
    ops.accumulate_weight_grad(sums, "w", *turns[0], transposed=transposed)
    total = sums["w"]
    for grad, x in turns[1:]:
        ops.accumulate_weight_grad(sums, "w", grad, input=x, transposed=transposed)
    expected = sum(torch.einsum("abo,abi->oi", grad, x) for grad, x in turns)
    assert sums["w"] is total and total.is_contiguous()
    torch.testing.assert_close(total, expected.t() if transposed else expected)


@pytest.mark.parametrize("own", [torch.arange(10), torch.tensor([2, 3, 7])], ids=["whole", "part"])
def test_rows_of_a_table_are_added_where_the_sum_lies(own):
    turns = [(torch.randn(2, 6, 4, dtype=torch.float64), torch.randint(0, 10, (2, 6))) for _ in range(3)]
    sums = {}
    ops.accumulate_embedding(sums, "w", *turns[0], rows=own, num_rows=10, padding_idx=3)
    total = sums["w"]
    for grad, numbers in turns[1:]:
        ops.accumulate_embedding(sums, "w", grad, indices=numbers, rows=own, num_rows=10, padding_idx=3)
    expected = torch.zeros(10, 4, dtype=torch.float64)
    for grad, numbers in turns:
        expected.index_add_(0, numbers.flatten(), (grad * (numbers != 3)[..., None]).flatten(0, 1))
    assert sums["w"] is total
    torch.testing.assert_close(total, expected[own])


def test_gradients_of_weights_grow_in_place_and_what_others_read_is_copied():
    lines = [line.strip() for line in program_text(6, 2)[0].splitlines() if "ops.accumulate" in line]
    grown = [line for line in lines if "ops.accumulate_weight_grad(grads, f\"blocks.{i}" in line]
    assert grown and not any(line.startswith(f"ops.accumulate(grads, {name},") for name in (g.split(", ")[1] for g in grown) for line in lines), "\n".join(lines)
    assert not any(line.endswith("own=True)") for line in lines if '"loss"' in line or "norm" in line)


def test_what_grows_in_place_is_no_tensor_of_its_own():
    program = program_text(2, 2)[1]
    added = find_added(program.graph, phase_sections(program.graph))
    assert added and not {program.graph.nodes[i].inputs[0] for i in added} & set(live_ranges(program.graph))
    new, sections = add_in_place(program, phase_sections(program.graph))
    assert len(sections) == len(new.graph.nodes) == len(new.origins) == len(program.graph.nodes) - len(added)


def test_what_is_reduced_in_each_turn_or_rounded_is_made_apart():
    """Between the matmul and the sum stands a collective, or a conversion."""
    torch.manual_seed(0)
    workload = Workload(Gpt(vocab=16, seq=8, layers=2, hidden=16, heads=2), (ids(4, 8),), (ids(4, 8),), token_loss, ADAMW)
    halves = split_case(build_case(trace_step(workload, "bf16").graph), 2).graph
    values = {v.name: v for v in halves.values}
    assert all(values[halves.nodes[k].outputs[0]].dtype == "float32" for k, _ in find_added(halves, [n.phase for n in halves.nodes]).values())
    for zero, made in ((0, False), (2, True)):
        options = autopar.Options(constraints=parse_fix(f"dp=2,pp=1,microbatches=2,zero={zero},recompute=none"), price=False)
        block = compile_workload(workload, "cpu:2", options).files["program.py"].split("\ndef blocks_backward(")[1].split("\ndef ")[0]
        assert (block.count("ops.linear_weight_grad("), block.count("ops.accumulate_weight_grad(")) == ((4, 0) if made else (0, 4)), zero


def test_a_turn_is_a_view_of_its_samples():
    x = torch.arange(24).view(3, 8)
    part = ops.microbatch(x, 2, dim=1, count=4)
    assert torch.equal(part, x[:, 4:6]) and part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def program_text(layers, turns):
    torch.manual_seed(0)
    workload = Workload(Gpt(vocab=16, seq=8, layers=layers, hidden=16, heads=2), (ids(4, 8),), (ids(4, 8),), token_loss, ADAMW)
    assigner = Assigner(trace_step(workload, "fp32").graph, (2,), turns=turns)
    program = assigner.program(assigner.draw(random.Random(4), fold_graph(assigner.graph)), keep_grads=False)
    return "".join(files_of(assigner.graph, program).values()), program


def test_length_does_not_depend_on_depth():
    short, long = program_text(6, 2)[0], program_text(24, 2)[0]
    assert "for turn in range(2):" in short and "for i in range(" in short
    assert long.count("\n") <= 1.05 * short.count("\n")


def test_a_mask_for_all_blocks_does_not_make_the_first_one_special():
    torch.manual_seed(0)
    case = split_case(build_case(trace_step(transformer(0.0), "fp32").graph), 2)
    blocks = {repeat.phase: len(repeat.blocks) for repeat in case.repeats}
    assert blocks[Phase.FORWARD] == 3


class Held(TorchDispatchMode):
    """Bytes that are alive beside what entered: now, and at most."""

    def __init__(self, entered):
        super().__init__()
        self.now = self.peak = 0
        self.seen = {t.untyped_storage()._cdata for t in entered}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in self.seen:
                self.hold(t.untyped_storage())
        return out

    def hold(self, storage):
        key, size = storage._cdata, storage.nbytes()
        self.seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone():
            self.seen.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


@pytest.mark.parametrize("turns, optimizer", [(1, torch.optim.SGD), (2, torch.optim.SGD), (4, torch.optim.SGD), (1, torch.optim.AdamW), (2, torch.optim.AdamW)])
def test_memory_is_as_predicted(turns, optimizer):
    """The measured peak of one rank's step, and of what it holds beside states and batch."""
    torch.manual_seed(0)
    check_memory(Workload(Gpt(vocab=64, seq=32, layers=4, hidden=64, heads=4), (ids(8, 32),), (ids(8, 32),), token_loss, optimizer), turns)


class Sum(nn.Module):
    """Of two and a state: so it is of no block that stands beside it (`trace.inline`)."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.zeros(16))

    def forward(self, x, y):
        return x + y + self.shift


class Stack(nn.Module):
    """Sums around its blocks belong to none of them: only the backward passes are a loop."""

    def __init__(self):
        super().__init__()
        self.enter, self.sum = nn.Linear(16, 16), Sum()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 256), nn.SiLU(), nn.Linear(256, 16)) for _ in range(3))

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = self.sum(x, block(x))
        return x


def test_what_blocks_get_listed_goes_as_each_is_done():
    torch.manual_seed(0)
    text = check_memory(Workload(Stack(), (torch.randn(64, 16),), (torch.randn(64, 16),), F.mse_loss, torch.optim.SGD), 1)
    assert "items.pop(0)" in text


def check_memory(workload, turns):
    """Also the program's text."""
    from autopar.runtime import compile_program, read_program
    from autopar.runtime.threads import solo_comm

    assigner = Assigner(trace_step(workload, "fp32").graph, (), turns=turns)
    program = assigner.program(assigner.draw(random.Random(0)), keep_grads=False)
    files = files_of(assigner.graph, program)
    spec = read_program(compile_program(files))
    state = {n: torch.zeros(s.shape, dtype=getattr(torch, s.dtype)) for n, s in spec.states.items()}
    batch = {n: torch.zeros(b.shape, dtype=getattr(torch, b.dtype)) for n, b in spec.batch.items()}
    entered = sum(t.untyped_storage().nbytes() for t in (*state.values(), *batch.values()))
    gc.collect()
    with torch.no_grad(), Held([*state.values(), *batch.values()]) as held:
        loss = spec.step(solo_comm(spec.mesh), state, batch)
        assert held.now <= loss.untyped_storage().nbytes() + 64, "something outlives the step"
    predicted = estimate_memory(program, 0).peak_bytes
    assert abs(entered + held.peak - predicted) <= 0.05 * predicted, (entered + held.peak, predicted)
    assert abs(held.peak - (predicted - entered)) <= 0.05 * (predicted - entered), (held.peak, predicted - entered)
    return files["program.py"]


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.bn = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.bn(self.lin(x))


class Inward(nn.Module):
    """A batch that is the inner part of a dim."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return self.lin(x).t().reshape(-1)


def root_loss(y, targets):
    return F.mse_loss(y, targets).sqrt()


def contrastive(y, targets):
    return F.cross_entropy(y @ y.t(), targets[:, 0].long())


def refusal(workload, count):
    with pytest.raises(MicrobatchError) as error:
        split_case(build_case(trace_step(workload, "fp32").graph), count)
    return str(error.value)


def of_floats(model, loss, batch=4):
    return Workload(model, (torch.randn(batch, 8),), (torch.randn(batch, 8),), loss, torch.optim.SGD, name="net")


@pytest.mark.parametrize(
    ("make", "count", "text"),
    [
        (lambda: of_floats(Normed(), F.mse_loss), 2, r"net cannot run in 2 microbatches: \w+ \(aten\.\w+\.\w+, .* in bn\) needs \w+ of the whole batch; plan with one microbatch"),
        (lambda: of_floats(nn.Linear(8, 8), root_loss), 2, r"net cannot run in 2 microbatches: \w+ \(.*test_turns.py:\d+ in the root module\) needs [\w.]+ of the whole batch"),
        (lambda: of_floats(nn.Linear(8, 8), contrastive), 2, r"net cannot run in 2 microbatches: .* needs \w+ of the whole batch"),
        (lambda: of_floats(nn.Linear(8, 8), F.mse_loss, batch=6), 4, r"net: the batch has size 6 \(dim 0 of input:0\), which does not divide by 4 microbatches"),
        (lambda: Workload(Inward(), (torch.randn(4, 8),), name="net"), 2, r"net cannot run in 2 microbatches: it returns \w+ \(.*test_turns.py:\d+ in the root module\), in whose dim 0 of size 32 the batch lies inside of another dim; expected it outermost: return the two as dims of their own, or plan with one microbatch"),
        (lambda: Workload(nn.Sequential(nn.Linear(8, 8), nn.Softmax(0)), (torch.randn(4, 8),), name="net"), 2, r"net cannot run in 2 microbatches: \w+ \(aten\._softmax.*\) needs \S+ of the whole batch; plan with one microbatch"),
    ],
    ids=["batch norm", "root of the loss", "contrastive", "does not divide", "an output with the batch inside", "an output over the batch"],
)  # fmt: skip
def test_refusals(make, count, text):
    torch.manual_seed(0)
    assert re.match(text, refusal(make(), count)), refusal(make(), count)
