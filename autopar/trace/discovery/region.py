"""Regions: `autopar.region(fn, "b s d, d e -> b s e")` makes a function of tensors one opaque op with a stated rule.

In: a function and its rule. Out: the function again: called plainly it runs as it is, under a trace it is one node, and its gradient one more
(which runs the function again inside). What happens in the function is nobody's business: control flow on data, `.item()`, numpy. Its
output shapes follow from the rule and the input shapes, or from `shapes`. The gradient's rule follows from the function's: a gradient has its
input's dims, and a factor that the input lacks is summed. The ops live in torch's namespace `autopar_region`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Union

import torch
from torch import library

from ...errors import RuleError
from ...graph.registry import RuleRow
from ..private import FakeTensor, autograd_inside, without_modes
from .experiment import Laboratory
from .referee import call_op
from .register import check_row, keep_row, make_samples, registered_rules
from .rule_text import Operand, hold_letter, letters_of, print_shape, solve_letters, split_rule

NAMESPACE = "autopar_region"
Tensor = torch.Tensor
Shape = tuple[int, ...]
Function = Callable[..., Union[Tensor, Sequence[Tensor]]]


@dataclass(frozen=True)
class Region:
    """A region, taken apart.

    Args:
        op: its name in torch (`model_route`).
        names: of the function's tensors.
        left, right: operands of its rule.
        shapes, dtypes: as in `region`.
    """

    fn: Function
    op: str
    names: tuple[str, ...]
    left: tuple[Operand, ...]
    right: tuple[Operand, ...]
    shapes: Callable[..., object] | None
    dtypes: tuple[torch.dtype | None, ...]


def region(
    fn: Function | str,
    rule: str | None = None,
    *,
    linear: Sequence[str | tuple[str, ...]] = (),
    owed: Sequence[str] = (),
    reduce: str = "sum",
    flops: float = 1.0,
    why_whole: str = "",
    shapes: Callable[..., object] | None = None,
    dtypes: Sequence[torch.dtype | None] | None = None,
    name: str = "",
    sample: Sequence[Tensor] | None = None,
    check: bool = True,
) -> Callable[..., object]:
    """Mark a function of tensors as one op with a stated sharding rule.

        @autopar.region("b s [d], [d] e -> b s e")
        def route(x, weight): ...

        route = autopar.region(route, "b s [d], [d] e -> b s e")

    Args:
        fn: takes one tensor per operand on the left and returns one tensor, or a tuple of them, per operand on the right. It may use
            nothing that is trained but its arguments. Define it at the top level of a file, so that an emitted program finds it.
        rule: as in `register_rule`; operands stand in the order of the function's parameters.
        linear, owed, reduce, flops, why_whole, sample, check: as in `register_rule`. The gradient is checked too.
        shapes: (input shapes...) -> the output's shape, or a tuple of shapes, where the rule does not say it.
        dtypes: of the outputs; None: what the floating inputs promote to.
        name: of the op; "": the file's and the function's.
    Raises:
        RuleError: the rule does not fit the function, or is not what it computes.
    """
    if rule is None:
        if not isinstance(fn, str):
            raise RuleError('region: expected region(fn, "b s d -> b s d"), or @region("b s d -> b s d") above a function')
        return functools.partial(
            region, rule=fn, linear=linear, owed=owed, reduce=reduce, flops=flops, why_whole=why_whole, shapes=shapes, dtypes=dtypes,
            name=name, sample=sample, check=check,
        )  # fmt: skip
    if not callable(fn):
        raise RuleError(f"region: expected a function, found {type(fn).__name__}")
    _refuse_captured(fn)
    made = _take_apart(fn, rule, shapes, dtypes, name)
    forward = _define(made)
    sets = tuple((entry,) if isinstance(entry, str) else tuple(entry) for entry in linear)
    row = RuleRow(f"{NAMESPACE}.{made.op}.default", "region", (), rule, sets, tuple(owed), reduce, float(flops), why_whole)
    back = _backward_row(made, row)
    if check:
        row, back = _check(made, row, back, () if sample is None else (tuple(sample),))
    keep_row(row)
    keep_row(back)

    @functools.wraps(fn)
    def call(*tensors: Tensor, **named: Tensor) -> object:
        given = inspect.signature(fn).bind(*tensors, **named).args
        return forward(*given) if any(isinstance(t, FakeTensor) for t in given) else fn(*given)

    return call


# -- reading ----------------------------------------------------------------------------------------------------------------------


def _take_apart(
    fn: Function, rule: str, shapes: Callable[..., object] | None, dtypes: Sequence[torch.dtype | None] | None, name: str
) -> Region:
    left, right = split_rule(rule)
    accepted = [p.name for p in inspect.signature(fn).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    shown = getattr(fn, "__qualname__", type(fn).__name__)
    if len(accepted) < len(left):
        raise RuleError(f"region {shown}: rule {rule!r} has {len(left)} operands, the function takes {', '.join(accepted) or 'nothing'}")
    names = tuple(accepted[: len(left)])
    for operand, expected in zip(left, names):
        if operand.name and operand.name != expected:
            raise RuleError(f"region {shown}: rule {rule!r}: expected operand {expected!r} in the order of the function, found {operand.name!r}")
    if dtypes is not None and len(dtypes) != len(right):
        raise RuleError(f"region {shown}: dtypes: expected {len(right)}, one per output, found {len(dtypes)}")
    return Region(fn, _op_name(fn, name), names, left, right, shapes, tuple(dtypes) if dtypes is not None else (None,) * len(right))


def _op_name(fn: Function, name: str) -> str:
    """The same for the same function of the same file in every process; functions made inside of others are numbered."""
    if name:
        return re.sub(r"\W+", "_", name)
    code = getattr(inspect.unwrap(fn), "__code__", None)
    stem = Path(code.co_filename).stem if code is not None else ""
    qualname = getattr(fn, "__qualname__", type(fn).__name__)
    base = re.sub(r"\W+", "_", f"{stem}_{qualname}".replace("<locals>.", "")).strip("_")
    if "<locals>" not in qualname and "<lambda>" not in qualname:
        return base
    count = 0
    while f"{NAMESPACE}.{base}_{count}.default" in registered_rules():
        count += 1
    return f"{base}_{count}"


def _refuse_captured(fn: Function) -> None:
    """What is trained must be an argument: a gradient that goes to a captured tensor would be lost."""
    captured: dict[str, object] = {}
    inner = inspect.unwrap(fn)
    if isinstance(inner, torch.nn.Module):
        captured["self"] = inner
    if inspect.ismethod(inner):
        captured["self"] = inner.__self__
        inner = inner.__func__
    if inspect.isfunction(inner):
        variables = inspect.getclosurevars(inner)
        captured |= {**variables.globals, **variables.nonlocals}
    for name, value in captured.items():
        trained = value.requires_grad if isinstance(value, Tensor) else isinstance(value, torch.nn.Module) and any(True for _ in value.parameters())
        if trained:
            raise RuleError(
                f"region {getattr(fn, '__qualname__', type(fn).__name__)}: it uses {name}, which is trained but is no argument, so its gradient "
                f"would be lost. Pass the tensors themselves, such as {name}.weight, as arguments"
            )


# -- the ops ----------------------------------------------------------------------------------------------------------------------


def _define(made: Region) -> Callable[..., object]:
    """Register the forward and the backward op; returns the forward op."""
    count_in, count_out = len(made.names), len(made.right)
    tensors = ", ".join(f"Tensor {n}" for n in made.names)
    grads = ", ".join(f"Tensor {n}" for n in _grad_names(made))

    def run(*inputs: Tensor) -> object:
        with autograd_inside(), torch.no_grad():
            outputs = _as_tuple(made.fn(*inputs))
        specs = _output_specs(made, inputs)
        found = [(tuple(o.shape), o.dtype) for o in outputs]
        if found != specs:
            expected, seen = ("; ".join(f"{str(d).removeprefix('torch.')}{list(s)}" for s, d in many) for many in (specs, found))
            raise RuleError(f"region {made.op}: expected outputs {expected}, as its rule says, found {seen}; correct the rule, shapes= or dtypes=")
        owned = {t.untyped_storage().data_ptr() for t in inputs}
        fresh = tuple(o.clone() if o.untyped_storage().data_ptr() in owned else o.contiguous() for o in outputs)
        return fresh if count_out > 1 else fresh[0]

    def imagine(*inputs: Tensor) -> object:
        outputs = tuple(inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in _output_specs(made, inputs))
        return outputs if count_out > 1 else outputs[0]

    def run_back(*values: object) -> object:
        grads, inputs, needed = values[:count_out], values[count_out:-1], values[-1]
        with autograd_inside(), torch.enable_grad():
            leaves = [t.detach().requires_grad_(bool(k)) for t, k in zip(inputs, needed)]  # type: ignore[attr-defined]
            outputs = _as_tuple(made.fn(*leaves))
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            pairs = [(o, g) for o, g in zip(outputs, grads) if o.requires_grad]
            found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True) if pairs and wanted else ())
        made_grads = [next(found, None) if leaf.requires_grad else None for leaf in leaves]
        results = tuple(torch.zeros_like(t) if g is None else g.contiguous().clone() for t, g in zip(inputs, made_grads))  # type: ignore[arg-type]
        return results if count_in > 1 else results[0]

    def imagine_back(*values: object) -> object:
        results = tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in values[count_out:-1])  # type: ignore[arg-type]
        return results if count_in > 1 else results[0]

    for function in (run, run_back):  # where torch looks for the file that defines an op
        function.__wrapped__ = made.fn  # type: ignore[attr-defined]
    forward = library.custom_op(f"{NAMESPACE}::{made.op}", run, mutates_args=(), schema=f"({tensors}) -> {_returns(count_out)}")
    backward = library.custom_op(
        f"{NAMESPACE}::{made.op}_backward", run_back, mutates_args=(), schema=f"({grads}, {tensors}, int[] needed) -> {_returns(count_in)}"
    )
    forward.register_fake(imagine)
    backward.register_fake(imagine_back)

    def keep(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)
        ctx.specs = [(tuple(o.shape), o.dtype) for o in _as_tuple(output)]

    def differentiate(ctx, *grads) -> object:
        inputs = ctx.saved_tensors
        given = [inputs[0].new_zeros(shape, dtype=dtype) if g is None else g for g, (shape, dtype) in zip(grads, ctx.specs)]
        needed = [int(n and t.dtype.is_floating_point) for n, t in zip(ctx.needs_input_grad, inputs)]
        found = _as_tuple(backward(*given, *inputs, needed))
        results = tuple(g if n else None for g, n in zip(found, needed))
        return results if count_in > 1 else results[0]

    forward.register_autograd(differentiate, setup_context=keep)
    return forward


def _returns(count: int) -> str:
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


def _grad_names(made: Region) -> tuple[str, ...]:
    return tuple(f"grad_of_{k}" for k in range(len(made.right)))


def _as_tuple(value: object) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)  # type: ignore[return-value]


def _output_specs(made: Region, inputs: Sequence[Tensor]) -> list[tuple[Shape, torch.dtype]]:
    """Shape and dtype of each output."""
    given = tuple(tuple(t.shape) for t in inputs)
    floats = [t.dtype for t in inputs if t.dtype.is_floating_point]
    common = functools.reduce(torch.promote_types, floats) if floats else inputs[0].dtype
    if made.shapes is not None:
        found = made.shapes(*given)
        one = len(made.right) == 1 and not any(isinstance(s, (tuple, list)) for s in found)  # type: ignore[attr-defined]
        shapes = [tuple(found)] if one else [tuple(s) for s in found]  # type: ignore[arg-type, attr-defined]
    else:
        try:
            letters, leading = solve_letters(made.left, given)
            letters |= {name: size for o in made.right for name, size in letters_of(o.dims).items() if size}
            shapes = [print_shape(o.dims, letters, leading) for o in made.right]
        except RuleError as error:
            raise RuleError(f"region {made.op}: {error}") from None
        except KeyError as error:
            letter = error.args[0]
            raise RuleError(f"region {made.op}: the inputs do not say the size of {letter}: state it (`[{letter}:10]`) or give shapes=") from None
    if len(shapes) != len(made.right):
        raise RuleError(f"region {made.op}: shapes: expected {len(made.right)} shapes, found {len(shapes)}")
    return [(shape, dtype or common) for shape, dtype in zip(shapes, made.dtypes)]


# -- the gradient's rule ------------------------------------------------------------------------------------------------------------


def _backward_row(made: Region, row: RuleRow) -> RuleRow:
    """The rule of the gradients: (gradients of the outputs, inputs) -> gradients of the inputs.

    A factor that is no plain sum in forward is whole: the gradient of a maximum goes to one rank only; what is the same on all ranks, or
    added once, would be counted once per rank.
    """
    bare = [re.sub(r"\{\w+\}", "", o.dims).strip() for o in made.right]
    inputs = [o.dims for o in made.left]
    text = f"{', '.join([*bare, *inputs])} -> {', '.join(inputs)}"
    every = {letter for o in made.left for letter in letters_of(o.dims)}
    held = {letter for o in made.right for letter in re.findall(r"\{(\w+)\}", o.dims)}
    if row.reduce != "sum" or row.owed:
        held |= {letter for letter in every if any(letter not in letters_of(o.dims) for o in made.right)}
    for letter in held:
        text = hold_letter(text, letter)
    grads = _grad_names(made)
    floating = all(d is None or d.is_floating_point for d in made.dtypes)
    why = row.why_whole or ("its factor is no plain sum in the forward op" if held else "")
    return RuleRow(f"{NAMESPACE}.{made.op}_backward.default", "region", (), text, (grads,) if floating else (), (), "sum", 2 * row.flops, why)


def _check(made: Region, row: RuleRow, back: RuleRow, samples: tuple[tuple[Tensor, ...], ...]) -> tuple[RuleRow, RuleRow]:
    """Both rows as the referee has seen them."""
    checked = check_row(row, row.op, samples)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), without_modes():
        torch.manual_seed(0)
        calls = make_samples(row, row.op, samples, {}, Laboratory(row.op, call_op, 0.0))
        grads = [[torch.randn(o.shape, dtype=torch.float64).to(o.dtype) for o in s.outputs] for s in calls]
    if not calls[0].inputs or not any(t.dtype.is_floating_point for t in calls[0].inputs):
        return checked, back
    needed = [int(t.dtype.is_floating_point) for t in calls[0].inputs]
    return checked, check_row(back, back.op, [(*g, *s.inputs) for g, s in zip(grads, calls)], {"needed": needed})
