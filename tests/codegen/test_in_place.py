"""A head that is the embedding: its gradient is one sum in place, and goes with the other gradients."""

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.api import plan_workload, staged_programs  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.demo import model as demo  # noqa: E402
from autopar.graph.in_place import ONTO, add_in_place, find_rows_onto  # noqa: E402
from autopar.graph.liveness import held_bases, live_ranges  # noqa: E402
from autopar.graph.node import Phase, Ref  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402
from autopar.graph.tensor import Kind  # noqa: E402
from autopar.graph.turns import SEND  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402
from tests.graph.drafts import Assigner, make_graph, node, value  # noqa: E402
from .crossing_models import tied_gpt, translator  # noqa: E402

pytestmark = pytest.mark.torch


def sum_program(alpha=1, head_read_again=False, dtype="float64"):
    """The sum of a head's gradient and of its embedding's, on two ranks that hold all of it."""
    back = {"phase": Phase.BACKWARD}
    steps = [
        (node("aten.mm.default", ("grad", "x"), "head", ("self", "mat2"), **back), value("head", (10, 4), dtype=dtype)),
        (node("autopar.embedding_backward", ("flow", "ids", "rows"), "table", ("grad", "indices", "rows"), num_rows=10, **back), value("table", (10, 4))),
        (node("aten.add.Tensor", ("table", "head"), "both", **back, **({"alpha": alpha} if alpha != 1 else {})), value("both", (10, 4))),
        (node("aten.sum.default", ("head",), "more", **back), value("more", (), dtype=dtype)),
        (node("aten.sub.Tensor", ("w@0", "both"), "w@1", phase=Phase.UPDATE), value("w@1", (10, 4), Kind.PARAM)),
    ]
    inputs = [value("w@0", (10, 4), Kind.PARAM), *(value(n, s, Kind.BATCH) for n, s in (("grad", (10, 6)), ("x", (6, 4)), ("flow", (6, 4))))]
    inputs += [value("ids", (6,), Kind.BATCH, "int64"), value("rows", (10,), Kind.BATCH, "int64")]
    steps = steps if head_read_again else [step for step in steps if step[0].name != "more"]
    assigner = Assigner(make_graph(inputs, steps, updates=(("w@0", "w@1"),)), 2)
    return assigner.program(assigner.assign())


def found_in(program):
    new, sections = add_in_place(program, phase_sections(program.graph))
    assert len(sections) == len(new.graph.nodes) == len(new.origins)
    return [n for n in new.graph.nodes if n.op == ONTO]


def test_rows_are_added_to_what_the_head_left():
    (found,) = found_in(sum_program())
    assert found.inputs == ("head", "flow", "ids", "rows") and found.outputs == ("both",)
    assert dict(found.args) == {"sum": Ref(0), "grad": Ref(1), "indices": Ref(2), "rows": Ref(3), "num_rows": 10}


@pytest.mark.parametrize("other", [{"alpha": 2}, {"head_read_again": True}, {"dtype": "bfloat16"}], ids=str)
def test_a_sum_that_is_another_stays(other):
    assert not found_in(sum_program(**other))


def test_data_parallel_step_of_a_tied_model():
    workload = demo.build(batch=4, seq=8, vocab=32, layers=2, hidden=16, heads=2)
    step = autopar.compile(
        workload.model, "cpu:2", example_inputs=workload.example_inputs, example_targets=workload.example_targets, loss=workload.loss,
        optimizer=workload.optimizer, options=Options(constraints=parse_fix("dp=2,zero=0,pp=1"), price=False),
    )  # fmt: skip
    backward = step.files["program.py"].split("\ndef backward(")[1].split("\ndef ")[0].splitlines()
    made = next(line for line in backward if "ops.embedding_backward_onto(linear_weight_grad" in line).split(" = ")[0].strip()
    assert any("start_all_reduce([" in line and made in line and "own=" in line for line in backward), "\n".join(backward)


def stages_of(workload, spec, fix):
    planned = plan_workload(workload, spec, Options(constraints=parse_fix(fix), price=False), cache_path=None)
    return staged_programs(planned.case, planned.plan)[0]


@pytest.mark.parametrize("fix", ["pp=2,microbatches=4,schedule=zbv", "pp=2,vpp=2,microbatches=4,schedule=interleaved", "pp=2,microbatches=1,schedule=gpipe"])
@pytest.mark.parametrize("model", [tied_gpt, translator])
def test_what_the_law_of_memory_counts_once_the_program_makes_once(model, fix):
    """The law knows the graph, the program the sections of its stage. What is sent is counted where its bytes are."""
    counted, made, sent = [], [], 0
    for stage in stages_of(model(), "cpu:2", fix):
        graph = stage.program.graph
        counted.append(len(find_rows_onto(graph)))
        made.append(sum(n.op == ONTO for n in add_in_place(stage.program, stage.sections)[0].graph.nodes))
        bases, lives = held_bases(graph), live_ranges(graph)
        sends = [n.inputs[0] for n in graph.nodes if n.op == SEND]
        sent += len(sends)
        assert all(bases[name] in lives for name in sends)
    assert counted == made and sent
    assert any(made) == ((model, fix.rpartition("=")[2]) in ((tied_gpt, "zbv"), (translator, "interleaved"), (translator, "gpipe"))), "where a head and a reader of its table are in one stage"


def test_a_sum_made_where_another_chunk_left_its_part_is_right():
    report = verify_workload(tied_gpt(), "cpu:2", Options(constraints=parse_fix("pp=2,microbatches=4,schedule=zbv"), price=False))
    assert not report.failures, describe_failure(report)
