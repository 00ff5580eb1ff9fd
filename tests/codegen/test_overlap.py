"""Overlap: what is started early, what travels together, and that the numbers stay those of the plain step."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from autopar.cluster import parse_cluster  # noqa: E402
from autopar.cost.estimate import node_seconds  # noqa: E402
from autopar.cost.model import build_cost_model  # noqa: E402
from autopar.cost.wires import estimate_comm_s, joint_link  # noqa: E402
from autopar.graph import messages, overlap, own, small_reductions, update_lots  # noqa: E402
from autopar.graph.liveness import bytes_over_time, live_ranges  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.overlap import overlap_program  # noqa: E402
from autopar.graph.overlap_memory import extra_bytes, held_over_time, overlap_within  # noqa: E402
from autopar.graph.partition import assigned_strategies  # noqa: E402
from autopar.graph.program import STARTS, WAIT, check_program  # noqa: E402
from autopar.graph.reshard import StepKind  # noqa: E402
from autopar.graph.sections import INPUT, WEIGHT, Section, phase_sections  # noqa: E402
from autopar.graph.tensor import Kind, size_bytes  # noqa: E402
from tests.graph.drafts import Assigner, make_graph, node, value  # noqa: E402

from .chain import chain_graph  # noqa: E402
from .random_plans import files_of, run_source  # noqa: E402
from .test_random_plans import reference  # noqa: E402

pytestmark = pytest.mark.torch
BLOCKS, WIDTH = 4, 12
SPLIT = {"mm": "m", "relu": ".1", "dy": ".1", "xt": "d0", "dw": "k", "dx": "m"}
SHARDED_UPDATE = {"step": ".1", "h.{}.w@1": ".1"}


def program_of(graph, sharded, zero):
    """Two ranks, the batch split; of ZeRO's stages 0, 1 and 3."""
    choices = {f"{op}_{i}": choice for op, choice in SPLIT.items() for i in range(BLOCKS)} | {"loss": "d0", "ones": "d0"}
    if sharded:
        choices |= {name.format(i) if "{" in name else f"{name}_{i}": choice for name, choice in SHARDED_UPDATE.items() for i in range(BLOCKS)}
    stored = {f"h.{i}.w@0": f"S0/{WIDTH // 2}" for i in range(BLOCKS)} if zero == 3 else {}
    assigner = Assigner(graph, 2)
    return assigner.program(assigner.assign({"input:0": "S0/4"} | stored, choices))


def zero_program(zero, graph=None):
    return program_of(graph or chain_graph(BLOCKS, width=WIDTH), zero > 0, zero)


def in_pairs():
    """The chain with two weights in a block."""
    graph = chain_graph(BLOCKS, width=WIDTH)
    return replace(graph, nodes=tuple(replace(n, path=f"h.{int(n.path[2]) // 2}{n.path[3:]}" if n.path else "") for n in graph.nodes))


def overlapped(program, *options):
    found, sections = overlap_program(program, phase_sections(program.graph), *options)
    check_program(found)
    assert [s.phase for s in sections] == [n.phase for n in found.graph.nodes]
    return found


def words(program):
    return [f"{n.op.removeprefix('comm.')} {' '.join(n.inputs)}" for n in program.graph.nodes if n.op in (*STARTS, WAIT)]


def function(text, name):
    return text.split(f"def {name}(")[1].split("\n\n\n")[0]


def check_numbers(program, files=None):
    generator = torch.Generator().manual_seed(0)
    states = {f"h.{i}.w": torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) for i in range(BLOCKS)}
    x = torch.randn(8, WIDTH, generator=generator, dtype=torch.float64)
    loss, _, updated = reference(states, x, BLOCKS)
    graph = chain_graph(BLOCKS, width=WIDTH)
    results, after = run_source(files or files_of(graph, program), program, graph, {k: v.clone() for k, v in states.items()}, {"input:0": x})
    for found, _ in results:
        torch.testing.assert_close(found, loss, rtol=1e-10, atol=1e-10)
    for name, wanted in updated.items():
        torch.testing.assert_close(after[name], wanted, rtol=1e-10, atol=1e-10)


