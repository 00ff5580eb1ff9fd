"""Emit: a program becomes a folder of Python that a person can read, own and edit.

In: a program, its plan, the initial values' recipes. Out: the texts of `program.py` (one file for all ranks: mesh, states, batch, functions
per block and phase, `step`), `train.py` (torchrun entry) and `plan.json`. Invariant: the text holds all there is; it imports torch and
`autopar.runtime` only, and its length does not grow with the number of equal blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ..graph.fuse import Fused, fuse_program
from ..graph.graph import Graph, entering_values
from ..graph.in_place import add_in_place
from ..graph.kernel import Kernel
from ..graph.mesh import Mesh, num_ranks, print_mesh
from ..graph.node import Phase
from ..graph.overlap_memory import overlap_within
from ..graph.plan import Plan
from ..graph.program import Program
from ..graph.recompute import AGAIN
from ..graph.repeats import name_pattern
from ..graph.sections import phase_sections
from ..graph.sharding import Sharding, is_uneven
from ..graph.stage_programs import plan_mesh
from ..graph.stages import COPY
from ..graph.tensor import STATE_KINDS, Kind
from ..graph.turns import count_microbatches
from ..options import opens_buckets
from .body import Body, print_bodies
from .expression import print_literal
from .folded import fold_names
from .imports import print_used
from .kernels.emit_kernels import FILE as KERNELS_FILE
from .kernels.emit_kernels import print_kernels

_HEADER = '''"""{name}: one training step on {cluster}, mesh {mesh}.

{summary}

Made by autopar from a plan (plan.json beside this file, `autopar show plan.json`). It is yours: read it, edit it, own it.
Every rank runs this file; `comm` knows the rank's place on the mesh. `state` holds this rank's pieces of parameters, buffers and
optimizer states by name, `batch` its piece of the batch. A sharding has one placement per mesh axis: R replicated, P partial (a sum
that is still owed), S1/64 the digit of dim 1 at stride 64.{padding}
"""

import torch

{imports}

aten = torch.ops.aten
'''


_REPLAYED = '''# On a GPU the step is captured as a CUDA graph after a few steps and then replayed; elsewhere it runs as it is written.
step = Replayed(step)
'''


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the program must know of the model beside its graph.

    Args:
        inits: state storage -> how its first value is made (`runtime.initial`); absent: it must be given.
        aliases: tied name -> the storage it shares.
        transient: buffers that the model keeps out of its `state_dict`.
        output: forward-only: the model's output as tuples and dicts, with the number of each output tensor in its place.
        homes: op of the user's own -> where it is registered (`runtime.load_ops`).
    """

    inits: Mapping[str, tuple] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    transient: frozenset[str] = frozenset()
    output: object = None
    homes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def emit_files(
    program: Program, graph: Graph, plan: Plan, facts: ModelFacts, plan_text: str, local: str = "kernels", cuda_graph: bool = False
) -> dict[str, str]:
    """The files of a program: name -> text.

    Args:
        program: what every rank executes.
        graph: the whole graph it came from.
        facts: of the model.
        plan_text: the text of `plan.json`.
        local, cuda_graph: as of `Options`.
    """
    files = print_files(program, graph, plan.model.name, plan.cluster.spec, plan.summary, facts, plan_notes(plan), local, find_room(plan)[0], cuda_graph)
    return {**files, "train.py": print_train(plan), "plan.json": plan_text}


def explain_padding(program: Program) -> str:
    """What the header says of chunks that do not divide; "" where there are none."""
    return " S1/64-2: the same, and the\nlast 2 elements of all chunks are padding." if any(is_uneven(sharding) for _, _, sharding in program.shardings) else ""


def find_room(plan: Plan) -> list[int]:
    """Of each stage, by how many bytes its program may hold more than was predicted."""
    return [plan.cluster.memory_bytes - peak for peak in plan.cost.peak_bytes]


