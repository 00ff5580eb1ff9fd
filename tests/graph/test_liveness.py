"""Liveness by hand: who owns bytes, from which node to which."""

import pytest
from codegen.chain import chain_graph

from autopar.graph.liveness import bytes_over_time, held_bases, is_view, live_ranges, storage_bases
from autopar.graph.node import Phase, Ref
from autopar.graph.own import find_overwritten
from autopar.graph.tensor import Kind

from .drafts import Assigner, make_graph, node, value


def example():
    """y is read through a view; the new buffer waits for the old one's last reader; big is dropped at once."""
    inputs = (value("w@0", (10,), Kind.PARAM), value("c@0", (5,), Kind.BUFFER), value("x", (10,), Kind.BATCH))
    steps = [
        (node("aten.add.Tensor", ("c@0",), "c@1", other=1), value("c@1", (5,), Kind.BUFFER)),  # 0
        (node("aten.mul.Tensor", ("x", "w@0"), "y"), value("y", (10,))),  # 1
        (node("aten.view.default", ("y",), "v", size=(2, 5)), value("v", (2, 5))),  # 2
        (node("aten.mul.Tensor", ("v", "c@0"), "big"), value("big", (2, 5))),  # 3
        (node("aten.sum.default", ("v",), "loss"), value("loss", (), Kind.LOSS)),  # 4
        (node("aten.neg.default", ("w@0",), "w@1", phase=Phase.UPDATE), value("w@1", (10,), Kind.PARAM)),  # 5
        (node("aten.exp.default", ("w@1",), "e", phase=Phase.UPDATE), value("e", (10,))),  # 6
    ]
    return make_graph(inputs, steps, updates=(("w@0", "w@1"), ("c@0", "c@1")), loss="loss")


def test_ranges_by_hand():
    assert live_ranges(example()) == {
        "w@0": (-1, 7), "c@0": (-1, 7), "x": (-1, 7),
        "c@1": (0, 3),  # written into c@0's storage when node 3 has read the old one
        "y": (1, 4),  # through v
        "big": (3, 3), "loss": (4, 7),
        "w@1": (5, 5),  # what reads it later reads the storage
        "e": (6, 6),
    }  # fmt: skip


def test_bytes_by_hand():
    entering, c, ten, loss = 8 * 25, 8 * 5, 8 * 10, 8
    assert bytes_over_time(example()) == [
        entering + c, entering + c + ten, entering + c + ten, entering + c + 2 * ten, entering + ten + loss, entering + loss + ten, entering + loss + ten,
    ]  # fmt: skip
    assert bytes_over_time(example(), {"w@0": (-1, 7), "y": (2, 3)}) == [80, 80, 160, 160, 80, 80, 80]


def test_a_graph_without_nodes():
    graph = make_graph((value("x", (4,), Kind.BATCH),), [], outputs=("x",))
    assert live_ranges(graph) == {"x": (-1, 0)} and bytes_over_time(graph) == [32]


def test_views_and_their_bases():
    assert is_view("aten.view.default") and is_view("aten.slice.Tensor") and is_view("aten.t") and not is_view("aten.mm.default") and not is_view("comm.slice")
    assert storage_bases(example())["v"] == "y" and storage_bases(example())["big"] == "big"


def test_a_view_of_an_input_owns_nothing():
    steps = [(node("aten.t.default", ("w@0",), "wt"), value("wt", (3, 2))), (node("aten.neg.default", ("wt",), "y"), value("y", (3, 2)))]
    assert live_ranges(make_graph((value("w@0", (2, 3), Kind.PARAM),), steps, outputs=("wt",))) == {"w@0": (-1, 2), "y": (1, 1)}


def test_gathered_parameters_die_with_their_phase():
    """ZeRO-3: between the forward and the backward no rank holds the whole parameter."""
    assigner = Assigner(chain_graph(1), 2)
    program = assigner.program(assigner.assign({"h.0.w@0": "S0/6"}))
    graph = program.graph
    ranges = {graph.nodes[first].op: (first, last) for name, (first, last) in live_ranges(graph).items() if name.startswith("h.0.w@0~")}
    names = [n.name for n in graph.nodes]
    held = [(first, last) for name, (first, last) in live_ranges(graph).items() if name.startswith("h.0.w@0~")]
    assert set(ranges) == {"comm.all_gather"}
    spans = [(names[first], names[last]) for first, last in held]
    assert spans[0] == ("all_gather:h.0.w@0~1", "mm_0") and spans[1] == ("all_gather:h.0.w@0~2", "dx_0")  # dx_0 reads it through the permuted view


