"""Random whole training steps of few nodes, whole or in turns, and prices for them: what every plan of can be tried."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from autopar.errors import MicrobatchError
from autopar.graph.case import Case, build_case, split_case
from autopar.graph.choice import Assignment
from autopar.graph.graph import Graph, phase_table, value_table
from autopar.graph.liveness import is_view
from autopar.graph.mesh import Mesh, axis_sizes
from autopar.graph.node import Phase
from autopar.graph.partition import assigned_strategies, partition
from autopar.graph.program import Program, check_program
from autopar.graph.recompute import recompute_all, recompute_graph
from autopar.graph.repeats import identity_fold
from autopar.graph.rules.turns import ROWS
from autopar.graph.strategy import Strategy
from autopar.graph.tensor import Kind
from autopar.graph.transfer import HIDING_PHASES, may_hide, outside_blocks
from autopar.graph.turns import count_microbatches, times_of
from autopar.solver.build import build_problem
from autopar.solver.problem import Problem

from .tiny import RULES, Sketch, TinyPrices, make_mesh

_FEWEST = 16  # plans; a graph with fewer has nothing to choose
ALL_RULES = {**RULES, **{rule.op: rule for rule in ROWS}}


class StepPrices(TinyPrices):
    """Prices of a case; views cost nothing."""

    def __init__(self, case: Case, mesh: Mesh, wire: float, hides: float) -> None:
        self.sizes, self.wire, self.hides = axis_sizes(mesh), wire, hides
        self.sites, self.signatures = case.sites, case.signatures

    def node_seconds(self, node: int, strategies: Sequence[Strategy]) -> list[float]:
        if is_view(self.sites[node].node.op):  # turns take theirs without a copy
            return [0.0 for _ in strategies]
        return super().node_seconds(node, strategies)


def random_step(seed: int, num_nodes: int) -> Graph:
    """Forward, loss, backward with the gradient of a weight, update: `num_nodes` (5 to 7) nodes in one block `h.0`."""
    rng = random.Random(seed)
    s = Sketch(f"step_{seed}")
    n, a, b = rng.choice((2, 4, 4, 6)), rng.choice((2, 3, 5)), rng.choice((2, 3, 4))
    w, x = s.enter("w@0", (a, b)), s.enter("x", (n, a), Kind.BATCH)
    spare = num_nodes - 5

    def elementwise(pool: list[str]) -> str:
        op = rng.choice(["aten.relu", "aten.neg", "aten.add", "aten.mul"])
        first = rng.choice(pool)
        alike = [v for v in pool if s.values[v].shape == s.values[first].shape]
        return s.call(op, first, *([rng.choice(alike)] if op in ("aten.add", "aten.mul") else []), path="h.0")

    before = rng.randint(0, spare) if rng.random() < 0.4 else 0  # nodes before the matmul
    read = [x]
    for _ in range(before):
        read.append(elementwise(read))
    made = [s.call("aten.mm", read[-1], w, path="h.0")]
    for _ in range(rng.randint(0, spare - before)):
        made.append(elementwise(made))
    loss = s.call("tiny.total", made[-1], kind=Kind.LOSS)
    s.phase = Phase.BACKWARD
    while len(s.nodes) < num_nodes - 3:
        made.append(elementwise(made))
    g = s.call("aten.mm", s.call("aten.permute", rng.choice(read), path="h.0"), rng.choice(made), kind=Kind.GRAD, path="h.0")
    s.phase = Phase.UPDATE
    return s.finish([("w@0", s.call("aten.add", w, g, kind=Kind.PARAM, name="w@1"))], loss, (), [("w@0", g)])


def held_step(seed: int) -> Graph:
    """A first value that only the backward pass reads again, while the forward pass has its peak: kept or made again. 8 nodes."""
    rng = random.Random(seed)
    s = Sketch(f"held_{seed}")
    n, a, b = rng.choice((2, 4, 6, 8)), rng.choice((3, 5)), rng.choice((2, 3, 5))
    w, x = s.enter("w@0", (a, b)), s.enter("x", (n, a), Kind.BATCH)
    y = s.call("aten.mm", x, w, path="h.0")
    u = s.call(rng.choice(("aten.relu", "aten.neg")), y, path="h.0")
    v = s.call("aten.add", u, u, path="h.0")
    loss = s.call("tiny.total", v, kind=Kind.LOSS)
    s.phase = Phase.BACKWARD
    d = s.call("aten.mul", y, y, path="h.0") if rng.random() < 0.5 else s.call("aten.relu", y, path="h.0")
    g = s.call("aten.mm", s.call("aten.permute", x, path="h.0"), d, kind=Kind.GRAD, path="h.0")
    s.phase = Phase.UPDATE
    return s.finish([("w@0", s.call("aten.add", w, g, kind=Kind.PARAM, name="w@1"))], loss, (), [("w@0", g)])


def small_problem(
    draw: Callable[[int], Graph], seed: int, sizes: tuple[int, ...], most: int, turns: int = 1, recompute: str = "none", hides: float = 0.0
) -> tuple[Case, Problem, StepPrices]:
    """The first graph of `draw(seed)`, `draw(seed + 1000)`, ... that can take so many turns and has few enough plans to try them all."""
    mesh = make_mesh(*sizes)
    for again in range(300):
        case = build_case(draw(seed + 1000 * again), ALL_RULES)
        try:
            case = split_case(case, turns)
        except MicrobatchError:
            continue
        prices = StepPrices(case, mesh, 3.0, hides)
        parts = case.graph, case.sites, case.signatures, case.cuts, identity_fold(case.graph)
        problem = build_problem(*parts, mesh, prices, cluster=False, recompute=recompute)
        if _FEWEST <= prod(c.num_kept or len(c.seconds) for c in problem.choosers) <= most:
            return case, problem, prices
    raise AssertionError("no graph of this seed has few enough plans")


def program_of(case: Case, assignment: Assignment) -> Program:
    """The program of an assignment, its copies included."""
    program = partition(*recompute_all(case.graph, case.sites, case.signatures, case.cuts, assignment.again), assignment)
    check_program(program)
    return program


def program_seconds(case: Case, program: Program, assignment: Assignment, prices: StepPrices) -> float:
    """What a built program takes: its nodes, its chains of collectives, its writes, less what hides behind compute."""
    copies = recompute_graph(case.graph, assignment.again).original
    number = {node.name: i for i, node in enumerate(case.graph.nodes)}
    strategies = assigned_strategies(*recompute_all(case.graph, case.sites, case.signatures, case.cuts, assignment.again), assignment)
    sharding = {name: (whole, held) for name, whole, held in program.shardings}
    values, turns = value_table(case.graph), count_microbatches(case.graph)
    phases = phase_table(case.graph)
    originals = recompute_graph(case.graph, assignment.again).original_values
    total, compute, hidden = 0.0, dict.fromkeys(Phase, 0.0), dict.fromkeys(Phase, 0.0)
    nodes, origins = program.graph.nodes, program.origins
    for i, node in enumerate(nodes):
        times = times_of(node.phase, turns)
        if node.op.startswith("comm."):
            after = nodes[i + 1] if i + 1 < len(nodes) else node
            if after.op.startswith("comm.") and after.inputs == node.outputs and origins[i + 1] == origins[i]:
                continue  # the chain goes on
            first = i
            while nodes[first - 1].outputs == nodes[first].inputs and origins[first - 1] == origins[i]:
                first -= 1
            name, target = sharding[node.outputs[0]]
            value, source = values[originals.get(name, name)], sharding[nodes[first].inputs[0]][1]
            value = replace(value, kind=Kind.ACTIVATION) if name in originals else value
            total += times * prices.reshard_seconds(value, source, target)
            made = Phase.BACKWARD if name in originals else phases.get(name)
            if may_hide(value, node.phase, outside_blocks(case.graph), made):
                hidden[node.phase] += times * prices.hidden_seconds(value, source, target)
        elif node.op == "state.write":
            old = node.inputs[0]
            total += prices.write_seconds(values[old], dict(assignment.storages)[old])
        else:
            seconds = times * prices.node_seconds(number[copies.get(node.name, node.name)], [strategies[node.name]])[0]
            total, compute[node.phase] = total + seconds, compute[node.phase] + seconds
    return total - sum(min(hidden[phase], compute[phase]) for phase in HIDING_PHASES)
