"""What a step offers: shares, reasons, sums; and its JSON."""

import json
import math

import pytest

from autopar.graph.cuts import resolve_all
from autopar.graph.opportunities.as_json import opportunities_to_json
from autopar.graph.opportunities.find import find_opportunities, splittable
from autopar.graph.rule import Rule
from autopar.graph.rules import RULES
from autopar.graph.tensor import Kind
from autopar.graph.work import total_work

from .drafts import make_graph, node, value
from .steps import diamond, pair, update


def one_op(op, rows, shape=(8, 6), ranks=8):
    inputs = (value("x", shape, Kind.BATCH),)
    graph = make_graph(inputs, [(node(op, ("x",), "y"), value("y", shape))], outputs=("y",))
    return splittable(graph, *resolve_all(graph, {**RULES, **rows}), ranks)


def test_all_of_it_is_splittable_where_a_factor_divides():
    graph = pair(2)
    found = splittable(graph, *resolve_all(graph, RULES))
    assert (found.flops_share, found.bytes_share, found.kept, found.num_ranks) == (1.0, 1.0, (), 8)


def test_several_axes_may_divide_together():
    """12 = 4 x 3 ranks over 4 rows and 6 columns: no single dim divides by 12, and 4 x 3 does."""
    assert one_op("aten.relu.default", {}, (4, 6), 12).flops_share == 1.0
    kept = one_op("aten.relu.default", {}, (4, 7), 12)
    assert kept.flops_share == 0.0 and kept.kept[0].ranks == 4 and kept.kept[0].reason.startswith("at most 4 ranks: ")


def test_what_is_kept_whole_says_why_and_where():
    rows = {"toy.sort": Rule("toy.sort", "[a] [b] -> [a] [b]", why_whole="an order needs all of it")}
    (kept,) = one_op("toy.sort", rows).kept
    assert (kept.node, kept.op, kept.source, kept.ranks, kept.count) == ("y", "toy.sort", "model.py:1", 1, 1)
    assert kept.reason == "nothing splits: an order needs all of it"
    assert (kept.flops_share, kept.bytes_share) == (1.0, 1.0)
    rows = {"toy.sort": Rule("toy.sort", "a [b] -> a [b]", why_whole="an order needs all of it")}
    (kept,) = one_op("toy.sort", rows, (6, 8)).kept
    assert kept.reason == "at most 2 ranks: b (8) stays whole: an order needs all of it; a of size 6 does not divide by 8" and kept.ranks == 2


def test_equal_nodes_of_many_layers_count_together():
    """One of 200 holds less than 1 %, all of them everything."""
    inputs = (value("x", (7, 5), Kind.BATCH),)
    steps, last = [], "x"
    for k in range(200):
        steps.append((node("aten.relu.default", (last,), f"r{k}"), value(f"r{k}", (7, 5))))
        last = f"r{k}"
    graph = make_graph(inputs, steps, outputs=(last,))
    (kept,) = splittable(graph, *resolve_all(graph, RULES)).kept
    assert kept.count == 200 and math.isclose(kept.flops_share, 1.0)


def test_shares_of_what_is_divided_and_what_is_kept_are_one():
    rows = {"toy.sort": Rule("toy.sort", "[a] [b] -> [a] [b]", why_whole="an order needs all of it")}
    inputs = (value("x", (8, 8), Kind.BATCH),)
    steps = [
        (node("aten.relu.default", ("x",), "a"), value("a", (8, 8))),
        (node("toy.sort", ("a",), "b"), value("b", (8, 8))),
        (node("aten.exp.default", ("b",), "c"), value("c", (8, 8))),
    ]
    graph = make_graph(inputs, steps, outputs=("c",))
    found = splittable(graph, *resolve_all(graph, {**RULES, **rows}))
    assert math.isclose(found.flops_share + sum(k.flops_share for k in found.kept), 1.0)
    assert math.isclose(found.bytes_share + sum(k.bytes_share for k in found.kept), 1.0)
    assert math.isclose(found.flops_share, 2 / 3)


def test_a_graph_without_work_is_splittable():
    inputs = (value("x", (7, 5), Kind.BATCH),)
    graph = make_graph(inputs, [(node("aten.t.default", ("x",), "y"), value("y", (5, 7)))], outputs=("y",))
    assert (one := splittable(graph, *resolve_all(graph, RULES))).flops_share == one.bytes_share == 1.0 and one.kept == ()


