"""What `autopar trace` prints: whole at every width, its sums those of the report."""

import pytest

from autopar.graph.opportunities.find import find_opportunities
from autopar.graph.rules import RULES
from autopar.view.trace_rows import module_rows, path_rows, place_text, sync_rows, version_rows
from autopar.view.trace_terminal import opportunities_text
from autopar.view.units import print_flops, print_percent
from tests.graph.steps import diamond, pair, update

FOUND = find_opportunities(pair(12, batch=64, hidden=256, wide=1024), RULES, precision="fp64")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_line_is_too_long_and_no_name_is_cut(width):
    text = opportunities_text(FOUND, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for word in ("batch", "1,024 x12", "all_reduce x12", "h.[0..11].down", "model.py:1", "On 8 ranks", "What must wait", "of FLOPs", "the longest chain"):
        assert word in " ".join(text.split()), word


@pytest.mark.parametrize("width", [60, 120])
def test_the_text_is_stable(width, golden):
    golden(f"trace_text_{width}", opportunities_text(FOUND, width))


def test_rows_sum_to_the_report():
    for found in (FOUND, find_opportunities(update(), RULES), find_opportunities(diamond(), RULES)):
        for reach in found.reaches:
            rows = sync_rows(found, reach)
            assert sum(r.count for r in rows) == len(reach.syncs)
            assert sum(r.bytes for r in rows) == sum(s.bytes for s in reach.syncs)
            assert all(sum(n for _, n in r.places) == r.count for r in rows)
        for path in found.dataflow.paths:
            rows = path_rows(found, path)
            assert sum(r.count for r in rows) == len(path.nodes)
            assert sum({"flops": r.flops, "bytes": r.bytes, "nodes": r.count}[path.measure] for r in rows) == path.length
        everything = module_rows(found, range(len(found.graph.nodes)))
        assert sum(r.flops for r in everything) == sum(w.flops for w in found.work)
        assert sum(r.count for r in version_rows(found)) == len(found.dataflow.rewrites)


def test_rewrites_tell_versions_and_lines():
    text = opportunities_text(find_opportunities(update(), RULES), 100)
    rows = [line.split() for line in text.splitlines()]
    assert ["running_mean", "1", "32", "B", "@0", "->", "@1", "forward", "model.py:1"] in rows
    assert ["parameters", "1", "32", "B", "@0", "->", "@1", "update", "model.py:1"] in rows


def test_equal_layers_are_one_row():
    reach = next(r for r in FOUND.reaches if len(r.sizes) == 12)
    (row,) = sync_rows(FOUND, reach)
    assert row.count == 12 and row.modules == (("h.[0..11].down", 12),) and row.bytes == 12 * 64 * 256 * 8


def test_places_name_a_file_once():
    assert place_text([("a.py:3", 12), ("a.py:9", 1), ("b.py:4", 2)]) == "a.py:3 x12, :9, b.py:4 x2"
    assert place_text([("a.py:3", 12), ("a.py:9", 1), ("b.py:4", 2)], 1) == "a.py:3 x12, and 3 more"
    assert place_text([("", 1)]) == "the end of the step"


def test_flops_have_their_unit():
    assert [print_flops(n) for n in (0, 100, 1500, 6.62e12)] == ["0 FLOP", "100 FLOP", "1.50 kFLOP", "6.62 TFLOP"]
    assert print_percent(1.0) == "100 %"