def print_files(
    program: Program,
    graph: Graph,
    name: str,
    cluster: str,
    summary: str,
    facts: ModelFacts,
    notes: Mapping[str, str] = MappingProxyType({}),
    local: str = "kernels",
    room_bytes: int | None = None,
    cuda_graph: bool = False,
) -> dict[str, str]:
    """`program.py` and its `kernels.py` from their parts, for callers that have no plan (verification of any assignment).

    Args:
        local, cuda_graph: as of `Options`.
        room_bytes: that collectives which are started ahead may hold (`overlap_within`).
    """
    program, sections = add_in_place(*overlap_within(program, phase_sections(program.graph), room_bytes, opens_buckets(local)))
    fused = Fused(program, sections, ()) if local == "ops" else fuse_program(program, sections, segments=local == "inductor")
    program = fused.program
    body = print_bodies(program, graph.grads, notes, fused.sections, count_microbatches(program.graph) > 1, fused.kernels)
    parts = [*print_homes(facts), _print_tables(program, facts), *("\n" + f for f in body.functions), "\n" + _print_step(program, body)]
    parts += ["\n" + _REPLAYED] if cuda_graph else []
    header = _HEADER.format(
        name=name, cluster=cluster, mesh=print_mesh(program.mesh), summary=wrap(summary), imports=print_imports("\n".join(parts)), padding=explain_padding(program)
    )
    text = "\n".join(part.rstrip() + "\n" for part in [header, *parts])
    return {"program.py": text, **kernel_files(fused.kernels, local)}


def kernel_files(kernels: Sequence[Kernel], local: str) -> dict[str, str]:
    """The file of the kernels, where there are any; `local` as of `Options`."""
    return {KERNELS_FILE: print_kernels(kernels, local == "inductor")} if kernels else {}


def print_imports(text: str) -> str:
    """What a file of the program imports beside torch, by the text below."""
    return "\n".join(print_used(text, {"autopar.runtime": ("Batch", "Replayed", "State", "expand_names", "expand_states", "load_ops", "ops"), "kernels": ()}))


def plan_notes(plan: Plan) -> dict[str, str]:
    """Node -> what each mesh axis does there, the sharding of its output, and why; of one rank, which has nothing to choose, what is run again."""
    axes = [axis.name for axis in plan.assignment.mesh.axes]
    sharding = {t.name: t.sharding for t in plan.tensors}
    first = {node.name for node in plan.nodes if node.phase is Phase.FORWARD}
    copies = {name + AGAIN for name in first} & {node.name for node in plan.nodes if node.phase is Phase.BACKWARD}
    if not axes:
        return dict.fromkeys(copies, "run again")
    notes = {}
    for node in plan.nodes:
        if all(choice == "R" for choice in node.choices):
            chosen = "every rank alike"
        else:
            chosen = ", ".join(f"{axis} {'splits ' if choice[:2] != 'P(' else ''}{choice}" for axis, choice in zip(axes, node.choices) if choice != "R")
        made = next((str(sharding[o]) for o in node.outputs if o), "")
        notes[node.name] = f"{'run again; ' if node.name in copies else ''}{chosen} -> {made}; {node.reason}"
    return notes


def print_homes(facts: ModelFacts) -> list[str]:
    """The lines that load the user's own ops, where there are any."""
    if not facts.homes:
        return []
    rows = [f'    "{op}": {places!r},' for op, places in facts.homes.items()]
    note = "# the user's own ops: the files or modules that register them, looked for in this order"
    return ["\n".join([note, "OPS = {", *rows, "}", "load_ops(OPS, __file__)", ""])]


def wrap(text: str, width: int = 120) -> str:
    import textwrap

    return "\n".join(textwrap.fill(line, width) for line in text.splitlines()) or "No summary."


def _print_tables(program: Program, facts: ModelFacts) -> str:
    lines = [f"MESH = {mesh_text(program.mesh)}", "", *print_states(program, facts), "", *print_batch(program), "", print_aliases(facts), ""]
    if not program.graph.loss:
        lines += [f"OUTPUT = {facts.output!r}  # the model's output, with the number of each tensor that `step` returns", ""]
    return "\n".join(lines)


def mesh_text(mesh: Mesh) -> str:
    """The `MESH` constant."""
    return repr(tuple((a.name, a.size) for a in mesh.axes))


