"""Parcels: the update of equal parameters with its collectives started ahead, so many parameters at a time as fill a bucket.

In: the frame of a program and a group of equal updates. Out: the functions around that of the update, and the loop that calls them:

    for ahead, here, before in ops.parcels(state, expand_names("h.{0..11}.w"), 26214400):
        start_param(comm, grads, ahead)             # reduce the sums of the parameters that come next
        update_param(comm, state, grads, here)
        for name in before:
            finish_param(comm, state, grads, name)  # the new states of those before have come: write them
        gather_param(comm, grads, here)             # bring the new states together

Invariant: beside the update at hand one bucket of reductions and one of gathers are under way.
"""

from __future__ import annotations

from ..graph.update_lots import parcel_bytes
from ..graph.update_parts import Parcels, Part, split_part
from .frame import Frame
from .list_writer import print_start_options
from .loops import grad_text


def name_crossing(frame: Frame, part: Part) -> Parcels:
    """The nodes of one part; what crosses between its functions gets a key in `grads`, if it has none that others know, too."""
    graph, found = frame.graph, split_part(frame.graph, part)
    crossing = [out for i in found.starts for out in graph.nodes[i].outputs]
    crossing += [name for i in found.gathers for name in (*graph.nodes[i].inputs, *graph.nodes[i].outputs)]
    for number, name in enumerate(name for name in dict.fromkeys(crossing) if name not in frame.grad_keys):
        frame.grad_keys[name] = f"{part.param}~under way" + (f" {number + 1}" if number else "")
    return found


def print_lots(frame: Frame, title: str, part: Part, nodes: tuple[int, ...], doc: str, stays: frozenset[str]) -> str:
    """The function that starts these nodes for many parameters at once.

    Args:
        stays: what somebody else reads after it.
    """
    lines = [f'"""{doc}"""']
    for place, i in enumerate(nodes):
        node = frame.graph.nodes[i]
        again = node.inputs[0] in stays or any(node.inputs[0] in frame.graph.nodes[k].inputs for k in nodes[place + 1 :])
        source = grad_text(frame.grad_keys[node.inputs[0]], part.param)
        key = grad_text(frame.grad_keys[node.outputs[0]], part.param)
        taken = f"grads[{source}]" if again else f"grads.pop({source})"
        lines.append(f"started = comm.{node.op.removeprefix('comm.')}([{taken} for name in names], {print_start_options(node)})  # {frame.program.origins[i].reason}")
        lines.append(f"grads.update(zip([{key} for name in names], started))")
    return "\n".join([f"def {title}(comm, grads, names):", *(f"    {line}" for line in lines)])


def start_title(title: str) -> str:
    """`start_0` of `update_0`, `start_measure_0` of `measure_0`."""
    return title.replace("update", "start") if title.startswith("update") else f"start_{title}"


def print_loop(frame: Frame, title: str, group: tuple[Part, ...], split: Parcels, names: str) -> list[str]:
    """The lines that call the functions."""
    lines = [f"for {'ahead' if split.starts else '_'}, here, {'before' if split.finish else '_'} in ops.parcels(state, {names}, {parcel_bytes(frame.graph, group)}):"]
    lines += [f"    {start_title(title)}(comm, grads, ahead)"] if split.starts else []
    lines.append(f"    {title}(comm, state, grads, here)")
    if split.finish:
        lines += ["    for name in before:", f"        {title.replace('update', 'finish')}(comm, state, grads, name)"]
        lines.append(f"    {title.replace('update', 'gather')}(comm, grads, here)")
    return lines