@pytest.mark.parametrize("shape, read_again, once", [((512, 512), False, True), ((512, 512), True, False), ((8, 8), False, False)], ids=str)
def test_the_sum_of_a_large_gradient_lies_where_the_gradient_does(shape, read_again, once):
    back = {"phase": Phase.BACKWARD}
    steps = [
        (node("aten.mm.default", ("g", "x"), "dw", **back), value("dw", shape)),  # 0
        (node("comm.all_reduce", ("dw",), "sum", axis="a", **back), value("sum", shape)),  # 1
        (node("aten.view.default", ("sum",), "flat", size=(shape[0] * shape[1],), **back), value("flat", (shape[0] * shape[1],))),  # 2
        (node("aten.norm.Scalar", ("dw" if read_again else "flat",), "norm", **back), value("norm", ())),  # 3
        (node("aten.neg.default", ("flat",), "step", phase=Phase.UPDATE), value("step", (shape[0] * shape[1],))),  # 4
    ]
    graph = make_graph([value("g", shape, Kind.BATCH), value("x", shape, Kind.BATCH)], steps)
    ranges = live_ranges(graph)
    assert ("sum" not in ranges) == once and find_overwritten(graph) == (frozenset(["dw"]) if once else frozenset())
    assert ranges["dw"] == ((0, 4) if once else (0, 3) if read_again else (0, 1))


@pytest.mark.parametrize("read_again", [False, True])
def test_along_a_second_axis_the_sum_stays_where_the_first_has_left_it(read_again):
    back, shape = {"phase": Phase.BACKWARD}, (512, 512)
    steps = [
        (node("aten.mm.default", ("g", "x"), "dw", **back), value("dw", shape)),  # 0
        (node("comm.all_reduce", ("dw",), "half", axis="a", **back), value("half", shape)),  # 1
        (node("comm.all_reduce", ("half",), "sum", axis="b", **back), value("sum", shape)),  # 2
        (node("aten.add.Tensor", ("sum", "half" if read_again else "sum"), "step", phase=Phase.UPDATE), value("step", shape)),  # 3
    ]
    graph = make_graph([value("g", shape, Kind.BATCH), value("x", shape, Kind.BATCH)], steps)
    assert find_overwritten(graph) == ({"dw"} if read_again else {"dw", "half"})
    assert ("sum" in live_ranges(graph)) == read_again and "half" not in live_ranges(graph) and live_ranges(graph)["dw"] == (0, 3)


def test_only_ops_that_know_a_bucket_share_its_bytes():
    """An op of a user's may call an argument so."""
    graph = make_graph([value("x", (4,), Kind.BATCH), value("y", (4,), Kind.BATCH)], [(node("mine.f.default", ("x", "y"), "out", bucket=Ref(1)), value("out", (4,)))], outputs=("out",))
    assert storage_bases(graph)["out"] == "out" and "out" in live_ranges(graph)


@pytest.mark.parametrize("read_again", [False, True])
def test_rows_of_a_table_lie_where_the_other_gradient_of_it_does(read_again):
    back, shape = {"phase": Phase.BACKWARD}, (8, 4)
    steps = [
        (node("aten.mm.default", ("g", "x"), "head", **back), value("head", shape)),  # 0
        (node("autopar.embedding_backward", ("grad", "at", "rows"), "table", grad=Ref(0), indices=Ref(1), rows=Ref(2), **back), value("table", shape)),  # 1
        (node("aten.add.Tensor", ("head", "table"), "sum", **back), value("sum", shape)),  # 2
        (node("aten.neg.default", ("head" if read_again else "sum",), "step", phase=Phase.UPDATE), value("step", shape)),  # 3
        (node("aten.neg.default", ("sum",), "other", phase=Phase.UPDATE), value("other", shape)),  # 4
    ]
    inputs = [value(name, (8, 8) if name == "g" else shape, Kind.BATCH) for name in ("g", "x", "grad", "at", "rows")]
    graph = make_graph(inputs, steps)
    ranges, bases = live_ranges(graph), held_bases(graph)
    assert bases["sum"] == ("sum" if read_again else "head") and ("sum" in ranges) == read_again
    assert ranges["head"] == (0, 3 if read_again else 4) and "table" in ranges, "rows by themselves are counted"


