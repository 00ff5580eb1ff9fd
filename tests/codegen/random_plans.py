"""Random legal assignments, in one stage or in several, and the emitted program of an assignment run on all ranks in one process."""

import random
import sys
import threading
import traceback

from autopar.codegen.emit import ModelFacts, print_files
from autopar.codegen.emit_stages import print_stages
from autopar.graph import random_plans
from autopar.graph.case import build_case, split_case
from autopar.graph.cuts import resolve_all
from autopar.graph.graph import check_graph
from autopar.graph.partition import partition
from autopar.graph.program import check_program
from autopar.graph.random_plans import StagedAssigner, count_stages, draw_pipeline, plain_mesh
from autopar.graph.recompute import recomputed_names
from autopar.graph.rules import RULES
from autopar.graph.schedules.known import build_schedule, splits_backward
from autopar.graph.stage_programs import build_stage_programs
from autopar.graph.stages import COPY
from autopar.graph.tensor import STATE_KINDS, Kind

SMALL = 1e-10  # a difference up to here is a rounding
ROUNDINGS = 1000.0  # a plan adds up in another order: so many roundings are no mistake
TIMEOUT_S = 60.0  # of a step of tiny stages


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


def files_of(graph, program, local="kernels"):
    return print_files(program, graph, graph.name, "test", "", ModelFacts(), local=local)


def run_source(files, program, graph, states, batch):
    """Run an emitted program on all ranks in one process.

    Returns:
        (the loss, and whole gradients where the program returns them, of each rank; the whole states afterwards).
    Raises:
        AssertionError: ranks that must hold the same piece of a state do not.
    """
    import torch

    from autopar.graph.sharding import parse_sharding
    from autopar.runtime import compile_program, read_program, run_ranks
    from autopar.runtime.shards import cut, inside, join

    spec = read_program(compile_program(files))
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
    elif not graph.outputs:
        results = [(loss, []) for loss in results]
    after = {n: join([piece[n] for piece in local], s.shape, parse_sharding(s.sharding), spec.mesh) for n, s in spec.states.items()}
    for n, s in spec.states.items():  # `join` takes the first of equal pieces: the others must be equal indeed
        for r in ranks:
            place = s.shape, parse_sharding(s.sharding), spec.mesh, r
            wanted, found = inside(cut(after[n], *place[1:]), *place), inside(local[r][n], *place)  # padding may hold anything
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9, msg=lambda text: f"rank {r} holds another {n}: {text}")
    return results, after


class Hung(AssertionError):
    """Ranks of one process wait for ever."""


