"""Pieces of runs: a model without blocks gathers its states a few at a time, and the numbers stay those of the plain step."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from autopar.graph import run_pieces  # noqa: E402
from autopar.graph.messages import BUCKET_BYTES, GATHERED_ALONE_BYTES  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.overlap import list_places  # noqa: E402
from autopar.graph.overlap_memory import held_over_time  # noqa: E402
from autopar.graph.run_pieces import cut_runs, is_piece, piece_before, piece_bytes  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402

from .chain import chain_graph  # noqa: E402
from .test_overlap import BLOCKS, WIDTH, check_numbers, overlapped, words, zero_program  # noqa: E402

pytestmark = pytest.mark.torch
WEIGHT_BYTES = WIDTH * WIDTH * 8


def without_blocks():
    """The chain as a function would be written."""
    graph = chain_graph(BLOCKS, width=WIDTH)
    return replace(graph, nodes=tuple(replace(n, path="") for n in graph.nodes))


def run_program(monkeypatch, least, zero=3):
    """Of ZeRO's stage, with pieces of at least so many bytes."""
    monkeypatch.setattr(run_pieces, "GATHERED_ALONE_BYTES", least)
    return zero_program(zero, without_blocks())


def order(program, phase):
    return [n.name for n in program.graph.nodes if n.phase is phase and not n.name.startswith(("wt", "xt"))]


def test_pieces_are_a_part_of_their_run_and_no_larger_than_a_bucket():
    assert [piece_bytes(size) for size in (0, GATHERED_ALONE_BYTES, 32 * GATHERED_ALONE_BYTES)] == 3 * [GATHERED_ALONE_BYTES]
    assert piece_bytes(320 * 2**20) == 10 * 2**20 and piece_bytes(2**40) == BUCKET_BYTES


def test_each_large_weight_is_gathered_while_the_one_before_is_at_work(monkeypatch):
    found = overlapped(run_program(monkeypatch, WEIGHT_BYTES))
    start, wait = "start:h.{}.w@0~1", "wait:h.{}.w@0~1"
    forward = order(found, Phase.FORWARD)
    assert forward[:6] == [start.format(0), start.format(1), wait.format(0), "mm_0", "relu_0", start.format(2)]
    for i in range(2, BLOCKS):
        assert forward.index(start.format(i)) < forward.index(f"mm_{i - 1}") < forward.index(wait.format(i)) < forward.index(f"mm_{i}")
        assert forward.index(start.format(i)) > forward.index(f"relu_{i - 2}")
    assert [w for w in words(found) if w.startswith("start_reduce_scatter")] == [f"start_reduce_scatter dw_{i}" for i in reversed(range(BLOCKS))]


def test_small_weights_share_a_piece_and_its_messages(monkeypatch):
    found = words(overlapped(run_program(monkeypatch, 2 * WEIGHT_BYTES)))
    assert [w for w in found if w.startswith("start_all_gather")] == [f"start_all_gather {w}" for w in ("h.0.w@0 h.1.w@0", "h.2.w@0 h.3.w@0", "h.3.w@0 h.2.w@0", "h.1.w@0 h.0.w@0")]
    assert [w for w in found if w.startswith("start_reduce")] == ["start_reduce_scatter dw_3 dw_2", "start_reduce_scatter dw_1 dw_0"]


def test_two_pieces_are_held_at_most(monkeypatch):
    """Of a run that is not cut all is."""
    most = {least: max(held_over_time(overlapped(run_program(monkeypatch, least)))) for least in (WEIGHT_BYTES, 100 * WEIGHT_BYTES)}
    assert most[100 * WEIGHT_BYTES] - most[WEIGHT_BYTES] >= 2 * WEIGHT_BYTES


@pytest.mark.parametrize("weights", [1, 2, 100])
def test_numbers(monkeypatch, weights):
    check_numbers(run_program(monkeypatch, weights * WEIGHT_BYTES))


def test_what_gathers_nothing_is_not_cut(monkeypatch):
    """Data parallelism and ZeRO-1 reduce in buckets, as ever."""
    for zero in (0, 1):
        program = run_program(monkeypatch, WEIGHT_BYTES, zero)
        places = list_places(program.graph, phase_sections(program.graph))
        assert cut_runs(program.graph, places, []) == places
        assert len([w for w in words(overlapped(program)) if w.startswith("start_") and "dw" in w]) == 1


def test_where_nothing_more_is_gathered_a_piece_ends_with_what_it_reduces(monkeypatch):
    """The gradients of a model's first layers: nobody needs those of its input."""
    program = run_program(monkeypatch, WEIGHT_BYTES)
    places = list_places(program.graph, phase_sections(program.graph))
    reduced = [i for i, node in enumerate(program.graph.nodes) if node.op == "comm.reduce_scatter"]
    last = next(i for i, node in enumerate(program.graph.nodes) if node.op == "comm.all_gather" and node.phase is Phase.BACKWARD)
    found = cut_runs(program.graph, places, [(last, last, WEIGHT_BYTES)])  # as if it alone were gathered
    here = [found[i] for i in reduced]
    assert all(map(is_piece, here)) and here[0] == found[last]
    assert [piece_before(place) for place in here] == [None, *here[:-1]]
