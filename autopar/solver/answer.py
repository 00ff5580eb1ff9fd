"""The answer as a plan: every table that people look at, computed once from the program that the assignment determines.

In: graph, assignment, program, prices, cost, certificate. Out: a `Plan`. Invariant: headlines are the sums of the rows: `compute_s` of
the nodes, `exposed_comm_s` of the comms less what is hidden, `num_params` of the params (`check_plan` adds them up).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isfinite

from ..cost.estimate import estimate_program, hidden_seconds, node_seconds
from ..cost.memory import ALONE, Among
from ..cost.model import CostModel
from ..cost.ops import node_flops
from ..cost.peak import list_peak
from ..cost.under_way import under_way_bytes
from ..graph.case import Case
from ..graph.choice import Assignment
from ..graph.graph import Graph, phase_table, use_table, value_table
from ..graph.mesh import axis_sizes
from ..graph.node import Node, Phase, input_names
from ..graph.overlap_memory import overlap_within
from ..graph.partition import assigned_strategies, node_cuts, partition
from ..graph.plan import (
    FORMAT,
    Alternative,
    Certificate,
    ClusterInfo,
    CommPlan,
    ModelInfo,
    NodePlan,
    ParamPlan,
    Plan,
    RepeatPlan,
    TensorPlan,
)
from ..graph.program import Program
from ..graph.sections import Section, phase_sections
from ..graph.sendings import Sending, list_sendings
from ..graph.sharding import Sharding, local_elements
from ..graph.strategy import REPLICATED, Strategy, axis_choices, build_strategy, list_strategies
from ..graph.tensor import DTYPE_BYTES, Kind, Value, num_elements
from ..graph.transfer import may_hide, outside_blocks
from ..graph.turns import count_microbatches, times_of
from .prices import Prices

_NUM_ALTERNATIVES = 3


@dataclass(frozen=True, slots=True)
class Answered:
    """A plan, and the program that it determines."""

    plan: Plan
    program: Program


def build_answer(
    case: Case,
    assignment: Assignment,
    certificate: Certificate,
    model: CostModel,
    prices: Prices,
    labels: tuple[tuple[str, tuple[str, ...]], ...],
    summary: str,
    model_info: ModelInfo,
    cluster_info: ClusterInfo,
    in_flight: float = 1.0,
    among: Among = ALONE,
    opens: bool = True,
    sections_of: Callable[[Program], Sequence[Section]] = lambda program: phase_sections(program.graph),
) -> Answered:
    """Build the program of an assignment and the plan with all its tables.

    Args:
        in_flight: of a stage: microbatches between their forward and backward.
        among: where it is among other stages.
        opens: as of `graph.overlap_memory.overlap_within`.
        sections_of: the section of each of the program's nodes.
    """
    graph = case.graph
    strategies = assigned_strategies(graph, case.sites, case.signatures, case.cuts, assignment)
    program = partition(graph, case.sites, case.signatures, case.cuts, assignment)
    seconds = node_seconds(model, program, case.sites, case.signatures, strategies)
    cost = estimate_program(model, program, case.sites, case.signatures, strategies, in_flight, among)
    room, on_cpu = cluster_info.memory_bytes - cost.peak_bytes[0], model.cluster.device.kind == "cpu"
    overlapped, sections = overlap_within(program, sections_of(program), room, opens)
    cost = replace(cost, under_way_bytes=(under_way_bytes(program, overlapped, sections, in_flight, on_cpu),))
    sizes = axis_sizes(assignment.mesh)
    made = _made_shardings(graph, assignment, strategies)
    plan = Plan(
        FORMAT, model_info, cluster_info, assignment, 1, labels, summary, assignment.microbatches, _print_schedule(assignment.microbatches), cost, certificate,
        tuple(_tensor_plan(v, made[v.name], sizes) for v in graph.values),
        _param_plans(graph, assignment, strategies, made, sizes),
        _node_plans(case, program, assignment, strategies, made, seconds, prices),
        _comm_plans(program, list_sendings(program, overlapped, on_cpu), seconds, hidden_seconds(model, program, seconds)),
        tuple(RepeatPlan(r.family, r.phase, tuple(tuple(graph.nodes[i].name for i in b.nodes) for b in r.blocks)) for r in case.repeats),
        peak=list_peak(program, max(cost.moments, key=lambda m: m.bytes).node, in_flight, among) if cost.moments else None,
    )  # fmt: skip
    return Answered(plan, program)


def _print_schedule(microbatches: int) -> str:
    return f"one stage, {microbatches} microbatches one after the other" if microbatches > 1 else "one stage, one microbatch"


def _made_shardings(graph: Graph, assignment: Assignment, strategies: Mapping[str, Strategy]) -> dict[str, Sharding]:
    """Value -> the sharding in which it is stored or made."""
    made = dict(assignment.storages)
    for node in graph.nodes:
        made.update(zip((o for o in node.outputs if o), strategies[node.name].outputs))
    return made


def _local_bytes(value: Value, sharding: Sharding, sizes: tuple[int, ...]) -> int:
    return local_elements(value.shape, sharding, sizes) * DTYPE_BYTES[value.dtype]


def _tensor_plan(value: Value, sharding: Sharding, sizes: tuple[int, ...]) -> TensorPlan:
    return TensorPlan(value.name, value.kind, value.version, value.shape, value.dtype, 0, sharding, _local_bytes(value, sharding, sizes))


def _param_plans(
    graph: Graph, assignment: Assignment, strategies: Mapping[str, Strategy], made: Mapping[str, Sharding], sizes: tuple[int, ...]
) -> tuple[ParamPlan, ...]:
    values = value_table(graph)
    grads = dict(graph.grads)
    uses = use_table(graph)
    optim: dict[str, list[Value]] = {}
    for name in graph.inputs:
        value = values[name]
        if value.kind is Kind.OPTIM:
            optim.setdefault(value.storage.partition(":")[2], []).append(value)
    rows = []
    for name in graph.inputs:
        value = values[name]
        if value.kind is not Kind.PARAM:
            continue
        grad_name = grads.get(name)
        grad = _held_sharding(graph, uses, strategies, made, grad_name) if grad_name else None
        states = optim.get(value.storage, [])
        largest = max(states, key=lambda v: num_elements(v.shape), default=None)
        rows.append(
            ParamPlan(
                value.storage, made[name], grad, made[largest.name] if largest else None, value.shape,
                _local_bytes(value, made[name], sizes),
                _local_bytes(values[grad_name], grad, sizes) if grad_name and grad else 0,
                sum(_local_bytes(v, made[v.name], sizes) for v in states),
            )
        )  # fmt: skip
    return tuple(rows)


def _held_sharding(
    graph: Graph, uses: Mapping[str, tuple[tuple[int, int], ...]], strategies: Mapping[str, Strategy], made: Mapping[str, Sharding], grad: str
) -> Sharding:
    """How a gradient is held between backward and update: as the update first reads it."""
    for i, k in uses[grad]:
        node = graph.nodes[i]
        if node.phase.value == "update":
            return strategies[node.name].inputs[k]
    return made[grad]


def _comm_plans(program: Program, sendings: Mapping[str, Sending], seconds: Mapping[str, float], hidden: Mapping[str, float]) -> tuple[CommPlan, ...]:
    sharding = {name: s for name, _, s in program.shardings}
    values = value_table(program.graph)
    rows = []
    for node, origin in zip(program.graph.nodes, program.origins):
        if node.op.startswith("comm."):
            moved = max(_bytes(values[node.inputs[0]]), _bytes(values[node.outputs[0]]))
            axis, sent = str(dict(node.args)["axis"]), sendings[node.name]
            rows.append(
                CommPlan(
                    node.name, node.op.partition(".")[2], axis, origin.value, origin.node, node.phase,
                    sharding[node.inputs[0]], sharding[node.outputs[0]], moved, sent.dtype, seconds[node.name],
                    hidden.get(node.name, 0.0), sent.message, sent.starts_at, sent.waits_at,
                )
            )  # fmt: skip
    return tuple(rows)


def _bytes(value: Value) -> int:
    return num_elements(value.shape) * DTYPE_BYTES[value.dtype]


def _node_plans(
    case: Case,
    program: Program,
    assignment: Assignment,
    strategies: Mapping[str, Strategy],
    made: Mapping[str, Sharding],
    seconds: Mapping[str, float],
    prices: Prices,
) -> tuple[NodePlan, ...]:
    own: dict[str, float] = {}
    for node, origin in zip(program.graph.nodes, program.origins):
        if not node.op.startswith("comm."):  # a write of a state belongs to the node that made it
            own[origin.node] = own.get(origin.node, 0.0) + seconds[node.name]
    turns = count_microbatches(case.graph)
    judge = _Judge(case, axis_sizes(assignment.mesh), strategies, made, prices)
    rows = []
    for i, (node, site, signature) in enumerate(zip(case.graph.nodes, case.sites, case.signatures)):
        reason, others, refused = judge.explain(i)
        rows.append(
            NodePlan(
                node.name, node.op, node.inputs, node.outputs, node.phase, node.path, node.source, strategies[node.name].choices,
                own[node.name], times_of(node.phase, turns) * node_flops(signature, site), reason, others, refused,
            )
        )  # fmt: skip
    return tuple(rows)


class _Judge:
    """Prices a node's other choices with its neighbours as they are; one answer for all nodes that decide alike."""

    def __init__(self, case: Case, sizes: tuple[int, ...], strategies: Mapping[str, Strategy], made: Mapping[str, Sharding], prices: Prices) -> None:
        self.case, self.sizes, self.strategies, self.made, self.prices = case, sizes, strategies, made, prices
        self.values, self.uses = value_table(case.graph), use_table(case.graph)
        self.known: dict[int, tuple[str, tuple[Alternative, ...], tuple[str, ...]]] = {}
        self.outside, self.phases = outside_blocks(case.graph), phase_table(case.graph)

    def explain(self, i: int) -> tuple[str, tuple[Alternative, ...], tuple[str, ...]]:
        """(reason, alternatives, refused) of node number i."""
        i = self.case.fold.node_class[i]
        if i not in self.known:
            self.known[i] = self._explain(i)
        return self.known[i]

    def _explain(self, i: int) -> tuple[str, tuple[Alternative, ...], tuple[str, ...]]:
        node, site, signature = self.case.graph.nodes[i], self.case.sites[i], self.case.signatures[i]
        chosen = self.strategies[node.name]
        cuts = node_cuts(site, signature, self.case.cuts)
        refused = tuple(sorted({f"{r.factor}: {r.reason}" for r in list_strategies(signature, site, self.sizes[:1], cuts)[1]})) if self.sizes else ()
        others: dict[tuple[str, ...], Strategy] = {}
        for axis in range(len(self.sizes)):
            for choice in axis_choices(signature, cuts, input_names(node)):
                choices = (*chosen.choices[:axis], choice, *chosen.choices[axis + 1 :])
                made = build_strategy(signature, site, choices, self.sizes, cuts)
                if isinstance(made, Strategy) and choices != chosen.choices:
                    others[choices] = made
        if not others:
            return "the only choice that its rule allows here" if self.sizes else "one rank", (), refused
        own = self._price(i, node, chosen)
        priced = sorted((p, s.choices) for s in others.values() if isfinite(p := self._price(i, node, s)))
        alternatives = tuple(Alternative(choices, p) for p, choices in priced[:_NUM_ALTERNATIVES])
        if not alternatives:
            return "no other choice can be reached from its neighbours", (), refused
        best = alternatives[0]
        extra = best.seconds - own
        told = f"{own * 1e6:.1f} us with its reshards; next best {_print_choices(best.choices)}: {'+' if extra >= 0 else ''}{extra * 1e6:.1f} us here"
        if extra < 0:
            told += ", but worse for the step or its memory"
        return told, alternatives, refused

    def _price(self, i: int, node: Node, strategy: Strategy) -> float:
        total = [float(self.prices.node_seconds(i, [strategy])[0])]
        for name, wanted in zip(node.inputs, strategy.inputs):
            total.append(self._reshard(name, self.made[name], wanted, node.phase))
        for name, sharding in zip((o for o in node.outputs if o), strategy.outputs):
            for j, k in self.uses[name]:
                reader = self.case.graph.nodes[j]
                phase = node.phase if self.values[name].kind is Kind.GRAD else reader.phase
                total.append(self._reshard(name, sharding, self.strategies[reader.name].inputs[k], phase))
        return fsum(total) if all(isfinite(t) for t in total) else float("inf")

    def _reshard(self, name: str, source: Sharding, target: Sharding, phase: Phase) -> float:
        """What sticks out as long as there is compute to hide behind."""
        if source == target:
            return 0.0
        value = self.values[name]
        hidden = self.prices.hidden_seconds(value, source, target) if may_hide(value, phase, self.outside, self.phases.get(name)) else 0.0
        return self.prices.reshard_seconds(value, source, target) - hidden


def _print_choices(choices: Sequence[str]) -> str:
    return " ".join(choices) if any(c != REPLICATED for c in choices) else "R (on every rank alike)"
