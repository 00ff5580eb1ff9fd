"""The update of many parameters: how often its kernels are launched, what its text is like, and the tables that launches read."""

from __future__ import annotations

import copy
import functools
import random
import re
import warnings
from collections import OrderedDict
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import autopar  # noqa: E402
from autopar.api import compile_workload  # noqa: E402
from autopar.codegen.folded import fold_in_order  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.graph.fuse import fuse_program  # noqa: E402
from autopar.graph.kernel import joined_numbers, takes_lists  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.partition import partition  # noqa: E402
from autopar.graph.random_plans import Assigner, plain_mesh  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime import Executable, initial_state, solo_comm, together  # noqa: E402
from autopar.runtime.names import expand_names  # noqa: E402
from autopar.runtime.parcels import as_they_come, lots  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402

from .interpreter import read_numbers  # noqa: E402
from .random_updates import difference  # noqa: E402
from .update_numbers import CASES, Apart, Block, Capped, Careful, Clipped, Lamb, Lion, Own, Scaler, Shared  # noqa: E402

TOLERANCE = {"fp32": 5e-6, "bf16": 2e-2}


@pytest.fixture(scope="module")
def numbers():
    """Whole steps in Triton's interpreter, of one process."""
    return {row["case"]: row for row in read_numbers("update_numbers")}


@pytest.mark.parametrize("name", CASES)
def test_whole_steps_equal_float64(numbers, name):
    assert numbers[name]["difference"] < TOLERANCE[CASES[name].precision], numbers[name]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.ranks == case.stages == 1])
def test_a_kernel_is_launched_once_for_all_parameters(numbers, name):
    """Twice where some parameters are of sizes that a device cannot load in wide steps; a model of 14 parameters with a launch for each would need 14 and more."""
    row = numbers[name]
    assert row["params"] == 14 and row["launches"] and all(count <= 2 for count in row["launches"].values()), row


def test_clipping_factors_of_odd_gradients_are_torchs(numbers):
    """NaN of what is none, 0 of what is infinite, or too large to be squared; a zero has no share."""
    factors = numbers["odd gradients"]["factors"]
    assert len(factors) == 10 and all(ours == pytest.approx(theirs, rel=1e-6, nan_ok=True) for ours, theirs in factors.values()), factors


@pytest.mark.parametrize(
    "name, launches",
    [
        ("clipped AdamW", {"mul_sum_kernel": 2, "sum_sqrt_add_clamp_kernel": 1, "update_step_kernel": 1, "update_param_exp_avg_exp_avg_sq_kernel": 2}),
        ("clipped masters", {"mul_sum_kernel": 2, "sum_sqrt_add_clamp_kernel": 1, "update_step_kernel": 1, "update_param_exp_avg_exp_avg_sq_master_kernel": 2}),
        ("clipped by the largest", {"abs_amax_kernel": 2, "amax_add_mul_clamp_kernel": 1, "update_param_kernel": 2}),
        ("widths without a rest", {"mul_sum_kernel": 1, "sum_sqrt_add_clamp_kernel": 1, "update_step_kernel": 1, "update_param_exp_avg_exp_avg_sq_kernel": 1}),
        ("stages, clipped", {"mul_sum_kernel": 4, "sum_kernel": 1, "sum_sqrt_add_clamp_kernel": 1, "update_step_kernel": 2, "update_param_exp_avg_exp_avg_sq_kernel": 4}),
        ("stages, clipped by the largest", {"abs_amax_kernel": 4, "amax_kernel": 1, "amax_add_mul_clamp_kernel": 1, "update_param_kernel": 4}),
        ("sums that are read twice", {"pow_sum_kernel": 2, "add_up": 1, "amin_kernel": 2, "sum_kernel": 1, "amin_mul_sqrt_add_kernel": 1, "sqrt_add_kernel": 1, "update_param_kernel": 2}),
    ],
)
def test_a_norm_is_two_launches(numbers, name, launches):
    """Of a stage, whatever stages there are: one that leaves the parts of all parameters (of those with sizes that have a rest another one), and one that adds them all up and makes the factor of that; sums that
    others read, too, are added up by parameter."""
    assert numbers[name]["launches"] == launches


