"""torch DTensor's own rules judged by one sample of torch's operator database.

In: a call. For each ATen op of it that touches the sample's tensors DTensor is asked what it would do for every placement of its inputs on
one mesh axis (`ask_dtensor.py`). What it answers is a claim, held against the same referee as our own. Out: a `Verdict`.

It is asked as generously as can be: rules, strategies and decompositions all count; ops on tensors that do not come from the sample need
no rule; a claim for which DTensor has a handler of its own (convolution, argmax) is not run, nor one on memory without contents. What does
not count is implicit replication, since it says nothing of the op.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch.utils import _pytree as pytree

from autopar.graph.sharding import REPLICATE, Placement, Shard, Sharding
from benchmarks.ask_dtensor import Answer, OpCall, Slot, TooSlow, ask, at_most, has_handler, make_mesh, record, size_argument
from benchmarks.judge_rows import RANKS, TRUSTING, Claim, Verdict, can_tell, is_small, plain_placements, split_claims
from benchmarks.op_database import Call, tensors_in, variants
from tests.rules.referee import REFUSALS, cut, why_not_joined

_ANSWER_S = 20.0  # CPU seconds for one question to DTensor


# --- holding an answer against the truth -------------------------------------------------------------------------------------------


def why_false(call: OpCall, answer: Answer, n: int) -> str:
    """Why the answer does not compute the op; "" where it does."""
    tensors = [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]
    if len(tensors) != len(answer.inputs):
        return ""  # rewritten to a call of another form
    rng = torch.Generator().manual_seed(zlib.crc32(repr((str(call.op), [str(p) for p in answer.inputs])).encode()))
    cuts = [cut(t, Sharding((p,)), (n,), rng) for t, p in zip(tensors, answer.inputs)]
    made: list[dict[tuple[int, ...], torch.Tensor]] = [{} for _ in call.outputs]
    for rank in range(n):
        pieces = iter(c[(rank,)].clone() for c in cuts)
        leaves = [next(pieces) if isinstance(leaf, Slot) else leaf for leaf in answer.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, answer.spec)
        for table, out in zip(made, tensors_in(_run(answer.op, args, kwargs))):
            table[(rank,)] = out
    if "empty" in str(call.op):
        return ""  # its contents are undefined
    said = [p for p in answer.outputs if p is not None]
    if len(said) != len(call.outputs):
        return f"{len(said)} placements for {len(call.outputs)} results" if len(said) == 0 else ""
    for k, (table, placement, whole) in enumerate(zip(made, said, call.outputs)):
        reason = why_not_joined(table, Sharding((placement,)), (n,), whole, "values", call.tensors)
        if reason:
            return f"output {k}: {reason}"
    return ""


def _run(op: torch._ops.OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> object:
    torch.default_generator.manual_seed(0)  # torch.manual_seed asks every backend: ten times as slow as these ops
    with torch.no_grad():
        if op is torch.ops.aten.view.default:  # DTensor's pieces are contiguous, ours need not be
            return args[0].reshape(args[1])  # type: ignore[attr-defined]
        return op(*args, **kwargs)


def _shown(call: OpCall, inputs: Sequence[Placement], outputs: Sequence[Placement | None]) -> str:
    return f"{call.op}: {' '.join(map(str, inputs))} -> {' '.join(str(p) for p in outputs if p is not None)}"


def _call_key(call: OpCall) -> str:
    leaves = [f"{x.dtype}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x) for x in call.leaves]
    return repr((str(call.op), leaves, call.places))


# --- one call --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """What is known of one op call."""

    why_not: str
    splits: bool
    checked: int
    wrong: tuple[str, ...]
    missed: tuple[str, ...]
    is_cut_short: bool


class DTensorJudge:
    """Judges calls one after another; an op call that has been judged is not judged again."""

    def __init__(self, max_tries: int) -> None:
        self._max_tries = max_tries
        self._meshes = {n: make_mesh(n) for n in RANKS}
        self._seen: dict[str, _Found] = {}

    def judge(self, call: Call, seconds: float) -> Verdict:
        """Hold DTensor's rules against one call, for at most about `seconds` of CPU time."""
        until = time.process_time() + seconds
        recorded = [record(call, tensors) for tensors in self._runnable(call)]
        why_not: list[str] = []
        splits, checked, wrong, missed, is_cut_short = True, 0, [], [], False
        same = [many for many in recorded if [str(c.op) for c in many] == [str(c.op) for c in recorded[0]]]
        for calls in zip(*same):
            key = _call_key(calls[0])
            if key not in self._seen:
                self._seen[key] = self._hold(list(calls), until)
            found = self._seen[key]
            if found.is_cut_short:
                self._seen.pop(key)
            if found.why_not:
                why_not.append(found.why_not)
            splits &= found.splits
            checked += found.checked
            wrong += found.wrong
            missed += found.missed
            is_cut_short |= found.is_cut_short
        ops = tuple(dict.fromkeys(str(c.op) for c in recorded[0]))
        return Verdict("; ".join(dict.fromkeys(why_not)), splits, ops, checked, tuple(wrong), tuple(missed), is_cut_short)

    def _runnable(self, call: Call) -> list[tuple[torch.Tensor, ...]]:
        found = []
        for tensors in variants(call):
            try:
                with torch.no_grad():
                    call.run(tuple(t.clone() for t in tensors))
            except Exception:  # these numbers are not for this op
                continue
            found.append(tensors)
        return found

    def _hold(self, calls: list[OpCall], until: float) -> _Found:
        call = calls[0]
        if call.op is torch.ops.aten._local_scalar_dense.default:
            return _Found("", True, 0, (), (), False)
        claims: dict[tuple, tuple[int, Answer]] = {}
        error_text, answered = "", False
        for n, mesh in self._meshes.items():
            for seed in self._seeds(call, n) if n == RANKS[0] else _placed_on(call, [a for _, a in claims.values()], n):
                if time.process_time() > until and (answered or error_text):
                    break
                try:
                    with warnings.catch_warnings(), at_most(_ANSWER_S):
                        warnings.simplefilter("ignore")
                        answer = ask(call, mesh, seed)
                except TooSlow as error:
                    return _Found(f"{call.op}: {error}", False, 0, (), (), False)
                except Exception as error:  # DTensor says that it has no rule in many ways
                    text = (str(error) or "").splitlines()
                    error_text = error_text or f"{type(error).__name__}: {text[0] if text else ''}"
                    continue
                answered = True
                if answer is not None:
                    claims[n, answer.inputs, answer.outputs] = (n, answer)
        if not answered:
            return _Found(f"{call.op}: {error_text}", False, 0, (), (), False)
        splits = is_small(call.tensors) or any(
            isinstance(p, Shard) for _, a in claims.values() for p in (*a.inputs, *a.outputs)
        )
        checked, wrong, is_cut_short = self._check(calls, claims, until)
        missed, ran_out = self._missed(calls, claims, until)
        return _Found("", splits, checked, tuple(wrong), tuple(missed), is_cut_short or ran_out)

    def _seeds(self, call: OpCall, n: int) -> list[tuple[Placement, ...]]:
        """All placements of the inputs where they are few, else those of one input at a time and those that cut all alike.

        Tensors that go in by keyword are replicated: DTensor never moves them.
        """
        by_position = len(pytree.tree_leaves(pytree.tree_unflatten(list(call.leaves), call.spec)[0]))
        choices = [
            plain_placements(t, n, False, (n,)) if place < by_position else [REPLICATE] for t, place in zip(call.tensors, call.places)
        ]
        if prod(map(len, choices)) <= self._max_tries:
            return list(product(*choices))
        none = tuple(REPLICATE for _ in choices)
        alone = [(*none[:k], p, *none[k + 1 :]) for k, many in enumerate(choices) for p in many[1:]]
        alike = [tuple(p if p in many else REPLICATE for many in choices) for p in choices[0][1:]]
        return [none, *alone, *alike]

    def _check(self, calls: list[OpCall], claims: dict[tuple, tuple[int, Answer]], until: float) -> tuple[int, list[str], bool]:
        checked, wrong = 0, []
        if has_handler(calls[0].op):
            return 0, [], False
        for n, answer in claims.values():
            if time.process_time() > until:
                return checked, wrong, True
            checked += 1
            for call in calls:
                try:
                    reason = why_false(call, answer, n)
                except NotImplementedError:  # the CPU cannot add numbers of this dtype
                    reason = ""
                except REFUSALS as error:
                    reason = f"the pieces do not run: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
                if reason:
                    wrong.append(f"{_shown(call, answer.inputs, answer.outputs)} on {n}: {reason}")
                    break
        return checked, wrong, False

    def _missed(self, calls: list[OpCall], claims: dict[tuple, tuple[int, Answer]], until: float) -> tuple[list[str], bool]:
        call, n = calls[0], RANKS[0]
        telling = [c for c in calls if can_tell(c.outputs)]
        if not telling or any(word in str(call.op) for word in (*TRUSTING, "empty")):
            return [], False
        if len(call.tensors) != sum(isinstance(x, torch.Tensor) for x in call.leaves):
            return [], False
        known = {(a.inputs, tuple(p for p in a.outputs if p is not None)) for m, a in claims.values() if m == n}
        found: list[str] = []
        for pair in split_claims(call.tensors, call.outputs, self._max_tries):
            if time.process_time() > until:
                return found, True
            if pair[0] not in known and all(_holds(c, claim, m) for claim, m in zip(pair, RANKS) for c in telling):
                found.append(_shown(call, *pair[0]))
        return found, False