def test_an_op_without_a_rule_is_listed_and_kept_whole():
    inputs = (value("x", (8, 8), Kind.BATCH),)
    steps = [
        (node("aten.relu.default", ("x",), "a"), value("a", (8, 8))),
        (node("mylib.strange.default", ("a",), "b"), value("b", (8, 8))),
    ]
    found = find_opportunities(make_graph(inputs, steps, outputs=("b",)), RULES)
    assert found.unknown == ("mylib.strange.default",)
    assert [k.reason for k in found.splittable.kept] == ["nothing splits: the op has no sharding rule"]
    assert {s.reason for r in found.reaches for s in r.syncs} == {"the op has no sharding rule"}


@pytest.mark.parametrize("graph", [diamond(), pair(3), update()], ids=["diamond", "pair", "update"])
def test_json_is_plain_and_its_totals_are_sums_of_its_rows(graph):
    data = json.loads(json.dumps(opportunities_to_json(find_opportunities(graph, RULES, precision="fp64")), allow_nan=False))
    assert data["format"] == "autopar-trace-1" and data["model"]["precision"] == "fp64"
    total = data["total"]
    for rows in (data["phases"], [{**n, "nodes": 1} for n in data["nodes"]]):
        for key in ("flops", "bytes", "nodes"):
            assert sum(row[key] for row in rows) == total[key]
    node_of = {n["name"]: n for n in data["nodes"]}
    for factor in data["factors"]:
        for key in ("flops", "bytes"):
            assert sum(node_of[name][key] for name in factor["nodes"]) == factor[key]
            assert math.isclose(factor[f"{key}_share"], factor[key] / total[key])
    for path in data["paths"]:
        assert sum({"nodes": 1}.get(path["measure"]) or node_of[name][path["measure"]] for name in path["nodes"]) == path["length"]
        assert path["total"] == total[path["measure"]]
    assert sum(data["width"]["levels"]) == total["nodes"] and len(data["width"]["levels"]) == data["width"]["depth"]
    assert [v["value"] for v in data["versions"]] == [v["name"] for v in data["values"] if v["version"]]


def test_a_sync_has_its_line_its_module_and_its_reader():
    data = opportunities_to_json(find_opportunities(pair(1), RULES))
    wide = next(f for f in data["factors"] if f["starts"] == [{"at": "dim 0 of h.0.up", "size": 16}])
    assert wide["syncs"] == [
        {
            "kind": "all_reduce", "value": "down_0", "bytes": 8 * 4 * 8, "reason": "contracted by autopar.linear: each rank holds a part of the sum",
            "module": "h.0.down", "source": "model.py:1", "op": "autopar.linear", "reader": "out_0", "phase": "forward",
        }
    ]  # fmt: skip
    assert wide["values"]["relu_0"] == "S1" and wide["values"]["down_0"] == "P"


def test_to_networkx_has_every_node_and_every_read():
    networkx = pytest.importorskip("networkx")
    graph = update()
    net = graph.to_networkx()
    assert isinstance(net, networkx.MultiDiGraph) and networkx.is_directed_acyclic_graph(net)
    inside = {name: data for name, data in net.nodes(data=True) if data["kind"] == "node"}
    assert list(inside) == [n.name for n in graph.nodes]
    assert inside["mean"]["op"] == "aten.sum.dim_IntList" and inside["mean"]["phase"] == "forward" and inside["mean"]["path"] == "bn"
    assert inside["mean"]["source"] == "model.py:1" and inside["mean"]["shapes"] == ((4,),) and inside["mean"]["flops"] == 32.0
    reads = [(u, v, d["value"], d["shape"], d["dtype"], d["bytes"]) for u, v, d in net.edges(data=True)]
    assert ("x", "mean", "x", (8, 4), "float64", 256) in reads
    assert ("mean", "w@1", "mean", (4,), "float64", 32) in reads
    assert sum(1 for read in reads if read[1] != "end of the step") == sum(len(n.inputs) for n in graph.nodes)
    assert {read[2] for read in reads if read[1] == "end of the step"} == {"bn.running_mean@1", "w@1", "loss"}
    chain = networkx.dag_longest_path(net)
    assert chain[0] in graph.inputs and chain[-1] == "end of the step"


def test_to_networkx_keeps_two_reads_of_one_value_and_unknown_ops():
    pytest.importorskip("networkx")
    inputs = (value("x", (8, 8), Kind.BATCH),)
    steps = [
        (node("aten.mul.Tensor", ("x", "x"), "a"), value("a", (8, 8))),
        (node("mylib.strange.default", ("a",), "b"), value("b", (8, 8))),
    ]
    net = make_graph(inputs, steps, outputs=("b",)).to_networkx()
    assert net.number_of_edges("x", "a") == 2
    assert net.nodes["b"]["flops"] is None and net.nodes["a"]["flops"] == 64.0


def test_work_sums():
    found = find_opportunities(pair(2), RULES)
    assert total_work(found.work).flops == 2 * (2 * 2 * 8 * 4 * 16 + 8 * 16 + 8 * 4)