@pytest.mark.parametrize("arch", [80, 90])
def test_no_kernel_of_a_clipped_update_spills(arch):
    pytest.importorskip("triton")
    warnings.simplefilter("ignore", UserWarning)  # Triton 3.9 tells of a default of 3.10
    from benchmarks.kernel_compile import compile_kernels

    case = build_case(trace_step(_workload(1), "bf16").graph)
    assignment = Assigner(case.graph, case.sites, case.signatures, plain_mesh(())).draw(random.Random(0))
    program = partition(case.graph, case.sites, case.signatures, case.cuts, assignment)
    rows = compile_kernels([k for k in fuse_program(program, phase_sections(program.graph)).kernels if takes_lists(k) or joined_numbers(k)], [arch])
    assert {row.name for row in rows} >= {"mul_sum", "sum_sqrt_add_clamp", "update_step", "update_param_exp_avg_exp_avg_sq_master"} and not any(row.spilled_bytes for row in rows), rows


def test_a_clipped_update_in_plain_torch_stacks_the_sums():
    """And goes on with the number: no launch, no view and no kernel of its own for a square root."""
    text = compile_workload(_workload(2), "cpu:1", Options(price=False), cache_path=None).files["kernels.py"]
    body = text[text.index("def sum_sqrt_add_clamp(numbers)") :].partition("\n\n")[0]
    assert "    cat = torch.stack(numbers)\n    sum = torch.sum(cat, dim=[])\n    sum.sqrt_()\n    sum.add_(1e-06)\n" in body and ".reshape(" not in body
    assert "in_parts=True" in text and "def sum_kernel(" not in text and 'totals.add_all(parts_ptr, COUNT, COLS, "sum", 0.0)' in text


class Rooted(Own):
    """A norm of all gradients of which a function is taken that Triton has not."""

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.square().sum() for p in params]).sum()
        for p in params:
            p.sub_(0.1 * p.grad / (1 + torch.special.i0(norm)))


def test_what_follows_of_a_total_may_have_no_triton_text():
    text = compile_workload(_net(Rooted, nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 8)), "cpu:1", Options(price=False), cache_path=None).files["kernels.py"]
    [(name, body)] = re.findall(r"^def (sum_\w+)\(numbers\):\n(.*?)\n\n", text, re.M | re.S)
    assert f"sum = {name}_total.run(numbers)\n        i0 = aten.i0" in body and "Plain torch on every device, but for the number of all: aten.i0.default has" in body, body


def _net(optimizer, *layers: nn.Module) -> Workload:
    return Workload(nn.Sequential(*layers), (torch.randn(4, 8),), (torch.randn(4, 8),), nn.functional.mse_loss, optimizer)


def _update_of(optimizer, *layers: nn.Module, precision: str = "fp32") -> str:
    """The text of the update of a net of these layers of 8."""
    text = compile_workload(_net(optimizer, *layers), "cpu:1", Options(price=False, precision=precision), cache_path=None).files["program.py"]
    return text[text.index("def update") :].partition("def step")[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_reads_the_same_state_is_one_kernel(precision):
    """Lion's parameter and momentum: momentum and gradient are read once, both are written in place, in one launch for all."""
    update = _update_of(Lion, nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 8), precision=precision)
    assert update.count("kernels.") == 1 and "ops.lots" not in update and ".copy_(" not in update, update


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_states_are_rewritten_beside_sums_and_after_what_reads_them(precision):
    """LAMB's moments by the kernel that also sums, its parameter after the kernels that took its norm and its decay: nothing is copied; a state that is read afterwards is."""
    update = _update_of(Lamb, nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 8), precision=precision)
    assert "update_m_v" in update and "kernels.update_param" in update and ".copy_(" not in update, update


class Averaged(Own):
    """The parameter, and a state that goes by what it was before and by how long it is afterwards."""

    names = ("before",)

    def update(self, p, state, lr):
        old = p.clone()
        p.sub_(p.grad, alpha=lr)
        state["before"].add_(old.tanh() * p.norm())


class Turned(Own):
    """What is made of a state's old version leaves its kernel for a matmul, when the state has its new one."""

    names = ("before",)

    def update(self, p, state, lr):
        change = p.grad - state["before"]
        state["before"].copy_(p.grad)
        p.sub_(change if p.dim() < 2 else change @ (change.t() @ change), alpha=lr)


class Exchanged(Own):
    """Each of two states becomes what the other was, the parameter what neither is any more."""

    names = ("one", "two")

    def update(self, p, state, lr):
        one, two = state["one"] + p.grad, state["two"] - 2 * p.grad
        p.lerp_(state["one"] * state["two"], lr)
        state["one"].copy_(two * 0.5)
        state["two"].copy_(one * 0.5)


