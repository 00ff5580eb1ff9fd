"""Rules that users state: `autopar.register_rule`, checked by the referee before they are believed.

In: an op that torch knows and a rule text. Out: nothing; the row is kept for every trace of this process (the one table of this package that
grows, as torch's own table of ops does; a registration again replaces the one before). A claim that is not what the op computes is
a `RuleError` that names the factor and shows numbers.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import MappingProxyType

import torch

from ...errors import GraphError, RuleError
from ...graph.node import packet_of
from ...graph.registry import RuleRow, rule_of
from ...graph.rule import LinearSets, Signature, resolve
from ...graph.rules import RULES
from ...graph.strategy import list_strategies
from ..lowering.draft import resolve_op
from ..private import is_closure, source_file, without_modes
from .experiment import Laboratory
from .kept import CACHE_PATH, kept_path, read_row, write_row
from .made_up import KINDS, make_inputs
from .referee import Run, Sample, call_op, sample_of, site_of, why_wrong
from .rule_text import Operand, letters_of, print_shape, split_rule

_REGISTERED: dict[str, RuleRow] = {}
_MESHES = ((2,), (3,), (2, 2))
_SIZES = (6, 12, 18, 24, 30, 36, 42, 48)
_LEADING = ((6, 12), (12,))  # dims that `...` stands for in made-up data


def registered_rules() -> Mapping[str, RuleRow]:
    """What was registered: packet (`mylib.op`) or overload (`mylib.op.default`) -> its row, without nodes."""
    return MappingProxyType(_REGISTERED)


def register_rule(
    op: str,
    text: str,
    *,
    linear: Sequence[str | tuple[str, ...]] = (),
    owed: Sequence[str] = (),
    reduce: str = "sum",
    flops: float = 1.0,
    why_whole: str = "",
    sample: Sequence[torch.Tensor] | None = None,
    args: Mapping[str, object] = MappingProxyType({}),
    check: bool = True,
) -> None:
    """State the sharding rule of an op; the referee checks it on small random data.

        autopar.register_rule("mylib::scale_rows", "b s d, d -> b s d", linear=("x",))

    Args:
        op: `mylib::op`, for all its overloads, or `mylib::op.overload`.
        text: inputs -> outputs, one operand per tensor in schema order, or by schema name where the op has optional ones:
            "input: ... i, weight: o i, bias: o -> ... o". A letter is a factor that may be split; `[d]` is whole; `(h d)` is one dim of
            two factors; `...` any leading dims. A letter that an output lacks is summed there, in braces (`{d}`) it is not.
        linear: sets of argument names through which a sum that is still owed may pass together; a name alone is a set of one.
        owed: arguments that must be counted once where a summed factor is split that they lack (a bias).
        reduce: what a letter that is missing from an output leaves there: `sum`, `max` or `min`.
        flops: per point of the factor space.
        why_whole: why what stands in brackets is whole, for people.
        sample: tensors to check with, where made-up ones cannot be: in the order of the text.
        args: other arguments of the op for the check, by schema name.
        check: False: believe it. The plan says that it was not checked.
    Raises:
        RuleError: the op is unknown or has a row of its own, the text does not fit it, or pieces do not join to the whole.
    """
    name = _op_name(op)
    overload = _overload_of(name, op)
    sets: LinearSets = tuple((entry,) if isinstance(entry, str) else tuple(entry) for entry in linear)
    row = RuleRow(name, "registered", (), text, sets, tuple(owed), reduce, float(flops), why_whole)
    if reduce not in ("sum", "max", "min"):
        raise RuleError(f"{op}: reduce: expected sum, max or min, found {reduce!r}")
    known = {a.name for a in resolve_op(overload)._schema.arguments}
    for used in (*(n for s in sets for n in s), *row.owed, *args):
        if used not in known:
            raise RuleError(f"{op}: it takes {', '.join(sorted(known))}; found {used!r}")
    keep_row(check_row(row, overload, () if sample is None else (sample,), args) if check else row)


def keep_row(row: RuleRow) -> None:
    """Put a row where every trace finds it."""
    _REGISTERED[row.op] = row


def _op_name(op: str) -> str:
    name = op.replace("::", ".")
    if len(name.split(".")) not in (2, 3):
        raise RuleError(f'{op!r}: expected an op such as "mylib::op" or "mylib::op.overload"')
    return name


def _overload_of(name: str, op: str) -> str:
    """The overload to check: the one that is named, or the only one, or `default`."""
    if packet_of(name) in RULES or name in RULES:
        raise RuleError(f"{op}: has a row in autopar's own table: one op, one row")
    space, packet = name.split(".")[:2]
    try:
        overloads = getattr(getattr(torch.ops, space), packet).overloads()
        return str(resolve_op(name if name.count(".") == 2 else f"{name}.{'default' if 'default' in overloads else overloads[0]}"))
    except (AttributeError, RuntimeError):
        raise RuleError(f"{op}: torch knows no such op; register it (from torch import library) before its rule") from None


# -- the check --------------------------------------------------------------------------------------------------------------------


def check_row(
    row: RuleRow, overload: str, samples: Sequence[Sequence[torch.Tensor]] = (), args: Mapping[str, object] = MappingProxyType({})
) -> RuleRow:
    """The row with the number of its trials, after the referee has tried every strategy of it.

    Args:
        samples: tensors to check with, in the order of the text; none: made-up ones.
        args: as in `register_rule`.
    Raises:
        RuleError: see `register_rule`.
    """
    began = time.perf_counter()
    counted = Laboratory(overload, call_op, began)
    tried: set[str] = set()
    letters: set[str] = set()
    path = _kept_path(row, overload, samples, args)
    known = read_row(path, row.op, row.origin) if path is not None else None
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad(), without_modes():
        warnings.simplefilter("ignore")
        for number, made in enumerate(make_samples(row, overload, samples, args, counted)):
            signature = _resolve(row, made)
            letters |= {f.name for f in signature.factors if not f.whole}
            if known is None or number < 1:
                tried |= _judge(row, made, signature, _MESHES[: 1 if known or number > 1 else 2 if number else 3])
    missed = sorted(letters - tried)
    if missed:
        raise RuleError(
            f"{row.op}: rule {row.text!r}: {', '.join(missed)} could not be checked: no sample has a size there that 2 or 3 divides. Give "
            "sample=(tensors...) with sizes such as 6 and 12"
        )
    if known is not None:
        return replace(row, num_trials=known.num_trials, seconds=known.seconds)
    checked = replace(row, num_trials=counted.num_trials, seconds=time.perf_counter() - began)
    if path is not None:
        write_row(path, checked)
    return checked


def _kept_path(row: RuleRow, overload: str, samples: Sequence[Sequence[torch.Tensor]], args: Mapping[str, object]) -> Path | None:
    """Where a claim that was checked is kept; None where the op's function may hold what its file does not say."""
    if source_file(overload) is None or is_closure(overload):
        return None
    shapes = [[(tuple(t.shape), str(t.dtype)) for t in tensors] for tensors in samples]
    return kept_path(CACHE_PATH, overload, (row.op, row.text, row.linear, row.owed, row.reduce, shapes, sorted(args.items(), key=str)))


