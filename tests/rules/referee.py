"""The referee (`autopar.trace.discovery.referee`) for the table: samples of any op, ours included, and what rules do not offer.

`find_missed` turns the referee round: which single-axis placements are sound although the rule does not offer them?
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from itertools import product

import torch
import torch._decomp

from autopar.graph.node import Arg
from autopar.graph.rule import Rule, Shape, find_rule, resolve
from autopar.graph.sharding import PARTIAL, REPLICATE, Partial, Placement, Shard, Sharding
from autopar.graph.strategy import list_strategies
from autopar.runtime import ops
from autopar.trace.discovery import referee
from autopar.trace.discovery.referee import (
    NARROW,
    REFUSALS,
    TOLERANCE,
    Run,
    Tensors,
    check_sample,
    cut,
    from_arg,
    inner_cuts,
    run_pieces,
    site_of,
    why_not_joined,
    why_unequal,
    why_wrong,
)

__all__ = [
    "NARROW", "NO_CPU_KERNEL", "REFUSALS", "TOLERANCE", "Sample", "Tensors", "check_sample", "cut", "find_missed", "inner_cuts",
    "input_placements", "make_sample", "offered", "output_placements", "run_op", "run_pieces", "site_of", "why_not_joined", "why_unequal",
    "why_wrong",
]  # fmt: skip

NO_CPU_KERNEL = frozenset({"aten._fused_rms_norm_backward.default"})  # checked through torch's own decomposition


def _schema_names(op: str) -> list[str]:
    if op.startswith("autopar."):
        return list(inspect.signature(ops.find_op(op)).parameters)
    space, packet, overload = op.split(".")
    schema = getattr(getattr(getattr(torch.ops, space), packet), overload)._schema
    return [a.name for a in schema.arguments]


def run_op(op: str, args: tuple[tuple[str, Arg], ...], inputs: Tensors) -> tuple[torch.Tensor | None, ...]:
    """Call the op, ours too; every call draws the same random numbers."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed asks every backend: ten times as slow as these ops
    call = ops.find_op(op)
    if op in NO_CPU_KERNEL:
        call = torch._decomp.decomposition_table[call]
    made = call(**{name: from_arg(arg, inputs) for name, arg in args})
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


@dataclass(frozen=True)
class Sample(referee.Sample):
    """A sample of any op of a graph, ours included."""

    run: Run = run_op


def make_sample(op: str, *args: object, label: str = "", compare: str = "values", **named: object) -> Sample:
    """A sample from a call as one would write it; `op` without an overload means `.default`."""
    op = op if op.count(".") == 2 or op.startswith("autopar.") else f"{op}.default"
    given = {**dict(zip(_schema_names(op), args)), **named}
    text = f"{op.removesuffix('.default')}{' ' if label else ''}{label}"
    made = referee.sample_of(text, op, {name: given[name] for name in _schema_names(op) if name in given}, compare, run_op)
    return Sample(made.name, made.node, made.inputs, made.outputs, made.compare)


# --- what the rules do not offer -----------------------------------------------------------------------------------------------------


EXTREMES: tuple[Placement, ...] = (Partial("max"), Partial("min"))


def _placements(shape: Shape, n: int, may_be_partial: bool = True, is_output: bool = False) -> list[Placement]:
    found: list[Placement] = [REPLICATE]
    if may_be_partial:
        found.append(PARTIAL)
    if is_output:
        found += EXTREMES
    for dim, size in enumerate(shape):
        found += [Shard(dim, stride) for stride in range(1, size) if size % (stride * n) == 0]
    return found


def input_placements(sample: Sample, n: int) -> list[list[Placement]]:
    """Every placement of each input; integers are indices more often than not, and parts of an index point nowhere."""
    return [_placements(tuple(t.shape), n, t.dtype.is_floating_point or t.dtype.is_complex) for t in sample.inputs]


def output_placements(sample: Sample, n: int) -> list[tuple[Placement, ...]]:
    """Every combination of placements of the outputs; booleans have no parts that add up, complex numbers no order."""
    outs = sample.outputs
    return list(product(*(_placements(tuple(t.shape), n, t.dtype != torch.bool, not t.dtype.is_complex) for t in outs)))


def offered(sample: Sample, rules: dict[str, Rule], n: int) -> set[tuple[tuple[Placement, ...], tuple[Placement, ...]]]:
    """All single-axis strategies, whatever the cuts of the graph might be."""
    site = site_of(sample)
    signature = resolve(find_rule(rules, sample.node), site)
    found = set()
    for factor in signature.factors:
        inner = [()] + [(d,) for d in range(2, factor.size) if factor.size % d == 0]
        for cuts in inner:
            strategies, _ = list_strategies(signature, site, (n,), {factor.name: cuts})
            found |= {(tuple(s.placements[0] for s in x.inputs), tuple(s.placements[0] for s in x.outputs)) for x in strategies}
    strategies, _ = list_strategies(signature, site, (n,), {})
    return found | {(tuple(s.placements[0] for s in x.inputs), tuple(s.placements[0] for s in x.outputs)) for x in strategies}


def find_missed(sample: Sample, rules: dict[str, Rule], n: int = 2) -> list[str]:
    """Sound placements along one axis of n that the rule does not offer, as `P,S0/2 -> S0/2`."""
    site = site_of(sample)
    signature = resolve(find_rule(rules, sample.node), site)
    known = offered(sample, rules, n)
    has_localise = signature.rule.localise is not None
    outs, choices = output_placements(sample, n), input_placements(sample, n)
    found = []
    for ins in product(*choices):
        inputs = tuple(Sharding((p,)) for p in ins)
        made = None
        for out in outs:
            equal = tuple(REPLICATE if p in EXTREMES else p for p in out)
            if (ins, out) in known or (ins, equal) in known or (equal != out and not any(isinstance(p, Shard) for p in ins)):
                continue  # equal replicas are also their own maximum: true and of no use
            outputs = tuple(Sharding((p,)) for p in out)
            if made is None or has_localise:
                try:
                    made = run_pieces(sample, signature, inputs, outputs, (n,))
                except REFUSALS:
                    made = []
            if not made:
                if has_localise:
                    continue
                break
            if all(not why_not_joined(p, s, (n,), e, sample.compare) for p, s, e in zip(made, outputs, sample.outputs)):
                found.append(f"{', '.join(map(str, ins))} -> {', '.join(map(str, out))}")
    return found
