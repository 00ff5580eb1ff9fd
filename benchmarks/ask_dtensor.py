"""Asking torch DTensor what it would do: which ATen ops of a call reach it, and its answer for each placement of their inputs.

In: a call, and one op of it with its inputs placed on one mesh axis. Out: an `Answer` in our words: the placements to which DTensor brings
the inputs, the arguments with which it calls the op on each rank, the placements that it claims for the results. All private imports of
DTensor are here; seen in torch 2.13. `torch.distributed.tensor._ops.strategy_validation` asks in the same way, but with the arguments as
they are, so that every view looks wrong to it.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import placement_types as torch_placements
from torch.distributed.tensor._decompositions import DecompShardingStrategy
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.graph.sharding import REPLICATE, Partial, Placement, Shard
from benchmarks.op_database import Call, tensors_in


@dataclass(frozen=True)
class Slot:
    """Stands in a call's arguments for a rank's piece of a tensor."""


@dataclass(frozen=True)
class OpCall:
    """One ATen op that ran on tensors of the sample.

    Args:
        op: the overload.
        leaves, spec: its arguments flattened, tensors included, as they were before it ran.
        places: where in `leaves` the tensors are that come from the sample.
        outputs: what it returned.
    """

    op: torch._ops.OpOverload
    leaves: tuple[object, ...]
    spec: object
    places: tuple[int, ...]
    outputs: tuple[torch.Tensor, ...]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors that are placed."""
        return tuple(self.leaves[k] for k in self.places)  # type: ignore[misc]


@dataclass(frozen=True)
class Answer:
    """What DTensor does for one placement of the inputs.

    Args:
        inputs: where it brings each tensor among the arguments.
        outputs: what it says of each result, None where nothing.
        op, leaves, spec: what it calls on each rank; the pieces go where a `Slot` is.
    """

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement | None, ...]
    op: torch._ops.OpOverload
    leaves: tuple[object, ...]
    spec: object


