"""Adam's step in the kernel of an update, as a call of torch's own kernel (`runtime.adam`).

In: a kernel in which `graph.adam` found the step. Out: the lines of the function's body; what stands before and after stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...graph.adam import AdamStep, find_adam
from ...graph.graph import Graph, value_table
from ...graph.kernel import Kernel
from ..expression import print_arg
from .torch_text import print_body


def adam_of(kernel: Kernel) -> AdamStep | None:
    """The step, if the kernel has one and works element by element."""
    graph = kernel.graph
    into = {graph.outputs[o]: graph.inputs[i] for o, i in kernel.into}
    return find_adam(graph.nodes, value_table(graph), graph.outputs, into) if kernel.any_shape else None


def print_adam(kernel: Kernel, step: AdamStep) -> list[str]:
    """The lines of the function that makes the step, `return` included."""
    graph = kernel.graph
    rewritten = {graph.outputs[o] for o, _ in kernel.into}
    factors = [step.keep, step.beta1, step.beta2, step.divide, step.plus, step.value]
    words = ("keep", "beta1", "beta2", "divide", "plus", "value")
    results = [name for name in graph.outputs if name not in rewritten]
    read = [name for place in step.after for name in graph.nodes[place].inputs]
    lines, early = _lines(kernel, step.before, [step.grad, *(f for f in factors if isinstance(f, str)), *read, *results])
    param = step.param
    if step.new_param not in rewritten:
        param = step.new_param
        lines.append(f"{param} = {step.param}.clone()")
    told = ", ".join(f"{word}={early.get(f, f) if isinstance(f, str) else print_arg(f, ())}" for word, f in zip(words, factors))
    lines.append(f"fused.adam({param}, {early.get(step.grad, step.grad)}, {step.exp_avg}, {step.exp_avg_sq}, {told})")
    held = {step.new_param: param, step.new_exp_avg: step.exp_avg, step.new_exp_avg_sq: step.exp_avg_sq}
    later, late = _lines(kernel, step.after, [name for name in results if name not in held], {**early, **held})
    return [*lines, *later, *([f"return {', '.join({**early, **held, **late}.get(name, name) for name in results)}"] if results else [])]


def print_adam_lists(kernel: Kernel, step: AdamStep) -> list[str]:
    """The lines that make the steps of many parameters, `return` included, where the kernel is nothing but the step."""
    param, lines = step.param, []
    if step.new_param not in {kernel.graph.outputs[o] for o, _ in kernel.into}:
        param = step.new_param
        lines.append(f"{param} = [x.clone() for x in {step.param}]")
    factors = {"keep": step.keep, "beta1": step.beta1, "beta2": step.beta2, "divide": step.divide, "plus": step.plus, "value": step.value}
    told = ", ".join(f"{word}={f if isinstance(f, str) else print_arg(f, ())}" for word, f in factors.items())
    return [*lines, f"together.adam_all({param}, {step.grad}, {step.exp_avg}, {step.exp_avg_sq}, {told})", f"return {param if lines else None}"]


def _lines(kernel: Kernel, places: Sequence[int], wanted: Sequence[str], called: dict[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
    """The kernel's nodes at these places as lines, without `return`; the states that they rewrite are rewritten.

    Args:
        wanted: what later lines read.
        called: values that go by another name.
    Returns:
        the lines, and by which name each value goes that is wanted.
    """
    called = called or {}
    nodes = tuple(replace(kernel.graph.nodes[p], inputs=tuple(called.get(n, n) for n in kernel.graph.nodes[p].inputs)) for p in places)
    made = {out for node in nodes for out in node.outputs}
    if not made:
        return [], {}
    states = {kernel.graph.outputs[o]: kernel.graph.inputs[i] for o, i in kernel.into if kernel.graph.outputs[o] in made}
    entering = tuple(dict.fromkeys((*(name for node in nodes for name in node.inputs if name not in made), *states.values())))
    results = tuple(dict.fromkeys(name for name in wanted if name in made and name not in states))
    into = tuple((len(results) + k, entering.index(old)) for k, old in enumerate(states.values()))
    lines, names = print_body(replace(kernel, graph=Graph("", kernel.graph.values, nodes, entering, outputs=(*results, *states)), into=into, given_up=()))
    return lines, dict(zip(results, names))
