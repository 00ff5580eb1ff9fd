"""Plain torch: a kernel's graph as lines of Python, for devices that run no Triton and for groups that have no Triton text.

In: a `Kernel`. Out: the lines of a function's body whose arguments are the kernel's inputs. Invariant: the ops of the graph, one after the other; a value is deleted
after its last use, and a state is rewritten as soon as its old version has been read (the law of `graph.liveness`).
"""

from __future__ import annotations

from ...graph.kernel import Kernel
from ..expression import print_expression


def print_torch(kernel: Kernel) -> list[str]:
    """The lines, `return` included."""
    graph, into = kernel.graph, {kernel.graph.outputs[o]: kernel.graph.inputs[i] for o, i in kernel.into}
    last = {name: place for place, node in enumerate(graph.nodes) for name in node.inputs}
    results = [name for name in graph.outputs if name not in into]
    kept = {*graph.inputs, *results}
    texts = {name: name for name in graph.inputs}
    lines: list[str] = []
    waiting: dict[str, str] = {}  # new version -> the state that it is to replace
    for place, node in enumerate(graph.nodes):
        text = print_expression(node, [texts[name] for name in node.inputs])
        read = {name for later in graph.nodes[place:] for name in later.inputs}
        targets = [name if name and (name in read or name in kept or name in into) else "_" for name in node.outputs]
        lines.append(f"{', '.join(targets)} = {text}")
        for name in node.outputs:
            if name:
                texts[name] = name
            if name in into:
                waiting[name] = into[name]
        dying = [n for n in dict.fromkeys((*node.inputs, *targets)) if n not in kept and last.get(n, place) <= place and texts.get(n, n) == n and n not in waiting]
        for new, state in list(waiting.items()):
            if last.get(state, -1) <= place:
                lines.append(f"{state}.copy_({new})")
                texts[new] = state
                dying.append(new)
                del waiting[new]
        if dying:
            lines.append(f"del {', '.join(dict.fromkeys(dying))}")
    lines += [f"return {', '.join(results)}"] if results else []
    return lines