class _Recorder(TorchDispatchMode):
    """Ops that touch what comes from the sample, in order."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.calls: list[OpCall] = []
        self._kept: list[object] = list(tensors)  # an id is an id as long as the tensor lives
        self._known = {id(t) for t in tensors}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: D105
        leaves, spec = pytree.tree_flatten((args, kwargs or {}))
        places = tuple(k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and id(leaf) in self._known)
        # copies: a later op may write them in place, their shapes too
        before = tuple(leaf.clone() if places and isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        made = func(*args, **(kwargs or {}))
        if places:
            outs = tensors_in(made)
            self._kept += outs
            self._known |= {id(t) for t in outs}
            self.calls.append(OpCall(func, before, spec, places, tuple(t.clone() for t in outs)))
        return made


def record(call: Call, tensors: tuple[torch.Tensor, ...]) -> list[OpCall]:
    """The ATen ops of a call that touch its tensors."""
    fresh = tuple(t.clone() for t in tensors)
    with _Recorder(fresh) as recorder, torch.no_grad():
        call.run(fresh)
    return recorder.calls


class TooSlow(BaseException):
    """DTensor did not answer in time. No `Exception`: those are caught on the way."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` inside after so long (decompositions of many inputs are tried in every combination)."""

    def stop(number: int, frame: object) -> None:
        raise TooSlow(f"no answer in {seconds:.0f} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# --- asking ----------------------------------------------------------------------------------------------------------------------


def _to_torch(placement: Placement) -> torch_placements.Placement:
    if isinstance(placement, Shard):
        return torch_placements.Shard(placement.dim)
    return torch_placements.Partial(placement.op) if isinstance(placement, Partial) else torch_placements.Replicate()


def _from_torch(placement: torch_placements.Placement, shape: Sequence[int], n: int) -> Placement | None:
    """None for what is none of R, S and P on one axis, or a dim that n ranks cannot share evenly."""
    if type(placement) is torch_placements.Shard:
        return Shard(placement.dim, shape[placement.dim] // n) if shape[placement.dim] % n == 0 else None
    if type(placement) is torch_placements.Partial:
        return Partial(placement.reduce_op)
    return REPLICATE if isinstance(placement, torch_placements.Replicate) else None


def ask(call: OpCall, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> Answer | None:
    """What DTensor would do with inputs so placed; None where its answer is in words that the referee does not have.

    Raises:
        Exception: what DTensor raises where it has no rule.
    """
    n = mesh.size()
    leaves = list(call.leaves)
    for place, placement in zip(call.places, placements):
        t = call.leaves[place]
        assert isinstance(t, torch.Tensor)
        leaves[place] = DTensorSpec(mesh, (_to_torch(placement),), tensor_meta=TensorMeta(t.shape, t.stride(), t.dtype))
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):  # made by the program itself: DTensor takes single elements as replicated; be generous to all
            leaves[k] = DTensorSpec(mesh, (torch_placements.Replicate(),), tensor_meta=TensorMeta(leaf.shape, leaf.stride(), leaf.dtype))
    args, kwargs = pytree.tree_unflatten(leaves, call.spec)
    propagator = DTensor._op_dispatcher.sharding_propagator
    op = call.op
    is_registered = op in propagator.op_single_dim_strategy_funcs or op in propagator.op_strategy_funcs or op in propagator.op_to_rules
    if not is_registered and DecompShardingStrategy.has_decomp(op):
        propagator.decomp_strategy.ensure_schema_info(op)
    info = propagator.op_to_schema_info.get(op) or propagator.op_to_schema_info_for_single_dim_strategy.get(op)
    found = propagator.propagate_op_sharding_non_cached(OpSchema(op, tuple(args), kwargs, schema_info=info))
    return _read(call, found, leaves, info is not None and info.needs_pytree or _has_lists(args), n)


def _has_lists(args: Sequence[object]) -> bool:
    return any(isinstance(a, (list, tuple)) and any(isinstance(x, DTensorSpec) for x in a) for a in args)


def _read(call: OpCall, found: OutputSharding, leaves: list[object], needs_pytree: bool, n: int) -> Answer | None:
    """The answer in our words, as `OpDispatcher.redistribute_local_args` would carry it out."""
    op, spec, local = call.op, call.spec, list(leaves)
    if found.needs_redistribute and found.redistribute_schema is not None:
        suggested = found.redistribute_schema
        op = suggested.op
        args, kwargs = pytree.tree_unflatten(leaves, call.spec)
        flat, own_spec = pytree.tree_flatten(tuple(args)) if needs_pytree else (list(args), None)
        new = pytree.tree_leaves(suggested.args_schema) if needs_pytree else list(suggested.args_schema)
        taken = [
            b if isinstance(a, DTensorSpec) or found.use_val_from_redistribute_schema else a for a, b in zip(flat, new)
        ] + (new[len(flat) :] if found.use_val_from_redistribute_schema else [])
        whole = pytree.tree_unflatten(taken, own_spec) if own_spec is not None and len(taken) == len(flat) else tuple(taken)
        local, spec = pytree.tree_flatten((tuple(whole), kwargs if op is call.op else {}))
    specs = [leaf for leaf in local if isinstance(leaf, DTensorSpec)]
    local = [Slot() if isinstance(leaf, DTensorSpec) else leaf for leaf in local]
    inputs = [_from_torch(s.placements[0], s.shape, n) for s in specs]
    said = found.output_spec if isinstance(found.output_spec, (list, tuple)) else [found.output_spec]
    outputs = [_from_torch(s.placements[0], s.shape, n) if isinstance(s, DTensorSpec) else None for s in said]
    if any(p is None for p in inputs) or any(isinstance(s, DTensorSpec) and p is None for s, p in zip(said, outputs)):
        return None
    return Answer(tuple(inputs), tuple(outputs), op, tuple(local), spec)  # type: ignore[arg-type]


def make_mesh(n: int) -> DeviceMesh:
    """One axis of n ranks; nothing is ever sent."""
    return DeviceMesh("cpu", list(range(n)), _init_backend=False, _rank=0)


def has_handler(op: torch._ops.OpOverload) -> bool:
    """True where DTensor runs the op in a way of its own (with communication inside)."""
    return op in DTensor._op_dispatcher._custom_op_handlers


def size_argument(op: torch._ops.OpOverload) -> int | None:
    """Which argument of a view DTensor rewrites to the size of the result's piece."""
    place = DTensor._op_dispatcher.sharding_propagator.op_to_shape_and_stride_idx.get(op)
    return place if isinstance(place, int) else None