@pytest.mark.parametrize("reader", ["aten.bmm.default", "aten.mul.Tensor"])
@pytest.mark.parametrize("groups", [2, 4])
def test_a_copy_of_what_was_expanded_owns_its_bytes(groups, reader):
    """Keys that two heads share: a matmul reads each twice, and its gradient too; a kernel reads what is there. With a group for each head nothing is copied."""
    thin, wide = (3, groups, 1, 5, 7), (3, groups, 4 // groups, 5, 7)
    steps = [
        (node("aten.neg.default", ("x",), "k"), value("k", thin)),
        (node("aten.expand.default", ("k",), "e", size=wide), value("e", wide)),
        (node("aten.reshape.default", ("e",), "r", shape=(12, 5, 7)), value("r", (12, 5, 7))),
        (node("aten.permute.default", ("r",), "t", dims=(0, 2, 1)), value("t", (12, 7, 5))),
        (node(reader, ("q", "t"), "y"), value("y", (12, 5, 5))),
        (node("aten.exp.default", ("y",), "z"), value("z", (12, 5, 5))),
    ]
    graph = make_graph((value("x", thin, Kind.BATCH), value("q", (12, 5, 7), Kind.BATCH)), steps)
    ranges = {name: span for name, span in live_ranges(graph).items() if name in "kert"}
    assert ranges == ({"k": (0, 2), "r": (2, 4)} if groups == 2 and reader == "aten.bmm.default" else {"k": (0, 4)})


@pytest.mark.parametrize("maker, surely", [("autopar.linear", True), ("aten.bmm.default", True), ("aten.neg.default", False), ("autopar.attention", False), ("", True)])
@pytest.mark.parametrize("reader", ["aten.bmm.default", "aten.mul.Tensor"])
def test_a_copy_of_what_is_turned_owns_its_bytes(maker, surely, reader):
    """Heads apart, one of queries, keys and values, and in another shape: a copy, known as one of what surely lies row by row. The whole is let go where the copy is made."""
    whole, turned, part, flat = (4, 5, 3, 2, 7), (3, 4, 2, 5, 7), (4, 2, 5, 7), (8, 5, 7)
    steps = [(node(maker, ("x",), "h"), value("h", whole))] if maker else []
    steps += [
        (node("aten.permute.default", ("h" if maker else "x",), "p", dims=(2, 0, 3, 1, 4)), value("p", turned)),
        (node("aten.select.int", ("p",), "s", dim=0, index=1), value("s", part)),
        (node("aten.view.default", ("s",), "v", size=flat), value("v", flat)),
        (node(reader, ("q", "v"), "y"), value("y", (8, 5, 5))),
        (node("aten.exp.default", ("y",), "z"), value("z", (8, 5, 5))),
    ]
    graph = make_graph((value("x", whole, Kind.BATCH), value("q", flat, Kind.BATCH)), steps)
    ranges = {name: span for name, span in live_ranges(graph).items() if name in "hpsv"}
    at = len(steps) - 3
    copied = {"v": (at, at + 1)} if surely and reader == "aten.bmm.default" else {}
    assert ranges == copied | ({"h": (0, at if copied else at + 1)} if maker else {})


def test_what_is_turned_back_is_no_copy():
    steps = [
        (node("autopar.linear", ("x",), "h"), value("h", (4, 5, 6))),
        (node("aten.permute.default", ("h",), "p", dims=(1, 0, 2)), value("p", (5, 4, 6))),
        (node("aten.permute.default", ("p",), "b", dims=(1, 0, 2)), value("b", (4, 5, 6))),
        (node("aten.view.default", ("b",), "v", size=(20, 6)), value("v", (20, 6))),
        (node("aten.mm.default", ("v", "w"), "y"), value("y", (20, 6))),
    ]
    graph = make_graph((value("x", (4, 5, 6), Kind.BATCH), value("w", (6, 6), Kind.PARAM)), steps)
    assert "v" not in live_ranges(graph) and live_ranges(graph)["h"] == (0, 4)
