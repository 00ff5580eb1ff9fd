"""Two plans compared: rows sum to what each plan says, what changed is found, equal plans are said to be equal."""

import dataclasses
import json
from math import fsum, isclose
from pathlib import Path

import pytest

from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.sharding import REPLICATE, Partial, Shard, Sharding
from autopar.view.diff_plans import diff_plans
from autopar.view.diff_terminal import diff_text, diff_to_json
from autopar.view.split_text import print_split

from .synthetic_plans import make_plan

A = make_plan(num_layers=12, hidden=768, seq=1024, memory_bytes=16 << 30)
WIDE = Mesh((MeshAxis("a", 4, "across"), MeshAxis("b", 2, "inside")))


def _wide():
    plan = make_plan(num_layers=12, hidden=768, seq=1024, memory_bytes=16 << 30, mesh=WIDE)
    return dataclasses.replace(
        plan, cluster=dataclasses.replace(plan.cluster, spec="2x4xcpu", num_devices=8, num_hosts=2, inside_bytes_per_s=1e9)
    )


def _other_model():
    plan = make_plan(num_layers=3, hidden=512, seq=256)
    return dataclasses.replace(plan, model=dataclasses.replace(plan.model, graph_hash="fedcba9876543210", precision="bf16"))


def _one_choice():
    """Equal but for the feed-forward's way in, which every block holds whole along b and computes alike."""

    def moved(name):
        return name.endswith(".mlp.c_fc.weight")

    whole = Sharding((Shard(0, 1536), REPLICATE))
    params = tuple(dataclasses.replace(p, param=whole, param_bytes=p.param_bytes * 2) if moved(p.name) else p for p in A.params)
    nodes = tuple(
        dataclasses.replace(n, choices=("b", "R"), seconds=n.seconds * 2)
        if n.path.endswith(".mlp.c_fc") and n.op == "autopar.linear"
        else n
        for n in A.nodes
    )
    compute = fsum(n.seconds for n in nodes)
    cost = dataclasses.replace(A.cost, compute_s=compute, step_s=A.cost.step_s - A.cost.compute_s + compute)
    return dataclasses.replace(A, params=params, nodes=nodes, cost=cost)


PAIRS = {
    "mesh": (A, _wide()),
    "model": (A, _other_model()),
    "one rank": (make_plan(mesh=Mesh(())), make_plan()),
    "one choice": (A, _one_choice()),
}


@pytest.fixture(params=list(PAIRS), ids=lambda name: name.replace(" ", "-"))
def pair(request):
    return PAIRS[request.param]


def test_rows_sum_to_what_each_plan_says(pair):
    diff = diff_plans(*pair)
    for side, plan, hidden in zip("ab", pair, diff.hidden_s):

        def total(rows, field, side=side):
            return fsum(getattr(row, f"{field}_{side}") for row in rows)

        assert isclose(total(diff.comms, "seconds") - hidden, plan.cost.exposed_comm_s, rel_tol=1e-9, abs_tol=1e-12)
        assert total(diff.comms, "count") == len(plan.comms) and total(diff.comms, "bytes") == sum(c.bytes for c in plan.comms)
        nodes = (*diff.strategies, diff.kept, diff.alone)
        assert isclose(total(nodes, "seconds"), plan.cost.compute_s, rel_tol=1e-9)
        count = sum(row.count for row in diff.strategies) + getattr(diff.kept, f"count_{side}") + getattr(diff.alone, f"count_{side}")
        assert count == len(plan.nodes)
        assert sum(getattr(h, side) for h in diff.holders) == max(plan.cost.peak_bytes)
        assert {f.what: getattr(f, side) for f in diff.figures}["step"] == plan.cost.step_s


def test_what_changed_is_found_and_folded():
    diff = diff_plans(*PAIRS["one choice"])
    (param,) = diff.params
    assert (param.name, len(param.members), param.roles) == ("transformer.h.[0..11].mlp.c_fc.weight", 12, ("param",))
    assert (param.a, param.b) == ("S0 on a,b", "S0 on a") and param.bytes_b == 2 * param.bytes_a
    (strategy,) = diff.strategies
    assert (strategy.path, strategy.op, strategy.phase, strategy.count) == ("transformer.h.[0..11].mlp.c_fc", "linear", "forward", 12)
    assert (strategy.a, strategy.b) == ("b on a, o on b", "b on a") and isclose(strategy.seconds_b, 2 * strategy.seconds_a)
    assert diff.same_graph and not diff.same and not diff.grounds and not diff.only_a and not diff.only_b
    text = diff_text(diff, width=140)
    assert "Parameters that lie otherwise  12 of 149" in text and "Nodes that work otherwise  12 of " in text


@pytest.mark.parametrize("width", [60, 80, 140])
def test_no_line_is_too_long_and_no_name_is_cut(pair, width):
    text = diff_text(diff_plans(*pair), ("first/plan.json", "second.json"), width)
    assert max(map(len, text.splitlines())) <= width
    assert "..." not in text.replace("[..]", "") and "…" not in text
    assert text.startswith("A  first/plan.json: GPT on cpu:")


