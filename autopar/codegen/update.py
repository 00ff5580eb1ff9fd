"""The update as text: one function per distinct update of a parameter, called for all that share it, or for a lot of them at a time; before them what waits for the end of the turns.

In: the frame of a program. Out: the functions. What leaves a step of turns (`tail`) comes first, then what is made of all parameters, with what each of them does for it and with it, layer by
layer; then what each parameter does for itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..graph.fuse import rewritten_states
from ..graph.graph import Graph
from ..graph.kernel import INTO, JOINS, fresh_name, is_kernel, written_states
from ..graph.liveness import is_view
from ..graph.node import Node, Ref, packet_of
from ..graph.program import STARTS, WAIT
from ..graph.small_reductions import SMALL_BYTES
from ..graph.tensor import Kind, size_bytes
from ..graph.update_lots import lot_bytes, waits_for_others
from ..graph.update_parts import Layer, Part, update_layers
from .folded import fold_in_order, fold_names
from .frame import Frame, dead_here, is_taken_by_update, last_uses, reserved_names
from .list_writer import ListWriter
from .loops import beside_param, grad_text, one_text_parts, split_update
from .parcels import Parcels, name_crossing, print_loop, print_lots, start_title
from .writer import Writer, wish_of

_LIST = "a list"  # stands for the inputs that a node takes as one


def print_update(frame: Frame) -> list[str]:
    """The functions of the update, `update` the last; none where nothing runs after the turns."""
    groups, rest = split_update(frame.graph, frame.grad_keys, frozenset(frame.tail))
    if not groups and not rest and not frame.tail:
        return []
    layers = find_layers(frame, rest)
    _name_between(frame, layers)
    shared = _shared(frame.graph, [i for layer in layers for i in layer.rest], [*(layer.parts for layer in layers), *groups])
    steps = [(one_text_parts(frame.graph, layer.parts, frame.grad_keys, shared), layer.rest) for layer in layers]
    groups = one_text_parts(frame.graph, [part for group in groups for part in group], frame.grad_keys, shared)
    found = [group for made, _ in steps for group in made] + groups
    titles = _name_functions(frame.graph, found)
    functions: list[str] = []
    writer = Writer(reserved_names(frame), lambda name: frame.state_keys[name], lambda path: path, frame.notes, frame.lists)
    _print_tail(frame, writer)
    last = last_uses(frame.graph, tuple(i for _, own in steps for i in own))
    place = 0
    for made, own in steps:
        for group in made:
            functions += _print_group(frame, writer, titles.pop(0), group, shared)
        for i in own:
            _print_rest(frame, writer, i, place, last, shared)
            place += 1
    for group in groups:
        functions += _print_group(frame, writer, titles.pop(0), group, shared)
    doc = '"""The optimizer\'s update: what is made of all parameters, and each parameter\'s own."""'
    return [*functions, "\n".join([f"def update({frame.update_boxes}):", *(f"    {line}" for line in [doc, *writer.lines])])]


def find_layers(frame: Frame, rest: Sequence[int]) -> list[Layer]:
    """The layers of what is not one parameter's alone."""
    params = {v.storage for v in frame.graph.values if v.kind is Kind.PARAM}
    owners = {name: key.partition("~")[0] for name, key in frame.grad_keys.items() if key.partition("~")[0] in params}
    return update_layers(frame.graph, rest, owners)


def _name_between(frame: Frame, layers: Sequence[Layer]) -> None:
    """Keys in `grads` of what goes from a part of a layer to others, and back."""
    graph, taken = frame.graph, {*frame.grad_keys.values()}
    reads = {i: {*graph.nodes[i].inputs} for layer in layers for i in (*layer.rest, *(i for part in layer.parts for i in part.nodes))}
    for layer in layers:
        for mine, owner in [*((part.nodes, part.param) for part in layer.parts), *(((i,), "all") for i in layer.rest)]:
            inside = {*mine} if owner != "all" else {i for other in layers for i in other.rest}
            elsewhere = {name for i, names in reads.items() if i not in inside for name in names}
            for i in mine:
                for k, out in enumerate(graph.nodes[i].outputs):
                    if out in elsewhere and out not in frame.grad_keys:
                        frame.grad_keys[out] = fresh_name(f"{owner}~{wish_of(graph.nodes[i], k, graph.nodes[i].path)}", taken)


