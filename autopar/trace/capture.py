"""Capture: run the whole step once on fake tensors and keep the tape.

In: a workload and a precision. Out: `Captured`: the tape (forward, loss, backward, optimizer update) and which of its tensors are the
step's inputs, results and states. Invariant: the user's model is not changed, and no memory is taken for its weights.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from .attention import Attention
from ..errors import AutoparError, InputError, TraceError
from ..graph.node import Phase
from ..graph.tensor import Kind
from .blocks import BlockCopies
from .counted import Counted, moved_numbers, plain_numbers
from .drawn import refuse_drawn_numbers
from .given import explain_misfit
from .held import carry_hooks, check_carried, plain_attributes, unchanged
from .inline import name_inline
from .loss_held import refuse_trained, widened
from .outputs import output_spec, output_tensors, widen_output
from .place import CHECK_INPUTS, Places, explain_errors
from .precision import HALVES, default_dtype, float64_everywhere, state_dtype, widest
from .private import (
    compiling,
    inference_as_no_grad,
    inline_checkpoints,
    make_fake_mode,
    reparametrize,
    storage_key,
    transformers_as_eager,
    without_compilers,
    without_mkldnn,
    without_modes,
)
from .tape import Tape, written_uids
from .updating.data_writes import DataWrites
from .updating.update import Entry, Update, record_update
from .workload import Workload, find_tensors, map_tensors

_LARGEST_SETTLED = 64  # elements of a buffer whose value may decide
_FEWEST_BLOCKS = 8  # equal blocks from this number on are copied


@dataclass(frozen=True)
class Captured:
    """A step on tape.

    Args:
        tape: the records; `tape.constants` are real tensors that the program holds.
        entries: everything that enters, states first, then the batch.
        finals: (storage of a state, uid of the tensor that holds it when the step ends).
        grads: (parameter, uid of its gradient), valid after `num_before_update` records.
        loss: uid, or -1.
        outputs: uids of the model's outputs (forward-only).
        output_spec: the model's output with each tensor replaced by its index in `outputs`.
        num_before_update: records of forward and backward.
        init_optim: initial value of each optimizer state: ("fill", number), ("eye", number) or ("param", parameter name).
        copies: parameter -> the one whose update stands on the tape for both.
        aliases: other names of tied parameters and buffers -> the storage.
        counted: numbers that the modules have changed meanwhile.
    """

    tape: Tape
    entries: tuple[Entry, ...]
    finals: tuple[tuple[str, int], ...]
    grads: tuple[tuple[str, int], ...]
    loss: int
    outputs: tuple[int, ...]
    output_spec: object
    num_before_update: int
    init_optim: dict[str, tuple[str, object]]
    copies: dict[str, str]
    aliases: dict[str, str]
    counted: tuple[Counted, ...] = ()


def capture_step(workload: Workload, precision: str = "fp32") -> Captured:
    """Record the step.

    Args:
        workload: what to trace; its model may live on any device, meta included.
        precision: `fp32`, `bf16` or `fp16` (parameters and activations; fp32 master weights and moments) or `fp64`.

    Raises:
        InputError: the example inputs do not fit the model, or the loss is not a scalar.
        TraceError: control flow depends on data, an op cannot be traced, or the optimizer cannot be.
    """
    if precision not in ("fp32", *HALVES, "fp64"):
        raise InputError(f"precision: expected fp32, bf16, fp16 or fp64, found {precision!r}")
    ladder = [(False, False), (True, False)]  # (is_compiling() during forward, float buffers follow the parameters)
    if precision in HALVES:
        ladder += [(False, True), (True, True)]
    first_error: AutoparError | None = None
    with_buffers: AutoparError | None = None
    for compile_flag, cast_buffers in ladder:
        try:
            return _try_step(workload, precision, compile_flag, cast_buffers)
        except AutoparError as error:
            if "optimizer " in str(error)[:10]:  # so the model was right on this rung
                first_error = error
                break
            first_error = first_error or error
            if cast_buffers:
                with_buffers = with_buffers or error
    assert first_error is not None
    if precision in HALVES and any(word in str(first_error).lower() for word in ("bfloat16", "half", "dtype")):
        found = [str(error).replace(CHECK_INPUTS, "") for error in (first_error, with_buffers) if error is not None]
        also = f" With its float buffers in {precision}, too: {found[1]}" if len(dict.fromkeys(found)) > 1 else ""
        raise type(first_error)(f"{found[0]} The step was traced in {precision}, parameters and inputs; where plain PyTorch in {precision} fails too, use precision fp32.{also}")
    raise first_error


def _try_step(workload: Workload, precision: str, compile_flag: bool, cast_buffers: bool) -> Captured:
    """With equal blocks copied; where that fails for whatever reason, with every block run."""
    attempt = _Attempt(workload, precision, compile_flag, cast_buffers, copying=True)
    if attempt.blocks.num_classes:
        with contextlib.suppress(AutoparError):
            return attempt.run()
    return _Attempt(workload, precision, compile_flag, cast_buffers, copying=False).run()


class _Attempt:
    """One try at the step. Lives for one call of `run`."""

    def __init__(self, workload: Workload, precision: str, compile_flag: bool, cast_buffers: bool, copying: bool) -> None:
        self.workload = workload
        self.precision = precision
        self.compile_flag = compile_flag
        self.cast_buffers = cast_buffers
        self.places = Places(workload.model)
        self.tape = Tape(self.places)
        self.blocks = BlockCopies(self.tape, workload.model, compile_flag, fewest=_FEWEST_BLOCKS if copying else None)
        self.entries: list[Entry] = []
        self.counted: tuple[Counted, ...] = ()
        self.own_dtypes = {p.dtype for p in workload.model.parameters()}

    def run(self) -> Captured:
        w = self.workload
        with contextlib.ExitStack() as stack:
            stack.enter_context(make_fake_mode())
            stack.enter_context(default_dtype(torch.float64 if self.precision == "fp64" else None))
            params, buffers, aliases = self._fake_states()
            inputs = self._fake_batch("input:", w.example_inputs)
            targets = self._fake_batch("target:", w.example_targets)
            for name, tensor in params.items():
                self._enter(name, Kind.PARAM, tensor)
            for name, tensor in buffers.items():
                self._enter(name, Kind.BUFFER, tensor)
            self._settle(buffers)
            batch_entries = [(n, t) for table in (inputs, targets) for n, t in table.items()]
            for _, tensor in batch_entries:
                self.tape.add_input(tensor)
            table: dict[str, torch.Tensor] = {**params, **buffers, **{a: (params | buffers)[s] for a, s in aliases.items()}}
            table = {n: table[n] for n in _distinct_slots(w.model, table)}
            run_buffers = dict(buffers)
            if self.cast_buffers:
                with self.tape:
                    run_buffers = {n: self._cast_buffer(n, b) for n, b in buffers.items()}
                table |= run_buffers
            loss, output = self._forward_backward(table, inputs, targets)
            num_before_update = len(self.tape.records)
            grads = tuple((n, self.tape.uid(p.grad)) for n, p in params.items() if p.grad is not None and p.requires_grad)
            finals = self._buffer_finals(buffers, run_buffers, table)
            update = Update((), (), {}, {})
            if w.optimizer is not None:
                update = record_update(self.tape, w, params, self.precision)
            self.entries += update.entries
            self._check_relied(buffers)
            for name, tensor in batch_entries:
                self.entries.append(Entry(name, Kind.BATCH, self.tape.uid(tensor)))
        outs = [] if w.loss is not None else [(n, t) for n, t in output_tensors("", output)]
        if w.loss is None and not outs:
            raise InputError(
                f"the model returns no tensor (found {type(output).__name__}), and there is no loss, so nothing is asked of the step. Return what is wanted, "
                "or pass loss=..."
            )
        return Captured(
            self.tape, tuple(self.entries), (*finals, *update.finals), grads, self.tape.uid(loss) if loss is not None else -1,
            tuple(self.tape.uid(t) for _, t in outs), output_spec(output, [t for _, t in outs]) if w.loss is None else None,
            num_before_update, update.init, update.copies, aliases, self.counted,
        )  # fmt: skip

    # -- what enters -------------------------------------------------------------------------------------------------------------

    def _enter(self, storage: str, kind: Kind, tensor: torch.Tensor) -> None:
        self.entries.append(Entry(storage, kind, self.tape.add_input(tensor)))

    def _fake_states(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, str]]:
        model, aliases, seen = self.workload.model, {}, {}
        params: dict[str, torch.Tensor] = {}
        buffers: dict[str, torch.Tensor] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            if id(p) in seen:
                aliases[name] = seen[id(p)]
                continue
            seen[id(p)] = name
            if type(p).__name__ in ("UninitializedParameter", "UninitializedBuffer"):
                raise TraceError(f"parameter {name} is lazy: run the model once on real inputs, so that its shape is known")
            data = torch.empty(p.shape, dtype=state_dtype(p.dtype, self.precision))
            params[name] = torch.nn.Parameter(data, requires_grad=p.requires_grad)
            carry_hooks(p, params[name])
        for name, b in model.named_buffers(remove_duplicate=False):
            if id(b) in seen:
                aliases[name] = seen[id(b)]
                continue
            seen[id(b)] = name
            if b.layout != torch.strided:
                raise TraceError(
                    f"buffer {name} is a sparse tensor, which cannot be split. Keep its indices and values in buffers and write the "
                    "product with index_add or scatter, or keep it dense: .to_dense()."
                )
            buffers[name] = torch.empty(b.shape, dtype=widest(b.dtype) if self.precision == "fp64" else b.dtype)
        return params, buffers, aliases

    def _settle(self, buffers: dict[str, torch.Tensor]) -> None:
        """Small buffers that are in no state dict may decide, as sizes do (`nn.Buffer(torch.tensor(stride), persistent=False)`)."""
        for name, buffer in buffers.items():
            path, _, key = name.rpartition(".")
            owner = self.workload.model.get_submodule(path)
            value = owner._buffers.get(key)
            if value is None or value.is_meta or value.numel() > _LARGEST_SETTLED:
                continue
            if key in owner._non_persistent_buffers_set:
                with without_modes():
                    self.tape.settle(self.tape.uid(buffer), value.detach().to("cpu", buffer.dtype))

    def _check_relied(self, buffers: dict[str, torch.Tensor]) -> None:
        """Refuse a buffer on whose value the program decides and which it changes."""
        relied = self.tape.relied & self._written() if self.tape.relied else set()
        names = [name for name, buffer in buffers.items() if storage_key(buffer) in relied]
        if names:
            raise TraceError(
                f"buffer {names[0]}: the program asks for its value and changes it in one step, while one compiled step stands for all. "
                "Keep it a tensor throughout: torch.where instead of `if`, index_copy instead of a slice."
            )

    def _fake_batch(self, prefix: str, value: object) -> dict[str, torch.Tensor]:
        found = {}
        for name, tensor in find_tensors(prefix, value):
            found[name] = torch.empty(tensor.shape, dtype=widest(tensor.dtype) if self.precision == "fp64" else tensor.dtype)
        return found

    def _cast_buffer(self, name: str, buffer: torch.Tensor) -> torch.Tensor:
        owner = self.workload.model.get_submodule(name.rpartition(".")[0])
        norm = isinstance(owner, torch.nn.modules.batchnorm._NormBase)
        return buffer.to(HALVES[self.precision]) if buffer.dtype == torch.float32 and not norm else buffer

    # -- the step ----------------------------------------------------------------------------------------------------------------

    def _forward_backward(self, table, inputs, targets) -> tuple[torch.Tensor | None, object]:
        w = self.workload
        cast = contextlib.nullcontext() if self.precision != "fp64" else float64_everywhere()
        with contextlib.ExitStack() as stack:
            stack.enter_context(unchanged(w.model))
            stack.enter_context(reparametrize(w.model, table))
            stack.enter_context(self.blocks.installed())
            stack.enter_context(self.tape)
            stack.enter_context(cast)
            stack.enter_context(self.places.watch_modules())
            stack.enter_context(inline_checkpoints())
            stack.enter_context(without_compilers())
            stack.enter_context(without_mkldnn())
            stack.enter_context(inference_as_no_grad())
            stack.enter_context(refuse_drawn_numbers())
            stack.enter_context(DataWrites(self.tape.input_storages))
            stack.enter_context(Attention())
            stack.enter_context(widened(w.loss, self.precision == "fp64"))
            stack.enter_context(transformers_as_eager(not self.compile_flag))
            stack.enter_context(torch.set_grad_enabled(w.loss is not None))
            self.tape.phase = Phase.FORWARD
            attributes, numbers = plain_attributes(w.model), plain_numbers(w.model)
            with explain_errors("the model's forward", self._print_inputs()), compiling(self.compile_flag):
                narrow = {n: self._narrow(t) for n, t in inputs.items()}
                values = map_tensors("input:", w.example_inputs, narrow)
                with explain_misfit("the model's forward", w.model.forward, values, "example_inputs", self._print_inputs()):
                    output = w.model(**values) if isinstance(values, dict) else w.model(*values)
                if self.precision in HALVES and w.loss is not None:
                    output = widen_output(output)
            check_carried(attributes, self.tape)
            self.tape.records[:] = name_inline(self.tape, table, [t for t in table.values() if isinstance(t, torch.nn.Parameter) and t.dim() > 1])
            self.counted = moved_numbers(w.model, numbers)
            if w.loss is None:
                return None, output
            with explain_errors("the loss", self._print_targets()), compiling(self.compile_flag):
                values = map_tensors("target:", w.example_targets, targets)
                with explain_misfit("the loss", w.loss, (output, *values), "example_targets", self._print_targets(), leading=1):
                    loss = w.loss(output, *values)
            self._check_loss(loss)
            self.tape.phase = Phase.BACKWARD
            with explain_errors("the backward pass", ""), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*Full backward hook.*")
                loss.backward()
            refuse_trained(w.loss, self._loss_name())
            return loss, output

    def _narrow(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the model gets for an input: in the dtype that its parameters have now, where it had the one that they had before."""
        if self.precision in HALVES and tensor.dtype == torch.float32:
            return tensor.to(HALVES[self.precision])
        wanted = state_dtype(tensor.dtype, self.precision)
        return tensor.to(wanted) if tensor.dtype in self.own_dtypes and tensor.dtype != wanted else tensor

    def _print_inputs(self) -> str:
        return _print_shapes(find_tensors("input:", self.workload.example_inputs))

    def _print_targets(self) -> str:
        return _print_shapes(find_tensors("target:", self.workload.example_targets))

    def _loss_name(self) -> str:
        return getattr(self.workload.loss, "__qualname__", type(self.workload.loss).__name__)

    def _check_loss(self, loss: object) -> None:
        name = self._loss_name()
        if not isinstance(loss, torch.Tensor):
            raise InputError(f"loss {name}: expected a scalar tensor, found {type(loss).__name__}. Return the loss tensor itself.")
        if loss.shape != ():
            raise InputError(
                f"loss {name}: expected a scalar tensor, found shape {list(loss.shape)}. Reduce it, e.g. with .mean(); a weighted sum "
                "of losses is a scalar too."
            )
        if not loss.requires_grad:
            raise InputError(
                f"loss {name}: does not depend on any parameter that requires a gradient. Check for .detach(), torch.no_grad() or a "
                "frozen model; for a forward-only program pass loss=None."
            )

    def _buffer_finals(self, buffers, run_buffers, table) -> list[tuple[str, int]]:
        """Buffers written in place are found later through their storage; here: those that the model replaced or that were cast."""
        finals = []
        written = self._written() if self.cast_buffers else set()
        with self.tape:
            for name, buffer in buffers.items():
                current = table.get(name, run_buffers[name])
                if current is run_buffers[name] and run_buffers[name] is not buffer and storage_key(current) not in written:
                    current = buffer
                elif current.dtype != buffer.dtype:
                    current = current.to(buffer.dtype)
                finals.append((name, self.tape.uid(current)))
        return finals

    def _written(self, since: int = 0) -> set[int]:
        """Storages that the records from number `since` on write in place."""
        tape = self.tape
        return {storage_key(tape.tensors[u]) for r in tape.records[since:] for u in written_uids(r)}


def _distinct_slots(model: torch.nn.Module, names: Iterable[str]) -> list[str]:
    """The names without those that lead to the same attribute of the same module (a module that is registered twice)."""
    slots: dict[tuple[int, str], str] = {}
    for name in names:
        owner, _, attribute = name.rpartition(".")
        slots.setdefault((id(model.get_submodule(owner)), attribute), name)
    return list(slots.values())


def _print_shapes(named: list[tuple[str, torch.Tensor]]) -> str:
    return ", ".join(f"{n} {str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for n, t in named)