def test_zero_3_gathers_one_block_ahead_and_its_reductions_trail():
    program = zero_program(3)
    text = files_of(chain_graph(BLOCKS, width=WIDTH), program)["program.py"]
    assert "    [started] = comm.start_all_gather([state[f\"h.{i}.w\"]], 'a', dim=(0,), stride=(6,))" in function(text, "h_forward_gather")
    loop = """
    ahead = h_forward_gather(comm, state, 0)
    for i in range(4):
        here, ahead = ahead, h_forward_gather(comm, state, i + 1) if i != 3 else ()
        flow = h_forward(comm, state, batch, grads, h[i], i, flow, *here)
"""
    assert loop in text
    backward, update = function(text, "h_backward"), function(text, "update_param")
    assert "here, ahead = ahead, h_backward_gather(comm, state, i - 1) if i != 1 else ()" in text
    assert "comm.start_reduce_scatter([mm], 'a', dim=(0,), stride=(6,), op='sum', alone=True)" in backward and 'grads[f"h.{i}.w"] = started' in backward
    assert "scattered = [x.wait() for x in grad]" in update and "start" not in update
    check_numbers(program)


def test_a_gather_starts_when_the_block_before_begins():
    order = [n.name for n in overlapped(zero_program(3)).graph.nodes if n.phase is Phase.FORWARD]
    start, wait = "start:h.{}.w@0~1", "wait:h.{}.w@0~1"
    assert order[:6] == [start.format(0), start.format(1), wait.format(0), "mm_0", "relu_0", start.format(2)]
    for i in range(2, BLOCKS):
        assert order.index(start.format(i)) < order.index(f"mm_{i - 1}") < order.index(wait.format(i)) < order.index(f"mm_{i}")
        assert order.index(start.format(i)) > order.index(f"relu_{i - 2}")  # and no sooner: one block ahead


