"""Fuse: the groups of a program's own local nodes become kernels.

In: a program and the section of each node. Out: a program in which one node stands for each group (`graph.fusion` finds them, on local shapes, so a
collective parts a group), the sections of its nodes, and the distinct kernels. Invariant: executing the program, each kernel as its own graph, runs
exactly the nodes of the program that came in, but that equal positions are made once (`graph.shared_positions`).

A state that is rewritten by what a group makes is rewritten by its kernel, where nothing else reads the old version but what the group waits for: its `state.write` is gone. Before the update, see `graph.rewrites`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from .cuts import resolve_known
from .fusion import find_groups
from .given_up import list_given_up, list_leading
from .graph import Graph, final_values, producer_table, use_table, value_table
from .held_longer import HeldLonger
from .kernel import JOINS, KERNEL, Kernel, cut_kernel, fresh_name, is_kernel, is_number, kernel_key, kernel_node, suggest_name, written_states
from .layouts import Laid, lay_out
from .liveness import is_view, storage_bases
from .node import Node, Phase, packet_of
from .program import WAIT, Origin, Program
from .rewrites import find_rewrites
from .rule import Rule
from .rules import RULES
from .sections import Section
from .segments import find_segments, scale_apart, segment_name
from .shared_positions import share_positions
from .tensor import Value, num_elements
from .totals import list_in_parts
from .turns import list_sent_before
from .view_strides import expanded, is_copied, packed

_RESHAPES = ("aten.view", "aten._unsafe_view", "aten.reshape")
_LEAST_COPIED = 2**16  # elements: of fewer a launch is most of it (an assumption)

_Uses = Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Fused:
    """A program with its groups as kernels.

    Args:
        sections: of each node of the program.
        kernels: equal groups share one.
    """

    program: Program
    sections: tuple[Section, ...]
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """A group in its program.

    Args:
        members: its nodes.
        views: those that lead from one of them to another; the kernel has its own.
        outside: what it makes and others read.
        into: of these, new version -> the state that it replaces in place.
        writes: the nodes that would do so.
    """

    members: tuple[int, ...]
    views: tuple[int, ...]
    outside: tuple[str, ...]
    into: Mapping[str, str]
    writes: tuple[int, ...]


def fuse_program(
    program: Program, sections: Sequence[Section], rules: Mapping[str, Rule] = RULES, taken: Sequence[Kernel] = (), segments: bool = False
) -> Fused:
    """Make kernels of a program's groups.

    Args:
        sections: of each node.
        segments: outside of the update take all that lies between collectives, for a compiler of plain torch (`graph.segments`).
        taken: kernels that another part of the same step has already (another stage): equal ones are shared, names differ. They come first in the result.
    """
    program, sections = share_positions(*(scale_apart(program, sections) if segments else (program, sections)))
    graph = program.graph
    sites, signatures = resolve_known(graph, rules)
    values, makers, uses = value_table(graph), producer_table(graph), use_table(graph)
    ends = {*graph.outputs, graph.loss, *(g for _, g in graph.grads)}
    leaving = {*ends, *final_values(graph)}
    found = find_groups(graph, sites, signatures, parts=sections)
    if segments:
        found = (*find_segments(graph, sections), *(nodes for nodes in found if graph.nodes[nodes[0]].phase is Phase.UPDATE))
    apart = {i for nodes in found for i in nodes} if segments else set[int]()  # a segment has views of its own, which nobody else makes again
    rewrites, lone = ({}, ()) if segments else find_rewrites(graph, sections, found)
    found = (*found, *lone)
    groups = [group for nodes in found if (group := _describe(graph, values, makers, uses, ends, nodes, apart, rewrites)).outside]  # what nobody reads makes no kernel
    groups += () if segments else _find_copies(graph, values, makers, uses, {i for nodes in found for i in nodes})
    cut: dict[object, Kernel] = {}
    given_up: dict[object, frozenset[int]] = {}  # by kernel: what nobody reads afterwards wherever it runs
    stands: dict[int, Node] = {}  # the node in whose place a group runs -> the node that takes it
    held = HeldLonger(graph)
    for group in groups:
        kernel, arguments = cut_kernel(graph, values, makers, sorted((*group.members, *group.views)), group.outside, group.into)
        key = kernel_key(kernel)
        given = frozenset[int]() if segments else list_given_up(graph, makers, uses, leaving, group.members, kernel, arguments, group.outside)  # a compiler may give one tensor twice
        given_up[key] = given_up.get(key, given) & given
        if key not in cut:
            first = graph.nodes[group.members[0]]
            name = suggest_name(kernel) if not segments or first.phase is Phase.UPDATE else segment_name(first, graph.sequences)
            cut[key] = replace(kernel, name=f"{len(cut)} {name}")  # until it has its layout
        place = group.members[-1] if graph.nodes[group.members[0]].phase is Phase.UPDATE or segments else held.place(group.members)
        stands[place if place is not None else group.members[-1]] = kernel_node(cut[key], arguments, group.outside, graph.nodes[group.members[-1]])
    gone = {i for group in groups for i in (*group.members, *group.writes)}
    fused, order = _assemble(program, stands, gone, {i for group in groups for i in group.views})
    kernels = tuple(replace(kernel, given_up=tuple(sorted(given_up[key]))) for key, kernel in cut.items())
    fused, kernels = _name_kernels(fused, kernels, taken, segments)
    return Fused(fused, tuple(sections[i] for i in order), kernels)


def _name_kernels(program: Program, cut: Sequence[Kernel], taken: Sequence[Kernel], segments: bool) -> tuple[Program, tuple[Kernel, ...]]:
    """The program with kernels as they are laid out where they are called: those that are alike share one, and its name."""
    kernels: dict[object, Kernel] = {kernel_key(k): k for k in taken}
    names = {k.name for k in taken}
    by_op = {f"{KERNEL}.{k.name}": k for k in cut}
    layouts = {} if segments else lay_out(program.graph, by_op)
    graph = program.graph
    in_parts = list_in_parts(graph, by_op, {*graph.outputs, graph.loss, *(g for _, g in graph.grads), *final_values(graph)})
    laid: dict[object, Kernel] = {}
    nodes, origins = list(program.graph.nodes), list(program.origins)
    for number, node in enumerate(nodes):
        if not is_kernel(node.op):
            continue
        lies = layouts.get(number, Laid())
        there = node.op, lies, in_parts.get(number, ())
        if there not in laid:
            kernel = replace(by_op[node.op], layouts=lies.layouts, roomy=lies.roomy, in_parts=there[2])
            key = kernel_key(kernel)
            if key not in kernels:
                kernels[key] = replace(kernel, name=fresh_name(kernel.name.partition(" ")[2], names))
            laid[there] = kernels[key]
        nodes[number] = kernel_node(laid[there], node.inputs, node.outputs, node)
        origins[number] = replace(origins[number], reason=nodes[number].op)
    return replace(program, graph=replace(program.graph, nodes=tuple(nodes)), origins=tuple(origins)), tuple(kernels.values())


def _find_copies(graph: Graph, values: Mapping[str, Value], makers: Mapping[str, tuple[int, int]], uses: _Uses, taken: set[int]) -> Iterator[_Group]:
    """Views that are copies whatever their strides: of what was expanded, in another shape (keys that several heads share). A kernel reads what is there once."""
    for i, node in enumerate(graph.nodes):
        if i in taken or not node.inputs or packet_of(node.op) not in _RESHAPES or node.inputs[0] not in makers or num_elements(values[node.outputs[0]].shape) < _LEAST_COPIED:
            continue
        wide = makers[node.inputs[0]][0]
        expand = graph.nodes[wide]
        if packet_of(expand.op) != "aten.expand" or wide in taken or len(uses[node.inputs[0]]) > 1:
            continue
        base, shape = values[expand.inputs[0]].shape, values[expand.outputs[0]].shape
        if is_copied(shape, expanded(base, packed(base), shape), values[node.outputs[0]].shape):
            yield _Group((i,), (wide,), node.outputs, {}, ())


def _describe(
    graph: Graph, values: Mapping[str, Value], makers: Mapping[str, tuple[int, int]], uses: _Uses, ends: set[str], members: Sequence[int], apart: Collection[int] = (),
    early: Mapping[str, int] = MappingProxyType({}),
) -> _Group:
    """A group.

    Args:
        apart: views among these are made where they are.
        early: new versions that kernels outside of the update put where the old ones are, and the nodes that would (`rewrites`).
    """
    inside = set(members)
    views = {view for i in members for name in graph.nodes[i].inputs for view in _views_between(graph, makers, name, inside)}
    if graph.nodes[members[0]].phase is not Phase.UPDATE:  # there they are made once for all parameters
        views |= {view for i in (*members, *views) for name in graph.nodes[i].inputs for view in _expanding(graph, values, makers, name, inside, apart)}
        read = [name for i in (*members, *views) for name in graph.nodes[i].inputs if not (name in makers and makers[name][0] in inside | views)]
        numbers = {makers[name][0] for name in read if name in makers and is_number(graph.nodes[makers[name][0]])}
        views |= numbers if any(name not in makers or makers[name][0] not in numbers for name in read) else set()  # a kernel has an argument
    joins = [i for i in members if packet_of(graph.nodes[i].op) in JOINS and graph.nodes[i].phase is Phase.UPDATE]
    views |= {view for i in joins for name in graph.nodes[i].inputs for view in _views_of_number(graph, makers, name)}
    made = [out for i in members for out in graph.nodes[i].outputs if out]
    alike = {values[out].shape for out in made if makers[out][0] not in joins} - {()}  # sums, which end it, and numbers: where there is nothing else, of them
    into = {new: graph.nodes[early[new]].inputs[0] for new in made if new in early}
    writes = [early[new] for new in into]
    rewrites = len(alike) <= 1 and graph.nodes[members[0]].phase is Phase.UPDATE  # before that the turns may still read the old version
    for new in (out for out in made if values[out].shape or not alike) if rewrites else ():
        for i, _ in uses[new]:
            node = graph.nodes[i]
            if node.op != "state.write" or node.phase is not Phase.UPDATE or not {k for k, _ in uses[new]} <= inside | {i}:
                continue
            old = node.inputs[0]
            late = {k for k, _ in uses[old] if graph.nodes[k].phase is Phase.UPDATE} - {i} - inside
            if late and (any(is_view(graph.nodes[k].op) for k in late) or not late <= list_leading(graph, makers, members)):  # who reads a view may come afterwards
                continue
            if (values[old].shape, values[old].dtype) == (values[new].shape, values[new].dtype):
                into[new] = old
                writes.append(i)
    left_out = inside | set(writes)
    outside = tuple(out for out in made if out in into or _is_seen(graph, uses, out, left_out, ends))
    return _Group(tuple(members), tuple(sorted(views)), outside, into, tuple(sorted(writes)))


def _views_between(graph: Graph, makers: Mapping[str, tuple[int, int]], name: str, inside: set[int]) -> list[int]:
    """The views through which a node of a group reads what another one makes; none where it reads something else."""
    found: list[int] = []
    while name in makers:
        i = makers[name][0]
        if i in inside:
            return found
        if not is_view(graph.nodes[i].op) or not graph.nodes[i].inputs:
            return []
        found.append(i)
        name = graph.nodes[i].inputs[0]
    return []


def _views_of_number(graph: Graph, makers: Mapping[str, tuple[int, int]], name: str) -> list[int]:
    """The views of a number that is put beside others: a total takes the number itself."""
    found: list[int] = []
    while name in makers and is_view(graph.nodes[makers[name][0]].op) and graph.nodes[makers[name][0]].inputs:
        found.append(makers[name][0])
        name = graph.nodes[found[-1]].inputs[0]
    return found


def _expanding(graph: Graph, values: Mapping[str, Value], makers: Mapping[str, tuple[int, int]], name: str, inside: set[int], apart: Collection[int]) -> list[int]:
    """The views through which a node of a group reads something smaller that others make, as far as they make it larger: the kernel reads what is there."""
    found: list[int] = []
    needed = 0
    phase = graph.nodes[next(iter(inside))].phase
    while name in makers and makers[name][0] not in inside:
        node = graph.nodes[makers[name][0]]
        if not is_view(node.op) or not node.inputs or node.phase is not phase or makers[name][0] in apart:
            break
        found.append(makers[name][0])
        if num_elements(values[node.inputs[0]].shape) < num_elements(values[name].shape):
            needed = len(found)
        name = node.inputs[0]
    return found[:needed]


def _is_seen(graph: Graph, uses: _Uses, name: str, inside: set[int], ends: set[str]) -> bool:
    """True where somebody else than the nodes `inside` reads a value, itself or through views."""
    if name in ends:
        return True
    for i, _ in uses[name]:
        node = graph.nodes[i]
        if i not in inside and (not is_view(node.op) or any(_is_seen(graph, uses, out, inside, ends) for out in node.outputs if out)):
            return True
    return False


def _assemble(program: Program, stands: Mapping[int, Node], gone: set[int], views: set[int]) -> tuple[Program, list[int]]:
    """The program with the new nodes, in an order in which it can run: as it was, but that a kernel waits for all that it reads.

    Args:
        stands: place -> kernel.
        gone: nodes that kernels run.
        views: those of which kernels have their own. They go where nobody else reads them; so does any view, whose base a kernel may not leave.
    Returns:
        The program, and the place that each of its nodes had.
    """
    graph = program.graph
    nodes = {i: stands.get(i, node) for i, node in enumerate(graph.nodes) if i not in gone or i in stands}
    read = Counter(name for node in nodes.values() for name in node.inputs)
    read.update((*final_values(graph), *(g for _, g in graph.grads)))
    for i in sorted((i for i, node in nodes.items() if i in views or is_view(node.op)), reverse=True):
        if not any(read[out] for out in nodes[i].outputs):
            read.subtract(nodes.pop(i).inputs)
    makers = {out: i for i, node in nodes.items() for out in node.outputs if out}
    sent = list_sent_before(graph)
    waits = {i: {*(makers[n] for n in node.inputs if n in makers), *sent.get(i, ())} for i, node in nodes.items()}
    writers = {state: i for i, node in nodes.items() for state in rewritten_states(node)}
    for i, node in nodes.items():  # a state is rewritten after all that read it
        for name in node.inputs:
            if writers.get(name, i) != i:
                waits[writers[name]].add(i)
    base = storage_bases(graph)
    for i, node in nodes.items():  # and through views
        for name in node.inputs:
            writer = writers.get(base.get(name, name), i)
            if writer != i and i not in waits[writer] and not _comes_after(waits, i, writer):
                waits[writer].add(i)
    order = _wait_last(_sort(waits), nodes)
    made = {*graph.inputs, *makers}
    shardings = tuple(row for row in program.shardings if row[0] in made)
    wanted = {row[1] for row in shardings}
    fused = replace(
        program,
        graph=replace(graph, nodes=tuple(nodes[i] for i in order), values=tuple(v for v in graph.values if v.name in made)),
        origins=tuple(Origin(program.origins[i].node, "", nodes[i].op) if i in stands else program.origins[i] for i in order),
        shardings=shardings,
        whole=tuple(row for row in program.whole if row[0] in wanted),
    )
    return fused, order


def _comes_after(waits: Mapping[int, set[int]], late: int, early: int) -> bool:
    """True where a node waits for another, in whatever steps."""
    todo, seen = [late], {late}
    while todo:
        for k in waits[todo.pop()] - seen:
            if k == early:
                return True
            seen.add(k)
            todo.append(k)
    return False


def rewritten_states(node: Node) -> tuple[str, ...]:
    """The states into whose storage a node of a program puts a new version."""
    return (node.inputs[0],) if node.op == "state.write" else tuple(state for state, _ in written_states(node))


def _wait_last(order: Sequence[int], nodes: Mapping[int, Node]) -> list[int]:
    """The same order, but what waits for a collective comes right before its first reader: a kernel that stands further down may have been needed before that."""
    first: dict[str, int] = {}
    for i in order:
        for name in nodes[i].inputs:
            first.setdefault(name, i)
    held: dict[int, list[int]] = {}  # reader -> the waits before it
    for i in order:
        if nodes[i].op == WAIT and nodes[i].outputs[0] in first:
            held.setdefault(first[nodes[i].outputs[0]], []).append(i)
    late = {i for waits in held.values() for i in waits}
    return [k for i in order if i not in late for k in (*held.get(i, ()), i)]


def _sort(waits: Mapping[int, set[int]]) -> list[int]:
    """All nodes, each after those that it waits for, else as they stood."""
    left = {i: len(before) for i, before in waits.items()}
    after: dict[int, list[int]] = {}
    for i, before in waits.items():
        for k in before:
            after.setdefault(k, []).append(i)
    heap = [i for i, count in left.items() if not count]
    heapq.heapify(heap)
    order = []
    while heap:
        i = heapq.heappop(heap)
        order.append(i)
        for k in after.get(i, ()):
            left[k] -= 1
            if not left[k]:
                heapq.heappush(heap, k)
    return order
