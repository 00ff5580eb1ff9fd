"""Verification: the program of a plan, run on all ranks in one process in float64, against plain PyTorch.

In: a workload, a cluster, options. Out: a `VerifyReport`. Nothing of the compiler is in the reference: it is the user's own module with the
same first values, `loss.backward()`, and the user's optimizer; only its random ops are answered with the program's numbers (`draws`). Two
steps on different batches, so that what is carried is covered. Compared are the loss of every rank, every gradient, and after the update
every rank's piece of every parameter, buffer and optimizer state.

The rule. The error of a tensor is its largest |program - PyTorch|, relative to its scale: the larger of its own largest magnitude and 1/1000
of the largest in its kind (a gradient that is zero in exact arithmetic, such as that of a key's bias, is rounding noise in both, and
has no scale of its own). It passes at 1e-10 or less. The update is judged on equal gradients: PyTorch's optimizer is given
the program's, which have just been compared; else Adam, which divides a gradient by its own size, would show the noise of such a gradient
as an error of the update.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .api import compile_workload, model_facts
from .cluster import Cluster, num_devices, parse_cluster
from .codegen.emit import ModelFacts, print_source
from .draws import first_draws, same_draws
from .errors import InputError, ModelError
from .graph.cuts import find_cuts, resolve_all
from .graph.graph import Graph, value_table
from .graph.mesh import Mesh, num_ranks, print_mesh
from .graph.partition import partition
from .graph.plan import Plan
from .graph.program import check_program
from .graph.random_plans import Assigner, mesh_shapes, plain_mesh
from .graph.repeats import fold_graph
from .graph.registry import rules_in_force
from .graph.rules.random_numbers import STATE as RANDOM_STATE
from .graph.sharding import Sharding, parse_sharding
from .graph.tensor import Kind
from .options import Options
from .runtime import ProgramSpec, State, compile_program, initial_state, read_program, run_ranks, state_of_module
from .runtime.shards import cut, join
from .trace import Traced, Workload, float64_everywhere
from .trace.held import carry_hooks, unchanged
from .trace.discover import NOT_THE_SAME
from .trace.workload import find_tensors, map_tensors

TOLERANCE = 1e-10
STEPS = 2
_KIND_SHARE = 1e-3  # of the largest magnitude in its kind: the least scale of a tensor
_NUM_SHOWN = 5
KINDS = ("loss", "output", "gradient", "parameter", "buffer", "optimizer state")


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor after one step (1, 2): largest absolute error, and that over its scale. `plan`: of which random plan, "" for the chosen."""

    kind: str
    name: str
    step: int
    absolute: float
    relative: float
    plan: str = ""


