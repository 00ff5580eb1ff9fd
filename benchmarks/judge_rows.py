"""Our rule table judged by one sample of torch's operator database.

In: a call. It is traced and lowered as a model's step would be, run on real numbers, and each node of the graph is held against its row:
is there one, does it fit, is every strategy that it offers sound (the referee of `tests/rules`), which sound splits does it leave out.
Out: a `Verdict`, the same that DTensor gets (`judge_dtensor.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import torch

from autopar.errors import AutoparError, NoRuleError
from autopar.graph.graph import Graph
from autopar.graph.rule import Rule, Signature, find_rule, resolve
from autopar.graph.rules import RULES
from autopar.graph.sharding import PARTIAL, REPLICATE, Partial, Placement, Shard, Sharding
from autopar.graph.strategy import Strategy, list_strategies
from autopar.runtime.execute import run_graph
from autopar.trace import Workload, capture_step, lower
from autopar.trace.workload import find_tensors
from benchmarks.op_database import Call, tensors_in, variants
from tests.rules.referee import REFUSALS, Sample, run_pieces, site_of, why_not_joined, why_unequal, why_wrong

RANKS = (2, 3)
# Kernels that trust their arguments: on pieces that do not fit together they read or write out of bounds instead of refusing. No splits are
# tried on them beyond those that are claimed.
TRUSTING = (
    "conv", "norm", "pool", "embedding", "attention", "nll", "grid_sampl", "upsample", "ctc", "grouped_mm", "as_strided", "im2col",
    "col2im", "rnn", "lstm", "gru", "segment_reduce", "histogram", "bincount", "pad", "glu", "dropout", "_fused", "multi_margin",
    "multilabel", "dist", "fft", "stft", "lu_", "linalg", "qr", "ormqr", "householder", "triangular", "cholesky",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What one sample says of one table of rules.

    Args:
        why_not: why the sample is not covered; "" where every op of it has a rule that applies.
        splits: every op of it may be split.
        ops: the ops that it became.
        checked: claims that were run.
        wrong: claims that are false, in words.
        missed: sound splits that are not offered, `op: placements`.
        is_cut_short: the time was up before all was tried.
    """

    why_not: str
    splits: bool
    ops: tuple[str, ...]
    checked: int = 0
    wrong: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    is_cut_short: bool = False


