"""Why one program takes longer than another: what is told sums to the difference, equal blocks are one row, what grows comes first."""

from __future__ import annotations

from math import isclose

from autopar.graph.mesh import Mesh, MeshAxis
from autopar.view.why_dearer import COMPUTE, CostRow, compare_costs, largest_kind

MESH = Mesh((MeshAxis("a", 2, "across"), MeshAxis("b", 8, "inside")))
CHOSEN = {
    **{CostRow("all_gather", "b", "update", "", f"h.{k}.up.weight"): 2e-3 for k in range(4)},
    **{CostRow(COMPUTE, "", "forward", "", f"h.{k}"): 5e-3 for k in range(4)},
    CostRow(COMPUTE, "", "forward", "", "head"): 1e-3,
}


def test_an_equal_program_has_no_difference():
    found = compare_costs(CHOSEN, CHOSEN, 0.0, MESH, 2)
    assert (found.kinds, found.causes, found.rest_s) == ((), (), 0.0) and largest_kind(found.kinds) == ""


def test_causes_and_the_rest_sum_to_the_difference():
    other = {row: seconds for row, seconds in CHOSEN.items() if row.sort == COMPUTE}
    other |= {CostRow("all_gather", "a", phase, "", f"h.{k}.up.weight"): 3e-3 for k in range(4) for phase in ("forward", "backward")}
    other[CostRow(COMPUTE, "", "forward", "", "head")] = 1.0001e-3
    extra_s = sum(other.values()) - sum(CHOSEN.values())
    found = compare_costs(CHOSEN, other, extra_s, MESH, 2)
    assert [(c.what, c.count) for c in found.causes] == [
        ("all_gather on a (forward) of h.[0..3].up.weight", 4),
        ("all_gather on a (backward) of h.[0..3].up.weight", 4),
        ("all_gather on b (update) of h.[0..3].up.weight", 4),
    ]
    assert [round(c.seconds, 9) for c in found.causes] == [12e-3, 12e-3, -8e-3]
    assert isclose(sum(c.seconds for c in found.causes) + found.rest_s, extra_s) and isclose(found.rest_s, 1e-7, rel_tol=1e-6)
    assert [c.what for c in found.kinds] == ["communication along a (across hosts)", "communication along b (inside a host)"]
    assert largest_kind(found.kinds) == "communication along a (across hosts)"


def test_on_one_host_links_need_no_name_and_compute_is_told_by_block():
    other = {row: 2 * seconds if row.sort == COMPUTE else seconds for row, seconds in CHOSEN.items()}
    found = compare_costs(CHOSEN, {**other, CostRow("slice", "b", "forward", "", "x"): 1e-3}, 22e-3, MESH, 1)
    assert [c.what for c in found.kinds] == ["compute", "communication along b"]
    assert [(c.what, c.count) for c in found.causes] == [
        ("compute (forward) in h.[0..3]", 4), ("compute (forward) in head", 1), ("slice on b (forward) of x", 1),
    ]  # fmt: skip