def run_within(mesh, rank_main, timeout_s=TIMEOUT_S):
    """As `run_ranks`.

    Raises:
        Hung: it is not over in time; the ranks stay where they are (as daemons, which do not keep the process), and the text says where.
    """
    from autopar.runtime import run_ranks

    found = []

    def main():
        try:
            found.append((run_ranks(mesh, rank_main), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=main, daemon=True)  # its ranks are daemons, too
    thread.start()
    thread.join(timeout_s)
    if not found:
        frames = sys._current_frames()
        ranks = [t for t in threading.enumerate() if t.name.startswith("rank ") and t.ident in frames]
        raise Hung("\n".join(f"{t.name}:\n{''.join(traceback.format_stack(frames[t.ident])[-6:])}" for t in ranks))
    results, error = found[0]
    if error is not None:
        raise error
    return results


class StagedPlan:
    """A random plan in stages of a step, from a seed.

    Args:
        turned: the case of the step in its turns.
        seed: decides the schedule, the cuts, the mesh of a stage, what is recomputed (in half of the plans), every strategy and storage; in a
            quarter equal blocks decide alike, and half of these are cut between units, as the solver cuts. Half return all gradients.
        pipeline: takes the place of the one drawn.
    """

    def __init__(self, turned, seed, meshes=((), (2,)), pipeline=None):
        rng = random.Random(seed)
        alike, between_units, again = rng.random() < 0.25, rng.random() < 0.5, rng.random() < 0.5
        drawn = (draw_pipeline(turned.graph, rng, True) if alike and between_units else None) or draw_pipeline(turned.graph, rng)
        self.pipeline = pipeline or drawn
        self.num_stages, self.mesh = count_stages(self.pipeline), plain_mesh(rng.choice(meshes))
        assigner = StagedAssigner(turned, self.pipeline, self.mesh, rng if again else None, turned.fold if alike else None)
        self.assignment = assigner.draw(rng)
        self.keeps_grads = rng.random() < 0.5
        self.schedule = build_schedule(self.pipeline.kind, self.num_stages, self.assignment.microbatches, self.pipeline.chunks)

    def __str__(self):
        told = f"{self.num_stages} stages of {self.pipeline.chunks}, {self.pipeline.kind}, {self.assignment.microbatches} microbatches"
        sizes = "x".join(str(axis.size) for axis in self.mesh.axes) or "1"
        return f"{told}, {sizes} ranks each, {len(self.assignment.again)} nodes again, from {', '.join(self.pipeline.starts)}"


def draw_staged(turns, seed):
    """The `StagedPlan` of a seed in one of these numbers of microbatches; None where nothing is there to cut.

    Args:
        turns: the cases of the step in its turns.
    """
    for turned in (turns[seed % len(turns)], turns[0]):  # turns may leave nothing for the loop where all waits for all samples
        if draw_pipeline(turned.graph, random.Random(0)) is not None:
            return StagedPlan(turned, seed)
    return None


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
        return self._worst(self._pairs(program, graph or self.graph))

    def worst_staged(self, stages, files, timeout_s=TIMEOUT_S):
        """As `worst`, of a plan in stages as `staged` emits it; of states, what every rank holds.

        Raises:
            Hung: the ranks wait for each other for ever.
        """
        return self._worst(self._staged_pairs(stages, files, timeout_s))

    def staged(self, plan, case):
        """(programs of the stages, the files that are emitted). `case`: of the traced graph."""
        splits = splits_backward(plan.pipeline.kind)
        stages = build_stage_programs(case, plan.assignment, plan.pipeline.starts, plan.schedule.rank_of, splits, plan.keeps_grads)
        for stage in stages:
            check_program(stage.program)
        return stages, print_stages(stages, self.graph, plan.schedule, self.graph.name, "test", "", ModelFacts())

    def _worst(self, pairs):
        """Of (whose, found, wanted, of which value of the traced graph)."""
        rows = [(relative_difference(found, wanted), whose, value) for whose, found, wanted, value in pairs]
        if max(rows)[0] > SMALL:  # rare, so that what is moved is worked out once it matters
            rows = [row for row in rows if not row[0] <= ROUNDINGS * self._noise(row[2])]
        return max(((difference, whose) for difference, whose, _ in rows), default=(0.0, "nothing"))

    def _noise(self, name):
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
        return relative_difference(self._moved[name], self.expected[name])

    def _pairs(self, program, graph):
        states = {k: v.clone() for k, v in self.states.items()}
        results, after = run_source(files_of(graph, program), program, self.graph, states, self.batch)
        rows = [(f"loss of rank {r}", loss, self.graph.loss) for r, (loss, _) in enumerate(results)]
        grads = self.graph.grads if len(program.graph.outputs) > len(self.graph.outputs) else ()
        rows += [(f"gradient of {p}", g, wanted) for g, (p, wanted) in zip(results[0][1], grads, strict=True)]
        rows += [(old, after[self.storage[old]], new) for old, new in self.graph.updates]
        return [(whose, found, self.expected[value], value) for whose, found, value in rows]

    def _staged_pairs(self, stages, files, timeout_s):
        from autopar.graph.mesh import num_ranks
        from autopar.graph.sharding import parse_sharding
        from autopar.runtime.shards import cut, inside

        mesh, (spec, results, local) = stages[0].program.mesh, run_stages(files, self.states, self.batch, timeout_s)
        size, wanted_of, found = num_ranks(mesh), dict(self.graph.grads), set()
        rows = [(f"loss of rank {r}", loss, self.expected[self.graph.loss], self.graph.loss) for r, (loss, _) in enumerate(results)]
        for k, stage in enumerate(stages if any(stage.program.graph.outputs for stage in stages) else ()):
            place, shapes = {mine: (whole, s) for mine, whole, s in stage.program.shardings}, dict(stage.program.whole)
            for j, (p, name) in enumerate(zip((p.partition(COPY)[0] for p, _ in stage.graph.grads), stage.program.graph.outputs, strict=True)):
                assert p not in found and shapes[place[name][0]] == tuple(self.expected[wanted_of[p]].shape), p
                found.add(p)
                for r in range(size):
                    wanted = cut(self.expected[wanted_of[p]], place[name][1], mesh, r)
                    rows.append((f"gradient of {p} on rank {k * size + r}", results[k * size + r][1][j], wanted, wanted_of[p]))
        assert found in (set(), set(wanted_of)), f"no stage returns the gradient of {set(wanted_of) - found}"
        last = dict(self.graph.updates)
        for old, storage in self.storage.items():
            for r, (held, pieces) in enumerate(local):
                if storage in held:
                    value = last.get(old, old)
                    place = self.expected[value].shape, parse_sharding(held[storage].sharding), spec.mesh, r
                    wanted, mine = inside(cut(self.expected[value], *place[1:]), *place), inside(pieces[storage], *place)  # padding may hold anything
                    rows.append((f"{storage} on rank {r}", mine, wanted, value))
        return rows


def run_stages(files, states, batch, timeout_s=TIMEOUT_S):
    """Run an emitted program in stages on all ranks in one process.

    Returns:
        (the program, (loss, pieces of gradients) of each rank, (held states, their pieces afterwards) of each rank).
    Raises:
        Hung: the ranks wait for each other for ever.
        AssertionError: a state is on no rank.
    """
    from autopar.graph.mesh import num_ranks
    from autopar.graph.sharding import parse_sharding
    from autopar.runtime import compile_program, here, open_stages, read_program
    from autopar.runtime.shards import cut

    spec = read_program(compile_program(files))
    local, parts = [], []
    for r in range(num_ranks(spec.mesh)):
        mine = here(spec, r)
        held = {n: s for n, s in mine.states.items() if mine.holds(n)}
        local.append((held, {n: cut(states[n].clone(), parse_sharding(s.sharding), spec.mesh, r) for n, s in held.items()}))
        parts.append({n: cut(batch[n], parse_sharding(b.sharding), spec.mesh, r) for n, b in mine.batch.items()})
    missing = set(states).difference(*(held for held, _ in local))
    assert not missing, f"{missing} are on no rank"

    def one(comm):
        open_stages(comm, spec)
        result = spec.step(comm, local[comm.rank][1], parts[comm.rank])
        loss, grads = result if isinstance(result, tuple) else (result, ())
        return loss.clone(), grads

    return spec, run_within(spec.mesh, one, timeout_s), local


def relative_difference(found, wanted):
    """Largest difference over the larger of 1 and the largest magnitude; infinity where it is not a number, or whole numbers differ."""
    if not wanted.numel():
        return 0.0
    if not (wanted.dtype.is_floating_point or wanted.dtype.is_complex):
        return 0.0 if bool((found == wanted).all()) else float("inf")
    difference = float((found.double() - wanted.double()).abs().max()) / max(1.0, float(wanted.abs().max()))
    return difference if difference == difference else float("inf")


__all__ = ["Assigner", "Control", "Hung", "Kind", "StagedPlan", "draw_staged", "make_mesh", "random", "run_source", "run_stages", "run_within", "files_of", "zoo_control"]
