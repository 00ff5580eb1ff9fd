"""Random legal assignments, and the emitted program of an assignment run on all ranks in one process."""

import random

from autopar.codegen.emit import ModelFacts, print_source
from autopar.graph import random_plans
from autopar.graph.case import build_case, split_case
from autopar.graph.cuts import resolve_all
from autopar.graph.graph import check_graph
from autopar.graph.partition import partition
from autopar.graph.program import check_program
from autopar.graph.random_plans import plain_mesh
from autopar.graph.recompute import recomputed_names
from autopar.graph.rules import RULES
from autopar.graph.tensor import STATE_KINDS, Kind

SMALL = 1e-10  # a difference up to here is a rounding
ROUNDINGS = 1000.0  # a plan adds up in another order: so many roundings are no mistake


def make_mesh(sizes):
    return plain_mesh(tuple(sizes))


class Assigner(random_plans.Assigner):
    """The package's, and what makes programs of its assignments."""

    def __init__(self, graph, sizes, rules=RULES, recompute=None, turns=1):
        """`recompute`: a random generator; a part of the graph's values is made again. `turns`: microbatches."""
        graph = split_case(build_case(graph, rules), turns).graph if turns > 1 else graph
        check_graph(graph)
        found = random_plans.draw_recomputed(graph, rules, recompute)
        super().__init__(found.graph, *resolve_all(found.graph, rules), make_mesh(sizes), recomputed_names(found))

    def program(self, assignment, keep_grads=True):
        program = partition(self.graph, self.sites, self.signatures, self.cuts, assignment, keep_grads)
        check_program(program)
        return program


def source_of(graph, program):
    return print_source(program, graph, graph.name, "test", "", ModelFacts())


def run_source(text, program, graph, states, batch):
    """Run an emitted program on all ranks in one process.

    Returns:
        (what `step` returned on each rank, with whole gradients; the whole states afterwards).
    Raises:
        AssertionError: ranks that must hold the same piece of a state do not.
    """
    import torch

    from autopar.graph.sharding import parse_sharding
    from autopar.runtime import compile_program, read_program, run_ranks
    from autopar.runtime.shards import cut, join

    spec = read_program(compile_program({"program.py": text}))
    ranks = range(len(run_ranks(spec.mesh, lambda comm: None)))
    local = [{n: cut(states[n], parse_sharding(s.sharding), spec.mesh, r) for n, s in spec.states.items()} for r in ranks]
    parts = [{n: cut(batch[n], parse_sharding(b.sharding), spec.mesh, r) for n, b in spec.batch.items()} for r in ranks]

    def one(comm):
        with torch.no_grad():
            return spec.step(comm, local[comm.rank], parts[comm.rank])

    results = run_ranks(spec.mesh, one)
    if len(program.graph.outputs) > len(graph.outputs):  # gradients, each rank its piece
        place = {local: (whole, s) for local, whole, s in program.shardings}
        shapes = dict(program.whole)
        pieces = zip(program.graph.outputs, zip(*(returned for _, returned in results)))
        grads = [join(list(held), shapes[place[name][0]], place[name][1], spec.mesh) for name, held in pieces]
        results = [(loss, grads) for loss, _ in results]
    after = {n: join([piece[n] for piece in local], s.shape, parse_sharding(s.sharding), spec.mesh) for n, s in spec.states.items()}
    for n, s in spec.states.items():  # `join` takes the first of equal pieces: the others must be equal indeed
        for r in ranks:
            wanted = cut(after[n], parse_sharding(s.sharding), spec.mesh, r)
            torch.testing.assert_close(local[r][n], wanted, rtol=1e-9, atol=1e-9, msg=lambda text: f"rank {r} holds another {n}: {text}")
    return results, after


def zoo_control(name):
    """The control of a model of `tests.trace.zoo`."""
    import torch

    from tests.trace import zoo

    torch.manual_seed(0)
    return Control(getattr(zoo, name)())


class Control:
    """A workload's traced step run whole on real tensors: what its plans are compared with."""

    def __init__(self, workload):
        import torch

        from autopar.runtime.execute import run_graph
        from autopar.trace import trace_step
        from tests.trace.compare import batch, first_states

        traced = trace_step(workload, "fp64")
        self.graph = traced.graph
        env = first_states(workload, traced, torch.float64)
        _, _, self.batch = batch(workload, traced, True, 1)
        self.expected = run_graph(self.graph, {k: v.clone() for k, v in {**env, **self.batch}.items()})
        self._given = {**env, **self.batch}
        self._moved = None
        self.storage = {v.name: v.storage for v in self.graph.values if v.kind in STATE_KINDS}
        self.states = {self.storage[n]: env[n] for n in self.graph.inputs if n in self.storage}

    def worst(self, program, graph=None):
        """(largest difference, whose): of every rank's loss, every gradient and every new state, as emitted and run on all ranks.

        Relative to the larger of 1 and the tensor's largest magnitude; what is not a number is infinitely far. What a rounding of the inputs
        moves as far in the plain step (a gradient that is zero but for rounding, after Adam) says nothing and counts as equal.

        `graph`: the one that the program is of, where that is not the traced one but that of a step in turns.
        """
        pairs = self._pairs(program, graph or self.graph)
        name, found, wanted = max(pairs, key=lambda pair: relative_difference(*pair[1:]))
        if relative_difference(found, wanted) > SMALL:  # rare, so that what is moved is worked out once it matters
            pairs = [pair for pair in pairs if not relative_difference(*pair[1:]) <= ROUNDINGS * self._noise(pair[2])]
        return max(((relative_difference(found, wanted), name) for name, found, wanted in pairs), default=(0.0, "nothing"))

    def _noise(self, wanted):
        """How far a value of `expected` moves when every input moves by a rounding."""
        import torch

        from autopar.runtime.execute import run_graph

        if self._moved is None:
            generator = torch.Generator().manual_seed(0)

            def move(t):
                if not t.dtype.is_floating_point:
                    return t.clone()
                return t * (1 + 2.0**-52 * torch.randint(-1, 2, t.shape, generator=generator).to(t.dtype))

            self._moved = run_graph(self.graph, {k: move(v) for k, v in self._given.items()})
        name = next(name for name, value in self.expected.items() if value is wanted)
        return relative_difference(self._moved[name], wanted)

    def _pairs(self, program, graph):
        states = {k: v.clone() for k, v in self.states.items()}
        results, after = run_source(source_of(graph, program), program, self.graph, states, self.batch)
        pairs = [(f"loss of rank {r}", loss, self.expected[self.graph.loss]) for r, (loss, _) in enumerate(results)]
        pairs += [(f"gradient of {p}", g, self.expected[wanted]) for g, (p, wanted) in zip(results[0][1], self.graph.grads, strict=True)]
        pairs += [(old, after[self.storage[old]], self.expected[new]) for old, new in self.graph.updates]
        return pairs


def relative_difference(found, wanted):
    """Largest difference over the larger of 1 and the largest magnitude; infinity where it is not a number, or whole numbers differ."""
    if not wanted.numel():
        return 0.0
    if not (wanted.dtype.is_floating_point or wanted.dtype.is_complex):
        return 0.0 if bool((found == wanted).all()) else float("inf")
    difference = float((found.double() - wanted.double()).abs().max()) / max(1.0, float(wanted.abs().max()))
    return difference if difference == difference else float("inf")


__all__ = ["Assigner", "Control", "Kind", "make_mesh", "random", "run_source", "source_of", "zoo_control"]
