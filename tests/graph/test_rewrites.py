"""States that kernels of the forward pass rewrite where they are, and those that they must not; by hand."""

import pytest

from autopar.graph.fuse import fuse_program
from autopar.graph.kernel import is_kernel, written_states
from autopar.graph.liveness import live_ranges
from autopar.graph.node import Phase
from autopar.graph.sections import phase_sections
from autopar.graph.tensor import Kind
from .drafts import Assigner, make_graph, node, value

SIZE = (4, 4)
STEPS = {
    "share": (node("aten.mul.Tensor", ("k@0",), "share", ("self",), other=0.9), value("share", SIZE)),
    "k@1": (node("aten.add.Tensor", ("share", "w@0"), "k@1", alpha=0.1), value("k@1", SIZE, Kind.BUFFER)),
    "alone": (node("aten.mul.Tensor", ("k@0",), "k@1", ("self",), other=0.9), value("k@1", SIZE, Kind.BUFFER)),
    "turned": (node("aten.permute.default", ("k@0",), "turned", ("self",), dims=(1, 0)), value("turned", SIZE)),
    "share turned": (node("aten.mul.Tensor", ("turned",), "share", ("self",), other=0.9), value("share", SIZE)),
    "before": (node("aten.mm.default", ("x", "k@0"), "before", ("self", "mat2")), value("before", SIZE)),
    "before turned": (node("aten.mm.default", ("x", "turned"), "before", ("self", "mat2")), value("before", SIZE)),
    "after": (node("aten.mm.default", ("x", "k@1"), "after", ("self", "mat2")), value("after", SIZE)),
    "both": (node("aten.mm.default", ("k@0", "k@1"), "both", ("self", "mat2")), value("both", SIZE)),
    "summed": (node("aten.sum.dim_IntList", ("share",), "summed", ("self",), dim=(0,)), value("summed", (4,))),
    "k@1 late": (node("aten.add.Tensor", ("share", "summed"), "k@1"), value("k@1", SIZE, Kind.BUFFER)),
    "back": (node("aten.mm.default", ("x", "k@0"), "back", ("self", "mat2"), phase=Phase.BACKWARD), value("back", SIZE)),
    "back after": (node("aten.mm.default", ("x", "k@1"), "back", ("self", "mat2"), phase=Phase.BACKWARD), value("back", SIZE)),
    "w@1": (node("aten.sub.Tensor", ("w@0", "x"), "w@1", phase=Phase.UPDATE), value("w@1", SIZE, Kind.PARAM)),
    "w@1 of k": (node("aten.sub.Tensor", ("w@0", "k@1"), "w@1", phase=Phase.UPDATE), value("w@1", SIZE, Kind.PARAM)),
}  # fmt: skip


def fused(*names, outputs=()):
    inputs = (value("k@0", SIZE, Kind.BUFFER), value("w@0", SIZE, Kind.PARAM), value("x", SIZE, Kind.BATCH))
    steps = [STEPS[name] for name in names]
    steps += [] if any(name.startswith("w@1") for name in names) else [STEPS["w@1"]]
    assigner = Assigner(make_graph(inputs, steps, updates=(("k@0", "k@1"), ("w@0", "w@1")), outputs=outputs))
    program = assigner.program(assigner.assign())
    return program.graph, fuse_program(program, phase_sections(program.graph)).program.graph


def early(graph):
    return [pair for n in graph.nodes if n.phase is not Phase.UPDATE for pair in written_states(n)]


def left(graph):
    return [n.inputs[0] for n in graph.nodes if n.op == "state.write"]


@pytest.mark.parametrize("rest", [(), ("back after",)], ids=str)
@pytest.mark.parametrize("made", [("share", "k@1"), ("alone",)], ids=str)
def test_a_new_version_goes_where_the_old_one_is(made, rest):
    """One op by itself is a kernel for that, and the backward pass may read the new version."""
    _, graph = fused(*made, "after", *rest, outputs=("after", *("back" for _ in rest)))
    assert early(graph) == [("k@0", "k@1")] and not left(graph)


@pytest.mark.parametrize("names", [("before", "share", "k@1"), ("share", "k@1", "before"), ("turned", "share", "k@1", "before turned")], ids=str)
def test_all_that_read_the_old_version_come_first(names):
    _, graph = fused(*names, "after", outputs=("before", "after"))
    assert early(graph) == [("k@0", "k@1")] and not left(graph)
    place = {out: i for i, n in enumerate(graph.nodes) for out in n.outputs}
    assert place["before"] < place["k@1"] < place["after"]


@pytest.mark.parametrize(
    "names, outputs",
    [
        (("share", "k@1", "both"), ("both",)),  # reads both versions
        (("turned", "share turned", "k@1", "after"), ("after",)),  # each element of another one
        (("share", "k@1", "back"), ("back",)),  # the backward pass reads the old version
        (("share", "k@1"), ("k@1",)),  # who gets it would see the next step's
        (("share", "k@1", "w@1 of k"), ()),
        (("share", "summed", "k@1 late"), ()),  # a sum over all of it first
    ],
    ids=str,
)
def test_what_is_read_otherwise_is_written_by_itself(names, outputs):
    _, graph = fused(*names, outputs=outputs)
    assert not early(graph) and left(graph) == ["k@0"]


def test_the_law_of_memory_holds_a_new_version_while_it_is_made():
    """Not until it is read for the last time: that reads the state."""
    program, graph = fused("share", "k@1", "after", outputs=("after",))
    place = {n.outputs[0] if n.outputs else n.op: i for i, n in enumerate(program.nodes) if n.phase is Phase.FORWARD}
    assert live_ranges(program)["k@1"] == (place["k@1"], place["state.write"]) and place["state.write"] < place["after"]
    assert [n.op for n in graph.nodes if n.phase is Phase.FORWARD and not is_kernel(n.op)] == ["aten.mm.default"]
