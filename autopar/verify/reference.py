"""The reference: plain PyTorch. The user's own module with the same first values, its backward, its optimizer; nothing of the compiler.

Its random numbers are those of the program (`draws`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..api import model_facts
from ..codegen.emit import ModelFacts
from ..errors import InputError
from ..graph.graph import Graph, value_table
from ..graph.mesh import Mesh
from ..graph.tensor import Kind
from ..runtime import ProgramSpec, State, initial_state, state_of_module
from ..trace import Traced, Workload, float64_everywhere
from ..trace.held import carry_hooks, unchanged
from ..trace.loss_held import widened
from ..trace.precision import widest
from ..trace.workload import find_tensors, map_tensors
from .draws import first_draws, same_draws


def first_values(workload: Workload, traced: Traced) -> tuple[ModelFacts, dict[str, Tensor]]:
    """How every state begins: the model's facts with a recipe for every parameter, and the real tensors that win over recipes.

    A parameter on the meta device whose making was not recorded is drawn (normal, 0.02): any value serves to compare.
    """
    facts = model_facts(workload, traced)
    recipes = dict(facts.inits)
    given = {name: t for name, t in state_of_module(workload.model).items() if not t.is_meta}
    given |= {name.rpartition("@")[0]: t for name, t in traced.constants.items()}
    for name, _ in workload.model.named_parameters():
        if name not in given and name not in recipes:
            recipes[name] = (("normal_", 0.0, 0.02),)
    return replace(facts, inits=recipes), given


@contextlib.contextmanager
def real_model(workload: Workload, graph: Graph, facts: ModelFacts, given: Mapping[str, Tensor], seed: int) -> Iterator[torch.nn.Module]:
    """The user's module with whole real values, in the dtypes of the graph's states; what is shared stays shared.

    It is the module itself, not a copy, as the loss and hooks may hold it; afterwards it is as it was.
    """
    values = value_table(graph)
    entering = [values[n] for n in graph.inputs if values[n].kind in (Kind.PARAM, Kind.BUFFER)]
    states = {v.storage: State(v.kind.value, v.shape, v.dtype, "-", facts.inits.get(v.storage, ("given",))) for v in entering}
    whole = initial_state(ProgramSpec(Mesh(()), states, {}, None, {}, lambda *_: None), 0, given, seed)
    model = workload.model
    with unchanged(model):
        made: dict[int, Tensor] = {}
        for name, old in (*model.named_parameters(), *model.named_buffers()):
            new = whole[name] if name in whole else old.detach().clone()  # a buffer that the step does not read
            made[id(old)] = torch.nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, torch.nn.Parameter) else new
            carry_hooks(old, made[id(old)])
        for module in model.modules():
            for table in (module._parameters, module._buffers):
                table.update({key: made[id(old)] for key, old in table.items() if old is not None})
        yield model


def make_batch(workload: Workload, graph: Graph, seed: int, step: int) -> tuple[Any, Any]:
    """Inputs and targets of one step (1, 2) in float64: the example's own values, then the same moved on by one sample; random where
    the example has none (meta), whole numbers small enough for every table that they may be looked up in.
    """
    limit = _smallest_table(graph)
    generator = torch.Generator().manual_seed(1000 * seed + step)

    def real(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            moved = tensor.detach().cpu()
            if step > 1 and moved.dim() and not _rises(moved):
                moved = moved.roll(step - 1, 0) if moved.shape[0] > 1 else moved.flatten().roll(step - 1).view(moved.shape)
            return moved.to(widest(moved.dtype)) if _is_number(moved) else moved.clone()
        if _is_number(tensor):
            return torch.randn(tensor.shape, generator=generator, dtype=widest(tensor.dtype))
        return torch.randint(0, 2 if tensor.dtype == torch.bool else limit, tensor.shape, generator=generator).to(tensor.dtype)

    inputs, targets = workload.example_inputs, workload.example_targets
    new_inputs = map_tensors("input:", inputs, {n: real(t) for n, t in find_tensors("input:", inputs)})
    return new_inputs, map_tensors("target:", targets, {n: real(t) for n, t in find_tensors("target:", targets)})


def _is_number(tensor: Tensor) -> bool:
    """Not whole, not a truth value."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _rises(tensor: Tensor) -> bool:
    """True for whole numbers in rising order, such as offsets: they mean something only as they stand."""
    return not tensor.dtype.is_floating_point and tensor.dim() == 1 and bool((tensor[1:] > tensor[:-1]).all())


