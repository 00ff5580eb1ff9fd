"""Samples of torch's own operator database, in sizes that 2 and 3 ranks can share.

In: an entry of `torch.testing._internal.common_methods_invocations.op_db`. Out: its samples as calls of plain tensors, each with
variants of its numbers, or the reason why nobody can be judged by it. The database's own sizes (5, 10, 20) are odd: they are replaced by
6, 12, 24, as `strategy_validation` replaces them by sizes that divide.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

SIZES = {"S": 6, "M": 12, "L": 24}  # the database's 5, 10, 20
_SORTED = frozenset({"bucketize", "searchsorted", "_segment_reduce", "histogram", "histogramdd", "nn.functional.ctc_loss"})
_OWN_SIZES = frozenset({"_segment_reduce"})
_UNDEFINED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})


@dataclass(frozen=True)
class Call:
    """One sample: `function(*args, **kwargs)` with the tensors taken out.

    Args:
        name: of the database entry, and the number of the sample.
        function: what is called.
        tensors: every tensor among the arguments, in order.
        leaves, spec: the arguments flattened, `None` where a tensor goes back, and how to put them together again.
        places: where in `leaves` each tensor goes.
        is_free: other numbers of the same shapes are arguments too (not where they must be sorted).
    """

    name: str
    function: Callable[..., object]
    tensors: tuple[torch.Tensor, ...]
    leaves: tuple[object, ...]
    spec: object
    places: tuple[int, ...]
    is_free: bool = True

    def run(self, tensors: tuple[torch.Tensor, ...]) -> object:
        """Call it on these tensors instead."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


def divisible_sizes() -> None:
    """Replace the sizes that the database makes its samples of."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal") and hasattr(module, "S") and hasattr(module, "M"):
            for letter, size in SIZES.items():
                if hasattr(module, letter):
                    setattr(module, letter, size)


def entries() -> list[OpInfo]:
    """The whole database, in its order."""
    return list(database.op_db)


def entry_name(entry: OpInfo) -> str:
    """`sum`, or `std.unbiased` where an op has variants."""
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name


def float_dtype(entry: OpInfo) -> torch.dtype | None:
    """float64 where the op takes it, else float32, else None."""
    return next((d for d in (torch.float64, torch.float32) if d in entry.dtypes), None)


def make_call(name: str, function: Callable[..., object], sample: SampleInput, is_free: bool = True) -> Call:
    """A sample with its tensors taken out; where some are float64 all floats are, so that one tolerance holds."""
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    places = tuple(k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    tensors = tuple(leaves[k].detach() for k in places)
    if any(t.dtype == torch.float64 for t in tensors):
        tensors = tuple(t.double() if t.dtype == torch.float32 else t for t in tensors)
    return Call(name, function, tensors, tuple(None if k in places else leaf for k, leaf in enumerate(leaves)), spec, places, is_free)


def with_gradient(call: Call) -> Call:
    """The call followed by the gradient of half the sum of its squared real results, with respect to every real float that goes in.

    Such a sample asks for the rules of the op's backward too. Its results are those of the call and the gradients.
    """

    def run(*args: object, **kwargs: object) -> list[torch.Tensor]:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        owners = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        with torch.enable_grad():
            for k in owners:
                leaves[k] = leaves[k].detach().requires_grad_()
            own_args, own_kwargs = pytree.tree_unflatten(leaves, spec)
            made = tensors_in(call.function(*own_args, **own_kwargs))
            wanted = [t for t in made if t.requires_grad and t.is_floating_point()]
            if not wanted:
                raise ValueError("nothing to differentiate")
            loss = sum((0.5 * t * t).sum() for t in wanted)
            grads = torch.autograd.grad(loss, [leaves[k] for k in owners], allow_unused=True)
        return [t.detach() for t in (*made, *grads) if t is not None]

    return replace(call, name=f"{call.name} and its gradient", function=run)


class _Seen(TorchDispatchMode):
    """Notes the tags of the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[torch.Tag] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: D105
        self.tags |= set(func.tags)
        return func(*args, **(kwargs or {}))


