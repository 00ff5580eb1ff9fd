"""The draft: a graph while it is being written.

In: calls of ops on `Val`s, from the rewriting rules of this floor. Out: nodes in order, and values whose shapes and dtypes are known at
once (torch infers them on meta tensors). Invariant: values are never changed; views that change nothing are never written.
`finish.py` turns the draft into a `Graph`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import torch

from ...errors import GraphError
from ...graph.node import Const, Phase
from ...graph.rules.random_numbers import STATE as RANDOM_STATE
from ...graph.tensor import Kind

Shape = tuple[int, ...]
_DROPPED = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"})
_EXACT = frozenset((narrow, wide) for narrow in (torch.bfloat16, torch.float16) for wide in (torch.float32, torch.float64))


@dataclass(slots=True, eq=False)
class Val:
    """One value. `node` made it as its output number `out`; None: it enters the step under `entry`."""

    shape: Shape
    dtype: torch.dtype
    node: DraftNode | None = None
    out: int = 0
    entry: str = ""
    kind: Kind = Kind.ACTIVATION


@dataclass(slots=True, eq=False)
class DraftNode:
    """One call. Arguments by schema name, tensors as `Val`."""

    op: str
    args: tuple[tuple[str, object], ...]
    phase: Phase
    path: str
    source: str
    outs: list[Val | None] = field(default_factory=list)


@dataclass(frozen=True)
class Argument:
    """One argument of an op's schema."""

    name: str
    has_default: bool
    default: object
    is_view: bool
    is_written: bool


def resolve_op(name: str) -> torch._ops.OpOverload:
    """`aten.mm.default` -> the torch op. Never kept: a user's op that is defined again is another one, and the old one is gone."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


@lru_cache(maxsize=None)
def schema_arguments(op: torch._ops.OpOverload) -> tuple[Argument, ...]:
    """The op's arguments, in order."""
    return tuple(
        Argument(
            a.name,
            a.has_default_value(),
            a.default_value if a.has_default_value() else None,
            a.alias_info is not None and not a.alias_info.is_write,
            a.alias_info is not None and a.alias_info.is_write,
        )
        for a in op._schema.arguments
    )


def bind(op: torch._ops.OpOverload, args: tuple | list, kwargs: dict) -> dict[str, object]:
    """The call's arguments by schema name, those left out not there."""
    arguments = schema_arguments(op)
    bound = {a.name: value for a, value in zip(arguments, args)}
    bound.update(kwargs)
    return bound