def _smallest_table(graph: Graph) -> int:
    """A number that every whole-number input may stay below: the smallest embedding or number of classes, else 2."""
    values = value_table(graph)
    sizes = [values[n.inputs[0]].shape[0] for n in graph.nodes if n.op == "autopar.embedding"]
    sizes += [values[n.inputs[0]].shape[-1] for n in graph.nodes if n.op == "autopar.pick"]
    sizes += [values[n.inputs[0]].shape[1] for n in graph.nodes if n.op.startswith("aten.nll_loss") and len(values[n.inputs[0]].shape) > 1]
    return min(sizes, default=2)


class Reference:
    """Plain PyTorch: the module, its backward, its optimizer; its random numbers are those of the program (`draws`)."""

    def __init__(self, model: torch.nn.Module, workload: Workload, seed: int) -> None:
        self.model, self.loss, self.draws, self.norm_turns = model, workload.loss, first_draws(seed), workload.norm_turns
        with float64_everywhere():
            self.optimizer: Any = workload.optimizer(list(model.parameters())) if workload.optimizer else None
        for group in getattr(self.optimizer, "param_groups", ()):
            if "capturable" in group:  # for GPUs alone: the same numbers, counted on the device
                group["capturable"] = False

    def forward_backward(self, inputs: Any, targets: Any) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """(the loss, or the outputs of a forward-only program), gradients by parameter."""
        for p in self.model.parameters():
            p.grad = None
        try:
            with same_draws(self.draws), float64_everywhere(), widened(self.loss), norms_in_turns(self.norm_turns), torch.set_grad_enabled(self.loss is not None):
                output = self.model(**inputs) if isinstance(inputs, dict) else self.model(*inputs)
                if self.loss is None:
                    return tuple(t for _, t in find_tensors("", _plain(output))), {}
                loss = self.loss(output, *targets)
                loss.backward()
        except Exception as error:
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"plain PyTorch cannot run the step on the example inputs: {type(error).__name__}: {text}. Give example inputs with real values"
            ) from error
        grads = {n: p.grad.detach() for n, p in self.model.named_parameters() if p.grad is not None}
        return (loss.detach(),), grads

    def update(self, grads: Mapping[str, Tensor]) -> None:
        """The optimizer's step on these gradients."""
        if self.optimizer is None:
            return
        for name, p in self.model.named_parameters():
            p.grad = grads[name].clone() if name in grads else None
        with same_draws(self.draws), float64_everywhere():
            self.optimizer.step()

    def state(self, kind: str, name: str) -> Tensor | None:
        """What a state of the program is here; None where it has no counterpart."""
        if kind != "optim":
            return dict(self.model.named_parameters()).get(name, dict(self.model.named_buffers()).get(name))
        key, _, param = name.partition(":")
        found = self.optimizer.state.get(dict(self.model.named_parameters()).get(param), {}).get(key)
        return torch.tensor(float(found), dtype=torch.float64) if isinstance(found, (int, float)) else found


@contextlib.contextmanager
def norms_in_turns(turns: int) -> Iterator[None]:
    """Batch norm on each of so many microbatches of the batch, one after the other, as a loop over them does it."""
    whole = torch.nn.functional.batch_norm

    def in_turns(x: Tensor, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False, *rest: Any, **more: Any) -> Tensor:
        parts = x.chunk(turns) if training else (x,)
        return torch.cat([whole(part, running_mean, running_var, weight, bias, training, *rest, **more) for part in parts])

    if turns == 1:
        yield
        return
    torch.nn.functional.batch_norm = in_turns
    try:
        yield
    finally:
        torch.nn.functional.batch_norm = whole


def _plain(output: Any) -> Any:
    """Output objects as dicts, as the tracer reads them."""
    if hasattr(output, "__dataclass_fields__") and not isinstance(output, dict):
        return {k: getattr(output, k) for k in output.__dataclass_fields__}
    return output
