"""What the page knows of a step's opportunities: its tables as columns, each text once, and who stands for whom.

In: `Opportunities`. Out: JSON data in the form of `page_data`, so that the same scripts draw the graph: a tensor's `sharding_t` has one
entry per factor, how it lies if that factor alone is split. Numbers are entries of the report or sums of its rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict

from ..graph.graph import count_params
from ..graph.opportunities.as_json import held_text
from ..graph.opportunities.dataflow import count_widths
from ..graph.opportunities.find import SMALL_SHARE, Opportunities
from ..graph.opportunities.reach import Reach
from ..graph.opportunities.span_run import Sync, sync_place
from ..graph.plan_json import Json
from ..graph.repeats import Block, Repeat, find_repeats
from ..graph.tensor import size_bytes
from ..graph.work import total_work
from .fold import BlockFold, fold_names, name_blocks, place_in_tree, print_numbers
from .page_data import PHASES, Texts
from .trace_rows import path_rows, place_text, size_text, start_text, states_first, sync_rows

MOST_AXES = 12  # factors that the graph can be coloured by


def trace_page_data(found: Opportunities) -> dict[str, Json]:
    """The tables that the page draws, as columns.

    Returns:
        `head`; `nodes tensors comms folds texts` as in `page_data`; `factors` with their rows; `paths chain widths split rewrites`.
    """
    texts, graph, flow = Texts(), found.graph, found.dataflow
    axes = _axes(found)
    names = _axis_names(axes)
    syncs = [(k, sync) for k, reach in enumerate(axes) for sync in reach.syncs]
    lies = _how_values_lie(found, axes)
    divided = _divided(found, axes)
    critical = frozenset(flow.paths[0].nodes)
    folds = _fold_blocks(found, syncs, lies, divided, critical)
    return {
        "head": {
            "model": {"name": graph.name, "num_params": count_params(graph), "precision": found.precision},
            "mesh": {"axes": [{"name": name, "size": size_text(r), "start": start_text(r)} for name, r in zip(names, axes)]},
            "unknown": list(found.unknown),
        },
        "nodes": _node_columns(found, folds, divided, critical, texts),
        "tensors": _tensor_columns(found, lies, texts),
        "comms": _sync_columns(found, names, syncs, texts),
        "folds": [{"label": f.label, "numbers": list(f.numbers), "blocks": [list(b) for b in f.blocks]} for f in folds],
        "factors": [_factor(found, reach, names[k] if k < len(axes) else "") for k, reach in enumerate(found.reaches)],
        "paths": [{"measure": p.measure, "length": p.length, "total": p.total} for p in flow.paths],
        "chain": [asdict(row) for row in path_rows(found, flow.paths[0])],
        "widths": list(count_widths(flow.levels)),
        "split": {**asdict(found.splittable), "kept": [asdict(k) for k in found.splittable.kept]},
        "rewrites": _rewrites(found),
        "texts": texts.entries,
    }


def _axes(found: Opportunities) -> tuple[Reach, ...]:
    """The factors that the graph shows: a prefix of all, those that cover at least 1 % of FLOPs or bytes."""
    total = total_work(found.work)
    large = [r for r in found.reaches if max(r.work.flops / (total.flops or 1.0), r.work.bytes / (total.bytes or 1)) >= SMALL_SHARE]
    return found.reaches[: min(len(large), MOST_AXES)]


def _axis_names(axes: tuple[Reach, ...]) -> list[str]:
    """`batch`; `features of up` where several have the same name; with a number where that is not enough."""
    names: list[str] = []
    for reach in axes:
        where = reach.starts[0].partition(" of ")[2].removesuffix(".weight").rpartition(".")[2]
        plain = reach.name if [r.name for r in axes].count(reach.name) == 1 else f"{reach.name} of {where}"
        name, again = plain, 2
        while name in names:
            name, again = f"{plain} #{again}", again + 1
        names.append(name)
    return names


def _how_values_lie(found: Opportunities, axes: tuple[Reach, ...]) -> dict[str, str]:
    """For each value one text per axis, joined by commas: `S0,R,P`."""
    held = [dict(r.held) for r in axes]
    return {v.name: ",".join(held_text(h.get(v.name)) for h in held) or "-" for v in found.graph.values}


def _divided(found: Opportunities, axes: tuple[Reach, ...]) -> list[str]:
    """For each node one digit per axis: 1 where the factor divides it."""
    nodes = [frozenset(r.nodes) for r in axes]
    return ["".join("1" if i in those else "0" for those in nodes) for i in range(len(found.graph.nodes))]


def _fold_blocks(
    found: Opportunities, syncs: list[tuple[int, Sync]], lies: dict[str, str], divided: list[str], critical: frozenset[int]
) -> tuple[BlockFold, ...]:
    """Equal blocks that look alike in everything that the page shows; blocks that stand alone are left out."""
    graph = found.graph
    here: dict[int, list[Hashable]] = {}
    for axis, sync in syncs:
        if sync.reader >= 0:
            here.setdefault(sync.reader, []).append((axis, sync.kind, graph.nodes[sync.reader].inputs.index(sync.value), sync.bytes, sync.reason))
    folds = []
    for repeat in find_repeats(graph):
        groups: dict[Hashable, list[Block]] = {}
        for block in repeat.blocks:
            key = tuple(
                (divided[i], i in critical, tuple(lies[o] for o in graph.nodes[i].outputs if o), tuple(lies[n] for n in graph.nodes[i].inputs),
                 tuple(here.get(i, ())))
                for i in block.nodes
            )  # fmt: skip
            groups.setdefault(key, []).append(block)
        folds += [_block_fold(repeat, blocks) for blocks in groups.values() if len(blocks) > 1]
    return tuple(folds)


def _block_fold(repeat: Repeat, blocks: list[Block]) -> BlockFold:
    numbers = tuple(str(block.index) for block in blocks)
    return BlockFold(repeat.family, name_blocks(repeat.family, print_numbers(numbers)), numbers, tuple(block.nodes for block in blocks))


def _node_columns(
    found: Opportunities, folds: tuple[BlockFold, ...], divided: list[str], critical: frozenset[int], texts: Texts
) -> dict[str, Json]:
    nodes = found.graph.nodes
    number = {v.name: k for k, v in enumerate(found.graph.values)}
    fold_of = {i: fold for fold in folds for block in fold.blocks for i in block}
    return {
        "name": [n.name for n in nodes],
        "op_t": [texts.number(n.op) for n in nodes],
        "inputs": [[number[i] for i in n.inputs] for n in nodes],
        "outputs": [[number[o] for o in n.outputs if o] for n in nodes],
        "phase": [PHASES.index(n.phase.value) for n in nodes],
        "path_t": [texts.number(n.path) for n in nodes],
        "place_t": [texts.number(place_in_tree(n.path, fold_of.get(i))) for i, n in enumerate(nodes)],
        "source_t": [texts.number(n.source) for n in nodes],
        "flops": [w.flops for w in found.work],
        "bytes": [w.bytes for w in found.work],
        "level": list(found.dataflow.levels),
        "critical": [int(i in critical) for i in range(len(nodes))],
        "divided_t": [texts.number(bits) for bits in divided],
    }


def _tensor_columns(found: Opportunities, lies: dict[str, str], texts: Texts) -> dict[str, Json]:
    values = found.graph.values
    return {
        "name": [v.name for v in values],
        "kind_t": [texts.number(v.kind.value) for v in values],
        "storage_t": [texts.number(v.storage) for v in values],
        "version": [v.version for v in values],
        "shape_t": [texts.number(v.shape) for v in values],
        "dtype_t": [texts.number(v.dtype) for v in values],
        "sharding_t": [texts.number(lies[v.name]) for v in values],
        "bytes": [size_bytes(v) for v in values],
    }


def _sync_columns(found: Opportunities, names: list[str], syncs: list[tuple[int, Sync]], texts: Texts) -> dict[str, Json]:
    number = {v.name: k for k, v in enumerate(found.graph.values)}
    places = [sync_place(found.graph, sync) for _, sync in syncs]
    return {
        "name": [f"sync {k}" for k in range(len(syncs))],
        "kind_t": [texts.number(sync.kind) for _, sync in syncs],
        "axis_t": [texts.number(names[axis]) for axis, _ in syncs],
        "axis": [axis for axis, _ in syncs],
        "value": [number[sync.value] for _, sync in syncs],
        "reader": [sync.reader for _, sync in syncs],
        "bytes": [sync.bytes for _, sync in syncs],
        "reason_t": [texts.number(sync.reason) for _, sync in syncs],
        "source_t": [texts.number(place.source if place else "") for place in places],
    }


def _factor(found: Opportunities, reach: Reach, axis: str) -> Json:
    rows: list[Json] = [
        {"kind": r.kind, "subject": r.subject, "phase": r.phase, "reason": r.reason, "where": place_text(r.places, 12),
         "modules": place_text(r.modules, 8), "count": r.count, "bytes": r.bytes}
        for r in sync_rows(found, reach)
    ]  # fmt: skip
    return {
        "name": reach.name, "axis": axis, "size": size_text(reach), "start": start_text(reach), "flops": reach.work.flops,
        "bytes": reach.work.bytes, "nodes": len(reach.nodes), "rows": rows,
    }  # fmt: skip


def _rewrites(found: Opportunities) -> list[Json]:
    """Rewritten storages; equal ones of equal layers are one row."""
    nodes = found.graph.nodes
    rewrites = states_first(found.dataflow.rewrites)
    keys = [
        (r.version, r.kind.value, r.bytes, nodes[r.node].op, nodes[r.node].source, nodes[r.node].phase.value, nodes[r.last_read].op if r.last_read >= 0 else "")
        for r in rewrites
    ]  # fmt: skip
    rows: list[Json] = []
    for fold in fold_names([r.storage for r in rewrites], keys):
        version, kind, size, op, source, phase, last = keys[fold.members[0]]
        count = len(fold.members)
        rows.append({"storage": fold.name, "version": version, "kind": kind, "count": count, "bytes": size * count, "op": op, "source": source,
                     "phase": phase, "last": last, "node": rewrites[fold.members[0]].node})  # fmt: skip
    return rows
