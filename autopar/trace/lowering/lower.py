"""Lowering: from the tape to a `Graph`.

In: `Captured`. Out: the graph, in canonical ops, pure, with every node's phase, module path and source line. Invariant: running the
graph (`execute.py`) gives what eager PyTorch gives. The tables of rewriting rules are data in `decompose`, `losses`,
`norms`, `linears`, `random_ops`, `vocabulary`, `exponentials`.
"""

from __future__ import annotations

from bisect import bisect_left

import torch

from ...errors import GraphError, MicrobatchError, OptionsError, TraceError
from ...graph.graph import Graph
from ...graph.node import Phase
from ...graph.remade import remake_graph
from ...graph.rules.random_numbers import STATE as RANDOM_STATE
from ...graph.shared_tables import share_tables
from ...graph.tensor import Kind
from ..capture import Captured
from ..private import without_modes
from ..tape import SEQ_UNPAIRED, Record, Slot, find_slots, map_slots
from .copies import UpdateCopier
from .decompose import RULES as FORM_RULES
from .draft import Draft, Val, bind, canonical_args, schema_arguments
from .exponentials import EXPONENTIAL_RULES
from .finish import finish_graph
from .linears import LINEAR_RULES
from .log_probabilities import find_private
from .losses import LOSS_RULES
from .norms import NORM_RULES, Effects
from .many_uses import join_uses
from .pieces import join_pieces
from .random_ops import RANDOM_RULES
from .turned import turn_parts
from .views import Handles, View, strided_steps, tensor_spec, view_steps
from .vocabulary import VOCABULARY_RULES

RULES = {**FORM_RULES, **LOSS_RULES, **NORM_RULES, **LINEAR_RULES, **RANDOM_RULES, **VOCABULARY_RULES, **EXPONENTIAL_RULES}
_MAX_UNIFORM = 2**22  # constants up to this many elements are looked at for being one number everywhere


def lower(captured: Captured, name: str, norm_turns: int = 1) -> tuple[Graph, dict[str, torch.Tensor]]:
    """Write the graph.

    Args:
        captured: a step on tape.
        name: of the model, for people.
        norm_turns: so many microbatches have statistics of batch norm of their own.

    Returns:
        The graph, and the real tensors of its `const:K@0` inputs.
    """
    return _Lowering(captured, norm_turns).run(name)