def test_at_most_two_blocks_are_gathered_at_once():
    """Run as emitted: the block at hand and the one ahead."""
    from autopar.runtime import compile_program, read_program, run_ranks
    from autopar.runtime.pending import Pending

    spec = read_program(compile_program(files_of(chain_graph(BLOCKS, width=WIDTH), zero_program(3))))
    most = []

    def main(comm):
        under_way, found = set(), [0]
        start = comm.start_all_gather

        def watched(xs, axis, dim, stride):
            pairs = [(object(), p) for p in start(xs, axis, dim, stride)]
            under_way.update(key for key, _ in pairs)
            found[0] = max(found[0], len(under_way))
            return [Pending(lambda key=key, p=p: (under_way.discard(key), p.wait())[1]) for key, p in pairs]

        comm.start_all_gather = watched
        with torch.no_grad():
            spec.step(comm, {n: torch.ones(WIDTH // 2, WIDTH, dtype=torch.float64) for n in spec.states}, {"input:0": torch.ones(4, WIDTH, dtype=torch.float64)})
        assert not under_way
        most.append(found[0])

    run_ranks(spec.mesh, main)
    assert most == [2, 2]


def test_replicated_gradients_trail_behind_backward():
    program = zero_program(0)
    text = files_of(chain_graph(BLOCKS, width=WIDTH), program)["program.py"]
    assert "[started] = comm.start_all_reduce([mm], 'a', op='sum', own=(0,))" in function(text, "h_backward") and "reduced = [x.wait() for x in grad]" in function(text, "update_param")
    assert "comm.all_reduce(sum, 'a', op='sum')" in text  # the loss is read at once
    check_numbers(program)


def test_the_sum_of_a_gradient_lies_where_the_gradient_does_unless_others_read_it(monkeypatch):
    def starts(program):
        return [(n.inputs, dict(n.args).get("own", ())) for n in overlapped(program).graph.nodes if n.op == "comm.start_all_reduce"]

    assert starts(zero_program(0)) == [((f"dw_{i}",), (0,)) for i in reversed(range(BLOCKS))]
    check_numbers(zero_program(0))
    assert starts(zero_program(0, in_pairs())) == [(("dw_3", "dw_2"), (0, 1)), (("dw_1", "dw_0"), (0, 1))]
    graph = chain_graph(BLOCKS, width=WIDTH)
    step = next(n for n in graph.nodes if n.name == "step_3")
    extra = replace(step, name="more", outputs=("more",), phase=Phase.BACKWARD)
    values = (*graph.values, replace(next(v for v in graph.values if v.name == "step_3"), name="more", storage="more"))
    place = next(i for i, n in enumerate(graph.nodes) if n.phase is Phase.UPDATE)
    seen = replace(graph, values=values, nodes=(*graph.nodes[:place], extra, *graph.nodes[place:]))
    assigner = Assigner(seen, 2)
    choices = {f"{op}_{i}": choice for op, choice in SPLIT.items() for i in range(BLOCKS)} | {"loss": "d0", "ones": "d0", "more": "P(self)"}
    program = assigner.program(assigner.assign({"input:0": "S0/4"}, choices))
    assert starts(program) == [((f"dw_{i}",), () if i == 3 else (0,)) for i in reversed(range(BLOCKS))]


def test_on_gloo_what_is_reduced_where_it_lies_is_held_once(monkeypatch):
    program = overlapped(zero_program(0, in_pairs()))
    graph = program.graph
    starts = {i for i, n in enumerate(graph.nodes) if n.op == "comm.start_all_reduce"}
    assert len(starts) == 2
    held = []
    for least in (1, 2**40):
        monkeypatch.setattr(messages, "REDUCED_ALONE_BYTES", least)
        held.append(held_over_time(program, on_gloo=True))
    assert [b - a for a, b in zip(*held)] == [2 * WIDTH * WIDTH * 8 * (i in starts) for i in range(len(graph.nodes))]
    assert held_over_time(program) == held[1]  # elsewhere they are packed, however large


def test_on_gloo_what_is_large_is_packed_with_nobody(monkeypatch):
    """Cut into rows, it is not copied at all; nothing changes elsewhere."""
    program = overlapped(zero_program(3, in_pairs()))
    packed, elsewhere = held_over_time(program, on_gloo=True), held_over_time(program)
    monkeypatch.setattr(messages, "GATHERED_ALONE_BYTES", 1)
    monkeypatch.setattr(messages, "REDUCED_ALONE_BYTES", 1)
    alone = held_over_time(program, on_gloo=True)
    buckets = [i for i, n in enumerate(program.graph.nodes) if n.op in ("comm.start_all_gather", "comm.start_reduce_scatter") and n.phase is not Phase.UPDATE and len(n.inputs) > 1]
    waits = {n.inputs[0]: i for i, n in enumerate(program.graph.nodes) if n.op == "comm.wait"}
    nodes = [program.graph.nodes[i] for i in buckets]
    copied = [waits[n.outputs[0]] if n.op == "comm.start_all_gather" else i for i, n in zip(buckets, nodes)]  # a gather is packed into its result, and unpacked where it is waited for
    assert len(buckets) == 6 and all(alone[i] < packed[i] for i in copied) and all(a <= b for a, b in zip(alone, packed))
    assert held_over_time(program) == elsewhere


def test_on_gloo_a_reduction_in_pieces_has_what_others_sent_from_where_it_starts():
    """Beside the tensors themselves, and beside the bucket that they are packed into."""
    program = overlapped(zero_program(2, in_pairs()))
    graph = program.graph
    plain, copied = held_over_time(program), held_over_time(program, on_gloo=True)
    starts = [i for i, n in enumerate(graph.nodes) if n.op == "comm.start_reduce_scatter"]
    values = {v.name: v for v in graph.values}
    for i in starts:
        sent = sum(size_bytes(values[name]) for name in graph.nodes[i].inputs)
        assert copied[i] - plain[i] >= sent > 0
    assert len(starts) == 2 and copied[starts[-1]] - plain[starts[-1]] == sent  # the one before is finished before this one packs


def test_on_gloo_a_gather_is_packed_into_its_result():
    """Elsewhere what is sent is packed, and there until the first of its tensors is waited for."""
    program = overlapped(zero_program(3, in_pairs()))
    nodes, values = program.graph.nodes, {v.name: v for v in program.graph.values}
    waits = {n.inputs[0]: i for i, n in enumerate(nodes) if n.op == "comm.wait"}
    gathers = [(i, n) for i, n in enumerate(nodes) if n.op == "comm.start_all_gather" and n.phase is not Phase.UPDATE]
    first_reduction = next(i for i, n in enumerate(nodes) if n.op == "comm.start_reduce_scatter")
    packed = [sum(sum(size_bytes(values[name]) for name in n.inputs) for i, n in gathers if len(n.inputs) > 1 and i <= k <= min(waits[out] for out in n.outputs)) for k in range(first_reduction)]
    assert [a - b for a, b in zip(held_over_time(program), held_over_time(program, on_gloo=True))][:first_reduction] == packed and any(packed)


@pytest.mark.parametrize("on_gloo", [False, True], ids=["packed", "gloo"])
@pytest.mark.parametrize(("bucket", "lot"), [(2**40, BLOCKS), (1, 1), (2 * WIDTH * WIDTH * 8, 2)], ids=["one lot", "each alone", "two lots"])
def test_an_update_holds_its_lots_as_they_come(monkeypatch, bucket, lot, on_gloo):
    """In whole weights, where the gather of a lot starts: pieces of gradients that are still to come, the reduction that began last (and as much from others) until its lot has waited for it, the new
    pieces, what they are gathered into and, of several, a packed copy of what is sent. When a lot is updated, its slices and its pieces of gradients are there beside the new pieces, and nothing that kernels make on the way."""
    program = overlapped(zero_program(1))
    nodes, whole = program.graph.nodes, WIDTH * WIDTH * 8
    monkeypatch.setattr(update_lots, "BUCKET_BYTES", bucket)
    held, law = held_over_time(program, on_gloo), bytes_over_time(program.graph, live_ranges(program.graph))
    first = next(i for i, n in enumerate(nodes) if n.phase is Phase.UPDATE)
    states, flight = law[first] / whole - BLOCKS / 2, 1 + on_gloo
    rows = {op: [held[i] / whole - states for i, n in enumerate(nodes) if n.op == op and n.phase is Phase.UPDATE][::-1] for op in ("comm.start_all_gather", "aten.add.Tensor")}
    found = {op: sorted({(k // lot, round(held, 6)) for k, held in enumerate(row)}) for op, row in rows.items()}
    lots = range(BLOCKS // lot)
    left = [(BLOCKS - lot * (k + 1)) / 2 + flight * (k < lots[-1]) for k in lots]
    sent = 0 if on_gloo else lot / 2
    assert found["comm.start_all_gather"] == [(k, left[k] + 1.5 * lot + (sent if lot > 1 else 0)) for k in lots]
    assert found["aten.add.Tensor"] == [(k, left[k] + (lot + sent if k else 0) + 1.5 * lot) for k in lots]


def test_new_parameters_are_gathered_while_the_next_are_updated():
    program = zero_program(1)
    text = files_of(chain_graph(BLOCKS, width=WIDTH), program)["program.py"]
    loop = f"""
    names = ops.as_they_come(grads, expand_names("h.{{0..3}}.w"))
    for _, here, before in ops.parcels(state, names, {overlap.BUCKET_BYTES}):
        update_param(comm, state, grads, here)
        for name in before:
            finish_param(comm, state, grads, name)
        gather_param(comm, grads, here)
"""
    assert loop in text and "ops.put(state[name], gathered)" in function(text, "finish_param")
    check_numbers(program)
    check_numbers(program, {**files_of(chain_graph(BLOCKS, width=WIDTH), program), "program.py": text.replace(f"names, {overlap.BUCKET_BYTES}", "names, 1")})  # each parameter on its own


def test_what_starts_together_travels_together(monkeypatch):
    graph = in_pairs()
    program = zero_program(3, graph)
    found = words(overlapped(program))
    assert "start_all_gather h.2.w@0 h.3.w@0" in found and "start_all_gather h.3.w@0 h.2.w@0" in found  # in the order of their readers
    assert "start_reduce_scatter dw_3 dw_2" in found and "start_reduce_scatter dw_1 dw_0" in found
    check_numbers(program)
    whole = WIDTH * WIDTH * 8
    for most, pairs in ((2 * whole, True), (2 * whole - 1, False), (1, False)):
        monkeypatch.setattr(overlap, "BUCKET_BYTES", most)
        assert ("start_reduce_scatter dw_3 dw_2" in words(overlapped(program))) == pairs
        check_numbers(program)


def test_a_gradient_that_leaves_is_reduced_at_once():
    graph = chain_graph(BLOCKS, width=WIDTH)
    assigner = Assigner(graph, 2)
    choices = {f"{op}_{i}": choice for op, choice in SPLIT.items() for i in range(BLOCKS)} | {"loss": "d0", "ones": "d0"}
    program = assigner.program(assigner.assign({"input:0": "S0/4"}, choices), keep_grads=True)
    assert not words(overlapped(program))


def test_overlap_keeps_within_the_room_there_is():
    """Gathered ahead: one weight more. Without, a weight gradient under way is beside the one that is made only where the peak is not."""
    program = zero_program(3)
    sections = phase_sections(program.graph)
    whole, trailing = overlapped(program), overlapped(program, False)
    assert any(n.op == "comm.start_all_gather" for n in whole.graph.nodes) and not any(n.op == "comm.start_all_gather" for n in trailing.graph.nodes)
    extra = extra_bytes(program, whole)
    assert 0 < extra_bytes(program, trailing) <= extra <= 3 * WIDTH * WIDTH * 8
    for room, wanted in ((None, whole), (extra, whole), (extra_bytes(program, trailing), trailing if extra > extra_bytes(program, trailing) else whole), (-1, program)):
        assert words(overlap_within(program, sections, room)[0]) == words(wanted)


def test_without_room_large_gradients_are_reduced_where_they_lie_all_the_same(monkeypatch):
    """For so they are counted."""
    monkeypatch.setattr(own, "IN_PLACE_BYTES", 1)
    program = zero_program(0)
    over = own.find_overwritten(program.graph)
    assert over == {f"dw_{i}" for i in range(BLOCKS)}
    graph = overlap_within(program, phase_sections(program.graph), -1)[0].graph
    assert {node.inputs[0] for node in graph.nodes if node.op == "comm.all_reduce" and dict(node.args).get("own")} == over
    assert not any(node.op == "comm.start_all_reduce" for node in graph.nodes)


def mean_graph():
    """loss = sum(x w) / sum(x), w@1 = w + sum(x): two sums over the batch that the forward reads, one of them again in the backward."""
    one = ("self",)
    steps = [
        (node("aten.mul.Tensor", ("input:0", "w@0"), "y"), value("y", (8,))),
        (node("aten.sum.dim_IntList", ("y",), "top", one, dim=(0,)), value("top", ())),
        (node("aten.sum.dim_IntList", ("input:0",), "count", one, dim=(0,)), value("count", ())),
        (node("aten.div.Tensor", ("top", "count"), "loss"), value("loss", (), Kind.LOSS)),
        (node("aten.neg.default", ("count",), "less", one, Phase.BACKWARD), value("less", ())),
        (node("aten.sub.Tensor", ("w@0", "less"), "w@1", phase=Phase.UPDATE), value("w@1", (8,), Kind.PARAM)),
    ]
    return make_graph([value("w@0", (8,), Kind.PARAM), value("input:0", (8,), Kind.BATCH)], steps, updates=(("w@0", "w@1"),), loss="loss")


def mean_program(graph):
    assigner = Assigner(graph, 2)
    return assigner.program(assigner.assign({"input:0": "S0/4"}, {"y": ".0", "top": "d0", "count": "d0"}))


def test_sums_of_a_loss_are_one_meeting_and_are_not_reduced_again():
    graph = mean_graph()
    program = mean_program(graph)
    assert [n.inputs[0] for n in program.graph.nodes if n.op == "comm.all_reduce"] == ["top", "count", "count"]
    found = overlapped(program)
    assert [w for w in words(found) if w.startswith("start")] == ["start_all_reduce top count"]
    assert not any(n.op == "comm.all_reduce" for n in found.graph.nodes)
    w, x = torch.randn(8, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    results, after = run_source(files_of(graph, program), program, graph, {"w": w.clone()}, {"input:0": x})
    for loss, _ in results:
        torch.testing.assert_close(loss, (x * w).sum() / x.sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after["w"], w + x.sum(), rtol=1e-12, atol=1e-12)


def test_sums_of_a_loss_along_two_axes_are_one_meeting():
    graph = mean_graph()
    assigner = Assigner(graph, 2, 2)
    program = assigner.program(assigner.assign({"input:0": "S0/4,S0/2"}, {"y": ".0;.0", "top": "d0;d0", "count": "d0;d0"}))
    assert len([n for n in program.graph.nodes if n.op == "comm.all_reduce"]) == 6
    found = overlapped(program)
    [start] = [n for n in found.graph.nodes if n.op == "comm.start_all_reduce"]
    assert start.inputs == ("top", "count") and sorted(dict(start.args)["axis"]) == ["a", "b"] and not any(n.op == "comm.all_reduce" for n in found.graph.nodes)
    w, x = torch.randn(8, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    results, after = run_source(files_of(graph, program), program, graph, {"w": w.clone()}, {"input:0": x})
    for loss, _ in results:
        torch.testing.assert_close(loss, (x * w).sum() / x.sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after["w"], w + x.sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ranks", [(4,), (2, 2)], ids=["one axis", "two axes"])
@pytest.mark.parametrize("words", ["cpu:4", "1x4xH100-80GB", "2x2xA100-80GB"])
def test_sums_of_a_loss_are_priced_as_the_one_meeting_that_they_are(words, ranks):
    graph, model = mean_graph(), build_cost_model(parse_cluster(words))
    assigner = Assigner(graph, *ranks)
    splits = (";".join(["d0"] * len(ranks)), ";".join([".0"] * len(ranks)))
    assignment = assigner.assign({"input:0": "S0/2" if len(ranks) == 1 else "S0/4,S0/2"}, {"y": splits[1], "top": splits[0], "count": splits[0]})
    program = assigner.program(assignment)
    strategies = assigned_strategies(graph, assigner.sites, assigner.signatures, assigner.cuts, assignment)
    seconds = node_seconds(model, program, assigner.sites, assigner.signatures, strategies)
    sums = [seconds[n.name] for n, origin in zip(program.graph.nodes, program.origins) if n.op == "comm.all_reduce" and origin.value in ("top", "count")]
    assert len(sums) == 3 * len(ranks)
    link = joint_link(model, program.mesh, range(len(ranks)))
    assert sum(sums) == pytest.approx(estimate_comm_s(model, StepKind.ALL_REDUCE, link, 4, 4), rel=0.02)


@pytest.mark.parametrize(("parts", "count"), [((WEIGHT, INPUT), 3), ((INPUT, WEIGHT), 2), ((WEIGHT, WEIGHT), 2)])
def test_what_is_reduced_for_the_weights_is_no_result_for_another_stage(parts, count):
    """A schedule that splits the backward runs what the weights need later, wherever it stands."""
    program = mean_program(mean_graph())
    sections, split = list(phase_sections(program.graph)), iter(parts)
    for i, n in enumerate(program.graph.nodes):
        if n.op == "comm.all_reduce" and n.inputs == ("count",):
            sections[i] = Section(Phase.BACKWARD, part=next(split))
    found, _ = small_reductions.reduce_once(program, sections, overlap.list_places(program.graph, sections))
    assert len([n for n in found.graph.nodes if n.op == "comm.all_reduce"]) == count


@pytest.mark.parametrize(("most", "small"), [(8, True), (7, False)])
def test_what_is_not_small_is_reduced_where_it_is_read(most, small, monkeypatch):
    monkeypatch.setattr(small_reductions, "SMALL_BYTES", most)
    found = overlapped(mean_program(mean_graph()))
    assert len([n for n in found.graph.nodes if n.op == "comm.all_reduce"]) == (0 if small else 3)
