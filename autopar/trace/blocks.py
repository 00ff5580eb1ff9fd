"""Blocks: a block that stands 96 times in a model is traced twice, and its records are copied for the others.

A block call becomes one autograd function. The first call of a class runs the block's forward and backward on a tape of its own, the
`Template`; each call, the first included, then writes the template's records on the main tape with its own tensors in them. The last block
of a class gets a template too, which must be equal to the first.

In: the main tape, the model, the classes of `block_classes`. Out: records as if every block had run. Invariant: where a copy is not
certain to be what the block would have done (it writes to its inputs, keeps a tensor, reads a number that differs from block to block, uses
a tensor from outside that needs a gradient), the block runs as it is; where that shows too late, `NotAlike` is raised and the step is
traced again without copies.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from ..errors import AutoparError
from ..graph.node import Phase
from .block_classes import BlockClass, Watched, find_block_classes
from .private import FakeTensor, compiling, flatten_tree, storage_key, unflatten_tree
from .tape import SEQ_UNPAIRED, Record, Slot, Tape, written_uids

_SIMPLE = (bool, int, float, str, torch.dtype, torch.device, type(None))
_SEQ_STEP = 1 << 40  # autograd's numbers of one copy


class NotAlike(AutoparError):
    """Blocks that were taken for copies are none; trace without copies."""


@dataclass(eq=False)
class Template:
    """What a block's call puts on tape, with uids of its own.

    Args:
        path: of the block that was run.
        forward, backward: records.
        inputs, states: uids of the call's tensors, and of the block's parameters and buffers, in order.
        outer: own uid -> uid on the main tape of tensors from outside.
        tape: holds the tensors and constants.
        outputs: uids of the output leaves that are tensors.
        spec: how the output is put together; `None` leaves of it are not tensors, their values are in `rest`.
        grads: for each input and state the uid of its gradient; None where it has none.
        incoming: uids of the outputs' gradients; None where an output needs none.
    """

    path: str
    tape: Tape
    inputs: tuple[int, ...]
    states: tuple[int, ...]
    forward: list[Record] = field(default_factory=list)
    backward: list[Record] = field(default_factory=list)
    outer: dict[int, int] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()
    rest: tuple[object, ...] = ()
    spec: object = None
    grads: tuple[int | None, ...] = ()
    incoming: tuple[int | None, ...] = ()


class BlockCopies:
    """Stands between a model and its blocks while the step is traced.

    Args:
        tape: the main tape.
        model: its blocks get another `forward` inside `installed`.
        compile_flag: what `compiling` says in forward.
        fewest: blocks that a class must have; None: nothing is copied.
    """

    def __init__(self, tape: Tape, model: nn.Module, compile_flag: bool, fewest: int | None) -> None:
        self._tape, self._model, self._compile_flag = tape, model, compile_flag
        self._classes = find_block_classes(model, fewest) if fewest else []
        self._templates: dict[tuple, Template | None] = {}
        self._num_copies = 0

    @property
    def num_classes(self) -> int:
        return len(self._classes)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Blocks of a class run through templates inside."""
        touched = []
        for number, block_class in enumerate(self._classes):
            for path in block_class.members:
                block = self._model.get_submodule(path)
                vars(block)["forward"] = functools.partial(self._call, number, block_class, path, block, block.forward)
                touched.append(block)
        try:
            yield
        finally:
            for block in touched:
                del vars(block)["forward"]

    def _call(self, number: int, block_class: BlockClass, path: str, block: nn.Module, forward: Callable, *args, **kwargs):
        leaves, spec = flatten_tree((args, kwargs))
        if not all(isinstance(v, (FakeTensor, *_SIMPLE)) for v in leaves) or not self._tape.is_recording:
            return forward(*args, **kwargs)
        tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
        keys = [storage_key(t) for t in tensors]
        shown = tuple(_show_tensor(v) if isinstance(v, torch.Tensor) else (type(v), v) for v in leaves)
        key = (number, str(spec), shown, tuple(keys.index(k) for k in keys), torch.is_grad_enabled())
        if key not in self._templates:
            self._templates[key] = self._record(block_class, path, block, forward, leaves, spec)
        template = self._templates[key]
        if template is None:
            return forward(*args, **kwargs)
        if path == block_class.members[-1] and path != template.path:
            again = self._record(block_class, path, block, forward, leaves, spec)
            if again is None or _print_template(again) != _print_template(template):
                raise NotAlike(f"{path} is not like {template.path}")
        states = [t for _, t in _list_states(block)]
        call = _Call(self, template, path, [self._tape.uid(t) for t in tensors], [self._tape.uid(t) for t in states])
        outs = _BlockFunction.apply(call, *tensors, *states)
        call.name_outputs(outs)
        done = iter(outs)
        return unflatten_tree([next(done) if v is _TENSOR else v for v in template.rest], template.spec)

    # -- templates -------------------------------------------------------------------------------------------------------------------

    def _record(self, block_class: BlockClass, path: str, block: nn.Module, forward: Callable, leaves: list, spec: object) -> Template | None:
        """Run a block apart; None where it is not fit to be copied."""
        states = _list_states(block)
        before = _snapshot(block)
        scratch = self._tape.branch()
        with self._tape.muted():
            fresh = [v.detach().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v for v in leaves]
            tensors = [v for v in fresh if isinstance(v, torch.Tensor)]
            template = Template(
                path, scratch, tuple(scratch.add_input(t) for t in tensors), tuple(scratch.add_input(t) for _, t in states)
            )
            entering = len(scratch.tensors)
            Watched.seen = False
            try:
                with self._watch(block_class, block), scratch:
                    scratch.phase = Phase.FORWARD
                    with compiling(self._compile_flag):
                        args, kwargs = unflatten_tree(fresh, spec)
                        output = forward(*args, **kwargs)
                    template.forward = list(scratch.records)
                    found, template.spec = flatten_tree(output)
                    outs = [v for v in found if isinstance(v, torch.Tensor)]
                    scratch.phase = Phase.BACKWARD
                    self._run_backward(template, tensors + [t for _, t in states], outs)
                    template.backward = scratch.records[len(template.forward) :]
            except Exception:
                return None  # it runs as it is, and whatever is wrong is said there
        template.outputs = tuple(scratch.uid(t) for t in outs)
        template.rest = tuple(_TENSOR if isinstance(v, torch.Tensor) else v for v in found)
        fit = all(isinstance(v, (torch.Tensor, *_SIMPLE)) for v in found) and not Watched.seen and _snapshot(block) == before
        return template if fit and self._keeps_apart(template, entering, [t for _, t in states]) else None

    def _run_backward(self, template: Template, sources: list[torch.Tensor], outs: list[torch.Tensor]) -> None:
        scratch = template.tape
        wanted = [t for t in sources if t.requires_grad]
        reached = [t for t in outs if t.requires_grad]
        if not wanted or not reached:
            template.grads, template.incoming = (None,) * len(sources), (None,) * len(outs)
            return
        with scratch.muted():
            incoming = [torch.empty_like(t, requires_grad=False) for t in reached]
        uids = iter([scratch.add_input(t) for t in incoming])
        template.incoming = tuple(next(uids) if t.requires_grad else None for t in outs)
        grads = iter(torch.autograd.grad(reached, wanted, incoming, allow_unused=True))
        found = [next(grads) if t.requires_grad else None for t in sources]
        template.grads = tuple(None if g is None else scratch.uid(g) for g in found)

    @contextlib.contextmanager
    def _watch(self, block_class: BlockClass, block: nn.Module) -> Iterator[None]:
        places = [(vars(block.get_submodule(path)), name) for path, name in block_class.watched]
        saved = [attributes[name] for attributes, name in places]
        for (attributes, name), number in zip(places, saved):
            attributes[name] = Watched(number)
        try:
            yield
        finally:
            for (attributes, name), number in zip(places, saved):
                attributes[name] = number

    def _keeps_apart(self, template: Template, entering: int, states: list[torch.Tensor]) -> bool:
        """No output shares memory with what entered, nothing but own buffers is written, outer tensors need no gradient."""
        tape = template.tape
        own = {storage_key(t) for t in tape.tensors[:entering]}
        buffers = {storage_key(t) for t in states if not isinstance(t, nn.Parameter)}
        outs = [storage_key(tape.tensors[u]) for u in template.outputs]
        if len(set(outs)) < len(outs) or own & set(outs):
            return False
        made = {u for r in tape.records for u in r.outs} | set(tape.constants) | tape.inputs
        for uid, tensor in enumerate(tape.tensors):
            if uid not in made:
                if tensor.requires_grad or not self._tape.knows(tensor):
                    return False
                template.outer[uid] = self._tape.uid(tensor)
        outer = {storage_key(tape.tensors[u]) for u in template.outer}
        if outer & set(outs):
            return False
        for record in tape.records:
            for uid in written_uids(record):
                key = storage_key(tape.tensors[uid])
                if key in outer or (key in own and key not in buffers):
                    return False
        return True

    def next_copy(self) -> int:
        self._num_copies += 1
        return self._num_copies


