"""The first wrong node: runs a program node by node on all ranks and compares every value of the whole graph with the plain step."""

import torch

from autopar.graph.graph import Graph
from autopar.graph.node import Ref
from autopar.graph.sharding import REPLICATE, Partial, Shard, Sharding
from autopar.runtime import run_ranks
from autopar.runtime.execute import run_graph
from autopar.runtime.shards import cut, join


def whole_value(pieces, shape, sharding, mesh):
    """Join the pieces of a value; partial axes are reduced by adding (or by the maximum)."""
    from autopar.graph.mesh import axis_groups

    pieces = list(pieces)
    for axis, placement in enumerate(sharding.placements):
        if isinstance(placement, Partial):
            for group in axis_groups(mesh, axis):
                stacked = torch.stack([pieces[r] for r in group])
                total = stacked.sum(0).to(stacked.dtype) if placement.op == "sum" else stacked.amax(0)
                for r in group:
                    pieces[r] = total
    plain = Sharding(tuple(p if isinstance(p, Shard) else REPLICATE for p in sharding.placements))
    return join(pieces, shape, plain, mesh)


def first_wrong(program, expected, inputs, tolerance=1e-9):
    """(node, difference) of the first whole-graph value that differs, or None.

    Args:
        expected: value -> whole tensor of the plain step.
        inputs: graph input -> whole tensor.
    """
    graph, mesh = program.graph, program.mesh
    sharding = {local: (whole, s) for local, whole, s in program.shardings}
    shapes = dict(program.whole)

    def one(comm):
        env = {n: cut(inputs[n], sharding[n][1], mesh, comm.rank) for n in graph.inputs}
        for node in graph.nodes:
            if node.op == "state.write":
                continue
            if node.op.startswith("comm."):
                args = dict(node.args)
                options = {k: v for k, v in args.items() if k not in ("x", "axis")}
                env[node.outputs[0]] = getattr(comm, node.op[5:])(env[node.inputs[0]], args["axis"], **options)
            else:
                part = Graph("one", graph.values, (node,), tuple(node.inputs))
                made = run_graph(part, {n: env[n] for n in node.inputs})
                env.update({o: made[o] for o in node.outputs if o})
        return env

    envs = run_ranks(mesh, one)
    for node in graph.nodes:
        for out in node.outputs:
            if not out:
                continue
            whole, s = sharding[out]
            found = whole_value([e[out] for e in envs], shapes[whole], s, mesh)
            wanted = expected[whole]
            difference = float((found.double() - wanted.double()).nan_to_num().abs().max()) if wanted.numel() else 0.0
            if found.shape != wanted.shape or difference > tolerance * max(1.0, float(wanted.double().nan_to_num(posinf=0, neginf=0).abs().max())):
                return node, difference
    return None


__all__ = ["Ref", "first_wrong", "whole_value"]
