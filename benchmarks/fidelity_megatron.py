"""A layer as Megatron-LM runs it, planned as Megatron-LM splits it: what its activations take on one device.

In: sizes, degrees and which of the forms of 2205.05198. Out: bytes that one layer's forward pass leaves for its backward pass. The layer is
plain PyTorch, with the unfused attention core and the three dropouts that the paper counts; the stack is traced in bf16, planned under
constraints, and the lives of the program's values are added up. Nothing is counted by hand.

Without sequence parallelism Megatron-LM repeats norms, dropouts and residuals on every rank of tp, and its matmuls are column-, then
row-parallel; the search likes other layouts as well, so modules and weights are pinned. What the paper recomputes is said by name, node by node:
`recompute=selective` keeps the product with the values, which the paper runs again, too (the same bytes).
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import nn

from autopar.cluster import parse_cluster
from autopar.constraints import Constraints, ModuleForbid, Pin, constrain
from autopar.cost.memory import list_lives
from autopar.cost.model import build_cost_model
from autopar.graph.case import Case, build_case, decided_case
from autopar.graph.choice import Assignment
from autopar.graph.graph import value_table
from autopar.graph.liveness import is_view
from autopar.graph.node import Phase
from autopar.graph.partition import partition
from autopar.graph.program import Program
from autopar.graph.recompute import list_recomputable, recompute_graph
from autopar.graph.tensor import Kind, num_elements
from autopar.solver.decide import Ask, Decision, decide
from autopar.trace import Workload, trace_step
from benchmarks.megatron_model import Block, causal_mask

RECOMPUTES = ("none", "selective", "full")
_BLOCKS = 3  # the middle one has neighbours like itself
_MIDDLE = "blocks.1"
_TURNS = 2  # microbatches, as in a real step: what does not depend on the samples is made before them
_NO_LIMIT_BYTES = 10**15
_TIME_LIMIT_S = 120.0
_PINS = (
    Pin("blocks.*.qkv.weight@0", "S0", on="tp"),
    Pin("blocks.*.out.weight@0", "S1", on="tp"),
    Pin("blocks.*.up.weight@0", "S0", on="tp"),
    Pin("blocks.*.down.weight@0", "S1", on="tp"),
)
_REPEATED = tuple(ModuleForbid(f"blocks.*.{name}", ("tp",)) for name in ("norm_1", "norm_2", "drop_1", "drop_2"))


@dataclass(frozen=True, slots=True)
class Layer:
    """Sizes: sequence, microbatch, hidden, heads; `tp`: ranks that share the layer."""

    seq: int
    batch: int
    hidden: int
    heads: int
    tp: int


class _Stack(nn.Module):
    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.first = nn.Linear(layer.hidden, layer.hidden)  # so that the first block's input has a gradient
        self.blocks = nn.ModuleList(Block(layer.hidden, layer.heads) for _ in range(_BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = causal_mask(x.shape[1], x.device)
        x = self.first(x)
        for block in self.blocks:
            x = block(x, mask)
        return x


def layer_bytes(layer: Layer, sequence_parallel: bool, recompute: str) -> int:
    """Bytes that one layer holds between its forward and its backward pass on one device.

    Args:
        recompute: one of `RECOMPUTES`; `full`: all that the graph allows (`graph.recompute`) is run again.
    """
    decision = _decide(layer, sequence_parallel, "none")
    case, assignment = _kept(decision)
    can = list_recomputable(case.graph, case.signatures)
    names = () if recompute == "none" else can if recompute == "full" else _inside_core(case, can)
    return _count(_program(decision.case, _run_again(case, assignment, names)))


def layer_params(layer: Layer) -> int:
    """Elements of one layer's parameters on one device."""
    decision = _decide(layer, False, "none")
    assert decision.assignment is not None
    values = value_table(_program(decision.case, decision.assignment).graph)
    return sum(num_elements(v.shape) for v in values.values() if v.kind is Kind.PARAM and v.version == 0 and v.storage.startswith(_MIDDLE))


@functools.lru_cache(maxsize=8)
def _trace(layer: Layer) -> Case:
    with torch.device("meta"):
        model = _Stack(layer)
    batch = torch.zeros(_TURNS * layer.batch, layer.seq, layer.hidden, dtype=torch.bfloat16, device="meta")
    workload = Workload(model, (batch,), (), lambda y: y.float().sum(), None)
    return build_case(trace_step(workload, "bf16").graph)


@functools.lru_cache(maxsize=32)
def _decide(layer: Layer, sequence_parallel: bool, recompute: str) -> Decision:
    model = build_cost_model(parse_cluster(f"1x{layer.tp}xA100-80GB"))
    return decide(
        Ask(
            _trace(layer), model, _constraints(layer.tp, sequence_parallel, recompute), _NO_LIMIT_BYTES, _TIME_LIMIT_S, 1, lambda line: None
        )
    )


def _constraints(tp: int, sequence_parallel: bool, recompute: str) -> Constraints:
    if tp == 1:
        return constrain(microbatches=_TURNS, recompute=recompute)
    modules = () if sequence_parallel else _REPEATED
    return constrain(
        dp=1, pp=1, tp=tp, microbatches=_TURNS, recompute=recompute, sequence_parallel=sequence_parallel, pin=_PINS, module=modules
    )


def _kept(decision: Decision) -> tuple[Case, Assignment]:
    assert decision.assignment is not None
    return decided_case(decision.case, decision.assignment), decision.assignment


def _inside_core(case: Case, can: Collection[str]) -> tuple[str, ...]:
    """Of what may be run again: what an attention core makes for itself; its result is kept, as the input of the next matmul."""
    core = {n.name for n in case.graph.nodes if "core" in n.path.split(".")}
    leaving: set[str] = set()  # values of the core that forward nodes outside of it read, through views
    for node in reversed(case.graph.nodes):
        if node.phase is Phase.FORWARD and (node.name not in core or is_view(node.op) and leaving.intersection(node.outputs)):
            leaving.update(node.inputs)
    return tuple(n.name for n in case.graph.nodes if n.name in can and n.name in core and not leaving.intersection(n.outputs))


def _run_again(case: Case, assignment: Assignment, names: tuple[str, ...]) -> Assignment:
    """The assignment with copies of these nodes, each split as its original."""
    found, chosen = recompute_graph(case.graph, names), dict(assignment.strategies)
    strategies = tuple((n.name, chosen[found.original.get(n.name, n.name)]) for n in found.graph.nodes)
    return replace(assignment, again=names, strategies=strategies)


def _program(traced: Case, assignment: Assignment) -> Program:
    case = decided_case(traced, assignment)
    return partition(case.graph, case.sites, case.signatures, case.cuts, assignment)


def _count(program: Program) -> int:
    """Bytes of what the middle layer's nodes make before the backward pass and hold into it."""
    nodes = program.graph.nodes
    turn = next(i for i, node in enumerate(nodes) if node.phase is Phase.BACKWARD)
    lives = (life for life in list_lives(program) if 0 <= life.first < turn <= life.last)
    return sum(life.bytes for life in lives if f"{nodes[life.first].path}.".startswith(f"{_MIDDLE}."))