@dataclass(frozen=True, slots=True)
class KindReport:
    """All tensors of one kind: the largest absolute and the largest relative error, and whose they are."""

    kind: str
    num_tensors: int
    absolute: Difference
    relative: Difference


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was compared, and how far apart it is.

    Args:
        mesh: as text.
        kinds: the worst of all plans.
        failures: what is beyond the tolerance, worst first.
        random_plans: legal plans that were drawn at random and compared, too.
    """

    model: str
    cluster: str
    mesh: str
    labels: tuple[tuple[str, tuple[str, ...]], ...]
    num_ranks: int
    steps: int
    tolerance: float
    kinds: tuple[KindReport, ...]
    failures: tuple[Difference, ...]
    random_plans: int = 0


def verify_workload(
    workload: Workload,
    cluster: str | Cluster,
    options: Options | None = None,
    report: Callable[[str], None] | None = None,
    random_plans: int = 0,
) -> VerifyReport:
    """Plan, build and run a workload's program in float64 and compare it with plain PyTorch.

    Args:
        cluster: as `autopar.plan` takes it.
        options: the precision is always float64; as that doubles every byte, the memory limit is doubled too, so that the splits are
            those of a plan in fp32; it is less where all ranks together would not fit this machine.
        report: told what is going on, one line each.
        random_plans: so many legal plans of the same step are drawn (seeds 0, 1, ... on one, two and three axes in turn) and compared, too:
            the compiler must be right for any plan, not only for the one that looks good.
    Raises:
        ModelError: plain PyTorch takes another way through the model than its trace did, or an op of the user's is not the same twice.
        InputError: plain PyTorch cannot run it on its example inputs.
        AutoparError: as in `autopar.plan`.
    """
    say = report or (lambda line: None)
    found = cluster if isinstance(cluster, Cluster) else parse_cluster(cluster)
    options = options or Options()
    limit = 2 * (options.memory_bytes or found.device.memory_bytes)
    room = _room_per_rank(workload, num_devices(found))
    if room is not None and room < limit:
        say(f"planning for {room / 2**20:,.0f} MiB per rank, so that all {num_devices(found)} ranks and the reference fit this machine")
        limit = room
    compiled = compile_workload(workload, found, replace(options, precision="fp64", memory_bytes=limit), report=say)
    _refuse_unrepeatable(compiled.plan)
    reports = [compare_plan(workload, compiled.traced, compiled.plan, options.seed, say)]
    for name, plan in draw_plans(compiled.traced.graph, compiled.plan, num_devices(found), random_plans):
        say(name)
        reports.append(_rename(compare_plan(workload, compiled.traced, plan, options.seed), name))
    return _join_reports(reports)


def draw_plans(graph: Graph, plan: Plan, ranks: int, count: int) -> Iterator[tuple[str, Plan]]:
    """(name, plan) of so many random legal plans of the same step; half of them let equal blocks decide alike, as the solver does."""
    if not count:
        return
    sites, signatures = resolve_all(graph, rules_in_force(plan.rules))
    fold = fold_graph(graph)
    shapes = mesh_shapes(ranks)
    assigners = {sizes: Assigner(graph, sites, signatures, plain_mesh(sizes)) for sizes in shapes[:count]}
    for number in range(count):
        sizes = shapes[number % len(shapes)]
        assignment = assigners[sizes].draw(random.Random(number), fold if number // len(shapes) % 2 else None)
        yield f"random plan {number} on {print_mesh(assignment.mesh)}", replace(plan, assignment=assignment)


def _rename(report: VerifyReport, plan: str) -> VerifyReport:
    return replace(
        report,
        kinds=tuple(replace(k, absolute=replace(k.absolute, plan=plan), relative=replace(k.relative, plan=plan)) for k in report.kinds),
        failures=tuple(replace(f, plan=plan) for f in report.failures),
    )


def _join_reports(reports: list[VerifyReport]) -> VerifyReport:
    """The first with the worst of all."""
    kinds = []
    for own in reports[0].kinds:
        same = [k for r in reports for k in r.kinds if k.kind == own.kind]
        worst = max(same, key=lambda k: k.absolute.absolute).absolute, max(same, key=lambda k: k.relative.relative).relative
        kinds.append(replace(own, absolute=worst[0], relative=worst[1]))
    failures = sorted((f for r in reports for f in r.failures), key=lambda f: -f.relative)
    return replace(reports[0], kinds=tuple(kinds), failures=tuple(failures), random_plans=len(reports) - 1)


def _refuse_unrepeatable(plan: Plan) -> None:
    """Raise `ModelError` where an op of the user's own gives other numbers each time: nothing says which are right."""
    for row in plan.rules:
        if row.why_whole == NOT_THE_SAME:
            raise ModelError(
                f"{plan.model.name}: {row.op} gives other numbers on the same data each time, so there is nothing to compare with; give it its "
                "random numbers as an argument (torch.rand outside of the op), or switch them off"
            )


