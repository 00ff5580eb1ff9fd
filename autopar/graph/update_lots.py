"""Update lots: which equal updates run together, and how many at a time.

In: a graph, the parts of its update (`graph.update_parts`). Out: groups of equal parts, parts in lots, bytes. The emitted program updates so (`codegen.update`), and the law of memory counts so
(`graph.update_memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from .graph import Graph, entering_values, producer_table, value_table
from .messages import BUCKET_BYTES
from .node import Arg, Node
from .program import STARTS, WAIT
from .repeats import name_patterns
from .tensor import size_bytes
from .update_parts import Part, role_of

Word = Callable[[Part, str], object]


def fill_lots(rows: Iterable[tuple[str, int, object]], most_bytes: int) -> list[list[str]]:
    """Names in lots of one dtype.

    Args:
        rows: name, bytes, dtype.
        most_bytes: of a lot; what is larger makes a lot of its own.
    """
    found: list[list[str]] = []
    held, last = 0, None
    for name, size, dtype in rows:
        if not found or dtype != last or held + size > most_bytes:
            found.append([])
            held, last = 0, dtype
        found[-1].append(name)
        held += size
    return found


def list_lots(graph: Graph, parts: Sequence[Part], most_bytes: int) -> list[list[Part]]:
    """Parts in lots, by their parameters."""
    states = {value.storage: value for value in entering_values(graph)}
    by_param = {part.param: part for part in parts}
    rows = ((part.param, size_bytes(states[part.param]), states[part.param].dtype) for part in parts)
    return [[by_param[name] for name in lot] for lot in fill_lots(rows, most_bytes)]


def parcel_bytes(graph: Graph, group: Sequence[Part]) -> int:
    """Of the states of one lot whose collectives are started ahead, so that no message for them is more than a bucket."""
    values = value_table(graph)
    held = {v.storage: size_bytes(v) for v in entering_values(graph)}
    most = 1.0
    for part in group:
        begun = [graph.nodes[i] for i in part.nodes if graph.nodes[i].op in STARTS]
        sent = max((max(size_bytes(values[node.inputs[0]]), size_bytes(values[node.outputs[0]])) for node in begun), default=0)
        most = max(most, sent / max(1, held[part.param]))
    return int(BUCKET_BYTES / most)


def lot_bytes(graph: Graph, group: Sequence[Part], makes_tensors: bool) -> int:
    """Of the parameters that are updated at once; 0: all. Where the update makes tensors no more than the largest parameter has; where it waits for gradients that
    travel so many that the later ones travel while the first are used."""
    if len(group) == 1:
        return 0
    if makes_tensors:
        sizes = {v.storage: size_bytes(v) for v in entering_values(graph)}
        return max(sizes[part.param] for part in group)
    return BUCKET_BYTES if waits_for_others(graph, group[0]) else 0


def waits_for_others(graph: Graph, part: Part) -> bool:
    """True where it waits for what was started outside of it."""
    made = {out for i in part.nodes for out in graph.nodes[i].outputs}
    return any(graph.nodes[i].op == WAIT and graph.nodes[i].inputs[0] not in made for i in part.nodes)


def in_order(group: Sequence[Part], sequences: Collection[str]) -> list[Part]:
    """Equal parts in the order in which the program names them: by block, one kind of parameter after the other.

    Args:
        sequences: as of `repeats.name_patterns`.
    """
    by_param = {part.param: part for part in group}
    return [by_param[name] for rows in name_patterns(list(by_param), sequences).values() for _, name in rows]


def alike_parts(graph: Graph, parts: Sequence[Part]) -> list[list[Part]]:
    """Parts that kernels will serve together, of a program whose ops are not in kernels yet: kernels serve all shapes and dims, so these need not be the same but of what is sent. Of a text
    (`codegen.loops.one_text_parts`) more is asked, which only the emitted program can tell."""
    return group_parts(graph, parts, _numbers)


def _numbers(node: Node) -> tuple[tuple[str, Arg], ...]:
    return node.args if node.op.startswith("comm.") else tuple((key, arg) for key, arg in node.args if not isinstance(arg, tuple))


def group_parts(graph: Graph, parts: Sequence[Part], args_of: Callable[[Node], object], taken: Word | None = None, left: Word | None = None) -> list[list[Part]]:
    """Parts that correspond node for node: same ops of the same inputs. States of a parameter are told by their roles, what others make by the order in which it is read.

    Args:
        args_of: of a node's arguments, what must be the same.
        taken, left: of a part, and a value that it takes from others or makes, what must be the same beside.
    """
    entering, makers = {v.name: v.storage for v in entering_values(graph)}, producer_table(graph)
    groups: dict[object, list[Part]] = {}
    for part in parts:
        place, outside = {i: k for k, i in enumerate(part.nodes)}, dict[str, int]()
        rows = []
        for i in part.nodes:
            node = graph.nodes[i]
            refs: list[object] = []
            for name in node.inputs:
                if name in entering:
                    role = role_of(entering[name], part.param)
                    refs.append(("state", entering[name]) if role is None else ("own", role))
                elif makers[name][0] in place:
                    refs.append(("made", place[makers[name][0]], makers[name][1]))
                else:
                    refs.append(("outside", outside.setdefault(name, len(outside)), taken and taken(part, name)))
            rows.append((node.op, args_of(node), tuple(refs), left and tuple(left(part, name) for name in node.outputs)))
        groups.setdefault(tuple(rows), []).append(part)
    return list(groups.values())
