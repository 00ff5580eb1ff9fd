"""Gradients that a matmul writes where they travel: which, in what the program says, and what is held for it."""

import pytest

torch = pytest.importorskip("torch")

from autopar.api import compile_workload  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.demo import model as demo  # noqa: E402
from autopar.graph import messages, overlap_memory  # noqa: E402
from autopar.graph.graph import value_table  # noqa: E402
from autopar.graph.liveness import storage_bases  # noqa: E402
from autopar.graph.node import get_arg  # noqa: E402
from autopar.graph.overlap_memory import extra_bytes, held_over_time, overlap_within  # noqa: E402
from autopar.graph.program import OPEN, WRITES, check_program  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402
from autopar.graph.tensor import size_bytes  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime import pending  # noqa: E402

pytestmark = pytest.mark.torch


def compiled(fix, local="kernels"):
    torch.manual_seed(0)
    workload = demo.build(batch=8, seq=16, vocab=64, layers=2, hidden=32, heads=2)
    return compile_workload(workload, "cpu:2", Options(constraints=parse_fix(fix), price=False, local=local), cache_path=None)


@pytest.fixture(scope="module")
def data_parallel():
    return compiled("dp=2,zero=0,pp=1")


def overlapped(one, opens=True):
    [program] = one.programs
    found, sections = overlap_within(program, phase_sections(program.graph), None, opens)
    check_program(found)
    assert len(sections) == len(found.graph.nodes) and [s.phase for s in sections] == [n.phase for n in found.graph.nodes]
    return found


def test_the_matmuls_of_a_block_write_into_its_bucket(data_parallel):
    text = data_parallel.files["program.py"]
    backward = text.split("def blocks_backward(")[1].split("\n\n\n")[0]
    assert backward.count("comm.open_bucket([") == 1 and backward.count("ops.linear_weight_grad_into(") == 4 and "ops.linear_weight_grad(" not in backward
    assert ", op='sum', own=(" in backward and ", bucket=bucket)" in backward
    lines = backward.splitlines()
    opened, first = (next(i for i, line in enumerate(lines) if word in line) for word in ("open_bucket", "linear_weight_grad_into"))
    assert opened < first, "before the first of them"


def test_all_that_travels_together_shares_the_bytes_of_the_bucket(data_parallel):
    graph = overlapped(data_parallel).graph
    bases = storage_bases(graph)
    for start in (n for n in graph.nodes if get_arg(n, "bucket") is not None and n.op == "comm.start_all_reduce"):
        bucket = start.inputs[-1]
        assert {bases[out] for out in start.outputs} == {bucket}
        waits = [n for n in graph.nodes if n.op == "comm.wait" and n.inputs[0] in start.outputs]
        assert len(waits) == len(start.outputs) and {bases[n.outputs[0]] for n in waits} == {bucket}
    assert sum(n.op == OPEN for n in graph.nodes) == 2, "one a block"


def test_a_bucket_is_held_once_where_a_copy_was_held_beside_its_tensors(data_parallel):
    plain, opened = (overlapped(data_parallel, opens) for opens in (False, True))

    def at_starts(program):
        held = held_over_time(program, on_gloo=True)
        return [held[i] for i, n in enumerate(program.graph.nodes) if n.op == "comm.start_all_reduce" and len(n.inputs) > 4]

    assert len(at_starts(plain)) == len(at_starts(opened)) == 2 and all(a > b for a, b in zip(at_starts(plain), at_starts(opened)))


