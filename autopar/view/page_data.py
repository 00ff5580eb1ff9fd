"""What the page knows of a plan: its tables as columns, each text once, and who stands for whom.

In: a plan that keeps its laws. Out: JSON data. There is no number here that is not an entry of the plan: sums are made where they are
shown, from the rows that are shown, so nothing can disagree. Columns and interned texts keep 20,000 nodes under a megabyte.
"""

from __future__ import annotations

import typing
from collections.abc import Hashable
from dataclasses import asdict, replace

from ..graph.plan import Plan, counted
from ..graph.plan_json import Json, plan_to_json
from .fold import BlockFold, fold_blocks, fold_names, place_in_tree
from .stages import comm_times, list_stages, param_stages, schedule_boxes

PHASES = ("prepare", "forward", "backward", "update")


class Texts:
    """Each entry once, by number."""

    def __init__(self) -> None:
        self.entries: list[Json] = []
        self._number: dict[Hashable, int] = {}

    def number(self, entry: Hashable) -> int:
        """The number of a text, None, or a tuple of them (which becomes a list); numbers in tuples are of one type per column."""
        found = self._number.get(entry)
        if found is None:
            found = self._number[entry] = len(self.entries)
            self.entries.append(typing.cast(Json, entry))
        return found


def page_data(plan: Plan) -> dict[str, Json]:
    """The tables that the page draws, as columns.

    Returns:
        `head`: the plan's small parts as in plan.json; `texts`: interned entries, which columns named `*_t` point to;
        `tensors nodes comms params moments`: columns; `folds`: equal blocks; `param_folds`: equal parameters; `stages`: of a pipeline.
    """
    texts = Texts()
    folds = fold_blocks(plan)
    homes = param_stages(plan)
    small = replace(plan, cost=replace(plan.cost, moments=()), assignment=replace(plan.assignment, storages=(), strategies=()),
                    tensors=(), params=(), nodes=(), comms=(), repeats=(), peak=None)  # fmt: skip
    whole = plan_to_json(small)
    cost = {key: entry for key, entry in _as_dict(whole["cost"]).items() if key != "moments"}
    head = {key: whole[key] for key in ("format", "model", "cluster", "mesh", "labels", "summary", "num_microbatches", "schedule", "solve", "rules")}
    param_folds = fold_names(
        [p.name for p in plan.params],
        [(p.shape, p.param, p.grad, p.optim, p.param_bytes, p.grad_bytes, p.optim_bytes) for p in plan.params],
    )
    return {
        "head": {**head, "cost": cost, "counted": counted(plan)},
        "tensors": _tensor_columns(plan, texts),
        "nodes": _node_columns(plan, folds, texts),
        "comms": _comm_columns(plan, texts),
        "stages": _stage_rows(plan),
        "params": {
            "name": [p.name for p in plan.params],
            "stage": [homes.get(p.name, 0) for p in plan.params],
            "shape_t": [texts.number(p.shape) for p in plan.params],
            "param_t": [texts.number(str(p.param)) for p in plan.params],
            "grad_t": [texts.number(None if p.grad is None else str(p.grad)) for p in plan.params],
            "optim_t": [texts.number(None if p.optim is None else str(p.optim)) for p in plan.params],
            "param_bytes": [p.param_bytes for p in plan.params],
            "grad_bytes": [p.grad_bytes for p in plan.params],
            "optim_bytes": [p.optim_bytes for p in plan.params],
        },
        "param_folds": [{"name": fold.name, "members": list(fold.members)} for fold in param_folds],
        "moments": _moment_columns(plan, texts),
        "folds": [
            {"label": fold.label, "numbers": list(fold.numbers), "blocks": [list(block) for block in fold.blocks]} for fold in folds
        ],
        "texts": texts.entries,
    }


def _as_dict(data: Json) -> dict[str, Json]:
    assert isinstance(data, dict)
    return data


