"""What people use without autopar, as steps: plain PyTorch, torch.compile, DistributedDataParallel, fully_shard, ZeroRedundancyOptimizer.

In: a workload, whose model, batch and optimizer (a `torch.optim` class or a partial of one) are copied, never touched. Out: by name, functions that make a step
on this process. Those of many ranks need the default process group, take their part of the batch and return the mean loss of that part. Each comes with the optimizer
as torch makes it by default, and fused. Nothing is measured here.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autopar.trace import Workload
from benchmarks.weigh import Step

OPTIMIZERS: dict[str, dict[str, Any]] = {"AdamW": {}, "fused AdamW": {"fused": True}}
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Own:
    """What a contender has of a workload: copies, of the batch its part.

    Args:
        compute: the loss of a model's output.
    """

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]
    compute: Callable[..., torch.Tensor]


def take(workload: Workload, rank: int = 0, ranks: int = 1) -> Own:
    """This rank's own copy."""
    assert workload.loss is not None and isinstance(workload.example_inputs, tuple)
    inputs, targets = (tuple(t.chunk(ranks)[rank].clone() for t in whole) for whole in (workload.example_inputs, workload.example_targets))
    return Own(copy.deepcopy(workload.model), inputs, targets, workload.loss)


def single_peers(workload: Workload, backend: str = "inductor") -> dict[str, Callable[[], Step]]:
    """Plain PyTorch and torch.compile, on one device."""
    made: dict[str, Callable[[], Step]] = {}
    for name, extra in OPTIMIZERS.items():
        optimizer = functools.partial(_optimizer(workload), **extra)
        made[f"eager, {name}"] = functools.partial(_plain, workload, optimizer, None)
        made[f"torch.compile, {name}"] = functools.partial(_plain, workload, optimizer, backend)
    return made


def parallel_peers(workload: Workload, rank: int, ranks: int) -> dict[str, Callable[[], Step]]:
    """What splits a step over the ranks of the default process group."""
    made: dict[str, Callable[[], Step]] = {}
    for name, extra in OPTIMIZERS.items():
        optimizer = functools.partial(_optimizer(workload), **extra)
        for kind, make in (("DDP", _ddp), ("FSDP2", _fsdp), ("DDP + ZeRO-1", _ddp_zero)):
            made[f"{kind}, {name}"] = functools.partial(make, workload, optimizer, rank, ranks)
    return made


def _optimizer(workload: Workload) -> Callable[..., torch.optim.Optimizer]:
    return workload.optimizer  # type: ignore[return-value]


def _step(own: Own, model: nn.Module, optimizer: torch.optim.Optimizer, backend: str | None = None) -> Step:
    """
    Args:
        backend: of torch.compile, which gets model and loss as one function; None: eager.
    """

    def forward(inputs: tuple[torch.Tensor, ...], targets: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return own.compute(model(*inputs), *targets)

    run = forward if backend is None else torch.compile(forward, backend=backend)

    def step() -> torch.Tensor:
        loss = run(own.inputs, own.targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _plain(workload: Workload, optimizer: MakeOptimizer, backend: str | None) -> Step:
    own = take(workload)
    return _step(own, own.model, optimizer(own.model.parameters()), backend)


def _ddp(workload: Workload, optimizer: MakeOptimizer, rank: int, ranks: int) -> Step:
    own = take(workload, rank, ranks)
    model = nn.parallel.DistributedDataParallel(own.model, gradient_as_bucket_view=True)
    return _step(own, model, optimizer(own.model.parameters()))


def _ddp_zero(workload: Workload, optimizer: functools.partial[torch.optim.Optimizer], rank: int, ranks: int) -> Step:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    own = take(workload, rank, ranks)
    model = nn.parallel.DistributedDataParallel(own.model, gradient_as_bucket_view=True)
    return _step(own, model, ZeroRedundancyOptimizer(own.model.parameters(), optimizer.func, parameters_as_bucket_view=True, **optimizer.keywords))


def _fsdp(workload: Workload, optimizer: MakeOptimizer, rank: int, ranks: int) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    own = take(workload, rank, ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    for block in find_blocks(own.model):
        fully_shard(block, mesh=mesh)
    fully_shard(own.model, mesh=mesh)
    return _step(own, own.model, optimizer(own.model.parameters()))


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """What is sharded by itself: the entries of the model's lists of modules; of a plain sequence, its entries with parameters."""
    lists = [list(m) for m in model.children() if isinstance(m, nn.ModuleList)] or [list(model.children())]
    return [m for entries in lists for m in entries if any(True for _ in m.parameters())]


def mean_loss(losses: Mapping[str, list[float]], ranks: int) -> dict[str, list[float]]:
    """The losses of the whole batch from those of this rank's part; all ranks call it."""
    names = list(losses)
    table = torch.tensor([losses[name] for name in names], dtype=torch.float64)
    if ranks > 1:
        dist.all_reduce(table)
    return dict(zip(names, (table / ranks).tolist()))
