"""Run a graph on real tensors, node by node: the control that lowering is right, and the reference that plans are compared with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..errors import InputError
from ..graph.graph import Graph, value_table
from ..graph.node import Arg, Const, Node, Ref
from .ops import find_op


def real_arg(arg: Arg, inputs: list[torch.Tensor]) -> object:
    """A graph argument as torch takes it."""
    if isinstance(arg, Ref):
        return inputs[arg.index]
    if isinstance(arg, Const):
        return getattr(torch, arg.name.removeprefix("torch."))
    if isinstance(arg, tuple):
        return [real_arg(a, inputs) for a in arg]
    return arg


def run_node(node: Node, inputs: list[torch.Tensor], device: torch.device | str = "cpu") -> list[torch.Tensor | None]:
    """The values a node makes, in order."""
    arguments = {name: real_arg(arg, inputs) for name, arg in node.args}
    if node.op in ("aten.full.default", "aten.arange.start_step"):
        arguments["device"] = torch.device(device)
    found = find_op(node.op)(**arguments)
    return [found] if isinstance(found, torch.Tensor) else list(found)


def run_graph(graph: Graph, env: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Run every node.

    Args:
        graph: what to run.
        env: a real tensor for each of `graph.inputs`.

    Returns:
        Every value by name.

    Raises:
        InputError: an input is missing or has another shape or dtype than the graph says.
    """
    values = value_table(graph)
    for name in graph.inputs:
        value, tensor = values[name], env.get(name)
        if tensor is None:
            raise InputError(f"{name}: the graph needs this input and it was not given")
        if tuple(tensor.shape) != value.shape or str(tensor.dtype) != f"torch.{value.dtype}":
            raise InputError(
                f"{name}: expected {value.dtype}{list(value.shape)}, found {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            )
    known: dict[str, torch.Tensor] = dict(env)
    with torch.no_grad():
        for node in graph.nodes:
            made = run_node(node, [known[name] for name in node.inputs])
            for name, tensor in zip(node.outputs, made):
                if name and tensor is not None:
                    known[name] = tensor
    return known
