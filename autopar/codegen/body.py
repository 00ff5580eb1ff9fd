"""Bodies: a program as Python functions, one per block and section, loops over layers, the rest in `forward` and `backward`.

In: a program and its sections (`graph.sections`). Out: the text of its functions, and what `step` must know. Values between functions travel as `crossings` decides: arguments, return
values, `h[i]["name"]` for what a block keeps for its own later functions, `kept["name"]` for the rest, `grads["name"]` for what the
update reads. Invariant: executing the text runs exactly the program's nodes.

A step that takes its batch in turns has `prepare`, too, and its sums over the turns, as all that leaves the step, are in `grads`: of what
forward and backward keep nothing outlives the turn. Nodes of the update phase on which the loss and outputs depend (`tail`) come first there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import ProgramError
from ..graph.graph import Graph, entering_values, use_table, value_table
from ..graph.kernel import KERNEL, Kernel, rewritten_early, takes_lists
from ..graph.node import Node, Phase
from ..graph.own import find_own
from ..graph.program import Program
from ..graph.repeats import block_path, name_by_block
from ..graph.sections import INPUT, WEIGHT, Section, list_overtaken
from ..graph.stages import COPY
from ..graph.tensor import STATE_KINDS, Kind, Value
from ..graph.turns import COLLECT, GROWN, RECEIVE, SEND, TAKE
from .crossings import Crossings, LoopTable, find_crossings
from .expression import identifier, kept_key
from .frame import Frame, dead_here, is_taken_by_update, last_uses, reserved_names
from .kinds import branch_kinds, pick_kind, print_blocks, print_numbers
from .loops import Item, find_lagging, order_items, split_update
from .rows import Loop, Row
from .update import find_layers, print_update
from .writer import Writer


@dataclass(frozen=True, slots=True)
class Body:
    """The text of all functions, and what `step` must know.

    Args:
        containers: (Python name, family, number of the last block + 1) of each list of what blocks keep.
        leaving: the loss and outputs -> the text that reads them when the sections have run.
        prepared: the containers in which `prepare` puts something.
        update_boxes: the arguments of `update`.
        sections: those that have a function, in order, the update left out.
        messages: section -> its sends and receives (nodes of the graph) in the order in which it does them.
    """

    functions: tuple[str, ...]
    containers: tuple[tuple[str, str, int], ...]
    leaving: dict[str, str]
    prepared: frozenset[str]
    update_boxes: str
    sections: tuple[Section, ...]
    messages: dict[Section, tuple[Node, ...]]


def print_bodies(
    program: Program, grads: tuple[tuple[str, str], ...], notes: Mapping[str, str], sections: tuple[Section, ...], in_turns: bool, kernels: Sequence[Kernel] = ()
) -> Body:
    """Print the functions of a program.

    Args:
        grads: (parameter input, its final gradient) of the whole graph: names the entries of `grads`.
        notes: node -> one line on what was chosen for it and why.
        sections: of each node.
        in_turns: sections run once per microbatch: what outlives the turn is in `grads` alone.
        kernels: that it calls.
    """
    graph = program.graph
    items = order_items(graph, sections, _leaving(graph) if in_turns else frozenset(), _whose(program, grads))
    crossings = find_crossings(graph, items, in_turns)
    families = dict.fromkeys(t.loop.family for t in crossings.loops)
    containers: dict[str, str] = {}
    for family in families:
        base = identifier(family.split(".")[-1] or "block")
        containers[family] = base if base not in containers.values() and base not in ("state", "batch", "grads", "kept", "comm", "ops", "step") else identifier(family) + "_"
    uses = {name: [i for i, _ in places] for name, places in use_table(graph).items()}
    leaving = _leaving(graph)
    written = {n.inputs[1] for n in graph.nodes if n.op == "state.write"}
    dead = frozenset(v for v, places in uses.items() if not places and v not in leaving and v not in written)
    tail = _find_tail(graph, leaving)
    state_keys = {v.name: _entry(v) for v in entering_values(graph)}
    state_keys.update((new, state_keys[state]) for state, new in rewritten_early(graph))
    held = frozenset() if in_turns else leaving
    lists = frozenset(f"{KERNEL}.{k.name}" for k in kernels if takes_lists(k))
    frame = Frame(
        program, graph, items, crossings, containers, {}, state_keys, uses, dead, in_turns, held, tail, _update_boxes(graph, state_keys), {}, [], set(), notes, lists,
        find_own(graph),
    )  # fmt: skip
    frame.grad_keys = _name_grads(program, grads, crossings, tail, leaving - held)
    for name in (n for n in frame.grad_keys if n in leaving - held):
        frame.leaving_keys[name] = frame.grad_keys[name] + ("~out" if is_taken_by_update(frame, name) else "")
    for k, table in enumerate(crossings.loops):
        frame.loop_names.append(_loop_name(frame, k, table))
    functions = [text for k in range(len(crossings.loops)) for text in (_print_ahead(frame, k), _print_block(frame, k))]
    functions += [_print_section(frame, section) for section in items]
    functions += print_update(frame)
    sizes = {f: 1 + max(b.index for t in crossings.loops if t.loop.family == f for b in t.loop.blocks) for f in families}
    boxes = tuple((containers[f], f, sizes[f]) for f in families)
    return Body(tuple(f for f in functions if f), boxes, _leaving_texts(frame), frozenset(_boxes(frame, Section(Phase.PREPARE))), frame.update_boxes, tuple(items), _list_messages(frame))


def _entry(value: Value) -> str:
    """Where a program finds a graph input; on a stage a batch entry may be a copy, but has the model's name."""
    return f'batch["{value.name.partition(COPY)[0]}"]' if value.kind is Kind.BATCH else f'state["{value.storage}"]'


