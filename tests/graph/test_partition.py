"""Partition: where communication is put, where states are written, and what is refused. The chain: y = relu(x w), loss = sum(y)."""

from dataclasses import replace

import pytest
from codegen.chain import chain_graph

from autopar.errors import PlanError
from autopar.graph.node import Phase
from autopar.graph.tensor import Kind

from .drafts import Assigner, make_graph, node, value

DATA = {"mm_0": "m", "relu_0": ".1", "loss": "d0", "ones": "d0", "dy_0": ".1", "xt_0": "d0", "dw_0": "k", "dx_0": "m"}  # batch split
SHARDED_UPDATE = {"step_0": ".1", "h.0.w@1": ".1"}


def lines(program):
    """What the program does: comm nodes as `kind value sharding (phase)`, all else by name."""
    sharding = {name: str(s) for name, _, s in program.shardings}
    shown = []
    for n, origin in zip(program.graph.nodes, program.origins):
        if n.op.startswith("comm."):
            shown.append(f"{n.op[5:]} {origin.value} -> {sharding[n.outputs[0]]} ({n.phase.value})")
        else:
            shown.append(f"write {n.inputs[1]}" if n.op == "state.write" else n.name)
    return shown


def program_of(storages=None, choices=None, sizes=(2,), graph=None, **options):
    assigner = Assigner(graph or chain_graph(1), *sizes)
    return assigner.program(assigner.assign(storages, choices), **options)


def test_nothing_is_added_on_one_rank():
    graph = chain_graph(2)
    program = program_of(sizes=(), graph=graph)
    kept = [n for n in program.graph.nodes if n.op != "state.write"]
    assert tuple(kept) == graph.nodes and program.graph.values == graph.values and program.graph.updates == graph.updates


def test_replicated_needs_no_communication():
    program = program_of()
    assert not [n for n in program.graph.nodes if n.op.startswith("comm.")]
    assert program.graph.values[0].shape == (12, 12)


def test_data_parallel():
    assert lines(program_of({"input:0": "S0/4"}, DATA)) == [
        "mm_0", "relu_0", "loss", "all_reduce loss -> R (forward)",
        "ones", "dy_0", "xt_0", "dw_0", "all_reduce dw_0 -> R (backward)", "wt_0", "dx_0",
        "step_0", "h.0.w@1", "write h.0.w@1",
    ]  # fmt: skip


def test_zero_1_shards_the_update():
    """Stored whole: the gradient is scattered as soon as it is made, the new parameter gathered after the update."""
    assert lines(program_of({"input:0": "S0/4"}, DATA | SHARDED_UPDATE)) == [
        "mm_0", "relu_0", "loss", "all_reduce loss -> R (forward)",
        "ones", "dy_0", "xt_0", "dw_0", "reduce_scatter dw_0 -> S0/6 (backward)", "wt_0", "dx_0",
        "step_0", "slice h.0.w@0 -> S0/6 (update)", "h.0.w@1", "all_gather h.0.w@1 -> R (update)", "write h.0.w@1~1",
    ]  # fmt: skip


def test_zero_3_gathers_in_forward_and_again_in_backward():
    program = program_of({"input:0": "S0/4", "h.0.w@0": "S0/6"}, DATA | SHARDED_UPDATE)
    assert lines(program) == [
        "all_gather h.0.w@0 -> R (forward)", "mm_0", "relu_0", "loss", "all_reduce loss -> R (forward)",
        "ones", "dy_0", "xt_0", "dw_0", "reduce_scatter dw_0 -> S0/6 (backward)",
        "all_gather h.0.w@0 -> R (backward)", "wt_0", "dx_0",
        "step_0", "h.0.w@1", "write h.0.w@1",
    ]  # fmt: skip
    assert program.graph.values[0].shape == (6, 12)
    gathered = [n.outputs[0] for n in program.graph.nodes if n.op == "comm.all_gather"]
    readers = [[n.name for n in program.graph.nodes if name in n.inputs] for name in gathered]
    assert readers == [["mm_0"], ["wt_0"]]