def _room_per_rank(workload: Workload, num_ranks: int) -> int | None:
    """What each rank may hold so that all of them, as threads of this process, fit its machine beside the reference.

    The reference holds parameters, gradients and two moments in float64, and the program's gradients while they are compared: 40 bytes
    per parameter. None where the machine does not say what is free.
    """
    try:
        free = next(int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    reference = 40 * sum(p.numel() for p in workload.model.parameters())
    return max(int((0.8 * free - reference) / num_ranks), 1 << 20)


def compare_plan(workload: Workload, traced: Traced, plan: Plan, seed: int, say: Callable[[str], None] = lambda line: None) -> VerifyReport:
    """Compare the program of any float64 plan of a workload with plain PyTorch (see `verify_workload`)."""
    graph, mesh = traced.graph, plan.assignment.mesh
    facts, given = first_values(workload, traced)
    emitted = _build_program(graph, plan, facts)
    program = emitted.spec
    ranks = range(num_ranks(mesh))
    local = [initial_state(program, rank, given, seed) for rank in ranks]
    found = _Findings()
    with real_model(workload, graph, facts, given, seed) as model:
        reference = _Reference(model, workload, seed)
        for step in range(1, STEPS + 1):
            inputs, targets = make_batch(workload, graph, seed, step)
            say(f"step {step}: {len(ranks)} ranks")
            whole = dict(find_tensors("input:", inputs)) | dict(find_tensors("target:", targets))
            parts = [{n: cut(whole[n], parse_sharding(b.sharding), mesh, r) for n, b in program.batch.items()} for r in ranks]
            losses, returned = _run(emitted, mesh, local, parts, bool(graph.loss))
            say(f"step {step}: plain PyTorch")
            outputs, grads = reference.forward_backward(inputs, targets)
            if graph.loss:
                for rank, loss in enumerate(losses):
                    found.note("loss", f"loss on rank {rank}", step, loss, outputs[0])
            else:
                for k, (ours, theirs) in enumerate(zip(returned, outputs, strict=True)):
                    found.note("output", f"output {k}", step, ours, theirs)
            ours_by_name = {p.rpartition("@")[0]: g for (p, _), g in zip(graph.grads, returned)} if graph.loss else {}
            for name in {**ours_by_name, **grads}:
                if name not in ours_by_name or name not in grads:
                    side = "the program" if name in ours_by_name else "plain PyTorch"
                    raise ModelError(f"{name}: only {side} gives it a gradient; is its requires_grad changed while the step runs?")
                found.note("gradient", name, step, ours_by_name[name], grads[name])
            reference.update(ours_by_name)
            _check_draws(local[0], reference.draws.count)
            _compare_states(found, program, mesh, local, reference, step)
    return found.report(plan, len(ranks))


# -- first values ------------------------------------------------------------------------------------------------------------------


def first_values(workload: Workload, traced: Traced) -> tuple[ModelFacts, dict[str, Tensor]]:
    """How every state begins: the model's facts with a recipe for every parameter, and the real tensors that win over recipes.

    A parameter on the meta device whose making was not recorded is drawn (normal, 0.02): any value serves to compare.
    """
    facts = model_facts(workload, traced)
    recipes = dict(facts.inits)
    given = {name: t for name, t in state_of_module(workload.model).items() if not t.is_meta}
    given |= {name.rpartition("@")[0]: t for name, t in traced.constants.items()}
    for name, _ in workload.model.named_parameters():
        if name not in given and name not in recipes:
            recipes[name] = (("normal_", 0.0, 0.02),)
    return replace(facts, inits=recipes), given


@contextlib.contextmanager
def real_model(workload: Workload, graph: Graph, facts: ModelFacts, given: Mapping[str, Tensor], seed: int) -> Iterator[torch.nn.Module]:
    """The user's module with whole real values, in the dtypes of the graph's states; what is shared stays shared.

    It is the module itself, not a copy, as the loss and hooks may hold it; afterwards it is as it was.
    """
    values = value_table(graph)
    entering = [values[n] for n in graph.inputs if values[n].kind in (Kind.PARAM, Kind.BUFFER)]
    states = {v.storage: State(v.kind.value, v.shape, v.dtype, "-", facts.inits.get(v.storage, ("given",))) for v in entering}
    whole = initial_state(ProgramSpec(Mesh(()), states, {}, None, {}, lambda *_: None), 0, given, seed)
    model = workload.model
    with unchanged(model):
        made: dict[int, Tensor] = {}
        for name, old in (*model.named_parameters(), *model.named_buffers()):
            new = whole[name] if name in whole else old.detach().clone()  # a buffer that the step does not read
            made[id(old)] = torch.nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, torch.nn.Parameter) else new
            carry_hooks(old, made[id(old)])
        for module in model.modules():
            for table in (module._parameters, module._buffers):
                table.update({key: made[id(old)] for key, old in table.items() if old is not None})
        yield model