def _name_functions(graph: Graph, groups: Sequence[tuple[Part, ...]]) -> list[str]:
    """`update_param`, or `update_0`, `update_1`; `measure_0` of those that rewrite nothing."""
    writes = [any(rewritten_states(graph.nodes[i]) for i in group[0].nodes) for group in groups]
    counts = {True: 0, False: 0}
    names = []
    for one in writes:
        names.append(f"{'update' if one else 'measure'}_{counts[one]}" if writes.count(one) > 1 else "update_param" if one else "measure_param")
        counts[one] += 1
    return names


def _print_group(frame: Frame, writer: Writer, title: str, group: tuple[Part, ...], shared: frozenset[str]) -> list[str]:
    """The functions of a group of equal updates; the lines that call them go to `writer`."""
    names = f"expand_names({', '.join(map(_quoted, fold_names([part.param for part in group], frame.graph.sequences)))})"
    if len(group) > 1 and waits_for_others(frame.graph, group[0]):
        names = f"ops.as_they_come(grads, {names})"
    split = name_crossing(frame, group[0]) if len(group) > 1 else None
    if split is not None and (split.starts or split.gathers):
        writer.lines += [f"names = {names}", *print_loop(frame, title, group, split, "names")]
        return _print_split(frame, title, group[0], split, shared)
    most = lot_bytes(frame.graph, group, _makes_tensors(frame, group[0]))
    writer.lines += [f"for names in ops.lots(state, {names}, {most}):", f"    {title}(comm, state, grads, names)"] if most else [f"{title}(comm, state, grads, {names})"]
    return [_print_parts(frame, title, group[0], shared)]


def _print_rest(frame: Frame, writer: Writer, i: int, place: int, last: Mapping[str, int], shared: frozenset[str]) -> None:
    """The lines of a node that is no one parameter's own."""
    node = frame.graph.nodes[i]
    text = _list_text(frame, writer, node, shared)
    printed = _with_one_list(node) if text else node
    for name in dict.fromkeys(printed.inputs):
        if name in frame.grad_keys and name not in writer.names:
            writer.line(f'{writer.bind(name, "grad")} = {_take(_quoted(frame.grad_keys[name]), name in shared)}')
    writer.names.update({_LIST: text} if text else {})
    writer.node(printed, frame.program.origins[i], dead_here(frame, node))
    writer.names.pop(_LIST, None)
    for name in node.outputs:
        if name in frame.grad_keys:
            writer.line(f"grads[{_quoted(frame.grad_keys[name])}] = {writer.text_of(name)}")
    writer.drop([n for n in (*dict.fromkeys(node.inputs), *node.outputs) if n in writer.names and last.get(n, place) <= place])


def _list_text(frame: Frame, writer: Writer, node: Node, shared: frozenset[str]) -> str:
    """The text of the list of what each parameter has left, over their names, and then of what is at hand (what other stages sent), of a node whose first argument that is; "" of another node."""
    listed = _listed(node)
    at_hand = [*itertools.takewhile(lambda name: name in writer.names, reversed(listed))][::-1]
    rest = node.inputs[len(listed) :]
    listed = listed[: len(listed) - len(at_hand)]
    keys = [frame.grad_keys.get(name, "") for name in listed]
    ends = {key.partition("~")[2] for key in keys}
    fresh = len({*listed}) == len(listed) and not any(name in writer.names for name in listed) and not {*listed}.intersection((*at_hand, *rest))
    stay = {name in shared for name in listed}
    if len(keys) < 2 or len(ends) != 1 or not all(ends) or not fresh or len(stay) > 1:
        return ""
    names = ", ".join(map(_quoted, fold_in_order([key.partition("~")[0] for key in keys], frame.graph.sequences)))
    taken = _take(f'f"{{name}}~{ends.pop()}"', stay.pop())
    more = f" + [{', '.join(map(writer.text_of, at_hand))}]" if at_hand else ""
    return f"[{taken} for name in expand_names({names})]{more}"