def test_readers_of_one_phase_share_a_reshard():
    inputs = (value("x", (4,), Kind.BATCH),)
    steps = [(node("aten.relu.default", ("x",), name), value(name, (4,))) for name in "abc"]
    graph = make_graph(inputs, steps, outputs=("a", "b", "c"))
    program = program_of({"x": "S0/2"}, graph=graph)
    assert lines(program) == ["all_gather x -> R (forward)", "a", "b", "c"]
    assert program.origins[0].node == "a" and program.origins[0].reason == "S0/2 -> R for a" and program.origins[1].reason == "R"


def test_gradients_are_kept_reduced_where_asked():
    program = program_of({"input:0": "S0/4"}, DATA | SHARDED_UPDATE, keep_grads=True)
    assert [x for x in lines(program) if " dw_0 " in x] == ["reduce_scatter dw_0 -> S0/6 (backward)", "all_reduce dw_0 -> R (backward)"]
    assert program.graph.outputs == ("dw_0~2",)


def test_the_loss_and_outputs_leave_whole():
    graph = make_graph((value("x", (4,), Kind.BATCH),), [(node("aten.relu.default", ("x",), "y"), value("y", (4,)))], outputs=("y", "x"))
    program = program_of({"x": "S0/2"}, {"y": ".0"}, graph=graph)
    assert lines(program) == ["y", "all_gather y -> R (forward)", "all_gather x -> R (forward)"]
    assert program.graph.outputs == ("y~1", "x~1")


def buffers(order):
    """A buffer that is rewritten in the forward; `order` says whether it is read before or after its new version is made."""
    inputs = (value("count@0", (4,), Kind.BUFFER), value("x", (4,), Kind.BATCH))
    new = (node("aten.add.Tensor", ("count@0", "x"), "count@1"), value("count@1", (4,), Kind.BUFFER))
    old = [(node("aten.alias.default", ("count@0",), "seen"), value("seen", (4,))), (node("aten.mul.Tensor", ("seen", "x"), "y"), value("y", (4,)))]
    return make_graph(inputs, [new, *old] if order == "late" else [*old, new], updates=(("count@0", "count@1"),), outputs=("y",))


def test_a_state_is_written_after_the_last_reader_of_the_old_version():
    """Readers of a view of it count too."""
    assert lines(program_of(graph=buffers("early"))) == ["seen", "y", "count@1", "write count@1"]
    assert lines(program_of(graph=buffers("late"))) == ["count@1", "seen", "y", "write count@1"]
    sharded = program_of({"count@0": "S0/2"}, graph=buffers("late"))
    assert lines(sharded)[-1] == "write count@1~1" and sharded.graph.updates == (("count@0", "count@1~1"),)


def test_an_unchanged_state_is_not_written():
    graph = replace(buffers("early"), updates=(("count@0", "count@0"),), nodes=buffers("early").nodes[:2], values=buffers("early").values[:4])
    assert lines(program_of({"count@0": "S0/2"}, {"seen": "R"}, graph=graph)) == ["all_gather count@0 -> R (forward)", "seen", "y"]


def test_local_values_have_local_shapes_and_attributes():
    inputs = (value("x", (8, 6), Kind.BATCH),)
    graph = make_graph(inputs, [(node("aten.view.default", ("x",), "y", size=(8, 2, 3)), value("y", (8, 2, 3)))])
    program = program_of({"x": "S0/4,S1/3"}, {"y": "v0;v1"}, sizes=(2, 2), graph=graph)
    (made,) = program.graph.nodes
    assert dict(made.args)["size"] == (4, 1, 3) and program.graph.values[1].shape == (4, 1, 3)
    assert program.shardings[1][1:] == ("y", program.shardings[1][2]) and str(program.shardings[1][2]) == "S0/4,S1/1"
    assert program.whole == (("x", (8, 6)), ("y", (8, 2, 3)))