# -- batches -----------------------------------------------------------------------------------------------------------------------


def make_batch(workload: Workload, graph: Graph, seed: int, step: int) -> tuple[Any, Any]:
    """Inputs and targets of one step (1, 2) in float64: the example's own values, then the same moved on by one sample; random where
    the example has none (meta), whole numbers small enough for every table that they may be looked up in.
    """
    limit = _smallest_table(graph)
    generator = torch.Generator().manual_seed(1000 * seed + step)

    def real(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            moved = tensor.detach().cpu()
            if step > 1 and moved.dim() and not _rises(moved):
                moved = moved.roll(step - 1, 0) if moved.shape[0] > 1 else moved.flatten().roll(step - 1).view(moved.shape)
            return moved.to(torch.float64) if moved.dtype.is_floating_point else moved.clone()
        if tensor.dtype.is_floating_point:
            return torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        return torch.randint(0, 2 if tensor.dtype == torch.bool else limit, tensor.shape, generator=generator).to(tensor.dtype)

    inputs, targets = workload.example_inputs, workload.example_targets
    new_inputs = map_tensors("input:", inputs, {n: real(t) for n, t in find_tensors("input:", inputs)})
    return new_inputs, map_tensors("target:", targets, {n: real(t) for n, t in find_tensors("target:", targets)})


def _rises(tensor: Tensor) -> bool:
    """True for whole numbers in rising order, such as offsets: they mean something only as they stand."""
    return not tensor.dtype.is_floating_point and tensor.dim() == 1 and bool((tensor[1:] > tensor[:-1]).all())


def _smallest_table(graph: Graph) -> int:
    """A number that every whole-number input may stay below: the smallest embedding or number of classes, else 2."""
    values = value_table(graph)
    sizes = [values[n.inputs[0]].shape[0] for n in graph.nodes if n.op == "autopar.embedding"]
    sizes += [values[n.inputs[0]].shape[-1] for n in graph.nodes if n.op == "autopar.pick"]
    sizes += [values[n.inputs[0]].shape[1] for n in graph.nodes if n.op.startswith("aten.nll_loss") and len(values[n.inputs[0]].shape) > 1]
    return min(sizes, default=2)


# -- running -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Emitted:
    """The plan's program as emitted, which also returns every gradient, and how ranks hold what it returns: (whole shape, sharding)."""

    spec: ProgramSpec
    returned: tuple[tuple[tuple[int, ...], Sharding], ...]


def _build_program(graph: Graph, plan: Plan, facts: ModelFacts) -> _Emitted:
    sites, signatures = resolve_all(graph, rules_in_force(plan.rules))
    program = partition(graph, sites, signatures, find_cuts(graph, signatures), plan.assignment, keep_grads=True)
    check_program(program)
    text = print_source(program, graph, plan.model.name, plan.cluster.spec, plan.summary, facts)
    place, shapes = {local: (whole, s) for local, whole, s in program.shardings}, dict(program.whole)
    returned = tuple((shapes[place[name][0]], place[name][1]) for name in program.graph.outputs)
    return _Emitted(read_program(compile_program({"program.py": text})), returned)


def _run(
    emitted: _Emitted, mesh: Mesh, local: list[dict[str, Tensor]], parts: list[dict[str, Tensor]], has_loss: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """One step of all ranks.

    Returns:
        the loss of each rank; gradients (forward-only: outputs), whole, joined from all ranks.
    """

    def one(comm: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        result = emitted.spec.step(comm, local[comm.rank], parts[comm.rank])
        if not has_loss:
            return torch.zeros(()), result
        loss, grads = result if isinstance(result, tuple) else (result, ())
        return loss.clone(), grads

    results = run_ranks(mesh, one)
    losses = [loss for loss, _ in results]
    held = [list(tensors) for _, tensors in results]
    del results
    whole = []
    for shape, sharding in emitted.returned:  # piece by piece, so that pieces and wholes are never all there at once
        whole.append(join([pieces.pop(0) for pieces in held], shape, sharding, mesh))
    return losses, whole


class _Reference:
    """Plain PyTorch: the module, its backward, its optimizer; its random numbers are those of the program (`draws`)."""

    def __init__(self, model: torch.nn.Module, workload: Workload, seed: int) -> None:
        self.model, self.loss, self.draws = model, workload.loss, first_draws(seed)
        with float64_everywhere():
            self.optimizer: Any = workload.optimizer(list(model.parameters())) if workload.optimizer else None

    def forward_backward(self, inputs: Any, targets: Any) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """(the loss, or the outputs of a forward-only program), gradients by parameter."""
        for p in self.model.parameters():
            p.grad = None
        try:
            with same_draws(self.draws), float64_everywhere(), torch.set_grad_enabled(self.loss is not None):
                output = self.model(**inputs) if isinstance(inputs, dict) else self.model(*inputs)
                if self.loss is None:
                    return tuple(t for _, t in find_tensors("", _plain(output))), {}
                loss = self.loss(output, *targets)
                loss.backward()
        except Exception as error:
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"plain PyTorch cannot run the step on the example inputs: {type(error).__name__}: {text}. Give example inputs with real values"
            ) from error
        grads = {n: p.grad.detach() for n, p in self.model.named_parameters() if p.grad is not None}
        return (loss.detach(),), grads

    def update(self, grads: Mapping[str, Tensor]) -> None:
        """The optimizer's step on these gradients."""
        if self.optimizer is None:
            return
        for name, p in self.model.named_parameters():
            p.grad = grads[name].clone() if name in grads else None
        with same_draws(self.draws), float64_everywhere():
            self.optimizer.step()

    def state(self, kind: str, name: str) -> Tensor | None:
        """What a state of the program is here; None where it has no counterpart."""
        if kind != "optim":
            return dict(self.model.named_parameters()).get(name, dict(self.model.named_buffers()).get(name))
        key, _, param = name.partition(":")
        found = self.optimizer.state.get(dict(self.model.named_parameters()).get(param), {}).get(key)
        return torch.tensor(float(found), dtype=torch.float64) if isinstance(found, (int, float)) else found


def _plain(output: Any) -> Any:
    """Output objects as dicts, as the tracer reads them."""
    if hasattr(output, "__dataclass_fields__") and not isinstance(output, dict):
        return {k: getattr(output, k) for k in output.__dataclass_fields__}
    return output


def _check_draws(state: Mapping[str, Tensor], count: int) -> None:
    """Raise `ModelError` where plain PyTorch did not draw as often as the trace did; then it went another way, too."""
    if RANDOM_STATE in state and int(state[RANDOM_STATE]) != count:
        ours = int(state[RANDOM_STATE])
        raise ModelError(
            f"plain PyTorch has drawn {abs(count - ours)} {'more' if count > ours else 'fewer'} random tensors than the traced step, so it takes "
            "another way through the model: a random number of Python decides, or what it does depends on data. Switch that off to compare."
        )


def _compare_states(found: _Findings, program: ProgramSpec, mesh: Mesh, local: list[dict[str, Tensor]], reference: _Reference, step: int) -> None:
    names = {"param": "parameter", "buffer": "buffer", "optim": "optimizer state"}
    for name, state in program.states.items():
        theirs = reference.state(state.kind, name)
        if theirs is None or tuple(theirs.shape) != state.shape:
            continue  # a constant of the program, or a number that only the program keeps as a tensor
        sharding = parse_sharding(state.sharding)
        for rank, pieces in enumerate(local):  # every rank's own piece: copies must not drift apart
            found.note(names[state.kind], name, step, pieces[name], cut(theirs.detach(), sharding, mesh, rank))


# -- findings ----------------------------------------------------------------------------------------------------------------------


class _Findings:
    """Collects errors per (kind, tensor, step) while the ranks' pieces come in. Lives for one comparison."""

    def __init__(self) -> None:
        self.errors: dict[tuple[str, str, int], float] = {}
        self.scales: dict[tuple[str, str, int], float] = {}

    def note(self, kind: str, name: str, step: int, ours: Tensor, theirs: Tensor) -> None:
        key = (kind, name, step)
        self.errors[key] = max(self.errors.get(key, 0.0), _distance(ours.detach(), theirs.detach()))
        self.scales[key] = max(self.scales.get(key, 0.0), _magnitude(theirs.detach()))

    def differences(self) -> list[Difference]:
        groups: dict[str, float] = {}
        for key, scale in self.scales.items():
            groups[_group(key)] = max(groups.get(_group(key), 0.0), scale)
        rows = []
        for key, error in self.errors.items():
            scale = max(self.scales[key], _KIND_SHARE * groups[_group(key)])
            relative = 0.0 if error == 0 else error / scale if scale > 0 else math.inf
            rows.append(Difference(*key, error, relative))
        return rows

    def report(self, plan: Plan, ranks: int) -> VerifyReport:
        rows = self.differences()
        kinds = []
        for kind in KINDS:
            own = [r for r in rows if r.kind == kind]
            if own:
                kinds.append(KindReport(kind, len({r.name for r in own}), max(own, key=lambda r: r.absolute), max(own, key=lambda r: r.relative)))
        failures = sorted((r for r in rows if not r.relative <= TOLERANCE), key=lambda r: -r.relative)
        mesh = print_mesh(plan.assignment.mesh)
        return VerifyReport(plan.model.name, plan.cluster.spec, mesh, plan.labels, ranks, STEPS, TOLERANCE, tuple(kinds), tuple(failures))


def _group(key: tuple[str, str, int]) -> str:
    """What shares a scale: the kind; of optimizer states each sort (`exp_avg`) for itself."""
    kind, name, _ = key
    return f"{kind} {name.partition(':')[0]}" if kind == "optimizer state" else kind


def _distance(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape or not ours.numel():
        return 0.0 if ours.shape == theirs.shape else math.inf
    a, b = ours.to(torch.float64), theirs.to(torch.float64)
    largest = float(torch.where(a == b, 0.0, (a - b).abs()).max())  # equal infinities are equal
    return math.inf if math.isnan(largest) else largest


def _magnitude(tensor: Tensor) -> float:
    finite = tensor.to(torch.float64).abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(finite.max()) if finite.numel() else 0.0


def describe_failure(report: VerifyReport) -> str:
    """Why the report is no success, naming the worst; "" where all is well."""
    if not report.failures:
        return ""
    names = {(r.kind, r.name) for r in report.failures}
    total = sum(k.num_tensors for k in report.kinds)
    lines = [
        f"{report.model} on {report.cluster} (mesh {report.mesh}) differs from plain PyTorch: {len(names)} of {total} tensors by more than "
        f"{report.tolerance:g} of their scale."
    ]
    lines += [
        f"  {r.kind} {r.name}, step {r.step}{', ' + r.plan if r.plan else ''}: {r.absolute:.3g} ({r.relative:.3g} of its scale)"
        for r in report.failures[:_NUM_SHOWN]
    ]
    if len(report.failures) > _NUM_SHOWN:
        lines.append(f"  and {len(report.failures) - _NUM_SHOWN} more")
    return "\n".join(lines)


def report_to_json(report: VerifyReport) -> dict[str, Any]:
    """The report as JSON data; an error that is no number (NaN, another shape) is null."""

    def row(entry: Difference) -> dict[str, Any]:
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(entry).items()}

    return {
        "passed": not report.failures,
        "model": report.model,
        "cluster": report.cluster,
        "mesh": report.mesh,
        "labels": {axis: list(names) for axis, names in report.labels},
        "num_ranks": report.num_ranks,
        "steps": report.steps,
        "random_plans": report.random_plans,
        "tolerance": report.tolerance,
        "kinds": [
            {"kind": k.kind, "num_tensors": k.num_tensors, "absolute": row(k.absolute), "relative": row(k.relative)} for k in report.kinds
        ],
        "failures": [row(r) for r in report.failures],
    }