class _Whole(torch.nn.Module):
    """A call as a model."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return tensors_in(self.call.run(tensors))


def trace_call(call: Call) -> tuple[Graph, dict[str, torch.Tensor]]:
    """The call as a graph, and the constants that it holds."""
    captured = capture_step(Workload(_Whole(call), call.tensors))
    return lower(captured, call.name)


def node_samples(graph: Graph, known: dict[str, torch.Tensor]) -> list[Sample]:
    """A sample per node of the graph, from the values that it had in one run."""
    return [
        Sample(f"{graph.name} {n.op}", n, tuple(known[v] for v in n.inputs), tuple(known[v] for v in n.outputs if v)) for n in graph.nodes
    ]


# --- one node --------------------------------------------------------------------------------------------------------------------


def node_key(sample: Sample) -> str:
    """Equal for nodes that the table must treat alike."""
    node = sample.node
    shapes = [f"{t.dtype}{list(t.shape)}" for t in (*sample.inputs, *sample.outputs)]
    meeting = [node.inputs.index(v) for v in node.inputs]
    return repr((node.op, node.args, shapes, meeting))


def offers_split(signature: Signature, sample: Sample, n: int) -> bool:
    """True where some strategy cuts an input or an output."""
    strategies, _ = list_strategies(signature, site_of(sample), (n,), {})
    return any(isinstance(p, Shard) for s in strategies for x in (*s.inputs, *s.outputs) for p in x.placements)


def is_small(tensors: tuple[torch.Tensor, ...]) -> bool:
    """True of single numbers: what is made of them is made anywhere."""
    return all(t.numel() <= 1 for t in tensors)


def plain_placements(t: torch.Tensor, n: int, is_output: bool, ranks: tuple[int, ...]) -> list[Placement]:
    """R, each dim that all `ranks` can share in chunks, and sums of parts (of results also maxima, minima): torch has words for these."""
    found: list[Placement] = [REPLICATE]
    if t.dtype.is_floating_point or t.dtype.is_complex:
        found += [PARTIAL, *([Partial("max"), Partial("min")] if is_output and not t.dtype.is_complex else [])]
    elif is_output and t.dtype != torch.bool:
        found += [PARTIAL, Partial("max"), Partial("min")]
    return found + [Shard(d, size // n) for d, size in enumerate(t.shape) if size and not any(size % m for m in ranks)]


Claim = tuple[tuple[Placement, ...], tuple[Placement, ...]]


def split_claims(inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...], limit: int) -> Iterator[tuple[Claim, Claim]]:
    """Splits worth trying, each on 2 and on 3 ranks: inputs of which one is cut, results none of which is whole everywhere.

    A Partial that comes in must go out: it passes through, or it does not fit. A split that only 2 ranks can share is left out: in pieces
    of one element much is true by chance. Nothing where there are more than `limit` ways to place the inputs or the results.
    """
    both = [[[*zip(*(plain_placements(t, n, k == 1, RANKS) for n in RANKS))] for t in many] for k, many in enumerate((inputs, outputs))]
    choices, results = both[0], [many[1:] for many in both[1]]
    if prod(map(len, choices)) > limit or prod(map(len, results)) > limit:
        return
    for ins in product(*choices):
        if not any(isinstance(p[0], Shard) for p in ins):
            continue
        for out in product(*results):
            if any(p[0] == PARTIAL for p in ins) and any(p[0] != PARTIAL for p in out):
                continue
            yield tuple((tuple(p[k] for p in ins), tuple(p[k] for p in out)) for k in range(len(RANKS)))  # type: ignore[misc]


def can_tell(outputs: tuple[torch.Tensor, ...]) -> bool:
    """False of results that look right however they are computed: no elements, or nothing but zeros and infinities."""
    return all(t.numel() and bool((t.isfinite() & (t.abs() > 1e-6)).any() if t.dtype != torch.bool else t.any()) for t in outputs)


def find_missed_splits(samples: tuple[Sample, ...], signature: Signature, limit: int, until: float) -> tuple[list[str], bool]:
    """(sound splits along one axis that the row does not offer, whether the time was up)."""
    sample = samples[0]
    telling = [s for s in samples if can_tell(s.outputs)]
    if not telling or any(word in sample.node.op for word in TRUSTING):
        return [], False
    strategies, _ = list_strategies(signature, site_of(sample), RANKS[:1], {})
    known = {(tuple(s.placements[0] for s in x.inputs), tuple(s.placements[0] for s in x.outputs)) for x in strategies}
    has_localise = signature.rule.localise is not None

    @lru_cache(maxsize=None)
    def run(which: int, n: int, ins: tuple[Placement, ...], out: tuple[Placement, ...]) -> list[dict]:
        inputs, outputs = (tuple(Sharding((p,)) for p in side) for side in (ins, out))
        try:
            return run_pieces(telling[which], signature, inputs, outputs, (n,))
        except REFUSALS:
            return []

    def holds(which: int, n: int, claim: Claim) -> bool:
        ins, out = claim
        made = run(which, n, ins, out if has_localise else tuple(REPLICATE for _ in out))
        sample = telling[which]
        return bool(made) and not any(
            why_not_joined(p, Sharding((o,)), (n,), e, "values", sample.inputs) for p, o, e in zip(made, out, sample.outputs)
        )

    found: list[str] = []
    for claims in split_claims(sample.inputs, sample.outputs, limit):
        if time.process_time() > until:
            return found, True
        if claims[0] not in known and all(holds(k, n, claim) for claim, n in zip(claims, RANKS) for k in range(len(telling))):
            found.append(f"{sample.node.op}: {' '.join(map(str, claims[0][0]))} -> {' '.join(map(str, claims[0][1]))}")
    return found, False


def _why_wrong(sample: Sample, signature: Signature, strategy: Strategy, n: int) -> str:
    try:
        return why_wrong(sample, signature, strategy, (n,))
    except NotImplementedError:  # the CPU cannot add numbers of this dtype
        return ""


# --- one call --------------------------------------------------------------------------------------------------------------------


class RowJudge:
    """Judges calls one after another; a node that has been judged is not judged again."""

    def __init__(self, max_tries: int, rules: Mapping[str, Rule] = RULES) -> None:
        self._max_tries = max_tries
        self._rules = rules
        self._seen: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {}

    def judge(self, call: Call, seconds: float) -> Verdict:
        """Hold one call against the table, for at most about `seconds` of CPU time."""
        until = time.process_time() + seconds
        try:
            graph, constants = trace_call(call)
        except AutoparError as error:
            return Verdict(f"{type(error).__name__}: {str(error).splitlines()[0]}", False, ())
        except Exception as error:  # a failure of the tracer is a verdict, not the end of the run
            return Verdict(f"{type(error).__name__} in the tracer: {str(error).splitlines()[0] if str(error) else ''}", False, ())
        ops = tuple(dict.fromkeys(n.op for n in graph.nodes))
        names = [name for name, _ in find_tensors("input:", call.tensors)]
        runs: list[list[Sample]] = []
        for numbers in variants(call):
            try:
                known = run_graph(graph, {**constants, **{n: t for n, t in zip(names, numbers) if n in graph.inputs}})
                why = "" if runs else self._why_other_numbers(call, graph, known)
            except Exception as error:
                if runs:
                    continue  # these numbers are not for this op
                return Verdict(f"the graph does not run: {type(error).__name__}: {str(error).splitlines()[0]}", False, ops)
            if why:
                return Verdict(f"traced wrong: {why}", False, ops)
            runs.append(node_samples(graph, known))
        return self._hold(ops, list(zip(*runs)), until)

    def _why_other_numbers(self, call: Call, graph: Graph, known: dict[str, torch.Tensor]) -> str:
        with torch.no_grad():
            expected = tensors_in(call.run(tuple(t.clone() for t in call.tensors)))
        for name, whole in zip(graph.outputs, expected):
            reason = why_unequal(known[name], whole.resolve_conj().resolve_neg(), 1.0)
            if reason:
                return f"{name}: {reason}"
        return ""

    def _hold(self, ops: tuple[str, ...], by_node: list[tuple[Sample, ...]], until: float) -> Verdict:
        why_not: list[str] = []
        splits, checked, wrong, missed, is_cut_short = True, 0, [], [], False
        for samples in by_node:
            sample = samples[0]
            try:
                signature = resolve(find_rule(self._rules, sample.node), site_of(sample))
            except Exception as error:  # a row that fails on a shape is a gap of the table
                found = f"the row fails: {type(error).__name__}: {str(error).splitlines()[0]}"
                why_not.append(f"{sample.node.op}: {'no row' if isinstance(error, NoRuleError) else found}")
                splits = False
                continue
            splits = splits and (is_small(sample.inputs) or any(offers_split(signature, sample, n) for n in RANKS))
            key = node_key(sample)
            if key not in self._seen:
                if time.process_time() > until:
                    is_cut_short = True
                    continue
                made = self._judge_node(samples, signature, until)
                is_cut_short |= made[3]
                self._seen[key] = made[:3]
            checked += self._seen[key][0]
            wrong += self._seen[key][1]
            missed += self._seen[key][2]
        return Verdict("; ".join(dict.fromkeys(why_not)), splits, ops, checked, tuple(wrong), tuple(missed), is_cut_short)

    def _judge_node(
        self, samples: tuple[Sample, ...], signature: Signature, until: float
    ) -> tuple[int, tuple[str, ...], tuple[str, ...], bool]:
        """(claims run, false ones, missed splits, whether the time was up)."""
        checked, wrong = 0, []
        site = site_of(samples[0])
        for n in RANKS:
            strategies: tuple[Strategy, ...]
            strategies, _ = list_strategies(signature, site, (n,), {})
            for strategy in strategies:
                if time.process_time() > until:
                    return checked, tuple(wrong), (), True
                checked += 1
                reasons = (_why_wrong(sample, signature, strategy, n) for sample in samples)
                reason = next((r for r in reasons if r), "")
                if reason:
                    wrong.append(reason)
        missed, is_cut_short = find_missed_splits(samples, signature, self._max_tries, until)
        return checked, tuple(wrong), tuple(missed), is_cut_short
