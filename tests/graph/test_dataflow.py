"""What waits for what, how wide a graph is, and which storages are rewritten: on graphs that can be counted on paper."""

from autopar.graph.cuts import resolve_all
from autopar.graph.graph import check_graph
from autopar.graph.opportunities.dataflow import count_widths, list_rewrites, longest_path, read_dataflow, wait_table
from autopar.graph.rules import RULES
from autopar.graph.work import Work, count_work, total_work

from .steps import diamond, pair, update


def flow(graph):
    check_graph(graph)
    work = count_work(graph, *resolve_all(graph, RULES))
    return read_dataflow(graph, work), work


def test_a_diamond_has_the_levels_and_widths_of_a_diamond():
    found, _ = flow(diamond())
    assert found.levels == (0, 1, 1, 2, 3)
    assert count_widths(found.levels) == (1, 2, 1, 1)


def test_the_longest_chain_depends_on_the_measure():
    found, work = flow(diamond())
    graph = diamond()
    chains = {path.measure: [graph.nodes[i].name for i in path.nodes] for path in found.paths}
    assert chains["nodes"] == ["top", "right", "far", "sum"]
    assert chains["flops"] == ["top", "left", "sum"]  # 2 x 8 x 4 x 4 beside 8 x 4 and 8 x 4
    flops = next(path for path in found.paths if path.measure == "flops")
    assert flops.length == 32 + 256 + 32 and flops.total == 32 + 256 + 32 + 32 + 32 == total_work(work).flops
    assert flops.parallelism == 384 / 320
    assert next(path for path in found.paths if path.measure == "nodes").parallelism == 5 / 4


def test_a_chain_sums_its_own_nodes_and_never_more_than_all():
    for graph in (diamond(), pair(3), update()):
        found, work = flow(graph)
        for path in found.paths:
            own = sum({"flops": work[i].flops, "bytes": work[i].bytes, "nodes": 1}[path.measure] for i in path.nodes)
            assert path.length == own <= path.total
            waits = wait_table(graph)
            assert all(a in waits[b] for a, b in zip(path.nodes, path.nodes[1:]))
        assert sum(count_widths(found.levels)) == len(graph.nodes)


def test_a_chain_of_nothing():
    path = longest_path((), (), "flops")
    assert path.nodes == () and path.length == 0 and path.parallelism == 1.0
    assert longest_path(((), ()), (Work(), Work()), "flops").parallelism == 1.0


def test_rewrites_name_the_node_and_the_last_read_of_the_version_before():
    graph = update()
    names = [node.name for node in graph.nodes]
    found = {r.value: r for r in list_rewrites(graph)}
    assert set(found) == {"bn.running_mean@1", "w@1"}
    mean = found["bn.running_mean@1"]
    assert (mean.storage, mean.version, mean.bytes) == ("bn.running_mean", 1, 32)
    assert names[mean.node] == "bn.running_mean@1" and names[mean.last_read] == "bn.running_mean@1"  # it reads what it replaces
    assert names[found["w@1"].node] == "w@1"


def test_views_move_no_bytes_and_lookups_read_no_more_than_they_write():
    from autopar.graph.work import moved_bytes

    assert moved_bytes("aten.view.default", [1000], [1000]) == 0
    assert moved_bytes("aten.embedding.default", [10_000, 8], [400]) == 400 + 8 + 400
    assert moved_bytes("aten.add.Tensor", [400, 400], [400]) == 1200