def _listed(node: Node) -> tuple[str, ...]:
    """The inputs that a node takes as a list: what it puts beside each other."""
    first = node.args[0][1] if node.args else None
    joins = packet_of(node.op) in JOINS or is_kernel(node.op)
    return tuple(node.inputs[x.index] for x in first if isinstance(x, Ref)) if joins and isinstance(first, tuple) and node.args[0][0] != INTO else ()


def _with_one_list(node: Node) -> Node:
    """The node with its list as one input, the first."""
    count = len(_listed(node))
    (key, _), *rest = node.args
    args = [(name, tuple((o, i - count + 1) for o, i in arg) if name == INTO else Ref(arg.index - count + 1) if isinstance(arg, Ref) else arg) for name, arg in rest]  # type: ignore[union-attr, misc]
    return replace(node, inputs=(_LIST, *node.inputs[count:]), args=((key, Ref(0)), *args))


def _print_tail(frame: Frame, writer: Writer) -> None:
    """Bring what leaves a step of turns from the sums to the user's form."""
    graph = frame.graph
    last = last_uses(graph, frame.tail)
    for place, i in enumerate(frame.tail):
        node = graph.nodes[i]
        for name in dict.fromkeys(node.inputs):
            if name in frame.grad_keys and name not in writer.names:
                stays = name in frame.leaving_keys or is_taken_by_update(frame, name)
                writer.line(f"{writer.bind(name, 'total')} = {_take(_quoted(frame.grad_keys[name]), stays)}")
        writer.node(node, frame.program.origins[i], dead_here(frame, node))
        for name in node.outputs:
            keys = [frame.leaving_keys.get(name), frame.grad_keys[name] if name in frame.grad_keys and is_taken_by_update(frame, name) else None]
            for key in filter(None, keys):
                writer.line(f'grads["{key}"] = {writer.names[name]}')
        writer.drop([n for n in (*dict.fromkeys(node.inputs), *node.outputs) if n in writer.names and last.get(n, place) <= place])
    late = {out for i in frame.tail for out in graph.nodes[i].outputs}
    for name, key in frame.leaving_keys.items():
        if name not in late and key != frame.grad_keys[name]:
            writer.line(f'grads["{key}"] = grads["{frame.grad_keys[name]}"]')


def _shared(graph: Graph, rest: list[int], groups: list[tuple[Part, ...]]) -> frozenset[str]:
    """What several of the parts of the update take: from others, or one from itself for a function that starts what brings it together, while another stage waits for the piece."""
    counts: dict[str, int] = {}
    started: set[str] = set()
    for nodes in (rest, *(part.nodes for group in groups for part in group)):
        made = {out for i in nodes for out in graph.nodes[i].outputs}
        read = {name for i in nodes for name in graph.nodes[i].inputs}
        started |= made.intersection(name for i in nodes if graph.nodes[i].op in STARTS for name in graph.nodes[i].inputs)
        for name in read - made:
            counts[name] = counts.get(name, 0) + 1
    return frozenset(name for name, count in counts.items() if count > 1 or name in started)


def _quoted(key: str) -> str:
    return f'"{key}"'


def _take(key: str, stays: bool) -> str:
    """An entry of `grads`, which goes unless somebody else reads it."""
    return f"grads[{key}]" if stays else f"grads.pop({key})"


def _print_split(frame: Frame, title: str, part: Part, split: Parcels, shared: frozenset[str]) -> list[str]:
    """The functions of an update whose collectives are started for many parameters at once."""
    found = []
    if split.starts:
        stays = shared.union(*(frame.graph.nodes[i].inputs for i in split.update))
        found.append(print_lots(frame, start_title(title), part, split.starts, "Start to reduce the gradients of these parameters.", stays))
    found.append(_print_parts(frame, title, replace(part, nodes=split.update), shared))
    if split.gathers:
        found.append(print_lots(frame, title.replace("update", "gather"), part, split.gathers, "Start to bring the new states of these parameters together.", shared))
        doc = "Write one parameter's new states, which have come."
        found.append(_print_part(frame, title.replace("update", "finish"), replace(part, nodes=split.finish), shared, doc))
    return found