def test_what_is_large_has_no_room_on_a_cpu_until_it_is_made(data_parallel, monkeypatch):
    graph = (program := overlapped(data_parallel)).graph
    small = held_over_time(program, on_gloo=True)
    monkeypatch.setattr(messages, "REDUCED_ALONE_BYTES", 1)
    large, values = held_over_time(program, on_gloo=True), value_table(graph)
    makers = {out: i for i, n in enumerate(graph.nodes) for out in n.outputs if out}
    expected = [0] * len(small)
    for i, start in enumerate(graph.nodes):
        if start.op == "comm.start_all_reduce" and get_arg(start, "bucket") is not None:
            for made in (makers[start.inputs[k]] for k in get_arg(start, "own")):
                late = made if graph.nodes[made].op == WRITES else i + 1
                for at in range(makers[start.inputs[-1]], late):
                    expected[at] += size_bytes(values[graph.nodes[made].outputs[0]])
        elif start.op == "comm.start_all_reduce" and len(start.inputs) > 1:
            expected[i] += sum(size_bytes(values[start.inputs[k]]) for k in get_arg(start, "own", ()))  # not packed
    assert any(n.op == OPEN for n in graph.nodes) and max(expected) > 0
    assert [a - b for a, b in zip(small, large)] == expected


def test_where_buckets_have_no_room_their_overlap_is_kept(data_parallel):
    [program] = data_parallel.programs
    sections = phase_sections(program.graph)
    plain, opened = (overlapped(data_parallel, opens) for opens in (False, True))
    less, more = (extra_bytes(program, found) for found in (plain, opened))
    assert less < more, "else there is nothing to choose"
    for room in (less, (less + more) // 2, more - 1):
        assert overlap_within(program, sections, room)[0] == plain
    assert overlap_within(program, sections, more)[0] == opened


def test_buckets_go_before_overlap_does(data_parallel, monkeypatch):
    [program] = data_parallel.programs
    sections, tried = phase_sections(program.graph), []
    monkeypatch.setattr(overlap_memory, "overlap_program", lambda program, sections, prefetches, lags: ((prefetches, lags), sections))
    monkeypatch.setattr(overlap_memory, "open_buckets", lambda plain, sections: (("opened", *plain), sections))
    monkeypatch.setattr(overlap_memory, "extra_bytes", lambda program, found: tried.append(found) or 1)
    overlap_within(program, sections, 0)
    rounds = ((True, True), (True, False), (False, False))
    assert tried == [found for plain in rounds for found in (("opened", *plain), plain)]
    tried.clear()
    overlap_within(program, sections, 0, opens=False)
    assert tried == list(rounds)


def test_a_bucket_takes_what_the_law_counts(data_parallel, monkeypatch):
    """At first without what is large, then with what a matmul writes; each tensor begins at a multiple of 64 bytes."""
    graph = overlapped(data_parallel).graph
    values = value_table(graph)
    makers = {out: n for n in graph.nodes for out in n.outputs if out}
    starts = [n for n in graph.nodes if n.op == "comm.start_all_reduce" and get_arg(n, "bucket") is not None]
    assert len(starts) == 2, "one a block"
    for start in starts:
        opened, own = makers[start.inputs[-1]], get_arg(start, "own")
        large = max(size_bytes(values[start.inputs[k]]) for k in own)
        monkeypatch.setattr(messages, "REDUCED_ALONE_BYTES", large)
        alone = [k for k in own if size_bytes(values[start.inputs[k]]) >= large]
        bucket = pending.Bucket(get_arg(opened, "shapes"), torch.float32, own, torch.device("cpu"))
        gaps = 64 * len(start.inputs)
        rest = size_bytes(values[opened.outputs[0]]) - len(alone) * large
        assert alone and 0 <= bucket.flat.nbytes - rest < gaps
        written = [k for k in alone if makers[start.inputs[k]].op == WRITES]
        assert sum(bucket[k].nbytes for k in written) == len(written) * large


@pytest.mark.parametrize(("fix", "local"), [("dp=2,zero=3,pp=1", "kernels"), ("tp=2,pp=1", "kernels"), ("dp=2,zero=0,pp=1", "inductor")])
def test_what_travels_in_pieces_or_is_compiled_has_none(fix, local):
    assert "open_bucket" not in compiled(fix, local).files["program.py"]