_TENSOR = object()


def _list_states(block: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*block.named_parameters(), *block.named_buffers()]


def _show_tensor(tensor: torch.Tensor) -> tuple:
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)


def _snapshot(block: nn.Module) -> list[tuple]:
    """Which objects the block's modules hold; equal before and after where running them keeps nothing."""
    return [
        (name, key, id(value))
        for name, module in block.named_modules()
        for table in (vars(module), module._parameters, module._buffers)
        for key, value in table.items()
    ]


def _print_template(template: Template) -> list[tuple]:
    """The template without the names of its block."""
    outer = template.outer
    known: dict[int, int] = {}

    def show(value: object) -> object:
        if isinstance(value, Slot):
            if value.uid in outer:
                return ("outer", outer[value.uid])
            return ("own", known.setdefault(value.uid, len(known)))
        if isinstance(value, (list, tuple)):
            return tuple(show(v) for v in value)
        return repr(value)

    for uid in (*template.inputs, *template.states):
        show(Slot(uid))
    lines: list[tuple] = []
    for record in (*template.forward, *template.backward):
        args = (*(show(a) for a in record.args), *((k, show(v)) for k, v in record.kwargs.items()))
        lines.append((str(record.op), args, tuple(show(Slot(u)) for u in record.outs), record.path.removeprefix(template.path)))
    for uids in (template.outputs, template.grads, template.incoming):
        lines.append(tuple(None if u is None else show(Slot(u)) for u in uids))
    return lines


