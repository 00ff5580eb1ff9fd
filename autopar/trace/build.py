"""Building: run a factory without memory for weights, and remember how every tensor was made.

The factory runs on fake tensors while a tape records. Afterwards parameters go to the meta device with the recipe of their first value
(`normal_(0, 0.02)`, ...), and buffers, plain tensor attributes and example inputs are computed for real by replaying their history, so
that rotary frequencies and position ids keep their values. In: a factory. Out: what it returned, made so, and the recipes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.overrides import TorchFunctionMode

from .held import carry_hooks
from .lowering.draft import bind
from .private import gradient_hooks, make_fake_mode, storage_key, trunc_normal_by_quantile
from .reach import replace_tensors
from .tape import Record, Slot, Tape, find_slots, replay, written_uids
from .workload import Workload, find_tensors, map_tensors

Recipe = tuple[tuple, ...]  # (tensor method, arguments...) in order

_SOURCES: dict[str, Recipe] = {
    "zeros": (("zero_",),), "zeros_like": (("zero_",),), "new_zeros": (("zero_",),), "ones": (("fill_", 1.0),),
    "ones_like": (("fill_", 1.0),), "new_ones": (("fill_", 1.0),), "randn": (("normal_", 0.0, 1.0),),
    "randn_like": (("normal_", 0.0, 1.0),), "rand": (("uniform_", 0.0, 1.0),), "rand_like": (("uniform_", 0.0, 1.0),),
    "empty": (), "empty_like": (), "new_empty": (), "empty_strided": (), "new_empty_strided": (),
}  # fmt: skip
_OVERWRITES = frozenset({"normal_", "uniform_", "fill_", "zero_"})
_CHANGES = frozenset({"erfinv_", "mul_", "add_", "clamp_", "exp_", "log_", "neg_", "sqrt_", "sub_", "div_", "clamp_min_", "trunc_"})
_COPIES = frozenset({"clone", "detach", "_to_copy", "alias", "view", "_unsafe_view", "lift_fresh", "contiguous"})


def build_lightly(factory: Callable[[], object]) -> tuple[object, dict[str, tuple]]:
    """Call the factory; no memory is taken for parameters.

    Returns:
        The module or `Workload` that it returned, parameters on meta, all else real; and the recipe of each parameter whose making was
        simple. A parameter without one is made for real.
    """
    tape = Tape(what="the factory")
    with make_fake_mode(), tape, _Copies(), trunc_normal_by_quantile():
        made = factory()
    model = made.model if isinstance(made, Workload) else made
    if not isinstance(model, torch.nn.Module):
        return made, {}
    recipes = _find_recipes(tape)
    named = {
        name: tuple((method, tuple(numbers)) for method, *numbers in recipes[storage_key(p)])
        for name, p in model.named_parameters()
        if tape.knows(p) and recipes.get(storage_key(p)) is not None
    }
    others = [made.loss, made.optimizer] if isinstance(made, Workload) else []
    _settle_model(model, others, tape, set(named))
    if isinstance(made, Workload):
        made = replace(
            made,
            example_inputs=_settle_batch("input:", made.example_inputs, tape),
            example_targets=_settle_batch("target:", made.example_targets, tape),
            init=named,
        )
    return made, named


class _Copies(TorchFunctionMode):
    """`copy.deepcopy` of a module on fake tensors (`nn.TransformerEncoder` copies its layer)."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: D105
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            copied = tensor.detach().clone()
            memo[id(tensor)] = (
                torch.nn.Parameter(copied, requires_grad=tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else copied
            )
        return memo[id(tensor)]


def _real(tape: Tape, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's value by replay; on meta where it cannot be had."""
    if not hasattr(tensor, "fake_mode"):
        return tensor
    values = replay(tape, [tape.uid(tensor)]) if tape.knows(tensor) else None
    return values[tape.uid(tensor)].clone() if values is not None else torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _settle_batch(prefix: str, value: object, tape: Tape) -> object:
    table = {name: _real(tape, tensor) for name, tensor in find_tensors(prefix, value)}
    return map_tensors(prefix, value, table)


def _settle_model(model: torch.nn.Module, others: list[object], tape: Tape, with_recipe: set[str]) -> None:
    """Replace every fake tensor of the model and of its loss and optimizer, keeping what is shared shared."""
    new: dict[int, torch.Tensor] = {}

    def settle(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in new:
            new[id(tensor)] = _real(tape, tensor).detach() if hasattr(tensor, "fake_mode") else tensor
            if isinstance(tensor, torch.nn.Parameter) and new[id(tensor)] is not tensor:
                new[id(tensor)] = torch.nn.Parameter(new[id(tensor)], requires_grad=tensor.requires_grad)
                carry_hooks(tensor, new[id(tensor)])
        return new[id(tensor)]

    for name, param in model.named_parameters():
        if hasattr(param, "fake_mode") and name in with_recipe:
            meta = torch.empty(param.shape, dtype=param.dtype, device="meta")
            new[id(param)] = torch.nn.Parameter(meta, requires_grad=param.requires_grad)
            carry_hooks(param, new[id(param)])
    fakes = list(model.parameters())
    replace_tensors([model, *others], settle)
    for old in fakes:
        replace_tensors([hook for hooks in gradient_hooks(old) for hook in hooks], settle)


def _find_recipes(tape: Tape) -> dict[int, Recipe | None]:
    """For each storage, how its elements were made one by one; None where they were not."""
    recipes: dict[int, Recipe | None] = {}
    sizes: dict[int, int] = {}
    for record in tape.records:
        packet = record.op._schema.name.split("::")[1]
        written = written_uids(record)
        if written:
            target = tape.tensors[written[0]]
            key = storage_key(target)
            whole = target.numel() == sizes.get(key, -1) and len(written) == 1
            recipes[key] = _rewrite(record, packet, recipes.get(key), recipes, tape) if whole else None
            continue
        for uid in record.outs:
            if uid < 0:
                continue
            tensor = tape.tensors[uid]
            key = storage_key(tensor)
            if key in sizes:
                continue  # a view
            sizes[key] = tensor.numel()
            recipes[key] = _first_recipe(record, packet, recipes, tape)
    return recipes


def _first_recipe(record: Record, packet: str, recipes: dict[int, Recipe | None], tape: Tape) -> Recipe | None:
    if packet in _SOURCES:
        return _SOURCES[packet]
    arguments = bind(record.op, record.args, record.kwargs)
    if packet in ("full", "full_like", "new_full"):
        return (("fill_", float(arguments["fill_value"])),)
    slots = find_slots(record)
    if len(slots) != 1 or tape.tensors[slots[0]].numel() != tape.tensors[record.outs[0]].numel():
        return None
    source = recipes.get(storage_key(tape.tensors[slots[0]]))
    if source is None:
        return None
    if packet in _COPIES:
        return source if tape.tensors[record.outs[0]].dtype.is_floating_point else None
    if packet + "_" in _CHANGES:
        return _change(packet + "_", arguments, source)
    return None


def _rewrite(record: Record, packet: str, before: Recipe | None, recipes: dict, tape: Tape) -> Recipe | None:
    arguments = bind(record.op, record.args, record.kwargs)
    if packet == "copy_":
        source = arguments["src"]
        if isinstance(source, Slot) and tape.tensors[source.uid].numel() == tape.tensors[record.outs[0]].numel():
            return recipes.get(storage_key(tape.tensors[source.uid]))
        return None
    if len(find_slots(record)) != 1:
        return None
    if packet in _OVERWRITES:
        defaults = {"normal_": {"mean": 0.0, "std": 1.0}, "uniform_": {"from": 0.0, "to": 1.0}, "fill_": {"value": 0.0}, "zero_": {}}
        values = [float(arguments.get(k, default)) for k, default in defaults[packet].items()]
        return ((packet, *values),)
    if packet in _CHANGES and before is not None:
        return _change(packet, arguments, before)
    return None


def _change(packet: str, arguments: dict, before: Recipe) -> Recipe | None:
    if not before:
        return None  # changes what was never set
    numbers = [v for k, v in arguments.items() if not isinstance(v, Slot) and k in ("other", "min", "max", "alpha", "value")]
    if any(isinstance(v, torch.Tensor) for v in numbers):
        return None
    if packet == "sub_":
        return (*before, ("add_", -float(numbers[0])))
    if packet == "div_":
        return (*before, ("mul_", 1.0 / float(numbers[0])))
    if packet == "clamp_min_":
        return (*before, ("clamp_", float(numbers[0])))
    return (*before, (packet, *(float(v) if v is not None else None for v in numbers)))