def _resolve(row: RuleRow, sample: Sample) -> Signature:
    try:
        return resolve(rule_of(row), site_of(sample))
    except GraphError as error:
        raise RuleError(f"{row.op}: {error}") from None


def _judge(row: RuleRow, sample: Sample, signature: Signature, meshes: tuple[tuple[int, ...], ...]) -> set[str]:
    """The factors that were split; raises at the first strategy that is not what the op does."""
    site, tried = site_of(sample), set()
    for sizes in meshes:
        for strategy in list_strategies(signature, site, sizes, {})[0]:
            reason = why_wrong(sample, signature, strategy, sizes)
            chosen = [c for c in strategy.choices if c != "R"]
            if reason:
                told = reason.rpartition("): ")[2]
                shown = ", ".join(map(str, strategy.inputs)) + " -> " + ", ".join(map(str, strategy.outputs))
                what = " and ".join(f"passing a sum through {c[2:-1]}" if c.startswith("P(") else f"splitting {c}" for c in chosen)
                shapes = ", ".join(str(list(t.shape)) for t in sample.inputs)
                raise RuleError(
                    f"{row.op}: the rule {row.text!r} is not what the op computes: {what or 'no split'} over {' x '.join(map(str, sizes))} ranks "
                    f"({shown}): {told}. Tried on {sample.name} of {shapes}. {_cure(chosen, row)}"
                )
            tried |= {c.partition("@")[0] for c in chosen}
    return tried