def _tensor_columns(plan: Plan, texts: Texts) -> dict[str, Json]:
    return {
        "name": [t.name for t in plan.tensors],
        "kind_t": [texts.number(t.kind.value) for t in plan.tensors],
        "version": [t.version for t in plan.tensors],
        "shape_t": [texts.number(t.shape) for t in plan.tensors],
        "dtype_t": [texts.number(t.dtype) for t in plan.tensors],
        "stage": [t.stage for t in plan.tensors],
        "sharding_t": [texts.number(str(t.sharding)) for t in plan.tensors],
        "bytes": [t.bytes for t in plan.tensors],
    }


def _node_columns(plan: Plan, folds: tuple[BlockFold, ...], texts: Texts) -> dict[str, Json]:
    tensor = {t.name: i for i, t in enumerate(plan.tensors)}
    fold_of = {block[k]: fold for fold in folds for block in fold.blocks for k in range(len(block))}
    return {
        "name": [n.name for n in plan.nodes],
        "op_t": [texts.number(n.op) for n in plan.nodes],
        "inputs": [[tensor[name] for name in n.inputs] for n in plan.nodes],
        "outputs": [[tensor[name] for name in n.outputs if name] for n in plan.nodes],
        "phase": [PHASES.index(n.phase.value) for n in plan.nodes],
        "path_t": [texts.number(n.path) for n in plan.nodes],
        "place_t": [texts.number(place_in_tree(n.path, fold_of.get(i))) for i, n in enumerate(plan.nodes)],
        "source_t": [texts.number(n.source) for n in plan.nodes],
        "choices_t": [texts.number(n.choices) for n in plan.nodes],
        "seconds": [n.seconds for n in plan.nodes],
        "flops": [n.flops for n in plan.nodes],
        "reason_t": [texts.number(n.reason) for n in plan.nodes],
        "alternatives_t": [texts.number(tuple((a.choices, a.seconds) for a in n.alternatives)) for n in plan.nodes],
        "refused_t": [texts.number(n.refused) for n in plan.nodes],
    }


def _comm_columns(plan: Plan, texts: Texts) -> dict[str, Json]:
    tensor = {t.name: i for i, t in enumerate(plan.tensors)}
    node = {n.name: i for i, n in enumerate(plan.nodes)}
    return {
        "name": [c.name for c in plan.comms],
        "kind_t": [texts.number(c.kind) for c in plan.comms],
        "axis_t": [texts.number(c.axis) for c in plan.comms],
        "value": [tensor[c.value] for c in plan.comms],
        "reader": [node.get(c.reader, -1) for c in plan.comms],
        "phase": [PHASES.index(c.phase.value) for c in plan.comms],
        "source_t": [texts.number(str(c.source_sharding)) for c in plan.comms],
        "target_t": [texts.number(str(c.target_sharding)) for c in plan.comms],
        "bytes": [c.bytes * comm_times(plan, c) for c in plan.comms],
        "dtype_t": [texts.number(c.dtype) for c in plan.comms],
        "seconds": [c.seconds for c in plan.comms],
        "hidden_s": [c.hidden_s for c in plan.comms],
        "message_t": [texts.number(c.message) for c in plan.comms],
        "times": [comm_times(plan, c) for c in plan.comms],
    }


def _stage_rows(plan: Plan) -> dict[str, Json]:
    """What each stage does, and per stage the columns of its schedule's boxes; both empty for a plan of one stage."""
    boxes = schedule_boxes(plan)
    return {
        "rows": [typing.cast(Json, asdict(row)) for row in list_stages(plan)],
        "chunks": plan.pipeline.chunks if plan.pipeline else 1,
        "boxes": [{field: [getattr(b, field) for b in row] for field in ("kind", "chunk", "microbatch", "start_s", "end_s")} for row in boxes],
    }


def _moment_columns(plan: Plan, texts: Texts) -> dict[str, Json]:
    """Bytes by holder, one column per holder that ever holds any, in the order in which holders first appear."""
    moments = plan.cost.moments
    names = list(dict.fromkeys(h.name for m in (plan.cost, *moments) for h in m.holders))
    held = [{h.name: h.bytes for h in m.holders} for m in moments]
    return {
        "node_t": [texts.number(m.node) for m in moments],
        "phase": [PHASES.index(m.phase.value) for m in moments],
        "holders": {name: [row.get(name, 0) for row in held] for name in names},
    }