class _Call:
    """One block call: the template's records with this call's tensors."""

    def __init__(self, copies: BlockCopies, template: Template, path: str, inputs: list[int], states: list[int]) -> None:
        self.template, self.tape, self.path = template, copies._tape, path
        self.known = dict(template.outer) | dict(zip(template.inputs, inputs)) | dict(zip(template.states, states))
        self.offset = copies.next_copy() * _SEQ_STEP

    def run_forward(self) -> tuple[torch.Tensor, ...]:
        self._write(self.template.forward)
        with self.tape.muted():
            like = [self.template.tape.tensors[u] for u in self.template.outputs]
            return tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in like)

    def name_outputs(self, outs: tuple[torch.Tensor, ...]) -> None:
        for uid, tensor in zip(self.template.outputs, outs):
            self.tape.rename(self.known[uid], tensor)

    def run_backward(self, grads: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        template = self.template
        for uid, out, grad in zip(template.incoming, template.outputs, grads):
            if (uid is None) != (grad is None):
                raise NotAlike(f"{self.path}: an output of the block has no gradient")
            if grad is not None:
                expected = template.tape.tensors[uid]
                if grad.dtype != expected.dtype or grad.stride() != expected.stride() or grad.requires_grad:
                    raise NotAlike(f"{self.path}: the gradient of an output is laid out in another way")
                self.known[uid] = self.tape.uid(grad)
        self._write(template.backward)
        found: list[torch.Tensor | None] = []
        for uid in template.grads:
            if uid is None:
                found.append(None)
                continue
            like = template.tape.tensors[uid]
            with self.tape.muted():
                made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
            self.tape.rename(self.known[uid], made)
            found.append(made)
        return tuple(found)

    def _write(self, records: list[Record]) -> None:
        tape, known, source = self.tape, self.known, self.template.tape
        cut = len(self.template.path)

        def swap(value: object) -> object:
            if isinstance(value, Slot):
                uid = known.get(value.uid)
                if uid is None:
                    uid = known[value.uid] = tape.adopt(source, value.uid)
                return Slot(uid)
            if isinstance(value, (list, tuple)):
                return [swap(v) for v in value]
            return value

        for record in records:
            outs = []
            for uid in record.outs:
                if uid >= 0 and uid not in known:
                    known[uid] = tape.adopt(source, uid)
                outs.append(known[uid] if uid >= 0 else -1)
            tape.records.append(
                replace(
                    record,
                    args=tuple([swap(a) for a in record.args]),
                    kwargs={k: swap(v) for k, v in record.kwargs.items()} if record.kwargs else record.kwargs,
                    outs=tuple(outs),
                    path=self.path + record.path[cut:] if record.path.startswith(self.template.path) else record.path,
                    seq=record.seq if record.seq >= SEQ_UNPAIRED else record.seq + self.offset,
                )
            )


class _BlockFunction(torch.autograd.Function):
    """A block call in autograd's graph."""

    @staticmethod
    def forward(ctx, call: _Call, *tensors: torch.Tensor):  # noqa: D102
        ctx.call = call
        ctx.set_materialize_grads(False)
        outs = call.run_forward()
        ctx.mark_non_differentiable(*(t for t, uid in zip(outs, call.template.incoming) if uid is None))
        return outs

    @staticmethod
    def backward(ctx, *grads):  # noqa: D102
        if torch.is_grad_enabled():
            raise NotAlike(f"{ctx.call.path}: its gradient is differentiated again")
        return (None, *ctx.call.run_backward(grads))
