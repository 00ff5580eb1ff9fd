"""Opportunities as JSON: the format `autopar-trace-1` (docs/cli.md, section trace).

In: `Opportunities`. Out: plain data with names instead of indices. Invariant: every total is the sum of the rows beside it; all quantities are
whole-step, for one device that does everything: FLOPs, and bytes read and written.
"""

from __future__ import annotations

from math import fsum

from ..graph import Graph, count_params
from ..node import Node
from ..plan_json import Json
from ..tensor import size_bytes
from ..work import total_work
from .dataflow import Rewrite, count_widths, phase_order
from .find import Opportunities
from .reach import Reach
from .span_run import AFTER_LAST, Held, Sum, Sync, sync_place

FORMAT = "autopar-trace-1"


def opportunities_to_json(found: Opportunities) -> dict[str, Json]:
    """The whole report."""
    graph, total = found.graph, total_work(found.work)
    flow = found.dataflow
    widths = count_widths(flow.levels)
    split = found.splittable
    return {
        "format": FORMAT,
        "model": {"name": graph.name, "num_params": count_params(graph), "precision": found.precision},
        "total": {"flops": total.flops, "bytes": total.bytes, "nodes": len(graph.nodes)},
        "phases": [_phase(found, phase.value) for phase in phase_order(graph)],
        "paths": [
            {"measure": p.measure, "length": p.length, "total": p.total, "parallelism": p.parallelism, "nodes": [graph.nodes[i].name for i in p.nodes]}
            for p in flow.paths
        ],
        "width": {"depth": len(widths), "most": max(widths, default=0), "mean": len(graph.nodes) / max(1, len(widths)), "levels": list(widths)},
        "factors": [_reach(found, reach) for reach in found.reaches],
        "splittable": {
            "num_ranks": split.num_ranks, "flops_share": split.flops_share, "bytes_share": split.bytes_share,
            "kept": [
                {"node": k.node, "op": k.op, "source": k.source, "count": k.count, "ranks": k.ranks,
                 "flops_share": k.flops_share, "bytes_share": k.bytes_share, "reason": k.reason}
                for k in split.kept
            ],
        },
        "ops_without_rule": list(found.unknown),
        "versions": [_version(graph, r) for r in flow.rewrites],
        "values": [
            {"name": v.name, "storage": v.storage, "version": v.version, "kind": v.kind.value, "shape": list(v.shape), "dtype": v.dtype, "bytes": size_bytes(v)}
            for v in graph.values
        ],
        "nodes": [
            {"name": n.name, "op": n.op, "phase": n.phase.value, "module": n.path, "source": n.source, "inputs": list(n.inputs),
             "outputs": [o for o in n.outputs if o], "flops": w.flops, "bytes": w.bytes, "level": level}
            for n, w, level in zip(graph.nodes, found.work, flow.levels)
        ],
    }  # fmt: skip


def _phase(found: Opportunities, phase: str) -> Json:
    mine = [w for n, w in zip(found.graph.nodes, found.work) if n.phase.value == phase]
    return {"phase": phase, "flops": fsum(w.flops for w in mine), "bytes": sum(w.bytes for w in mine), "nodes": len(mine)}


def _reach(found: Opportunities, reach: Reach) -> Json:
    total = total_work(found.work)
    return {
        "name": reach.name,
        "starts": [{"at": at, "size": size} for at, size in zip(reach.starts, reach.sizes)],
        "flops": reach.work.flops,
        "bytes": reach.work.bytes,
        "flops_share": reach.work.flops / (total.flops or 1.0),
        "bytes_share": reach.work.bytes / (total.bytes or 1),
        "nodes": [found.graph.nodes[i].name for i in reach.nodes],
        "values": {name: held_text(held) for name, held in reach.held},
        "syncs": [_sync(found.graph, sync) for sync in reach.syncs],
    }


def held_text(held: Held) -> str:
    """`S1` split at dim 1, `P` a part of the sum, `Pmax` of the largest, `R` whole."""
    if isinstance(held, Sum):
        return "P" if held.reduce == "sum" else f"P{held.reduce}"
    return "R" if held is None else f"S{held.dim}"


def _sync(graph: Graph, sync: Sync) -> Json:
    place: Node | None = sync_place(graph, sync)
    reader = graph.nodes[sync.reader] if sync.reader != AFTER_LAST else None
    return {
        "kind": sync.kind, "value": sync.value, "bytes": sync.bytes, "reason": sync.reason,
        "module": place.path if place else "", "source": place.source if place else "", "op": place.op if place else "",
        "reader": reader.name if reader else "", "phase": reader.phase.value if reader else "end",
    }  # fmt: skip


def _version(graph: Graph, rewrite: Rewrite) -> Json:
    node = graph.nodes[rewrite.node]
    return {
        "storage": rewrite.storage, "kind": rewrite.kind.value, "version": rewrite.version, "value": rewrite.value, "bytes": rewrite.bytes,
        "node": node.name, "op": node.op, "phase": node.phase.value, "module": node.path, "source": node.source,
        "last_read": graph.nodes[rewrite.last_read].name if rewrite.last_read >= 0 else "",
    }  # fmt: skip