class Draft:
    """Writes nodes at a place (`phase`, `path`, `source`) that the caller sets."""

    def __init__(self) -> None:
        self.nodes: list[DraftNode] = []
        self.preamble: list[DraftNode] = []  # what stands before all nodes and depends on nothing
        self.phase = Phase.FORWARD
        self.path = ""
        self.source = ""
        self.norm_turns = 1  # so many microbatches have statistics of batch norm of their own
        self.has_norms = False  # some batch norm takes statistics of its batch
        self.norm_saved: dict[Val, Val] = {}  # what stands for saved statistics -> those of each microbatch
        self.leads: dict[Val, Shape] = {}  # the leading dims with which a weight was used in forward (see linears.py)
        self.specs: list[tuple[Shape, torch.dtype] | None] = []  # what the op that is being rewritten returns
        self._results: dict[object, tuple[bool, list[tuple[Shape, torch.dtype] | None]]] = {}  # of `call`, which asks torch once
        self.num_uses: dict[Val, int] = {}
        self.is_private = False  # only a loss reads what the op that is being rewritten returns (see log_probabilities.py)
        self.entropies: dict[Val, object] = {}
        self.exponentials: dict[object, object] = {}  # of rows (see exponentials.py)
        self.counter_entry = Val((), torch.int64, None, 0, RANDOM_STATE, Kind.BUFFER)
        self._counter = self.counter_entry
        self._positions: dict[tuple[int, str], Val] = {}

    def emit(self, op: str, args: dict[str, object], specs: list[tuple[Shape, torch.dtype] | None]) -> list[Val | None]:
        """Write a node whose results are known."""
        node = DraftNode(op, tuple(args.items()), self.phase, self.path, self.source)
        node.outs = [None if s is None else Val(tuple(s[0]), s[1], node, k) for k, s in enumerate(specs)]
        self.nodes.append(node)
        return node.outs

    def emit_one(self, op: str, args: dict[str, object], shape: Shape, dtype: torch.dtype) -> Val:
        """Write a node of one result."""
        out = self.emit(op, args, [(shape, dtype)])[0]
        assert out is not None
        return out

    def keep(self, op: str, bound: dict[str, object]) -> list[Val | None]:
        """Write the op that is being rewritten as it is.

        Args:
            bound: its arguments by name.
        """
        return self.emit(op, canonical_args(resolve_op(op), bound), self.specs)

    def call(self, name: str, /, *args: object, **kwargs: object):
        """Write an ATen op; torch tells the shapes. Returns one Val, or a list."""
        op = resolve_op(name)
        key = (name, _show(args), _show(tuple(kwargs.items())))
        if key not in self._results:
            out = op(*[_to_meta(a) for a in args], **{k: _to_meta(v) for k, v in kwargs.items()})
            single = isinstance(out, torch.Tensor)
            results = [out] if single else list(out)
            self._results[key] = single, [(tuple(t.shape), t.dtype) if isinstance(t, torch.Tensor) else None for t in results]
        single, specs = self._results[key]
        outs = self.emit(name, canonical_args(op, bind(op, args, kwargs)), specs)
        return outs[0] if single else outs

    # -- what an op must know about places ---------------------------------------------------------------------------------------------

    def positions(self, n: int, use: str) -> Val:
        """`arange(n)`, shared by all that ask for the same use: coordinates as data, which is split as any other value is.

        Its node stands in the preamble, in the root module. Uses are kept apart so that sizes that are equal by chance are not tied.
        """
        return self._list("aten.arange.start_step", (("start", 0), ("end", n), ("step", 1), ("dtype", const(torch.int64))), n, use)

    def row_numbers(self, n: int) -> Val:
        """As `positions`, on the host: of the rows of causal attention, whose kernels are called by where they begin."""
        return self._list("autopar.row_numbers", (("n", n),), n, "causal")

    def _list(self, op: str, args: tuple, n: int, use: str) -> Val:
        if (n, use) not in self._positions:
            node = DraftNode(op, args, Phase.FORWARD, "", self.source)
            node.outs = [Val((n,), torch.int64, node)]
            self.preamble.append(node)
            self._positions[n, use] = node.outs[0]
        return self._positions[n, use]

    def next_count(self) -> Val:
        """The counter of random draws as it stands; it moves on by one."""
        now = self._counter
        self._counter = self.emit_one("aten.add.Tensor", {"self": now, "other": 1}, (), torch.int64)
        return now

    @property
    def last_count(self) -> Val:
        """The counter after the last draw."""
        return self._counter

    def close_count(self) -> Val:
        """The counter after the last draw as a value of the root module, so that the block that draws last is like the others."""
        last = self._counter
        assert last.node is not None
        self.phase, self.path, self.source = last.node.phase, "", last.node.source
        closed = self.emit_one("aten.view.default", {"self": last, "size": ()}, (), torch.int64)
        self.nodes.insert(self.nodes.index(last.node) + 1, self.nodes.pop())
        return closed

    # -- the forms that everything is brought to -------------------------------------------------------------------------------------

    def full(self, shape: Shape, value: object, dtype: torch.dtype) -> Val:
        """A constant."""
        args = {"size": tuple(shape), "fill_value": value, "dtype": const(dtype)}
        return self.emit_one("aten.full.default", args, tuple(shape), dtype)

    def view(self, x: Val, shape: Shape | list[int]) -> Val:
        """`x` in another shape; a view of a view of this shape is that value itself."""
        shape = tuple(shape)
        if -1 in shape:
            rest = prod(s for s in shape if s != -1)
            shape = tuple(prod(x.shape) // rest if s == -1 else s for s in shape)
        for base in view_chain(x):
            if base.shape == shape:
                return base
        if prod(shape) != prod(x.shape):
            raise GraphError(f"view of {list(x.shape)} as {list(shape)}: the numbers of elements differ ({self.source})")
        return self.emit_one("aten.view.default", {"self": x, "size": shape}, shape, x.dtype)

    def permute(self, x: Val, dims: list[int] | tuple[int, ...]) -> Val:
        """`x` with its dims reordered. Where dims of size 1 change places with others, nothing moves: that is a view."""
        dims = tuple(d % len(x.shape) for d in dims)
        if x.node is not None and x.node.op == "aten.permute.default":
            inner = dict(x.node.args)
            x, dims = inner["self"], tuple(inner["dims"][d] for d in dims)
        if dims == tuple(range(len(dims))):
            return x
        shape, wide = tuple(x.shape[d] for d in dims), [k for k, size in enumerate(x.shape) if size != 1]
        order = tuple(wide.index(d) for d in dims if d in wide)
        if order == tuple(range(len(wide))):
            return self.view(x, shape)
        thin = tuple(x.shape[k] for k in wide)
        if thin != x.shape and any(base.shape == thin for base in view_chain(x)):  # the ones were put in
            return self.view(self.permute(self.view(x, thin), order), shape)
        return self.emit_one("aten.permute.default", {"self": x, "dims": dims}, shape, x.dtype)

    def expand(self, x: Val, shape: Shape | list[int]) -> Val:
        """`x` broadcast to `shape`."""
        missing = len(shape) - len(x.shape)
        full = tuple(x.shape[k - missing] if s == -1 else s for k, s in enumerate(shape))
        if prod(x.shape) == prod(full):  # dims of size 1 at most
            return self.view(x, full)
        return self.emit_one("aten.expand.default", {"self": x, "size": full}, full, x.dtype)

    def cast(self, x: Val, dtype: torch.dtype) -> Val:
        """`x` in another dtype; what was widened from this very dtype is there already."""
        if x.dtype == dtype:
            return x
        known = self._before_widening(x, dtype)
        return known if known is not None else self.emit_one("aten._to_copy.default", {"self": x, "dtype": const(dtype)}, x.shape, dtype)

    def _before_widening(self, x: Val, dtype: torch.dtype) -> Val | None:
        """What `x` was before it was widened from this dtype, in its shape; None where it was not. Views and permutes lie between."""
        for base in view_chain(x):
            args = dict(base.node.args) if base.node is not None else {}
            if base.node is not None and base.node.op == "aten._to_copy.default":
                if args["self"].dtype == dtype and (dtype, base.dtype) in _EXACT:
                    return self.view(args["self"], x.shape)
            elif base.node is not None and base.node.op == "aten.permute.default":
                found = self._before_widening(args["self"], dtype)
                if found is not None:
                    return self.view(self.permute(found, args["dims"]), x.shape)
        return None

    def sum(self, x: Val, dims: list[int] | tuple[int, ...] | None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Val:
        """Sum over dims (None or (): all)."""
        dims = sorted(d % max(len(x.shape), 1) for d in dims) if dims else list(range(len(x.shape)))
        out_dtype = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
        if not x.shape:
            return self.cast(x, out_dtype)
        shape = tuple(1 if k in dims else s for k, s in enumerate(x.shape) if keepdim or k not in dims)
        if all(x.shape[k] == 1 for k in dims):
            return self.view(self.cast(x, out_dtype), shape)
        args: dict[str, object] = {"self": x, "dim": tuple(dims)}
        if keepdim:
            args["keepdim"] = True
        if dtype is not None and dtype != x.dtype:
            args["dtype"] = const(dtype)
        return self.emit_one("aten.sum.dim_IntList", args, shape, out_dtype)

    def _broadcast(self, op: str, a: object, b: object) -> Val:
        return self.call(op, a, b)

    def add(self, a: object, b: object) -> Val:
        return self._broadcast("aten.add.Tensor", a, b)

    def sub(self, a: object, b: object) -> Val:
        return self._broadcast("aten.sub.Tensor", a, b)

    def mul(self, a: object, b: object) -> Val:
        return self._broadcast("aten.mul.Tensor", a, b)

    def div(self, a: object, b: object) -> Val:
        return self._broadcast("aten.div.Tensor", a, b)


def const(dtype: torch.dtype) -> Const:
    """A dtype as a graph constant."""
    return Const("dtype", str(dtype))


def find_vals(value: object) -> list[Val]:
    """The values inside an argument, in order."""
    if isinstance(value, Val):
        return [value]
    if isinstance(value, tuple):
        return [v for item in value for v in find_vals(item)]
    return []


def node_inputs(node: DraftNode) -> list[Val]:
    """The values a node reads, in order."""
    return [v for _, value in node.args for v in find_vals(value)]


def stand_in(value: object, stands: dict[int, Val]) -> object:
    """An argument with other values in place of some, by their ids."""
    if isinstance(value, Val):
        return stands.get(id(value), value)
    return tuple(stand_in(v, stands) for v in value) if isinstance(value, tuple) else value


def view_chain(x: Val) -> list[Val]:
    """`x`, what it is a view of, and so on: same elements in the same order."""
    chain = [x]
    while x.node is not None and x.node.op == "aten.view.default":
        x = dict(x.node.args)["self"]
        chain.append(x)
    return chain


def canonical_args(op: torch._ops.OpOverload, bound: dict[str, object]) -> dict[str, object]:
    """Arguments in schema order, defaults and what is about devices and memory formats left out."""
    out: dict[str, object] = {}
    for argument in schema_arguments(op):
        if argument.name not in bound or argument.name in _DROPPED:
            continue
        value = bound[argument.name]
        if argument.has_default and not _holds_val(value) and value == argument.default:
            continue
        out[argument.name] = _freeze(value)
    return out


def _holds_val(value: object) -> bool:
    return isinstance(value, Val) or (isinstance(value, (list, tuple)) and any(_holds_val(v) for v in value))


def _freeze(value: object) -> object:
    if isinstance(value, (list, tuple, torch.Size)):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, torch.dtype):
        return const(value)
    if value is None or isinstance(value, (bool, int, float, complex, str, Val, Const)):
        return value
    raise GraphError(f"argument {value!r} of type {type(value).__name__} has no place in a graph")


def _show(value: object) -> object:
    """What decides the shape of a result, hashable; `1`, `1.0` and `True` apart."""
    if isinstance(value, Val):
        return (value.shape, value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple([_show(v) for v in value])
    return (type(value), value)


def _to_meta(value: object) -> object:
    if isinstance(value, Val):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_to_meta(v) for v in value]
    return value