class Handed(Own):
    """What two of the states become is a weighted and a scaled sum that begins in the place of another."""

    names = ("one", "two", "three")

    def update(self, p, state, lr):
        share = p.norm().tanh()
        early, late = (state["one"] * 0.5).lerp(p.grad, 0.1), state["two"] * 0.5
        state["one"].copy_(p.grad.tanh())
        state["two"].copy_(early)
        state["three"].copy_(late + p.grad * share)
        p.sub_(state["three"], alpha=lr)


@pytest.mark.parametrize("made", [Averaged, Turned, Exchanged, Handed])
def test_what_reads_a_state_afterwards_reads_what_it_was(made):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 6))
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    plain = copy.deepcopy(model)
    files = compile_workload(Workload(model, (x,), (y,), nn.functional.mse_loss, made), "cpu:1", Options(price=False), cache_path=None).files
    executable = Executable(None, files, solo_comm(), {})
    executable.state.update(initial_state(executable.program, 0, {name: t.detach().clone() for name, t in model.state_dict().items()}))
    optimizer = made(plain.parameters())
    for _ in range(3):
        executable.step(x, y)
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        optimizer.step()
    for name, p in plain.named_parameters():
        torch.testing.assert_close(executable.state[name], p.detach())
        for key in made.names:
            torch.testing.assert_close(executable.state[f"{key}:{name}"], optimizer.state[p][key])


@pytest.mark.parametrize("seed", [38, 47, 60, 61, 62, 63])
def test_random_updates_are_plain_pytorchs(seed):
    assert difference(seed) < 1e-9


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, functools.partial(torch.optim.SGD, momentum=0.9)], ids=["AdamW", "SGD"])
def test_a_learning_rate_that_is_a_tensor_is_worked_out_once(optimizer):
    """Of what is made of it for each parameter alike there is one, so updates stay equal: one function, whatever the depth."""
    net = functools.partial(optimizer, lr=torch.tensor(0.01)), *(layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh()))
    graph = trace_step(_net(*net)).graph
    numbers = [n for n in graph.nodes if n.phase is Phase.UPDATE and not any(v.shape for v in graph.values if v.name in (*n.inputs, *n.outputs)) and not any("step:" in name for name in n.inputs)]
    made = [(n.op, n.inputs, n.args) for n in numbers if n.inputs]
    assert len(set(made)) == len(made), made
    update = _update_of(*net)
    assert len(re.findall(r"^def update_\w+\(", update, re.M)) == 1 and update.count("aten.full") == 1, update


class _Placed(nn.Module):
    """One row that is added to all, as positions and class tokens are."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.randn(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.row


@pytest.mark.parametrize("layer", [nn.PReLU, _Placed], ids=["one element", "one row"])
def test_parameters_of_one_element_or_row_are_updated_with_the_others(layer):
    """They count as the step count does, one row, and are no part of that: in place, in the launch of all, each of whose programs reads the count and none of which writes it."""
    update = _update_of(functools.partial(torch.optim.AdamW, lr=0.01), nn.Linear(8, 8), layer(), nn.Linear(8, 8), layer())
    assert update.count("kernels.update_param_exp_avg_exp_avg_sq(") == update.count("kernels.update_step(") == 1 and "ops.lots" not in update and ".copy_(" not in update, update


def _update_text(depth: int) -> str:
    text = compile_workload(_workload(depth), "cpu:1", Options(price=False), cache_path=None).files["program.py"]
    return text[text.index("def measure_param(") :].partition("def step(")[0]


def _workload(depth: int) -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(h=nn.Sequential(*(Block(16) for _ in range(depth))), head=nn.Linear(16, 6)))
    return Workload(model, (torch.randn(8, 16),), (torch.randn(8, 6),), nn.functional.mse_loss, functools.partial(Clipped, lr=0.01))


def test_a_clipped_update_does_not_grow_with_the_model():
    """The norm's parts are made by one function of all parameters, the clipped update by another; both are the same text for two blocks and for four."""
    update, deep = _update_text(2), _update_text(4)
    assert update.replace("h.{0..1}", "h.{0..3}") == deep
    assert "kernels.mul_sum(grad)" in update and 'clamp = kernels.sum_sqrt_add_clamp([grads.pop(f"{name}~sum") for name in expand_names("h.{0..1}{.norm.weight,.norm.bias,' in update
    assert re.search(r"kernels\.update_param_exp_avg_exp_avg_sq\(grad, \[grad_2\] \* len\(names\), ", update) and update.count("def ") == 3