def _holds(call: OpCall, claim: Claim, n: int) -> bool:
    inputs, outputs = claim
    try:
        return not why_false(call, Answer(inputs, outputs, call.op, tuple(_local_leaves(call, outputs, n)), call.spec), n)
    except REFUSALS:
        return False


def _placed_on(call: OpCall, answers: list[Answer], n: int) -> list[tuple[Placement, ...]]:
    """The inputs of these answers on an axis of another size, as far as it divides."""
    found = []
    for answer in answers:
        if len(answer.inputs) != len(call.tensors):
            continue
        placed = [_on(p, t, n) for p, t in zip(answer.inputs, call.tensors)]
        if None not in placed:
            found.append(tuple(placed))
    return list(dict.fromkeys(found))  # type: ignore[arg-type]


def _on(placement: Placement, t: torch.Tensor, n: int) -> Placement | None:
    if not isinstance(placement, Shard):
        return placement
    return Shard(placement.dim, t.shape[placement.dim] // n) if t.shape[placement.dim] % n == 0 else None


def _local_leaves(call: OpCall, out: tuple[Placement, ...], n: int) -> list[object]:
    """The arguments of a rank's call, the size argument of a view as DTensor would write it for a piece of the result."""
    leaves = [Slot() if isinstance(x, torch.Tensor) else x for x in call.leaves]
    place = size_argument(call.op)
    if place is None or not isinstance(out[0], Shard):
        return leaves
    args, kwargs = pytree.tree_unflatten(leaves, call.spec)
    shape = list(call.outputs[0].shape)
    shape[out[0].dim] //= n
    return pytree.tree_leaves(([*args[:place], shape, *args[place + 1 :]], kwargs))