def _list_messages(frame: Frame) -> dict[Section, tuple[Node, ...]]:
    graph = frame.graph
    if not any(node.op in (SEND, RECEIVE) for node in graph.nodes):
        return {}
    order = {section: [i for item in items for i in _item_nodes(item)] for section, items in frame.items.items()}
    _, rest = split_update(graph, frame.grad_keys, frozenset(frame.tail))
    order[Section(Phase.UPDATE)] = [*frame.tail, *(i for layer in find_layers(frame, rest) for i in layer.rest)]  # parameters' own parts send nothing
    found = {section: tuple(graph.nodes[i] for i in nodes if graph.nodes[i].op in (SEND, RECEIVE)) for section, nodes in order.items()}
    return {section: nodes for section, nodes in found.items() if nodes}


def _item_nodes(item: Item) -> list[int]:
    return [i for k, j in item.in_order() for i in item.loops[k].blocks[j].nodes] if isinstance(item, Row) else [item]


def _update_boxes(graph: Graph, state_keys: Mapping[str, str]) -> str:
    """The batch, too, where what waits for the end of the turns reads it."""
    read = any(state_keys.get(name, "").startswith("batch[") for node in graph.nodes if node.phase is Phase.UPDATE for name in node.inputs)
    return "comm, state, batch, grads" if read else "comm, state, grads"


def _leaving(graph: Graph) -> frozenset[str]:
    """What the user gets; new states are not among them, `state.write` has put them in place."""
    return frozenset(name for name in (graph.loss, *graph.outputs) if name)


def _find_tail(graph: Graph, leaving: frozenset[str]) -> tuple[int, ...]:
    """The nodes of the update phase on which what the user gets depends, in order. Where they wait for another stage, what is sent without the optimizer's
    states goes out among them, for the other stage may wait, too."""
    found = _update_nodes(graph, leaving)
    if any(graph.nodes[i].op == RECEIVE for i in found):
        optimizer = {v.name for v in graph.values if v.kind is Kind.OPTIM or v.kind in STATE_KINDS and v.name not in graph.inputs}
        for node in graph.nodes:
            if node.op == SEND and node.phase is Phase.UPDATE:
                needed = _update_nodes(graph, node.outputs)
                if not any(optimizer.intersection((*graph.nodes[i].inputs, *graph.nodes[i].outputs)) for i in needed):
                    found |= needed
    return tuple(sorted(found))