def test_a_scaled_update_does_not_grow_with_the_model():
    """A scale of the optimizer's own, and totals that are found in loops: as many functions and calls for two blocks as for four."""

    def calls(depth: int) -> tuple[int, int]:
        text = compile_workload(replace(_workload(depth), optimizer=Scaler), "cpu:1", Options(price=False), cache_path=None).files["program.py"]
        update = text[text.index("def measure_") :].partition("def step(")[0]
        return update.count("def "), update.count("kernels.")

    assert calls(2) == calls(4) and max(calls(4)) <= 12


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("turns", [1, 2])
def test_a_clipped_update_of_shards_reduces_one_number(zero, turns):
    """The norm's parts are added up where they lie; gradients come and new parameters go by the bucket, as without clipping."""
    options = Options(constraints=autopar.constrain(dp=2, zero=zero, microbatches=turns), price=False)
    text = compile_workload(_workload(2), "cpu:2", options, cache_path=None).files["program.py"]
    update = text[min(text.index(f"def {name}") for name in ("measure_", "start_measure_") if f"def {name}" in text) :].partition("def step(")[0]
    assert update.count("comm.all_reduce(") == turns, "of several turns the loss is reduced there, too"
    assert "comm.all_gather(" not in update and "comm.reduce_scatter(" not in update
    assert ("comm.start_all_gather(" in update) is (zero < 3)
    assert ("comm.start_reduce_scatter(" in update) is (zero == 1 and turns > 1)
    assert 'grads[f"{name}~scattered"]' not in update, "its last reader takes it"
    report = verify_workload(_workload(2), "cpu:2", options)
    assert not describe_failure(report), describe_failure(report)


@pytest.mark.parametrize("make", [functools.partial(Clipped, lr=0.01), functools.partial(Capped, lr=0.1), Apart, Careful, Shared], ids=["norm", "largest", "two norms", "flags", "read twice"])
@pytest.mark.parametrize("words", [{"tp": 2}, {"dp": 2, "zero": 2}, {"pp": 2, "microbatches": 2}])
def test_numbers_of_all_parameters_on_several_ranks(make, words):
    """Some of the numbers are summed between ranks first, or have come from another stage: they are listed with those that are left in parts."""
    report = verify_workload(replace(_workload(2), optimizer=make), "cpu:2", Options(constraints=autopar.constrain(**words), price=False))
    assert not describe_failure(report), describe_failure(report)


class ClippedAdam(torch.optim.Adam):
    """Without decay the update reads a gradient first where it multiplies it by the norm."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


def _images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 7, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(112, 5))


@pytest.mark.parametrize(
    "model, shape, words",
    [
        (lambda: nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 5)), (8,), {"tp": 2}),
        (_images, (3, 4, 4), {"tp": 2}),
        (_images, (3, 4, 4), {"dp": 2, "zero": 1}),
    ],
    ids=["odd sizes, tp", "images, tp", "images, zero=1"],
)
def test_parts_of_one_text_whose_gradients_are_read_again_are_apart(model, shape, words):
    """Parameters that lie in different ways: of some the norm's part is the last to read the gradient, of others the update reads it again, so one function cannot take it for both."""
    torch.manual_seed(0)
    workload = Workload(model(), (torch.randn(8, *shape),), (torch.randn(8, 5),), nn.functional.mse_loss, functools.partial(ClippedAdam, lr=0.01))
    report = verify_workload(workload, "cpu:2", Options(constraints=autopar.constrain(**words), price=False))
    assert not describe_failure(report), describe_failure(report)


def _falls(optimizer, *args):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def _falling(make, params):
    """The rate of the group falls with each step, in a hook."""
    optimizer = make(params)
    optimizer.register_step_post_hook(_falls)
    return optimizer


@pytest.mark.parametrize("make", [functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), functools.partial(torch.optim.AdamW, lr=0.01)], ids=["sgd", "adamw"])
@pytest.mark.parametrize("words", [{"dp": 2, "zero": 0}, {"dp": 2, "zero": 1}, {"pp": 2, "microbatches": 2}])
def test_what_a_group_carries_is_read_by_every_update(make, words):
    """The rate is a state that belongs to no parameter, so updates of equal parameters leave values for others to read, under names of their own."""
    workload = replace(_workload(2), optimizer=functools.partial(_falling, make))
    report = verify_workload(workload, "cpu:2", Options(constraints=autopar.constrain(**words), price=False))
    assert not describe_failure(report), describe_failure(report)