@pytest.mark.parametrize("width", [60, 140])
def test_the_text_is_stable(width, golden):
    golden(f"diff_text_{width}", diff_text(diff_plans(*PAIRS["mesh"]), ("a.json", "b.json"), width))


def test_what_cannot_be_the_same_is_said_first():
    lines = diff_text(diff_plans(*PAIRS["model"]), width=140).splitlines()
    assert lines[2] == "  not the same parameters: 85,842,944 | 9,982,976"
    assert "  not the same precision: fp32 | bf16" in lines[:8] and "  not the same memory limit: 16.0 GiB | 1.00 GiB" in lines[:8]
    head = "\n".join(lines[:9])
    assert "the graphs differ, so nodes are compared by module, phase, op and place among their like" in head
    assert "8 x cpu on 2 hosts" in diff_text(diff_plans(*PAIRS["mesh"]))


def test_equal_plans_are_one_line_whatever_solving_took():
    slower = dataclasses.replace(A, solve=dataclasses.replace(A.solve, wall_s=99.0))
    text = diff_text(diff_plans(A, slower), width=140)
    assert text.count("\n") == 1 and text.startswith("the plans are the same: GPT on cpu:4, step ")
    nearly = dataclasses.replace(A, cluster=dataclasses.replace(A.cluster, memory_bytes=A.cluster.memory_bytes + 1))
    assert "not the same memory limit: 17,179,869,184 bytes | 17,179,869,185 bytes" in diff_text(diff_plans(A, nearly))


def test_constraints_and_recomputed_ops_are_told():
    again = dataclasses.replace(A.assignment, again=(A.nodes[0].name, A.nodes[1].name))
    text = diff_text(diff_plans(A, dataclasses.replace(A, assignment=again, constraints=("dp=4", "recompute=full"))), width=140)
    assert "not the same constraints: none | dp=4; recompute=full" in text
    assert "run again for the backward pass  nothing" in text and "2 ops" in text


def test_longer_axes_are_no_other_decision():
    diff = diff_plans(*PAIRS["mesh"])
    assert not diff.params and not diff.strategies and diff.kept.count_a == len(A.nodes)
    assert diff.resized.count == len(A.params) and diff.resized.bytes_a == 2 * diff.resized.bytes_b
    assert {(row.axis, row.count_a == row.count_b) for row in diff.comms} == {("a", True), ("b", True)}
    text = diff_text(diff, width=140)
    assert "all 149 lie alike" in text and "149 lie along the same axes, which are of another size: 329 MiB -> 165 MiB on a rank" in text


def test_sizes_stand_beside_axes_of_another_mesh():
    flat = Mesh((MeshAxis("a", 2), MeshAxis("b", 4)))
    wide = make_plan(mesh=flat)
    moved = Sharding((REPLICATE, Shard(0, 128)))
    wide = dataclasses.replace(wide, params=(dataclasses.replace(wide.params[0], param=moved), *wide.params[1:]))
    (row,) = diff_plans(make_plan(), wide).params
    assert (row.name, row.roles, row.a, row.b) == ("transformer.wte.weight", ("param",), "S0 on a=2", "S0 on b=4")


def test_names_of_one_side_are_listed():
    deeper = make_plan(num_layers=3)
    diff = diff_plans(make_plan(num_layers=2), dataclasses.replace(deeper, model=dataclasses.replace(deeper.model, graph_hash="1" * 16)))
    params = next(row for row in diff.only_b if row.kind == "param")
    assert params.count == 12 and "transformer.h.2.ln_1.weight" in params.names
    assert not [row for row in diff.only_a if row.kind == "param"]


def test_shardings_in_words():
    mesh = Mesh((MeshAxis("a", 2), MeshAxis("b", 4)))
    told = {
        (REPLICATE, REPLICATE): "R", (Shard(0, 32), REPLICATE): "S0 on a", (Shard(0, 32), Shard(0, 8)): "S0 on a,b",
        (Shard(0, 8), Shard(0, 16)): "S0 on b,a", (Shard(0, 8), Shard(1, 2)): "S0/8 on a, S1 on b", (Partial(), Shard(1, 2)): "S1 on b, P on a",
    }  # fmt: skip
    assert {placements: print_split((64, 8), Sharding(placements), mesh) for placements in told} == told
    assert print_split((64, 8), Sharding((Shard(0, 32), REPLICATE)), mesh, sized=True) == "S0 on a=2"
    assert print_split((64,), None, mesh) == "none" and print_split((64,), Sharding(()), Mesh(())) == "R"


def test_json_has_every_row_and_is_documented(pair):
    data = json.loads(json.dumps(diff_to_json(diff_plans(*pair)), allow_nan=False))
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert data["format"] == "autopar-diff-1"
    assert [key for key in data if f"`{key}`" not in page and key != "format"] == []