def _update_nodes(graph: Graph, names: Iterable[str]) -> set[int]:
    """The nodes of the update phase on which these values depend."""
    wanted, found = set(names), set()
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        if node.phase is Phase.UPDATE and wanted & set(node.outputs):
            wanted |= set(node.inputs)
            found.add(i)
    return found


def _leaving_texts(frame: Frame) -> dict[str, str]:
    texts = {}
    for name in (*([frame.graph.loss] if frame.graph.loss else []), *frame.graph.outputs):
        texts[name] = f'kept["{kept_key(name)}"]'
        if name in frame.leaving_keys:
            texts[name] = f'grads["{frame.leaving_keys[name]}"]'
        elif name in frame.stored:
            continue
        if name in frame.crossings.kept_at:
            family, index, key = frame.crossings.kept_at[name][0]
            texts[name] = f'{frame.containers[family]}[{index}]["{key}"]'
        elif name in frame.state_keys:
            texts[name] = frame.state_keys[name]
    return texts


def _loop_name(frame: Frame, k: int, table: LoopTable) -> str:
    base = f"{frame.containers[table.loop.family]}_{table.loop.section.name}" + ("_sums" if table.loop.lags else "")
    firsts = [min(block.index for block in loop.blocks) for loop in table.row.loops]  # of kinds, by which they have the same number in every pass
    own = sorted(firsts).index(firsts[table.row.loops.index(table.loop)]) + 1
    wanted = base if own == 1 else f"{base}_{own}"
    return next(name for name in (wanted, base, *(f"{base}_{n}" for n in range(2, k + 3))) if name not in frame.loop_names)


def _name_grads(
    program: Program, grads: tuple[tuple[str, str], ...], crossings: Crossings, tail: tuple[int, ...], leaving: frozenset[str]
) -> dict[str, str]:
    """Keys in `grads` of what an earlier phase or the tail makes and the update reads, of sums over turns, and of `leaving`."""
    graph, late = program.graph, set(tail)
    made_early = {out for n in graph.nodes if n.phase is not Phase.UPDATE for out in n.outputs if out}
    made_late = {out for i in tail for out in graph.nodes[i].outputs if out}
    read = dict.fromkeys(name for n in graph.nodes if n.phase is Phase.UPDATE for name in n.inputs if name in made_early)
    read.update(dict.fromkeys(n.outputs[0] for n in graph.nodes if n.op in GROWN))
    read.update(dict.fromkeys(name for i, n in enumerate(graph.nodes) if n.phase is Phase.UPDATE and i not in late for name in n.inputs if name in made_late))
    read.update(dict.fromkeys(name for n in graph.nodes for name in n.outputs if name in leaving))
    param_of = _whose(program, grads)
    place_in_loop = {
        out: f"{block_path(t.loop.family, b.index)}.({p}, {k})"
        for t in crossings.loops
        for b in t.loop.blocks
        for p, i in enumerate(b.nodes)
        for k, out in enumerate(graph.nodes[i].outputs)
    }
    keys: dict[str, str] = {}
    counts: dict[str, int] = {}
    for name in read:  # a gradient that is read in two shardings has two entries
        base = param_of.get(name) or ("loss" if name in leaving and name == graph.loss else place_in_loop.get(name, name))
        counts[base] = counts.get(base, 0) + 1
        keys[name] = base if counts[base] == 1 else f"{base}~{counts[base]}"
    return keys