@pytest.mark.parametrize(
    "names",
    [
        ["h.0.w", "h.0.b", "h.1.w", "h.1.b", "head"],
        ["h.1.w", "h.0.w", "h.2.w", "x.w"],
        ["0.w", "1.w", "2.b", "2.w", "3.b", "3.w"],
        ["a", "b", "a.0.c.1.d", "a.1.c.1.d"],
    ],
)
def test_folded_names_come_out_in_order(names):
    folded = fold_in_order(names)
    assert expand_names(*folded) == names and len(folded) < len(names) or len(names) == 4


def test_lots_follow_the_gradients():
    state = {name: torch.zeros(size) for name, size in (("a", 4), ("b", 4), ("c", 2), ("d", 100))}
    assert as_they_come({"c": 0, "b": 0, "a": 0}, ["a", "b", "c", "d"]) == ["c", "b", "a", "d"]
    assert lots(state, ["c", "b", "a", "d"], 24) == [["c", "b"], ["a"], ["d"]]


class _Kernel:
    """A launch that keeps what it was told."""

    __name__ = "kernel"

    def __init__(self) -> None:
        self.told: list[tuple[torch.Tensor, torch.Tensor, dict]] = []

    def __getitem__(self, grid: tuple[int, ...]):
        def run(parts, table, *sums, **words):
            assert grid == (len(parts),)
            self.told.append((parts, table, words))

        return run


def test_tables_say_where_each_parameter_is():
    kernel = _Kernel()
    launch = together.Together(kernel, wide=0, written=[0])
    params, grads = ([torch.zeros(size) for size in (2048, 1, 1040)] for _ in range(2))
    launch.run([params, grads])
    (parts, table, words), (odd, same, rest) = kernel.told
    assert words["ALIGN"] == 16 and rest["ALIGN"] == 1 and parts.tolist() == [[0, 0, 0], [0, 1, 1], [2, 0, 3], [2, 1, 4]] and odd.tolist() == [[1, 0, 2]]
    assert table.tolist() == [[x.numel(), x.data_ptr(), g.data_ptr()] for x, g in zip(params, grads)] and same is table
    launch.run([params, grads])
    assert kernel.told[2][1] is table and kernel.told[2][0] is parts  # nothing has moved
    moved = [torch.zeros_like(g) for g in grads]
    launch.run([params, moved])
    assert kernel.told[4][0] is parts and kernel.told[4][1][:, 2].tolist() == [g.data_ptr() for g in moved]


def test_parts_that_stay_lie_in_the_order_of_parameters():
    """Whatever their sizes and addresses are multiples of: what ranks have in common they add up in one order."""
    kernel = _Kernel()
    launch = together.Together(kernel, wide=0, made=[together.Made(torch.float32, scalar=True, part_dtype=torch.float32, in_parts=True)])
    shares = launch.run([[torch.zeros(size) for size in (5000, 3, 4096)]])
    assert [(share.buffer is shares[0].buffer, share.bounds, share.number) for share in shares] == [(True, (0, 2, 3, 4), k) for k in range(3)]
    assert [rows.tolist() for rows, *_ in kernel.told] == [[[2, 0, 3]], [[0, 0, 0], [0, 1, 1], [1, 0, 2]]]


def test_a_captured_launch_has_tables_of_its_own(monkeypatch):
    """While a graph is captured they are empty; `fill` writes them, and later steps do not touch them."""
    kernel = _Kernel()
    launch = together.Together(kernel, wide=0, written=[0])
    params, grads = [torch.zeros(32)], [torch.zeros(32)]
    launch.run([params, grads])
    with monkeypatch.context() as patch:
        patch.setattr(together, "_captures", lambda device: True)
        launch.run([params, grads])
    eager, captured = kernel.told[0][1], kernel.told[1][1]
    assert captured is not eager
    launch.fill()
    launch.run([params, [torch.zeros(32)]])
    assert torch.equal(captured, eager) and kernel.told[2][1] is not captured