def print_states(program: Program, facts: ModelFacts) -> list[str]:
    """The lines of the `STATES` constant."""
    storage: dict[str, Sharding] = {name: sharding for name, _, sharding in program.shardings}
    whole = dict(program.whole)
    rows: dict[tuple, list[str]] = {}
    for value in entering_values(program.graph):
        if value.kind in STATE_KINDS:
            init = facts.inits.get(value.storage, ("given",))
            key = (value.kind.value, whole[value.name], value.dtype, str(storage[value.name]), _strip_numbers(init), name_pattern(value.storage, program.graph.sequences)[0], value.storage in facts.transient)
            rows.setdefault(key, []).append(value.storage)
    lines = ["STATES = expand_states({"]
    for (kind, shape, dtype, sharding, init, _, _), names in rows.items():
        for folded in fold_names(names, program.graph.sequences):
            shown = ("copy", folded.partition(":")[2]) if init[:1] == ("copy",) else init
            kept = ", persistent=False" if names[0] in facts.transient else ""
            lines.append(f'    "{folded}": State("{kind}", {shape!r}, "{dtype}", "{sharding}", {print_literal(shown)}{kept}),')
    return [*lines, "})"]


def print_batch(program: Program) -> list[str]:
    """The lines of the `BATCH` constant."""
    storage, whole = {name: sharding for name, _, sharding in program.shardings}, dict(program.whole)
    rows = [v for v in entering_values(program.graph) if v.kind not in STATE_KINDS]
    return ["BATCH = {", *(f'    "{v.name.partition(COPY)[0]}": Batch({whole[v.name]!r}, "{v.dtype}", "{storage[v.name]}"),' for v in rows), "}"]


def print_aliases(facts: ModelFacts) -> str:
    """The `ALIASES` constant."""
    return f"ALIASES = {({alias: target for alias, target in facts.aliases.items() if alias != target})!r}"


def _strip_numbers(init: tuple) -> tuple:
    return ("copy",) if init[:1] == ("copy",) else init


def _print_step(program: Program, body: Body) -> str:
    graph = program.graph
    lines = ["def step(comm, state, batch):"]
    lines.append('    """One step on this rank: rewrites `state` in place, returns the loss (the outputs, where there is no loss)."""')
    phases = {n.phase for n in graph.nodes}
    count = count_microbatches(graph)
    if count > 1:
        lines += _print_turns(phases, body, count)
    else:
        lines.append("    kept, grads = {}, {}")
        lines += [f"    {name} = [{{}} for _ in range({number})]  # {what_blocks_keep(family)}" for name, family, number in body.containers]
        boxes = "".join(f", {name}" for name, _, _ in body.containers)
        lines += [f"    {p.value}(comm, state, batch, grads, kept{boxes})" for p in (Phase.FORWARD, Phase.BACKWARD) if p in phases]
    if Phase.UPDATE in phases:
        lines.append(f"    update({body.update_boxes})")
    outputs = [leaving_text(program, body, name) for name in graph.outputs]
    loss = leaving_text(program, body, graph.loss) if graph.loss else ""
    whole = f"({', '.join(outputs)},)" if outputs else ""
    lines.append(f"    return {', '.join(part for part in (loss, whole) if part) or 'None'}")
    return "\n".join(lines)


def what_blocks_keep(family: str) -> str:
    """The comment beside a family's boxes."""
    return f"what each block of {family or 'the model'} keeps between its functions"


@dataclass(frozen=True, slots=True)
class TurnBoxes:
    """The boxes through which the sections of one turn pass on what they leave, as text.

    Args:
        prepare: lines before the turns, which fill what each of them begins with.
        kept: what `kept` begins as.
        blocks: (name, family, what it begins as) of each list of boxes.
        ready: names of the boxes that `prepare` has filled.
    """

    prepare: tuple[str, ...]
    kept: str
    blocks: tuple[tuple[str, str, str], ...]
    ready: tuple[str, ...]


