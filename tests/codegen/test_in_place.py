"""Sums in place: a head that is the embedding, whose gradient goes with the other gradients; what several linears send back to one tensor."""

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.api import plan_workload, staged_programs  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.demo import model as demo  # noqa: E402
from autopar.graph.in_place import ONTO, PRODUCT_ONTO, add_in_place, find_products_onto, find_rows_onto  # noqa: E402
from autopar.graph.liveness import held_bases, live_ranges  # noqa: E402
from autopar.graph.node import Phase, Ref  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402
from autopar.graph.tensor import Kind  # noqa: E402
from autopar.graph.turns import SEND  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime.execute import run_graph  # noqa: E402
from autopar.runtime.ops import linear_input_grad_onto  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402
from benchmarks import llama  # noqa: E402
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


def shared_input_program(alpha=1, first_read_again=False, dtype="float64", back_first=False):
    """What three linears send back to one tensor, on two ranks that hold all of it."""
    back = {"phase": Phase.BACKWARD}
    product = "autopar.linear_input_grad"
    steps = [
        (node(product, ("g1", "w1"), "one", ("grad", "weight"), **back), value("one", (6, 4), dtype=dtype)),
        (node(product, ("g2", "w2"), "two", ("grad", "weight"), transposed=True, **back), value("two", (6, 4), dtype="float64")),
        (node("aten.add.Tensor", ("two", "one") if back_first else ("one", "two"), "both", **back, **({"alpha": alpha} if alpha != 1 else {})), value("both", (6, 4))),
        (node(product, ("g3", "w1"), "three", ("grad", "weight"), **back), value("three", (6, 4))),
        (node("aten.add.Tensor", ("both", "three"), "all", **back), value("all", (6, 4))),
        (node("aten.sum.default", ("all",), "total", **back), value("total", ())),
        (node("aten.sum.default", ("one",), "more", **back), value("more", (), dtype=dtype)),
    ]
    inputs = [value("w1", (10, 4), Kind.PARAM), value("w2", (4, 10), Kind.PARAM), *(value(f"g{k}", (6, 10), Kind.BATCH) for k in (1, 2, 3))]
    steps = steps if first_read_again else steps[:-1]
    assigner = Assigner(make_graph(inputs, steps, outputs=("total",)), 2)
    return assigner.program(assigner.assign())


@pytest.mark.parametrize("back_first", [False, True])
def test_what_linears_send_back_is_added_by_their_matmuls(back_first):
    program = shared_input_program(back_first=back_first)
    new, _ = add_in_place(program, phase_sections(program.graph))
    first, second = (n for n in new.graph.nodes if n.op == PRODUCT_ONTO)
    assert (first.inputs, first.outputs) == (("one", "g2", "w2"), ("both",)) and (second.inputs, second.outputs) == (("both", "g3", "w1"), ("all",))
    assert dict(first.args) == {"sum": Ref(0), "grad": Ref(1), "weight": Ref(2), "transposed": True}
    assert [n.op for n in new.graph.nodes] == ["autopar.linear_input_grad", PRODUCT_ONTO, PRODUCT_ONTO, "aten.sum.default"]
    generator = torch.Generator().manual_seed(0)
    given = {v.name: torch.randn(v.shape, dtype=torch.float64, generator=generator) for v in new.graph.values if v.name in new.graph.inputs}
    found, wanted = run_graph(new.graph, dict(given))["total"], run_graph(program.graph, dict(given))["total"]
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    ranges = live_ranges(program.graph)  # of the sums only the first holds anything, to the end
    assert not {"two", "three", "both", "all"} & ranges.keys() and ranges["one"] == (0, 5) and held_bases(program.graph)["all"] == "one"


@pytest.mark.parametrize("other", [{"alpha": 2}, {"first_read_again": True}, {"dtype": "bfloat16"}], ids=str)
def test_a_sum_of_something_else_stays(other):
    program = shared_input_program(**other)
    new, _ = add_in_place(program, phase_sections(program.graph))
    assert sum(n.op == PRODUCT_ONTO for n in new.graph.nodes) == 0


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3), (torch.complex64, 1e-6)])
def test_a_product_is_added_where_the_sum_lies(dtype, bound, transposed):
    generator = torch.Generator().manual_seed(1)
    start, grad, weight = (torch.randn(s, dtype=torch.float64, generator=generator).to(dtype) for s in ((3, 5, 8), (3, 5, 6), (6, 8)))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    wanted = start.to(wide) + grad.to(wide) @ weight.to(wide)
    for made in (start.clone(), start.clone().transpose(0, 1).contiguous().transpose(0, 1)):  # as the first matmul leaves it, and as one may lie
        found = linear_input_grad_onto(made, grad, weight.t().contiguous() if transposed else weight, transposed)
        assert found is made and (found.to(wide) - wanted).abs().max() <= bound * wanted.abs().max()
    empty = linear_input_grad_onto(start[:0].clone(), grad[:0], weight)
    assert empty.shape == (0, 5, 8)


@pytest.mark.parametrize("fix", ["dp=2", "tp=2", "pp=2,microbatches=2"])
def test_attention_and_a_gate_add_up_what_they_send_back(fix):
    workload = llama.build(batch=4, seq=16, layers=2, hidden=32, wide=64, heads=4, kv_heads=2)
    planned = plan_workload(workload, "cpu:2", Options(constraints=parse_fix(fix), price=False), cache_path=None)
    for stage in staged_programs(planned.case, planned.plan)[0] if "pp" in fix else ():
        onto = [n for n in add_in_place(stage.program, stage.sections)[0].graph.nodes if n.op == PRODUCT_ONTO]
        assert len(onto) == 3 and len(find_products_onto(stage.program.graph, [n.phase for n in stage.program.graph.nodes])) == 3
    report = verify_workload(workload, "cpu:2", Options(constraints=parse_fix(fix), price=False))
    assert not report.failures, describe_failure(report)
