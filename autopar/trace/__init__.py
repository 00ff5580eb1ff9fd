"""Trace: from a PyTorch training step to a `Graph`. See `trace_step`; needs torch, no GPU and no memory for weights."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from ..collector import rare_collections
from ..graph.graph import Graph
from .capture import Captured, capture_step
from .counted import Counted, check_counted
from .load import load_workload
from .lowering.lower import lower
from .precision import float64_everywhere
from .workload import Workload

__all__ = ["Captured", "Traced", "Workload", "capture_step", "float64_everywhere", "load_workload", "lower", "trace_step"]


@dataclass(frozen=True)
class Traced:
    """A workload as a graph, with what the runtime needs beside it.

    Args:
        graph: the step.
        init_optim: initial value of each optimizer state by storage: ("fill", number), ("eye", number) for so many times the identity, or ("param", parameter name) for a copy of it.
        constants: real tensors of the `const:K@0` inputs, by value name.
        input_names, target_names: batch inputs of the graph, in the order in which the user passes them.
        output_spec: forward-only: the model's output as tuples and dicts, with an index into `graph.outputs` for each tensor.
        param_aliases: other names of tied parameters and buffers -> the storage.
        seconds: time of each phase.
    """

    graph: Graph
    init_optim: dict[str, tuple[str, object]]
    constants: dict[str, torch.Tensor]
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    output_spec: object
    param_aliases: dict[str, str]
    seconds: dict[str, float]


def trace_step(workload: Workload, precision: str = "fp32") -> Traced:
    """Trace and lower the whole step.

    Raises:
        InputError, TraceError: see `capture_step` and `counted`.
    """
    traced, counted = _trace(workload, precision)
    check_counted(counted, traced, lambda: _trace(workload, precision)[0])
    return traced


def _trace(workload: Workload, precision: str) -> tuple[Traced, tuple[Counted, ...]]:
    with rare_collections():
        start = time.perf_counter()
        captured = capture_step(workload, precision)
        middle = time.perf_counter()
        graph, constants = lower(captured, workload.name or type(workload.model).__name__, workload.norm_turns)
        end = time.perf_counter()
    batch = [n for n in graph.inputs if n.startswith(("input:", "target:")) and "@" not in n]
    traced = Traced(
        graph, captured.init_optim, constants, tuple(n for n in batch if n.startswith("input:")),
        tuple(n for n in batch if n.startswith("target:")), captured.output_spec, captured.aliases,
        {"capture_s": middle - start, "lower_s": end - middle},
    )  # fmt: skip
    return traced, captured.counted