def _whose(program: Program, grads: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Value of the program -> the parameter whose final gradient it is, in whatever sharding. The laws, which have the program alone, find the owner by what becomes of the value
    (`graph.update_order`)."""
    param_of = {g: p.rpartition("@")[0] for p, g in grads}
    return {local: param_of[whole] for local, whole, _ in program.shardings if whole in param_of}


# ---------------------------------------------------------------- one block

_ARGUMENTS = {"shared": "shared", "carried": "flow", "listed": "item", "ahead": "started"}


def _block_writer(frame: Frame, loop: Loop) -> Writer:
    """Of a function that serves all blocks of a loop, from the names of its first."""
    block = loop.blocks[0]
    prefix = block_path(loop.family, block.index)

    nodes = [[i for run in (loop.ahead, loop.blocks) if run for i in run[j].nodes] for j in range(len(loop.blocks))]
    beside = {names[0]: names for row in zip(*nodes) for names in zip(*(frame.graph.nodes[i].inputs for i in row))}

    def state_text(name: str) -> str:
        storage = name_by_block([other.rpartition("@")[0] for other in beside[name]], [b.index for b in loop.blocks]) if "@" in name else None
        if storage is None and len(set(beside[name])) > 1:
            raise ProgramError(f"{frame.graph.name}: blocks of {loop.family or 'the row'} use {', '.join(beside[name][:3])} each at its place: no one text says these")
        return frame.state_keys[name] if storage is None else f'state[f"{storage}"]'

    def path_text(path: str) -> str:
        return path.replace(prefix, block_path(loop.family, "{i}"), 1) if path.startswith(prefix) else path

    return Writer(("turn",) if frame.in_turns else (), state_text, path_text, frame.notes)


def _print_ahead(frame: Frame, k: int) -> str:
    """The function that starts what a block will read."""
    table = frame.crossings.loops[k]
    loop = table.loop
    if not loop.ahead:
        return ""
    writer = _block_writer(frame, loop)
    for i in loop.ahead[0].nodes:
        writer.node(frame.graph.nodes[i], frame.program.origins[i], frozenset())
    started = "".join(f"{writer.names[e.names[0]]}, " for e in table.entries if e.way == "ahead")
    doc = f'"""Start to gather what the {_title(loop.section).lower()} of {block_path(loop.family or "block", "{i}")} reads."""'
    return "\n".join([f"def {_ahead_name(frame, k)}(comm, state, i):", *(f"    {line}" for line in [doc, *writer.lines, f"return {started.strip()}"])])


def _ahead_name(frame: Frame, k: int) -> str:
    return f"{frame.loop_names[k]}_gather"


def _print_block(frame: Frame, k: int) -> str:
    table = frame.crossings.loops[k]
    loop, graph = table.loop, frame.graph
    block = loop.blocks[0]
    writer = _block_writer(frame, loop)
    arguments, ahead = [], []
    for entry in table.entries:
        value = entry.names[0]
        if entry.way in ("carried", "listed") or (entry.way == "shared" and value not in frame.state_keys):
            arguments.append(writer.bind(value, _ARGUMENTS[entry.way]))
        elif entry.way == "ahead":
            ahead.append(writer.bind(value, _ARGUMENTS[entry.way]))
    for p, key in table.entry_keys.items():
        writer.line(f'kept["{key}"] = {writer.text_of(table.entries[p].names[0])}')
    last_use = last_uses(graph, block.nodes)
    kept_entries = {e.names[0]: e for e in table.entries if e.way == "kept"}
    for position, i in enumerate(block.nodes):
        node = graph.nodes[i]
        for name in dict.fromkeys(node.inputs):
            if name in kept_entries and name not in writer.names:
                entry = kept_entries[name]
                take = f'kept.pop("{entry.key}")' if _is_last_reader(frame, k, entry.key) else f'kept["{entry.key}"]'
                writer.line(f"{writer.bind(name, entry.key)} = {take}")
        if node.op in GROWN:
            own = all(graph.nodes[b.nodes[position]].inputs[0] in frame.own for b in loop.blocks)
            writer.grow(node, frame.program.origins[i], _grad_text(frame, loop, node.outputs[0]), own)
        else:
            writer.node(node, frame.program.origins[i], dead_here(frame, node))
        for out_index, out in enumerate(node.outputs):
            if out not in writer.names:
                continue
            if (position, out_index) in table.own_keys:
                writer.line(f'kept["{table.own_keys[position, out_index]}"] = {writer.names[out]}')
            if out in frame.grad_keys:
                writer.line(f"grads[{_grad_text(frame, loop, out)}] = {writer.names[out]}")
        keep = {graph.nodes[block.nodes[p]].outputs[o] for p, o in table.returns}
        dying = [n for n in (*dict.fromkeys(node.inputs), *node.outputs) if n in writer.names and last_use.get(n, position) <= position and n not in keep]
        writer.drop(dying)
    results = [writer.names[graph.nodes[block.nodes[p]].outputs[o]] for p, o in table.returns]
    if results:
        writer.line(f"return {', '.join(results)}")
    name = f"{_title(loop.section)} of {block_path(loop.family or 'block', '{i}')}, {print_blocks(table.row, table.row.loops.index(loop))}"
    doc = f'"""{name}: {"what it has begun to reduce is added to the sums over the turns" if loop.lags else "`kept` is what this block leaves for its later functions"}."""'
    head = f"def {frame.loop_names[k]}({_common_boxes(frame, table.row)}, kept, i{_turn(frame, table.row)}{''.join(', ' + a for a in (*arguments, *ahead))}):"
    return "\n".join([head, *(f"    {line}" for line in [doc, *writer.lines])])


def _common_boxes(frame: Frame, row: Row) -> str:
    """What every function of a block takes; the batch where blocks read it themselves (a mask)."""
    read = {n for loop in row.loops for block in loop.blocks for i in block.nodes for n in frame.graph.nodes[i].inputs}
    return "comm, state, batch, grads" if any(frame.state_keys.get(n, "").startswith("batch[") for n in read) else "comm, state, grads"


def _turn(frame: Frame, row: Row) -> str:
    """`, turn` where the blocks take something of their turn, or put something in its place."""
    return ", turn" if any(frame.graph.nodes[i].op in (TAKE, COLLECT) for loop in row.loops for i in loop.blocks[0].nodes) else ""


def _grad_text(frame: Frame, loop: Loop, value: str) -> str:
    """The text of the key of what a block makes, for all blocks."""
    place, k = next((p, node.outputs.index(value)) for p, node in enumerate(frame.graph.nodes[i] for i in loop.blocks[0].nodes) if value in node.outputs)
    keys = [frame.grad_keys[frame.graph.nodes[block.nodes[place]].outputs[k]] for block in loop.blocks]
    text = name_by_block(keys, [block.index for block in loop.blocks])
    if text is None:
        raise ProgramError(f"{frame.graph.name}: the update reads what blocks of {loop.family or 'the row'} make as {', '.join(keys[:3])}: no one text says these")
    return f'f"{text}"'


def _is_last_reader(frame: Frame, k: int, key: str) -> bool:
    """True where no later loop and nothing outside of loops takes this entry after loop `k`."""
    family = frame.crossings.loops[k].loop.family
    mine = {b.index for b in frame.crossings.loops[k].loop.blocks}
    overtaken = list_overtaken(frame.crossings.loops[k].loop.section, frame.items)
    after = [t for t in frame.crossings.loops if t.loop.section in overtaken and mine.intersection(b.index for b in t.loop.blocks)]
    if any(e.way == "kept" and e.key == key for t in (*after, *frame.crossings.loops[k + 1 :]) if t.loop.family == family for e in t.entries):
        return False
    values = {v for v, places in frame.crossings.kept_at.items() if any(f == family and name == key and i in mine for f, i, name in places)}
    items = [item for section in frame.items for item in frame.items[section]]
    coming = [*items[items.index(frame.crossings.loops[k].row) + 1 :], *(item for section in overtaken for item in frame.items[section])]
    return not values & ({n for item in coming for n in _item_reads(frame, item)} | frame.leaving)


# ---------------------------------------------------------------- a section


def _title(section: Section, noun: str = "") -> str:
    """`Forward`, `Backward pass of chunk 1`, `Backward for the weights`."""
    part = {"": "", INPUT: "for what other stages wait for", WEIGHT: "for the weights"}[section.part]
    chunk = "" if section.chunk is None else f"of chunk {section.chunk}"
    return " ".join(word for word in (section.phase.value.capitalize(), noun, chunk, part) if word)


def _print_section(frame: Frame, section: Section) -> str:
    graph = frame.graph
    items = frame.items[section]
    if not items:
        return ""
    writer = Writer(reserved_names(frame), lambda name: frame.state_keys[name], lambda path: path, frame.notes)
    reads = [_item_reads(frame, item) for item in items]
    last = {name: place for place, names in enumerate(reads) for name in names}
    later = _read_after(frame, section)
    with_others = [lagging for item in items if isinstance(item, Row) and (lagging := find_lagging(item, items)) is not None]
    for place, item in enumerate(items):
        for name in reads[place]:
            if name not in writer.names and name not in frame.state_keys and not writer.is_stored(name):
                _fetch(frame, writer, name, (section, place), later)
        if isinstance(item, Row):
            made = _call_row(frame, writer, item, place, last) if item not in with_others else []
            for loop in item.loops:
                _let_go(frame, writer, loop, (section, place))
        else:
            node = graph.nodes[item]
            if node.op in GROWN:
                writer.grow(node, frame.program.origins[item], f'"{frame.grad_keys[node.outputs[0]]}"', node.inputs[0] in frame.own)
            else:
                writer.node(node, frame.program.origins[item], dead_here(frame, node))
            if node.op == "state.write" and not {node.inputs[1]} & (later | frame.leaving | frame.grad_keys.keys()) and _is_alike(frame, node):
                writer.store(node)
            made = [o for o in node.outputs if o and o in writer.names]
        for name in made:
            if name in frame.grad_keys:
                writer.line(f'grads["{frame.grad_keys[name]}"] = {writer.names[name]}')
            if name in later or name in frame.leaving:
                writer.line(f'kept["{kept_key(name)}"] = {writer.names[name]}')
                frame.stored.add(name)
        writer.drop([n for n in dict.fromkeys((*reads[place], *made)) if n in writer.names and last.get(n, place) <= place])
    boxes = "".join(f", {name}" for name in _boxes(frame, section))
    once = section.phase is Phase.PREPARE
    doc = '"""What is the same in every turn: `kept` is what it leaves for them."""' if once else f'"""The {_title(section, "pass").lower()}."""'
    turn = ", turn" if frame.in_turns and not once else ""
    return "\n".join([f"def {section.name}(comm, state, batch, grads, kept{turn}{boxes}):", *(f"    {line}" for line in [doc, *writer.lines])])


def _is_alike(frame: Frame, write: Node) -> bool:
    """True where a state has the shape and dtype of what is put there."""
    state, value = (value_table(frame.graph)[name] for name in write.inputs)
    return (state.shape, state.dtype) == (value.shape, value.dtype)


def _boxes(frame: Frame, section: Section) -> list[str]:
    """The containers that the function of a section takes; `prepare` takes those of the blocks that it runs."""
    prepared = {t.loop.family for t in frame.crossings.loops if t.loop.section.phase is Phase.PREPARE}
    return [name for family, name in frame.containers.items() if section.phase is not Phase.PREPARE or family in prepared]


def _item_reads(frame: Frame, item: Item) -> list[str]:
    if isinstance(item, Row):
        names: dict[str, None] = {}
        for table in (_table_of(frame, loop) for loop in item.loops):
            for entry in table.entries:
                if entry.way == "listed":
                    names.update(dict.fromkeys(entry.names))
                elif entry.way == "shared" or (entry.way == "carried" and table.begins):
                    names.setdefault(entry.names[0])
        return [n for n in names if n not in frame.state_keys]
    return [n for n in dict.fromkeys(frame.graph.nodes[item].inputs) if n not in frame.state_keys]


def _table_of(frame: Frame, loop: Loop) -> LoopTable:
    return next(t for t in frame.crossings.loops if t.loop is loop)


def _read_after(frame: Frame, section: Section) -> set[str]:
    """Values that the functions of sections themselves may read after this one."""
    return {n for s in _list_coming(frame, section) for item in frame.items[s] for n in _item_reads(frame, item)}


def _list_coming(frame: Frame, section: Section) -> list[Section]:
    """The sections that may run after this one in a turn."""
    order = list(frame.items)
    return [*order[order.index(section) + 1 :], *list_overtaken(section, order)]


def _fetch(frame: Frame, writer: Writer, name: str, place: tuple[Section, int], later: set[str]) -> None:
    """Bring a value from where it was kept into this function."""
    stays = name in later or name in frame.leaving
    places = [("kept", kept_key(name), stays)] if name in frame.stored else []
    for family, index, key in frame.crossings.kept_at.get(name, ()):
        places.append((f"{frame.containers[family]}[{index}]", key, stays or _is_taken(frame, family, index, key, place)))
    places = sorted(places or [("kept", kept_key(name), stays)], key=lambda p: p[2])
    box, key, held = places[0]
    writer.line(f'{writer.bind(name, key)} = {box}["{key}"]' if held else f'{writer.bind(name, key)} = {box}.pop("{key}")')
    for box, key, held in places[1:]:
        if not held:
            writer.line(f'del {box}["{key}"]')


def _is_taken(frame: Frame, family: str, index: int, key: str, place: tuple[Section, int]) -> bool:
    """True where a loop after this place (section, item) takes what block `index` keeps under `key`."""
    section, number = place
    coming = [item for s in _list_coming(frame, section) for item in frame.items[s]] + frame.items[section][number:]
    loops = [loop for item in coming if isinstance(item, Row) and item.family == family for loop in item.loops]
    return any(b.index == index for loop in loops for e in _table_of(frame, loop).entries if e.way == "kept" and e.key == key for b in loop.blocks)


def _let_go(frame: Frame, writer: Writer, loop: Loop, place: tuple[Section, int]) -> None:
    """Let go of what the function of all blocks has kept for some of them, and nobody takes of the others: what the last block leaves is the input of none."""
    section, number = place
    coming = {n for item in frame.items[section][number + 1 :] for n in _item_reads(frame, item)} | _read_after(frame, section) | frame.leaving
    for key, values in _table_of(frame, loop).keeps.items():
        fetched = [value in coming and (loop.family, block.index, key) in frame.crossings.kept_at.get(value, ()) for block, value in zip(loop.blocks, values)]
        idle = [b.index for b, taken in zip(loop.blocks, fetched) if not taken and not _is_taken(frame, loop.family, b.index, key, (section, number + 1))]
        box = frame.containers[loop.family]
        if len(idle) == 1:
            writer.line(f'del {box}[{idle[0]}]["{key}"]')
        elif idle:
            writer.line(f"for i in ({', '.join(map(str, idle))}):")
            writer.line(f'    del {box}[i]["{key}"]')


def _call_row(frame: Frame, writer: Writer, row: Row, place: int, last: dict[str, int]) -> list[str]:
    """Print the loop; returns the values that have a name here afterwards."""
    tables = [_table_of(frame, loop) for loop in row.loops]
    flows: list[str] = []
    for entry in (e for table in tables if table.begins for e in table.entries if e.way == "carried"):
        flow = writer.fresh("flow")
        writer.line(f"{flow} = {writer.text_of(entry.names[0])}")
        if entry.names[0] in writer.names and last.get(entry.names[0], place) <= place:
            writer.drop([entry.names[0]])
        flows.append(flow)
    listed: dict[str, None] = {}
    arguments = [_list_arguments(frame, writer, table, flows, listed) for table in tables]
    shared = {entry.names[0] for table in tables for entry in table.entries if entry.way == "shared"}
    writer.drop([n for n in listed if n not in shared and last.get(n, place) <= place])  # each block lets go of its own
    first, end, step = row.numbers[0], row.numbers[-1], row.numbers[1] - row.numbers[0]
    kinds, box = [frame.crossings.loops.index(table) for table in tables], frame.containers[row.family]
    gathers = [_ahead_name(frame, k) for k in kinds]
    if row.loops[0].ahead:
        here, ahead = writer.fresh("here"), writer.fresh("ahead")
        writer.line(f"{ahead} = {gathers[row.in_order()[0][0]]}(comm, state, {first})")
        arguments = [[*given, f"*{here}"] for given in arguments]
    writer.line(f"for i in {print_numbers(row)}:")
    if row.loops[0].ahead:
        coming = f"i {'+' if step > 0 else '-'} {abs(step)}"
        writer.line(f"    {here}, {ahead} = {ahead}, {pick_kind(row, gathers, coming)}(comm, state, {coming}) if i != {end} else ()")
    given = [f"{_common_boxes(frame, row)}, {box}[i], i{_turn(frame, row)}{''.join(', ' + a for a in more)}" for more in arguments]
    calls = [f"{', '.join(flows)} = {frame.loop_names[k]}({text})" if flows else f"{frame.loop_names[k]}({text})" for k, text in zip(kinds, given)]
    for head, kind in branch_kinds(row):
        writer.line(f"    {head}" if head else f"    {calls[kind]}")
        if head:
            writer.line(f"        {calls[kind]}")
    lagging = find_lagging(row, frame.items[row.section])
    if lagging is not None:
        theirs = [_table_of(frame, loop) for loop in lagging.loops]
        assert all(entry.way == "kept" for table in theirs for entry in table.entries), "sums read what their own block has started, and nothing else"
        sums = [frame.loop_names[frame.crossings.loops.index(table)] for table in theirs]
        boxes, before = _common_boxes(frame, lagging), f"i {'-' if step > 0 else '+'} {abs(step)}"
        writer.line(f"    if i != {first}:  # reduced while this block ran")
        writer.line(f"        {pick_kind(lagging, sums, before)}({boxes}, {box}[{before}], {before})")
        writer.line(f"{sums[lagging.in_order()[-1][0]]}({boxes}, {box}[{end}], {end})")
    kind, j = row.in_order()[-1]
    made = [frame.graph.nodes[row.loops[kind].blocks[j].nodes[p]].outputs[o] for p, o in tables[kind].returns]
    writer.names.update(zip(made, flows))
    return made


def _list_arguments(frame: Frame, writer: Writer, table: LoopTable, flows: Sequence[str], listed: dict[str, None]) -> list[str]:
    """What the function of a kind takes beside what all do. Adds to `listed` what is in lists that are made here."""
    found, coming = [], iter(flows)
    for entry in table.entries:
        if entry.way == "shared" and entry.names[0] not in frame.state_keys:
            found.append(writer.text_of(entry.names[0]))
        elif entry.way == "carried":
            found.append(next(coming))
        elif entry.way == "listed":
            items = writer.fresh("items")
            writer.line(f"{items} = [{', '.join(writer.text_of(n) for n in entry.names)}]")
            found.append(f"{items}.pop(0)")
            listed.update(dict.fromkeys(entry.names))
    return found