def _print_part(frame: Frame, title: str, part: Part, shared: frozenset[str], doc: str) -> str:
    """The function of one parameter, `name`."""
    storage = {v.name: v.storage for v in frame.graph.values}
    writer = Writer((), lambda name: _state_text(frame, part, storage[name], name)[0], lambda path: "", {}, frame.lists)

    nodes = [frame.graph.nodes[i] for i in part.nodes]
    written = {node.inputs[1] for node in nodes if node.op == "state.write"}
    writer.came = frozenset(node.outputs[0] for node in nodes if node.op == WAIT and node.outputs[0] in written and len(frame.uses[node.outputs[0]]) == 1)

    def take(value: str, key: str, stays: bool) -> None:
        writer.line(f"{writer.bind(value, 'grad')} = {_take(key, stays)}")

    def put(value: str, key: str) -> None:
        writer.line(f"grads[{key}] = {writer.text_of(value)}")

    _fill_part(frame, part, shared, writer, take, put)
    return "\n".join([f"def {title}(comm, state, grads, name):", f'    """{doc}"""', *(f"    {line}" for line in writer.lines if not line.startswith("# (root)"))])


def _print_parts(frame: Frame, title: str, part: Part, shared: frozenset[str]) -> str:
    """The function of many parameters, `names`."""
    storage = {v.name: v.storage for v in frame.graph.values}
    writer = ListWriter(lambda name: _state_text(frame, part, storage[name], name), frame.lists, {v.name for v in frame.graph.values if size_bytes(v) <= SMALL_BYTES})

    def take(value: str, key: str, stays: bool) -> None:
        writer.take(value, key, _is_own(key), stays)

    _fill_part(frame, part, shared, writer, take, writer.put)
    what = "Update these parameters and their optimizer states" if not title.startswith("measure") else "What all updates need to know of these parameters"
    doc = f'"""{what}: of each value a list, an entry per parameter."""'
    return "\n".join([f"def {title}(comm, state, grads, names):", *(f"    {line}" for line in [doc, *writer.lines])])


def _fill_part(
    frame: Frame, part: Part, shared: frozenset[str], writer: Writer, take: Callable[[str, str, bool], None], put: Callable[[str, str], None]
) -> None:
    """Write the nodes of a part.

    Args:
        take: writes the line that takes a value out of `grads`: value, text of its key, whether it stays there.
        put: writes the line that puts one there.
    """
    last = last_uses(frame.graph, part.nodes)
    for place, i in enumerate(part.nodes):
        node = frame.graph.nodes[i]
        for name in dict.fromkeys(node.inputs):
            if name in frame.grad_keys and name not in writer.names:
                take(name, grad_text(frame.grad_keys[name], part.param), name in shared)
        origin = frame.program.origins[i]
        writer.node(Node(node.name, node.op, node.inputs, node.args, node.outputs, node.phase, "", ""), origin, dead_here(frame, node))
        for name in (n for n in node.outputs if n in frame.grad_keys):
            put(name, grad_text(frame.grad_keys[name], part.param))
        if node.op == "state.write" and node.inputs[1] not in frame.grad_keys:
            writer.store(node)
        writer.drop([n for n in (*dict.fromkeys(node.inputs), *node.outputs) if n in writer.names and last.get(n, place) <= place])


def _state_text(frame: Frame, part: Part, storage: str, name: str) -> tuple[str, bool]:
    """The text that reads a state in the function of a part, and whether it is the parameter's own."""
    inner = beside_param(storage, part.param)
    if inner == "{name}":
        return "state[name]", True
    return (f'state[f"{inner}"]', True) if inner else (frame.state_keys[name], False)


def _is_own(key: str) -> bool:
    """True for the text of a key that has the parameter's name in it."""
    return key == "name" or key.startswith('f"{name}')


def _makes_tensors(frame: Frame, part: Part) -> bool:
    """True where the update makes tensors of its own: neither numbers, nor in the place of states, nor views, nor there when it begins or still there when it is over."""
    values = {v.name: v for v in frame.graph.values}
    for node in (frame.graph.nodes[i] for i in part.nodes):
        places = {new for _, new in written_states(node)}
        if node.op != WAIT and not is_view(node.op) and any(values[out].shape and out not in places and out not in frame.grad_keys for out in node.outputs if out):
            return True
    return False