def _cure(chosen: list[str], row: RuleRow) -> str:
    if not chosen:
        return "The op gives other numbers each time"
    letter = chosen[-1].partition("@")[0]
    if letter.startswith("P("):
        return f"Take {letter[2:-1]} out of linear"
    right = split_rule(row.text)[1]
    if all(letter in letters_of(o.dims) for o in right):
        return f"Write [{letter}] where the op needs that dim whole"
    return f"Write [{letter}], or say with owed= what is added once, or with reduce= that it is no sum"


def make_samples(
    row: RuleRow, overload: str, given: Sequence[Sequence[torch.Tensor]], args: Mapping[str, object], lab: Laboratory
) -> list[Sample]:
    """Calls to check with: the user's tensors, or made-up ones of several kinds and sizes.

    Raises:
        RuleError: the op does not run on them.
    """
    left, _ = split_rule(row.text)
    names = _tensor_names(row, overload, left)

    def call(tensors: Sequence[torch.Tensor], what: str) -> Sample:
        bound = _bind(overload, names, tensors, args)
        return sample_of(what, overload, bound, run=_counting(lab))

    if given:
        for tensors in given:
            if len(tensors) != len(names):
                raise RuleError(f"{row.op}: sample: expected {len(names)} tensors ({', '.join(names)}), found {len(tensors)}")
        try:
            return [call(tuple(tensors), "the given sample") for tensors in given]
        except Exception as error:
            raise RuleError(f"{row.op}: does not run on the given sample: {type(error).__name__}: {_first_line(error)}") from None
    problem = "nothing was tried"
    for wide, whole_numbers in product((True, False), _which_integer(len(names))):
        dtype = torch.float64 if wide else torch.float32
        dtypes = tuple(torch.int64 if k in whole_numbers else dtype for k in range(len(names)))
        found = []
        try:
            for turn, kind in ((0, "signed"), (1, "signed"), (0, "zeros"), *(((0, k) for k in KINDS[2:4]) if wide else ())):
                shapes = _shapes(left, turn)
                tensors = make_inputs(shapes, dtypes, kind, "real", 3, turn)
                found.append(call(tensors, f"{kind} numbers"))
            return found
        except RuleError:
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {_first_line(error)}"
    raise RuleError(
        f"{row.op}: does not run on made-up data ({problem}). Give sample=(tensors...) for {', '.join(names)}, and args={{...}} for its "
        "other arguments; or check=False"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _which_integer(count: int) -> list[tuple[int, ...]]:
    """Which inputs are whole numbers: none, one of them, two."""
    singles = [(k,) for k in range(count)]
    return [(), *singles, *((a, b) for a in range(count) for b in range(a + 1, count))]


def _counting(lab: Laboratory) -> Run:
    def run(op: str, args: tuple, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor | None, ...]:
        lab.num_trials += 1
        return lab.run(op, args, tuple(t.contiguous() for t in inputs))

    return run


def _tensor_names(row: RuleRow, overload: str, left: tuple[Operand, ...]) -> tuple[str, ...]:
    """The schema name of each operand of the text."""
    schema = resolve_op(overload)._schema.arguments
    tensors = [a.name for a in schema if "Tensor" in str(a.type)]
    if any(o.name for o in left):
        unknown = [o.name or o.dims for o in left if o.name not in tensors]
        if unknown:
            raise RuleError(f"{row.op}: rule {row.text!r}: {unknown[0]!r} is none of its tensors {', '.join(tensors)}")
        return tuple(o.name for o in left)
    if len(left) > len(tensors):
        raise RuleError(f"{row.op}: rule {row.text!r}: {len(left)} operands for its {len(tensors)} tensors {', '.join(tensors)}")
    return tuple(tensors[: len(left)])


def _bind(overload: str, names: tuple[str, ...], tensors: Sequence[torch.Tensor], args: Mapping[str, object]) -> dict[str, object]:
    given = {**dict(zip(names, tensors)), **args}
    return {a.name: given[a.name] for a in resolve_op(overload)._schema.arguments if a.name in given}


def _shapes(left: tuple[Operand, ...], turn: int) -> tuple[tuple[int, ...], ...]:
    """A shape for each operand, by a size for each letter."""
    letters: dict[str, int] = {}
    for operand in left:
        for name, stated in letters_of(operand.dims).items():
            letters[name] = stated or letters.get(name, 0)
    free = [n for n, size in letters.items() if not size]
    order = free[::-1] if turn else free
    offset = 1 if turn and len(free) == 1 else 0
    letters |= {name: _SIZES[(k + offset) % len(_SIZES)] for k, name in enumerate(order)}
    return tuple(print_shape(operand.dims, letters, _LEADING[turn]) for operand in left)