class _Lowering:
    """One pass over the tape. Lives for one call of `run`."""

    def __init__(self, captured: Captured, norm_turns: int) -> None:
        self.captured = captured
        self.tape = captured.tape
        self.draft = Draft()
        self.draft.norm_turns = norm_turns
        self.handles = Handles(self.draft)
        self.constants: dict[str, torch.Tensor] = {}
        self.inputs: dict[str, Val] = {}
        self.places = self._forward_places()
        self._forward_seqs = list(self.places)
        kept = {captured.loss, *captured.outputs, *(uid for _, uid in (*captured.finals, *captured.grads))}
        self.private = find_private(self.tape.records[: captured.num_before_update], frozenset(kept), self.tape.tensors)

    def run(self, name: str) -> tuple[Graph, dict[str, torch.Tensor]]:
        captured = self.captured
        for entry in captured.entries:
            if entry.like:
                like = self.inputs[entry.like]
                self.inputs[entry.storage] = Val(like.shape, like.dtype, None, 0, entry.storage, entry.kind)
            else:
                self._add_input(entry.uid, entry.storage, entry.kind)
        before = {e.storage: self.inputs[e.storage] for e in captured.entries}
        self._count_uses()
        for record in self.tape.records[: captured.num_before_update]:
            self._lower(record)
        if self.draft.norm_turns > 1 and not self.draft.has_norms:
            raise OptionsError(f"batchnorm: microbatch is about batch norm that takes statistics of its batch, and {name} has none; leave it out")
        grads, loss = self._results()
        copier = UpdateCopier(captured.copies, self.inputs, grads)
        for param, uid in captured.grads:
            if param in copier.blanks:
                self.handles.make(uid, copier.blanks[param])
        num_before = len(self.draft.nodes)
        for record in self.tape.records[captured.num_before_update :]:
            self._lower(record)
        updates = {}
        for storage, uid in captured.finals:
            value = self.handles.read(uid)
            if value is not before[storage]:
                updates[storage] = value
        updates = copier.copy(self.draft, num_before, updates)
        outputs = [self.handles.read(uid) for uid in captured.outputs]
        if self.draft.last_count is not self.draft.counter_entry:
            self.inputs[RANDOM_STATE] = self.draft.counter_entry
            updates[RANDOM_STATE] = self.draft.close_count()
        join_pieces(self.draft)
        roots = [*updates.values(), *outputs, *grads.values(), *([loss] if loss is not None else [])]
        turn_parts(self.draft, roots)
        join_uses(self.draft, roots)
        owners = self._owners(captured)
        graph = finish_graph(name, self.draft, self.inputs, updates, loss, outputs, grads, owners)
        return remake_graph(share_tables(graph)), self.constants

    def _results(self) -> tuple[dict[str, Val], Val | None]:
        grads = {name: self.handles.read(uid) for name, uid in self.captured.grads}
        loss = self.handles.read(self.captured.loss) if self.captured.loss >= 0 else None
        return grads, loss

    # -- preparation ---------------------------------------------------------------------------------------------------------------

    def _add_input(self, uid: int, storage: str, kind: Kind) -> None:
        shape, dtype = tensor_spec(self.tape.tensors[uid])
        value = Val(shape, dtype, None, 0, storage, kind)
        self.inputs[storage] = value
        self.handles.make(uid, value)

    def _add_constant(self, uid: int) -> None:
        tensor = self.tape.constants.get(uid)
        if tensor is None and self.draft.phase is Phase.UPDATE:
            raise TraceError(
                f"{self.draft.source or 'the optimizer'}: the step reads a tensor of shape {list(self.tape.tensors[uid].shape)} that an earlier step made and kept where it is not looked for. Keep it in "
                "self.state[p], or in an attribute, list, tuple or dict that __init__ makes."
            )
        if tensor is None:
            raise GraphError(f"tensor {uid} {list(self.tape.tensors[uid].shape)} is read, but nothing on the tape made it")
        self.tape_constant(uid, tensor)

    def tape_constant(self, uid: int, tensor: torch.Tensor) -> None:
        shape, dtype = tensor_spec(self.tape.tensors[uid])
        flat = tensor.flatten()
        if 0 < tensor.numel() <= _MAX_UNIFORM and bool((flat == flat[0]).all()):
            self.handles.make(uid, self.draft.full(shape, flat[0].item(), dtype))
            return
        storage = f"const:{len(self.constants)}"
        self.constants[f"{storage}@0"] = tensor.to(dtype)
        self._add_input(uid, storage, Kind.BUFFER)

    def _forward_places(self) -> dict[int, tuple[str, str]]:
        """Sequence number -> the module and line of the op that has it, ascending."""
        places: dict[int, tuple[str, str]] = {}
        for record in self.tape.records:
            if record.phase is Phase.FORWARD and not record.in_autograd:
                places.setdefault(record.seq, (record.path, record.source))
        return dict(sorted(places.items()))

    def _backward_place(self, seq: int) -> tuple[str, str]:
        """Of the op whose gradient a node of autograd computes. The node of an op in place may be older than all that the op runs: it first copies what it overwrites, and the copy has a node of its own."""
        if seq >= SEQ_UNPAIRED:
            return self._last_place
        at = bisect_left(self._forward_seqs, seq)
        return self.places[self._forward_seqs[at]] if at < len(self._forward_seqs) else ("", "")

    def _owners(self, captured: Captured) -> dict[str, str]:
        """Module path of the parameter to which each state belongs."""
        owners = {}
        for entry in captured.entries:
            if entry.kind in (Kind.PARAM, Kind.OPTIM):
                owners[entry.storage] = entry.storage.rpartition(":")[2].rpartition(".")[0]
        return owners

    def _count_uses(self) -> None:
        uses: dict[int, int] = {}
        for record in self.tape.records:
            for uid in find_slots(record):
                uses[uid] = uses.get(uid, 0) + 1
        self._uses = uses

    # -- one record ----------------------------------------------------------------------------------------------------------------

    def _lower(self, record: Record) -> None:
        b = self.draft
        b.phase, b.path, b.source = record.phase, record.path, record.source
        if record.phase is Phase.BACKWARD or record.in_autograd:
            path, source = self._backward_place(record.seq)
            b.path, b.source = path or record.path, source or record.source
            self._last_place = (b.path, b.source)
        for uid in find_slots(record):
            if uid not in self.handles.table:
                self._add_constant(uid)
        try:
            self._rewrite(record)
        except (GraphError, TraceError, MicrobatchError):
            raise
        except Exception as error:
            raise GraphError(
                f"{record.op} ({b.path or 'root'}, {b.source or 'no source'}): cannot be lowered: {type(error).__name__}: {error}"
            ) from error

    _last_place: tuple[str, str] = ("", "")

    def _rewrite(self, record: Record) -> None:
        op, packet = record.op, record.op._schema.name.split("::")[1]
        arguments = schema_arguments(op)
        bound = bind(op, record.args, record.kwargs)
        if any(a.is_written for a in arguments):
            self._write(record, bound)
            return
        if any(a.is_view for a in arguments) and packet != "to" or packet in ("_unsafe_view", "unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes"):
            self._view(record, packet, bound)
            return
        self._set_outputs(record, self._apply(op, bound, record))

    def _read_all(self, bound: dict[str, object]) -> dict[str, object]:
        return {k: map_slots(v, lambda s: self.handles.read(s.uid)) for k, v in bound.items()}

    def _promote(self, values: dict[str, object], dtype: torch.dtype) -> dict[str, object]:
        """Whole numbers among whole numbers become the real or complex numbers that torch makes of them while it traces, whatever its default is later."""
        if any(isinstance(v, Val) and (v.dtype.is_floating_point or v.dtype.is_complex) for v in values.values()):
            return values
        return {k: self.draft.cast(v, dtype) if isinstance(v, Val) else v for k, v in values.items()}

    def _apply(self, op: torch._ops.OpOverload, bound: dict[str, object], record: Record) -> object:
        """Write a pure op with its rule, or whole."""
        b = self.draft
        values = self._read_all(bound)
        b.specs = [tensor_spec(self.tape.tensors[u]) if u >= 0 else None for u in record.outs]
        if _makes_numbers(op, bound) and b.specs[0] is not None and (b.specs[0][1].is_floating_point or b.specs[0][1].is_complex):
            values = self._promote(values, b.specs[0][1])
        first = bound.get("self")
        if isinstance(first, Slot):
            b.num_uses[values["self"]] = self._uses.get(first.uid, 0)
        rule = RULES.get(str(op))
        b.is_private = bool(record.outs) and record.outs[0] in self.private
        if rule is not None:
            defaults = {a.name: a.default for a in schema_arguments(op) if a.has_default}
            return rule(b, defaults | values)
        if torch.Tag.nondeterministic_seeded in op.tags:
            raise TraceError(
                f"{b.source or b.path or 'the step'}: {op} draws random numbers, and how many depends on what it draws, so they cannot be made "
                "piece by piece. Draw them outside of the step and pass them as an input, or use ops such as torch.rand and torch.randn."
            )
        arguments = {a.name for a in schema_arguments(op)}
        if "dtype" in arguments and values.get("dtype") is None and not find_slots(record):
            values["dtype"] = b.specs[0][1]  # else the default dtype of whoever runs the program
        return b.emit(str(op), canonical_args(op, values), b.specs)

    def _set_outputs(self, record: Record, result: object) -> None:
        if isinstance(result, Effects):
            for name, value in result.writes.items():
                slot = bind(record.op, record.args, record.kwargs)[name]
                self.handles.write(slot.uid, value)
            result = result.outs
        outs = [result] if isinstance(result, Val) else list(result)
        for uid, value in zip(record.outs, outs):
            if uid < 0 or value is None:
                continue
            expected = tensor_spec(self.tape.tensors[uid])
            if (value.shape, value.dtype) != expected:
                raise GraphError(
                    f"rule of {record.op} makes {value.dtype}{list(value.shape)}, torch makes {expected[1]}{list(expected[0])}"
                )
            self.handles.make(uid, value)

    def _view(self, record: Record, packet: str, bound: dict[str, object]) -> None:
        base = next((v for v in bound.values() if isinstance(v, Slot)), None)
        if base is None:  # `1j * x` has the conjugate of a number in its backward
            shape, dtype = tensor_spec(self.tape.tensors[record.outs[0]])
            with without_modes():
                self.handles.make(record.outs[0], self.draft.full(shape, record.op(*record.args, **record.kwargs).item(), dtype))
            return
        defaults = {a.name: a.default for a in schema_arguments(record.op) if a.has_default}
        shapes = [tensor_spec(self.tape.tensors[u])[0] for u in record.outs]
        before = self.handles.read(base.uid).shape
        steps = view_steps(packet, before, defaults | bound, shapes)
        if packet == "as_strided" and _is_reshape(self.tape.tensors[base.uid], self.tape.tensors[record.outs[0]]):
            steps = [(View("view", shapes[0]),)]
        elif packet == "as_strided":
            self._strided(record, base, defaults | bound)
            return
        if steps is None:
            rest = {k: v for k, v in bound.items() if v is not base}
            if len(record.outs) != 1 or find_slots(Record(record.op, tuple(rest.values()), {}, (), record.phase, "", "", 0, False)):
                raise TraceError(f"{record.source or 'the step'}: {record.op} is a view that autopar does not know; use a copying form")
            steps = [(View("other", tuple(rest.items()), str(record.op)),)]
        for uid, chain in zip(record.outs, steps):
            self.handles.make_view(uid, base.uid, tuple(chain))

    def _strided(self, record: Record, base: Slot, bound: dict[str, object]) -> None:
        """`as_strided` counts in memory: it is a view of the tensor that was made with the storage, whatever its base is."""
        whole = self.handles.table[base.uid].cell.uid
        offset = bound["storage_offset"]
        offset = self.tape.tensors[base.uid].storage_offset() if offset is None else offset
        steps = strided_steps(self.tape.tensors[whole], bound["size"], bound["stride"], offset)
        if steps is None:
            raise TraceError(
                f"{record.source or 'the step'}: {record.op} of a tensor that does not fill its memory in order; what it takes depends "
                "on how torch laid it out. Use slices, unfold or gather."
            )
        self.handles.make_view(record.outs[0], whole, steps)

    def _write(self, record: Record, bound: dict[str, object]) -> None:
        """An in-place op: its pure form, then a write."""
        op = record.op
        written = [a.name for a in schema_arguments(op) if a.is_written and bound.get(a.name) is not None]
        if str(op) in RULES and not str(op).split(".")[1].endswith("_"):  # it writes beside what it returns
            self._set_outputs(record, self._apply(op, bound, record))
            return
        if len(written) != 1 or not isinstance(bound[written[0]], Slot):
            raise TraceError(
                f"{record.source or 'the step'}: {op} writes {len(written)} tensors at once; use its plain form (for an optimizer: "
                "foreach=False, fused=False)"
            )
        target = bound[written[0]]
        if str(op) == "aten.embedding_renorm_.default":
            raise TraceError(
                f"{record.source or 'the step'}: an embedding with max_norm rewrites the rows that it reads, which no shard of the table "
                "could do alone. Leave max_norm out; limit the norms where they are read (F.normalize) or with a parametrization."
            )
        pure = pure_form(op)
        known = {a.name: a.default for a in schema_arguments(op) if a.has_default} | bound
        wanted = {a.name for a in schema_arguments(pure) if a.name in bound or not a.has_default}
        pure_bound = {k: v for k, v in known.items() if k in wanted}
        shape, dtype = tensor_spec(self.tape.tensors[target.uid])
        result = self._apply(pure, pure_bound, record)
        value = result if isinstance(result, Val) else result[0]
        if str(pure) not in RULES:
            value = self._true_type(value, pure, pure_bound)
        value = self.draft.expand(self.draft.cast(value, dtype), shape)
        self.handles.write(target.uid, value)
        for uid in record.outs:
            if uid >= 0 and uid != target.uid:
                self.handles.make_view(uid, target.uid, ())

    def _true_type(self, value: Val, pure: torch._ops.OpOverload, bound: dict[str, object]) -> Val:
        """An in-place op keeps its dtype where the pure one promotes: ask torch what the pure one makes."""
        dtypes = {self.tape.tensors[s.uid].dtype for s in bound.values() if isinstance(s, Slot)}
        if len(dtypes) > 1 and value.node is not None:
            values = self._read_all(bound)
            self.draft.nodes.remove(value.node)
            made = self.draft.call(str(pure), **values)
            return made if isinstance(made, Val) else made[0]
        return value


