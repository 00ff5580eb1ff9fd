"""The comparison of `test_random_plans` can fail: programs with one planted bug each must not give the numbers of the plain step."""

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import AutoparError  # noqa: E402
from autopar.graph.program import check_program  # noqa: E402

from .chain import chain_graph  # noqa: E402
from .random_plans import Assigner, files_of, run_source  # noqa: E402
from .test_random_plans import reference  # noqa: E402

pytestmark = pytest.mark.torch
BLOCKS, WIDTH = 2, 12


def heard_nodes(program):
    """Communication that reaches what the step returns or writes; not that of `ones`, which is the same everywhere."""
    graph = program.graph
    reached = {graph.loss, *graph.outputs, *(new for _, new in graph.updates)}
    for node in reversed(graph.nodes):
        if reached & set(node.outputs):
            reached |= set(node.inputs)
    found = [n for n, o in zip(graph.nodes, program.origins) if n.op.startswith("comm.") and o.value != "ones"]
    return [n for n in found if reached & set(n.outputs)]


def change(program, node, **args):
    """The node with some arguments changed."""
    assert set(args) <= {key for key, _ in node.args}
    other = replace(node, args=tuple((key, args.get(key, value)) for key, value in node.args))
    return replace(program, graph=replace(program.graph, nodes=tuple(other if n is node else n for n in program.graph.nodes)))


def into_loss(program, node):
    """True for what brings the last output to the loss: a sum is the same in any order, so a shuffle is no bug there."""
    return program.origins[program.graph.nodes.index(node)].node == "loss"


def local_shape_of(program, name):
    return next(v.shape for v in program.graph.values if v.name == name)


def wrong_stride(program, node):
    """Another digit of the same dim: shapes stay as they are."""
    args = dict(node.args)
    if node.op not in ("comm.all_gather", "comm.reduce_scatter", "comm.slice"):
        return None
    return change(program, node, stride=args["stride"] // 2) if args["stride"] % 2 == 0 and not into_loss(program, node) else None


def swapped_dim(program, node):
    """The other dim of a square."""
    args = dict(node.args)
    shape = local_shape_of(program, node.inputs[0])
    if node.op != "comm.slice" or len(shape) != 2 or shape[0] != shape[1] or into_loss(program, node):
        return None
    return change(program, node, dim=1 - args["dim"])


def dropped_all_reduce(program, node):
    """Readers take the addend of their own rank for the sum."""
    if node.op != "comm.all_reduce":
        return None
    graph, (old,), (new,) = program.graph, node.outputs, node.inputs

    def bypass(names):
        return tuple(new if n == old else n for n in names)

    kept = [(n, o) for n, o in zip(graph.nodes, program.origins) if n is not node]
    local = replace(
        graph,
        nodes=tuple(replace(n, inputs=bypass(n.inputs)) for n, _ in kept),
        values=tuple(v for v in graph.values if v.name != old),
        updates=tuple((state, bypass((value,))[0]) for state, value in graph.updates),
        loss=bypass((graph.loss,))[0],
        outputs=bypass(graph.outputs),
    )
    return replace(program, graph=local, origins=tuple(o for _, o in kept), shardings=tuple(s for s in program.shardings if s[0] != old))


def lost_keep(program, node):
    """Every rank adds the same: the sum counts it twice."""
    return None if node.op != "comm.keep" else replace(program, graph=replace(program.graph, nodes=tuple(
        replace(n, op="aten.clone.default", args=(("self", n.args[0][1]),)) if n is node else n for n in program.graph.nodes)))  # fmt: skip


def differs(program, graph, states, batch, wanted):
    """True where a run of the program fails or gives other numbers than the plain step."""
    loss, grads, updated = wanted
    try:
        check_program(program)
        results, after = run_source(files_of(graph, program), program, graph, {k: v.clone() for k, v in states.items()}, batch)
    except (AutoparError, RuntimeError, AssertionError):
        return True
    pairs = [(found, loss) for found, _ in results]
    pairs += [pair for _, mine in results for pair in zip(mine, grads)] + [(after[name], value) for name, value in updated.items()]
    return not all(torch.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in pairs)


@pytest.mark.parametrize("bug", [wrong_stride, swapped_dim, dropped_all_reduce, lost_keep], ids=lambda f: f.__name__)
def test_planted_bugs_are_caught(bug):
    graph = chain_graph(BLOCKS, batch=WIDTH, width=WIDTH)
    assigner = Assigner(graph, (2,))
    rng = random.Random(5)
    generator = torch.Generator().manual_seed(1)
    states = {f"h.{i}.w": torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) for i in range(BLOCKS)}
    batch = {"input:0": torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)}
    wanted = reference(states, batch["input:0"], BLOCKS)
    planted = 0
    while planted < 12:
        program = assigner.program(assigner.draw(rng))
        broken = [(n, other) for n in heard_nodes(program) if (other := bug(program, n)) is not None]
        if broken:
            assert not differs(program, graph, states, batch, wanted)
            node, other = rng.choice(broken)
            assert differs(other, graph, states, batch, wanted), f"{bug.__name__} in {node.name}: {node.args} went unnoticed"
            planted += 1