def test_a_graphs_tables_are_reserved_before_it_is_captured(monkeypatch):
    """What is allocated during a capture is written over at each replay: tables must lie elsewhere, as many as a step has."""
    kernel = _Kernel()
    launch = together.Together(kernel, wide=0, written=[0])
    lots = [[[torch.zeros(32)], [torch.zeros(32)]], [[torch.zeros(16)], [torch.zeros(16)]], [[torch.zeros(16)] * 2, [torch.zeros(16)] * 2]]
    for lists in lots * 2:
        if lists is lots[0]:
            launch.begin_step()
        launch.run(lists)
    made: list[int] = []
    launch.reserve()
    reserved = {t.data_ptr() for t in launch._reserved}
    with monkeypatch.context() as patch:
        patch.setattr(together, "_captures", lambda device: True)
        for lists in lots:
            launch.run(lists)
            made.append(kernel.told[-1][1].data_ptr())
    assert len(reserved) == 3 and set(made) == reserved and not launch._reserved
    launch.fill()
    assert [t[1].tolist() for t in kernel.told[-3:]] == [t[1].tolist() for t in kernel.told[3:6]]


def test_a_result_is_made_over_an_argument_that_nobody_reads_afterwards():
    """The table has its address once; one that is not dense is copied, and the copy is the result."""
    kernel = _Kernel()
    launch = together.Together(kernel, wide=0, made=[together.Made(torch.float32, over=1), together.Made(torch.float32)])
    params, grads = [torch.zeros(16), torch.zeros(4, 4)], [torch.zeros(16), torch.zeros(4, 4).t()]
    edited, other = launch.run([params, grads])
    assert edited[0] is grads[0] and edited[1] is not grads[1] and edited[1].is_contiguous()
    assert kernel.told[0][1].tolist() == [[x.numel(), x.data_ptr(), e.data_ptr(), o.data_ptr()] for x, e, o in zip(params, edited, other)]


def test_what_is_given_up_is_let_go_parameter_by_parameter():
    """And what ops in pieces put there is no other tensor."""
    grads, places = [torch.ones(300001), torch.ones(3)], []

    def ops(param, grad):
        places.append(grad.data_ptr())
        return grad.add_(param), param * 2

    was = [grad.data_ptr() for grad in grads]
    edited, doubled = together.each(ops, [[torch.ones(300001), torch.ones(3)], grads], 2, given_up=[1])
    assert grads == [None, None] and [e.data_ptr() for e in edited] == was and len(places) == 4
    assert all((e == 2).all() and (d == 2).all() and e.shape == d.shape for e, d in zip(edited, doubled))


def test_a_state_that_is_not_dense_is_refused():
    launch = together.Together(_Kernel(), wide=0, written=[0])
    with pytest.raises(ValueError, match="kernel: a state that is rewritten in place is not dense"):
        launch.run([[torch.zeros(4, 6).t()], [torch.zeros(6, 4)]])


def test_no_parameters_are_no_launch():
    kernel = _Kernel()
    assert together.Together(kernel, wide=0, made=[together.Made(torch.float32)] * 2).run([[], []]) == ([], []) and not kernel.told


class Crossing(torch.optim.Optimizer):
    """A product of the old parameter that is added only when the parameter has its new version: two scaled sums, of which one is of what the other writes over."""

    def __init__(self, params) -> None:
        super().__init__(params, {})
        self.rate, self.share = torch.tensor(-0.1), torch.tensor(0.25)

    @torch.no_grad()
    def step(self, closure=None):
        self.rate.mul_(0.9)
        self.share.mul_(0.8)
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["far"] = torch.zeros_like(p)
            late = p * self.share
            p.add_(p.grad * self.rate)
            state["far"].add_(late)
            p.add_(state["far"], alpha=-0.01)


def test_scaled_sums_of_what_others_write_over():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    mine, (x, y) = copy.deepcopy(model), (torch.randn(4, 6), torch.randn(4, 3))
    step = autopar.compile(mine, "cpu:1", example_inputs=(x,), example_targets=(y,), loss=torch.nn.functional.mse_loss, optimizer=Crossing, options=Options(price=False))
    optimizer = Crossing(model.parameters())
    for _ in range(4):
        step(x, y)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    found = step.state_dict()
    assert all(torch.allclose(found[name], p, rtol=1e-5, atol=1e-6) for name, p in model.state_dict().items())
    assert step.files["kernels.py"].count(".addcmul_(") == 1, "the other product is made while the old parameter is there"