def test_steps_of_a_reshard_are_named_after_the_value():
    program = program_of({"input:0": "S0/4,S1/6"}, sizes=(2, 2))
    first = program.graph.nodes[:2]
    assert [n.name for n in first] == ["all_gather:input:0~1", "all_gather:input:0~2"]
    assert first[1].inputs == ("input:0~1",) and {n.phase for n in first} == {Phase.FORWARD}
    assert {s for _, w, s in program.shardings if w == "input:0"} > {program.shardings[1][2]}


@pytest.mark.parametrize(
    ("storages", "choices", "message"),
    [
        ({"h.0.w@0": "S0/5"}, {}, "chain: storage S0/5 of h.0.w@0 [12, 12] is not legal: dim 0 of size 12 is not a multiple of 5 x 2"),
        ({"h.0.w@0": "R,R"}, {}, "chain: storage R,R of h.0.w@0 [12, 12] is not legal: 2 placements for 1 mesh axes"),
        ({}, {"mm_0": "z"}, "chain: mm_0 (aten.mm.default): strategy z is not legal: unknown factor 'z'"),
        ({}, {"mm_0": "m@x"}, "chain: mm_0 (aten.mm.default): strategy m@x is not legal: unknown factor invalid literal for int() with base 10: 'x'"),
        ({}, {"mm_0": "m;n"}, "chain: mm_0 (aten.mm.default): strategy m n is not legal: 2 choices for 1 mesh axes"),
        ({}, {"mm_0": "P(self)"}, "chain: mm_0 (aten.mm.default): strategy P(self) is not legal: aten.mm is not linear in self here"),
        ({}, {"relu_0": "P(self)"}, "chain: relu_0 (aten.relu.default): strategy P(self) is not legal: aten.relu is not linear in self here"),
    ],
)  # fmt: skip
def test_illegal_plans(storages, choices, message):
    with pytest.raises(PlanError) as error:
        program_of(storages, choices)
    assert str(error.value) == message


def test_incomplete_plans():
    assigner = Assigner(chain_graph(1), 2)
    whole = assigner.assign()
    with pytest.raises(PlanError) as error:
        assigner.program(replace(whole, strategies=whole.strategies[1:]))
    assert str(error.value) == "chain: the plan has no strategy for mm_0 (aten.mm.default)"
    with pytest.raises(PlanError) as error:
        assigner.program(replace(whole, storages=whole.storages[1:]))
    assert str(error.value) == "chain: the plan has no storage sharding for h.0.w@0"


def test_plans_that_name_what_is_not_there():
    assigner = Assigner(chain_graph(1), 2)
    whole = assigner.assign()
    with pytest.raises(PlanError) as error:
        assigner.program(replace(whole, strategies=(*whole.strategies, ("mm_9", ("R",)))))
    assert str(error.value) == "chain: the plan has a strategy for mm_9, which is no node of the graph"
    with pytest.raises(PlanError) as error:
        assigner.program(replace(whole, storages=(*whole.storages, ("h.9.w@0", whole.storages[0][1]))))
    assert str(error.value) == "chain: the plan has a storage sharding for h.9.w@0, which does not enter the graph"


def test_a_stored_partial_is_refused():
    with pytest.raises(PlanError) as error:
        program_of({"h.0.w@0": "P"})
    assert str(error.value) == "chain: storage P of h.0.w@0 [12, 12] is not legal: a stored tensor cannot be partial"


def test_views_of_what_is_rewritten_are_refused():
    inputs = (value("a@0", (4,), Kind.BUFFER), value("b@0", (4,), Kind.BUFFER))
    view = (node("aten.alias.default", ("b@0",), "a@1"), value("a@1", (4,), Kind.BUFFER))
    with pytest.raises(PlanError) as error:
        program_of(graph=make_graph(inputs, [view], updates=(("a@0", "a@1"),)))
    assert str(error.value) == "toy: the new version of a@0 is a view of b@0; the trace must copy it"
    with pytest.raises(PlanError) as error:
        program_of(graph=replace(buffers("early"), outputs=("seen",)))
    assert str(error.value) == "toy: the step returns seen, a view of count@0, which it rewrites; the trace must copy it"