def turn_boxes(phases: set[Phase], body: Body) -> TurnBoxes:
    """The boxes of a step in turns: each begins with copies of what `prepare` has filled."""
    prepares = Phase.PREPARE in phases
    lines, ready, blocks = ["    ready = {}"] if prepares else [], ["ready"] if prepares else [], []
    for name, family, number in body.containers:
        new = f"[{{}} for _ in range({number})]"
        if name in body.prepared:
            ready.append(f"ready_{name}")
            lines.append(f"    ready_{name} = {new}")
            new = f"[dict(box) for box in ready_{name}]"
        blocks.append((name, family, new))
    lines += [f"    prepare(comm, state, batch, grads, {', '.join(ready)})"] if prepares else []
    return TurnBoxes(tuple(lines), "dict(ready)" if prepares else "{}", tuple(blocks), tuple(ready))


def _print_turns(phases: set[Phase], body: Body, count: int) -> list[str]:
    """The lines that prepare, and take the batch in turns."""
    boxes = turn_boxes(phases, body)
    lines = ["    grads = {}  # sums over the turns", *boxes.prepare, f"    for turn in range({count}):", f"        kept = {boxes.kept}"]
    lines += [f"        {name} = {new}  # {what_blocks_keep(family)}" for name, family, new in boxes.blocks]
    names = "".join(f", {name}" for name, _, _ in boxes.blocks)
    lines += [f"        {p.value}(comm, state, batch, grads, kept, turn{names})" for p in (Phase.FORWARD, Phase.BACKWARD) if p in phases]
    return [*lines, f"    del {', '.join(['kept', *(name for name, _, _ in boxes.blocks), *boxes.ready])}"]


def leaving_text(program: Program, body: Body, name: str) -> str:
    """The text that reads what leaves the step."""
    return body.leaving.get(name, f"kept[{name!r}]")


def print_train(plan: Plan) -> str:
    """The text of `train.py`."""
    ranks = num_ranks(plan_mesh(plan))
    verb = "Train" if any(node.phase is Phase.BACKWARD for node in plan.nodes) else "Run"
    return f'''"""{verb} {plan.model.name} with the program beside this file: torchrun --nproc-per-node {ranks} train.py --steps 10

Edit `batches` to feed your data: it yields, on every rank alike, the WHOLE batch as a tuple of tensors in the order, shapes and dtypes of
program.BATCH; each rank takes its own piece.
"""

import argparse
from pathlib import Path

import program
import torch

from autopar.runtime import run_training


def batches(seed):
    """Random data of the right shapes: replace it by yours."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield tuple(sample(entry, generator) for entry in program.BATCH.values())


def sample(entry, generator):
    dtype = getattr(torch, entry.dtype)
    if dtype.is_floating_point:
        return torch.randn(entry.shape, generator=generator).to(dtype)
    return torch.randint(0, {_smallest_vocabulary(plan)}, entry.shape, generator=generator).to(dtype)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of first values and of the random data")
    parser.add_argument("--checkpoint", default=None, help="folder to go on from, if it is there, and to save to at the end")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which a rank that does not answer counts as gone")
    parser.add_argument("--record", default=None, help="file for what the steps took and held (`autopar simulate plan.json --against` it)")
    parser.add_argument("--profile", default=None, help="file for a trace of one step with the names of this program, for Perfetto; other ranks write beside it")
    args = parser.parse_args()
    saved = Path(__file__).parent / "weights.pt"
    weights = torch.load(saved, mmap=True, weights_only=True) if saved.exists() else None
    run_training(program, batches(args.seed), args.steps, args.seed, args.checkpoint, weights, args.timeout, record=args.record, profile=args.profile)
'''


def _smallest_vocabulary(plan: Plan) -> int:
    """A number that every integer input may hold: the smallest first dim of the tables that are looked up, else 2."""
    tables = {n.inputs[0] for n in plan.nodes if n.op == "autopar.embedding"}
    classes = [t.shape[0] for t in plan.tensors if t.name in tables]
    losses = {n.inputs[0]: -1 if n.op == "autopar.pick" else 1 for n in plan.nodes if n.op in ("autopar.pick", "aten.nll_loss_forward.default")}
    classes += [t.shape[losses[t.name]] for t in plan.tensors if t.name in losses and len(t.shape) > 1 and t.kind is not Kind.BATCH]
    return min(classes, default=2)