def why_skipped(call: Call) -> str:
    """Why no rule can be judged by this sample; "" where it can."""
    if not call.tensors:
        return "no tensor goes in"
    if any(t.layout is not torch.strided for t in call.tensors):
        return "sparse"
    if any(t.numel() == 0 for t in call.tensors):
        return "a tensor without elements"
    if not any(t.numel() > 1 for t in call.tensors):
        return "single elements only"
    with _Seen() as seen, torch.no_grad():
        try:
            made = call.run(tuple(t.clone() for t in call.tensors))
        except Exception as error:  # whatever a sample raises, it is no sample for us
            return f"does not run: {type(error).__name__}"
    if torch.Tag.nondeterministic_seeded in seen.tags:
        return "random numbers"
    if torch.Tag.dynamic_output_shape in seen.tags:
        return "the shape of the result depends on the data"
    if not tensors_in(made):
        return "no tensor comes out"
    if any(t.layout is not torch.strided for t in tensors_in(made)):
        return "sparse"
    return ""


def tensors_in(value: object) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def variants(call: Call) -> Iterator[tuple[torch.Tensor, ...]]:
    """The sample's own numbers; their negatives; a third of them zero and one huge. Integers and booleans stay."""
    yield call.tensors
    if not call.is_free:
        return
    yield tuple(-t if _is_real(t) else t for t in call.tensors)
    rng = torch.Generator().manual_seed(0)
    mixed = []
    for t in call.tensors:
        if _is_real(t) and t.numel() > 2:
            flat = t.clone().reshape(-1)
            flat *= torch.randint(0, 3, flat.shape, generator=rng).clamp(max=1).to(flat.dtype)
            flat[int(torch.randint(0, flat.numel(), (), generator=rng))] = 300.0
            mixed.append(flat.reshape(t.shape))
        else:
            mixed.append(t)
    yield tuple(mixed)


def _is_real(t: torch.Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _shape_key(sample: SampleInput) -> str:
    def text(leaf: object) -> str:
        return f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else repr(leaf)

    return str([text(leaf) for leaf in pytree.tree_leaves((sample.input, sample.args, dict(sample.kwargs)))])


def calls(entry: OpInfo, limit: int, has_gradient: bool = False) -> tuple[list[Call], dict[str, int], int]:
    """Up to `limit` samples that can judge, spread evenly over those that differ in shapes or arguments.

    Args:
        has_gradient: of each the op followed by its gradient (`with_gradient`).

    Returns:
        The calls; how many samples were looked at and skipped for each reason; and how many different samples the database has.
    """
    dtype = float_dtype(entry)
    if dtype is None:
        return [], {"no float samples": 1}, 0
    if has_gradient and not entry.supports_autograd:
        return [], {"no gradient": 1}, 0
    if entry.name in _UNDEFINED:
        return [], {"undefined memory": 1}, 0
    if entry.name in _OWN_SIZES:
        return [], {"its samples read out of bounds in other sizes than the database's": 1}, 0
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {_shape_key(s): s for s in entry.sample_inputs("cpu", dtype, requires_grad=False)}
        samples = list(found.values())
        chosen: list[Call] = []
        skipped: dict[str, int] = {}
        step = max(len(samples) // limit, 1)
        order = [k for first in range(step) for k in range(first, len(samples), step)]
        for k in order:
            call = make_call(f"{entry_name(entry)} #{k}", entry.op, samples[k], entry.name not in _SORTED)
            call = with_gradient(call) if has_gradient else call
            reason = why_skipped(call)
            if reason:
                skipped[reason] = skipped.get(reason, 0) + 1
                if not chosen and skipped[reason] >= 30:
                    break  # none of them will do
                continue
            chosen.append(call)
            if len(chosen) == limit:
                break
    return chosen, skipped, len(samples)
