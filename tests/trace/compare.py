"""Run a traced graph beside eager PyTorch for two steps and give the largest differences."""

from __future__ import annotations

import torch

from autopar.graph.rules.random_numbers import STATE as RANDOM_STATE
from autopar.runtime.execute import run_graph
from autopar.runtime.initial import first_count
from autopar.trace import Traced, Workload, float64_everywhere, trace_step
from autopar.trace.workload import find_tensors, map_tensors
from autopar.verify.draws import first_draws, same_draws

SEED = 3  # of random draws


def first_states(workload: Workload, traced: Traced, dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """A real tensor for every state that enters the graph."""
    model = workload.model
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    env: dict[str, torch.Tensor] = dict(traced.constants)
    for value in traced.graph.values:
        if value.name not in traced.graph.inputs or "@" not in value.name or value.name in env:
            continue
        want = getattr(torch, value.dtype)
        if value.storage in traced.init_optim:
            kind, what = traced.init_optim[value.storage]
            env[value.name] = tensors[what].detach().to(want).clone() if kind == "param" else torch.full(value.shape, what, dtype=want)
        elif value.storage == RANDOM_STATE:
            env[value.name] = torch.tensor(first_count(SEED))
        else:
            env[value.name] = tensors[value.storage].detach().to(want).clone()
    return env


def batch(workload: Workload, traced: Traced, wide: bool, shift: int) -> tuple[object, tuple, dict[str, torch.Tensor]]:
    """Inputs of step number `shift`, for eager and for the graph."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype.is_floating_point:
            return (tensor * (1 - 0.25 * shift)).to(torch.float64 if wide else tensor.dtype)
        rises = tensor.dim() == 1 and bool((tensor[1:] > tensor[:-1]).all())  # offsets
        return tensor if rises else tensor.roll(shift, 0)

    parts = ("input:", workload.example_inputs), ("target:", workload.example_targets)
    named = {name: change(tensor) for prefix, value in parts for name, tensor in find_tensors(prefix, value)}
    new, targets = (map_tensors(prefix, value, named) for prefix, value in parts)
    return new, targets, named


def worst_differences(workload: Workload, steps: int = 2) -> tuple[dict[str, float], Traced]:
    """Largest absolute difference of loss, gradients, parameters and buffers against eager float64."""
    traced = trace_step(workload, "fp64")
    graph = traced.graph
    env = first_states(workload, traced, torch.float64)
    model = workload.model.double()  # in place: a loss or a hook may hold the model itself
    worst = {"loss": 0.0, "grad": 0.0, "param": 0.0, "buffer": 0.0}

    def note(kind: str, a: torch.Tensor, b: torch.Tensor) -> None:
        assert a.shape == b.shape and a.dtype == b.dtype, (kind, a.shape, b.shape, a.dtype, b.dtype)
        worst[kind] = max(worst[kind], float((a - b).abs().max()) if a.numel() else 0.0)

    with float64_everywhere():
        optimizer = workload.optimizer(list(model.parameters())) if workload.optimizer else None
    draws = first_draws(SEED)
    for step in range(steps):
        inputs, targets, named = batch(workload, traced, True, step)
        with same_draws(draws), float64_everywhere():
            for p in model.parameters():
                p.grad = None
            output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
            loss = workload.loss(output, *targets)
            loss.backward()
            grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            if optimizer is not None:
                optimizer.step()
        known = run_graph(graph, {**env, **named})
        note("loss", known[graph.loss], loss.detach())
        assert {p.removesuffix("@0") for p, _ in graph.grads} == set(grads)
        for param, grad in graph.grads:
            note("grad", known[grad], grads[param.removesuffix("@0")])
        env.update({old: known[new] for old, new in graph.updates})
        assert int(env.get(f"{RANDOM_STATE}@0", draws.count)) == draws.count
        for name, p in model.named_parameters():
            note("param", env[f"{name}@0"], p.detach())
        for name, p in model.named_buffers():
            wide = torch.complex128 if p.is_complex() else torch.float64
            note("buffer", env[f"{name}@0"].to(wide), p.detach().to(wide))
    return worst, traced

