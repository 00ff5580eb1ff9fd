"""Buckets of programs on the cores of one machine: as much as a block has."""

from dataclasses import replace

import pytest

from autopar.cluster import parse_cluster
from autopar.cost.buckets import bucketed_model
from autopar.cost.model import build_cost_model
from autopar.cost.wires import AxisLink, estimate_comm_s
from autopar.graph.messages import BUCKET_BYTES, GATHERED_ALONE_BYTES, REDUCED_ALONE_BYTES
from autopar.graph.reshard import StepKind
from autopar.graph.tensor import Kind
from autopar.graph.transfer import Transfer
from tests.cost.test_measured import MODEL as MEASURED
from tests.graph.drafts import make_graph, value

CPU = build_cost_model(parse_cluster("cpu:4"))


def bucket(**shapes):
    graph = make_graph([value(f"{name.replace('_', '.')}@0", shape, Kind.PARAM) for name, shape in shapes.items()], [])
    return bucketed_model(CPU, graph).bucket_bytes


def test_a_block_of_the_family_that_has_most():
    assert bucket(h_0_w=(10, 10), h_0_b=(10,), h_1_w=(10, 10), h_1_b=(10,), embed=(100, 10), tail_0_b=(3,), tail_1_b=(3,)) == 8 * 110


def test_all_parameters_where_no_two_blocks_are():
    assert bucket(up=(10, 10), down_0_w=(5,)) == 8 * 105


def test_what_goes_alone_fills_no_bucket():
    rows = REDUCED_ALONE_BYTES // 8
    assert bucket(h_0_w=(rows,), h_1_w=(rows,), h_0_b=(7,), h_1_b=(7,)) == 8 * 7
    assert bucket(h_0_w=(rows,), h_1_w=(rows,)) == 0
    assert bucket(**{f"h_{i}_w{k}": (rows - 1,) for i in range(2) for k in range(30)}) == BUCKET_BYTES


def test_without_blocks_zero_3_gathers_and_reduces_a_piece_at_a_time():
    """What of a run goes together is `graph.run_pieces`'."""
    rows = GATHERED_ALONE_BYTES // 16
    graph = make_graph([value(f"w{k}x@0", (rows,), Kind.PARAM) for k in range(8)], [])  # of half of what goes alone each
    whole, pieces = bucketed_model(CPU, graph), bucketed_model(CPU, graph, 3)
    assert whole.bucket_bytes == 4 * GATHERED_ALONE_BYTES and whole.block_elements == (8 * rows, 8 * rows)
    assert pieces.bucket_bytes == pieces.state_bucket_bytes == GATHERED_ALONE_BYTES and pieces.block_elements == (2 * rows, 2 * rows)
    blocks = make_graph([value(f"h.{k}.w@0", (rows,), Kind.PARAM) for k in range(8)], [])
    assert bucketed_model(CPU, blocks, 3).block_elements == (rows, rows)


def test_frozen_parameters_fill_no_bucket():
    """An adapter beside a frozen weight: what is sent is the adapter's."""
    names = ("h.0.frozen@0", "h.0.adapter@0", "h.1.frozen@0", "h.1.adapter@0")
    inputs = [value(name, (1000,) if "frozen" in name else (7,), Kind.PARAM) for name in names]
    graph = make_graph(inputs, [])
    trained = replace(graph, grads=tuple((name, name) for name in names if "adapter" in name))
    assert (bucketed_model(CPU, graph).bucket_bytes, bucketed_model(CPU, trained).bucket_bytes) == (8 * 1007, 8 * 7)


def test_gpus_keep_theirs_as_far_as_a_block_fills_it():
    model = build_cost_model(parse_cluster("4xH100-80GB"))
    names = ("h.0.a@0", "h.0.b@0", "h.1.a@0", "h.1.b@0")
    graph = replace(make_graph([value(name, (1000, 100) if ".a" in name else (300_000,), Kind.PARAM) for name in names], []), grads=((names[0], "a"), (names[2], "b")))
    made = bucketed_model(model, graph)
    assert made == replace(model, block_elements=(400_000, 100_000)) and model.bucket_bytes == BUCKET_BYTES

    def gather(elements, of):
        return estimate_comm_s(of, StepKind.ALL_GATHER, AxisLink(4, 4), elements, 4 * elements, 0, Transfer.STATE, of.block_elements[0] / elements)

    assert 4 * gather(100_000, made) == pytest.approx(gather(400_000, made)) and gather(400_000, made) > 1.05 * 4 * gather(100_000, model)
    assert gather(400_000, made) == gather(400_000, replace(model, state_bucket_bytes=0))


@pytest.mark.parametrize("machine", [CPU, MEASURED], ids=["preset", "measured"])
@pytest.mark.parametrize("kind", [StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER, StepKind.ALL_GATHER])
def test_small_gradients_of_a_block_cost_one_message(kind, machine):
    """Ten that fill a bucket cost what one of its size does; what the next op waits for goes alone."""
    model, link = replace(machine, bucket_bytes=10240), AxisLink(4, 4)

    def seconds(size, transfer):
        ends = (size // 4, size) if kind is StepKind.ALL_GATHER else (size, size // 4 if kind is StepKind.REDUCE_SCATTER else size)
        return estimate_comm_s(model, kind, link, *ends, transfer=transfer)

    assert 10 * seconds(1024, Transfer.GRAD) == pytest.approx(seconds(10240, Transfer.GRAD), rel=0.05)  # each is copied by itself
    assert seconds(10240, Transfer.GRAD) == pytest.approx(seconds(10240, Transfer.BLOCKING))
    assert 10 * seconds(1024, Transfer.BLOCKING) > 5 * seconds(10240, Transfer.BLOCKING)
    assert seconds(20480, Transfer.GRAD) == seconds(20480, Transfer.BLOCKING)


def test_states_of_a_block_travel_together_on_a_cpu_where_all_are_in_pieces():
    graph = make_graph([value(f"h.{i}.{k}@0", (1000,), Kind.PARAM) for i in range(2) for k in "abcd"], [])
    alone, together = bucketed_model(CPU, graph), bucketed_model(CPU, graph, 3)

    def gather(model, elements):
        return estimate_comm_s(model, StepKind.ALL_GATHER, AxisLink(4, 4), 2 * elements, 8 * elements, 0, Transfer.STATE, model.block_elements[0] / elements)

    assert bucketed_model(CPU, graph, 1) == alone and gather(alone, 1000) == gather(CPU, 1000)
    assert 4 * gather(together, 1000) == pytest.approx(gather(alone, 4000)) and 4 * gather(together, 1000) < 2 * gather(alone, 1000)