def _makes_numbers(op: torch._ops.OpOverload, bound: dict[str, object]) -> bool:
    """True for what computes element by element, and is not told in which dtype: of whole numbers it makes what torch's default is. `where` takes one of two as they are."""
    return torch.Tag.pointwise in op.tags and bound.get("dtype") is None and not op._schema.name.startswith("aten::where")


def _is_reshape(base: torch.Tensor, view: torch.Tensor) -> bool:
    """True where `as_strided` of a whole contiguous tensor is a whole contiguous tensor (autograd packs gradients so)."""
    whole = base.is_contiguous() and view.is_contiguous() and base.numel() == view.numel()
    return whole and base.storage_offset() == view.storage_offset()


def pure_form(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """`add_.Tensor` -> `add.Tensor`; `add.out` -> `add.Tensor`.

    Raises:
        TraceError: torch has none.
    """
    packet, overload = op._schema.name.split("::")[1], op._overloadname
    renamed = {"bernoulli_.float": "bernoulli.p", "normal_.default": "normal_functional.default"}
    if f"{packet}.{overload}" in renamed:
        packet, overload = renamed[f"{packet}.{overload}"].split(".")
    elif packet.endswith("_") and not packet.endswith("__"):
        packet = packet[:-1]
    elif packet.startswith("__i"):
        packet = packet.replace("__i", "__", 1)
    family = getattr(getattr(torch.ops, op.namespace), packet, None)
    overloads = [o for o in family.overloads() if not any(a.is_out for a in getattr(family, o)._schema.arguments)] if family else []
    taken = _signature(op)
    alike = [o for o in sorted(overloads, key=lambda o: o != overload) if _signature(getattr(family, o)) == taken]
    if alike or overload in overloads or len(overloads) == 1:
        return getattr(family, alike[0] if alike else overload if overload in overloads else overloads[0])
    raise TraceError(f"{op} writes in place and has no pure form; use a pure op")


def _signature(op: torch._ops.OpOverload) -> list[tuple[str, str]]:
    """Name and type of what an op takes beside `out`."""
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
