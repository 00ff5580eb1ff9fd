"""Groups of nodes that run as one kernel: which they are, that they can run at once, what they still move."""

import random
from dataclasses import replace

import pytest

from autopar.graph.case import build_case
from autopar.graph.cuts import resolve_all
from autopar.graph.fusion import MOST_NODES, MOST_VALUES, find_groups, find_traffic
from autopar.graph.graph import Graph
from autopar.graph.held_longer import HeldLonger
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.rules import RULES
from autopar.graph.tensor import Kind, Value

ROWS, WIDTH = 8, 16


class Maker:
    """Writes a small graph, one op after the other."""

    def __init__(self):
        self.values, self.nodes, self.inputs = [], [], []

    def enter(self, name, shape=(ROWS, WIDTH), kind=Kind.BATCH):
        self.values.append(Value(name, name, 0, shape, "float32", kind))
        self.inputs.append(name)
        return name

    def add(self, op, *inputs, shape=(ROWS, WIDTH), args=(), path="h.0", phase=Phase.FORWARD):
        name = f"v{len(self.nodes)}"
        names = {"aten.add.Tensor": ("self", "other"), "aten.mul.Tensor": ("self", "other"), "aten.mm.default": ("self", "mat2")}.get(op, ("self",))
        wired = tuple((key, Ref(k)) for k, key in enumerate(names[: len(inputs)]))
        self.nodes.append(Node(name, op, inputs, (*wired, *args), (name,), phase, path, ""))
        self.values.append(Value(name, name, 0, shape, "float32", Kind.ACTIVATION))
        return name

    def graph(self, *outputs):
        return Graph("g", tuple(self.values), tuple(self.nodes), tuple(self.inputs), (), "", outputs)


def groups_of(graph):
    sites, signatures = resolve_all(graph, RULES)
    found = find_groups(graph, sites, signatures)
    return found, find_traffic(graph, found)


def names_of(graph, groups):
    return [tuple(graph.nodes[i].name for i in nodes) for nodes in groups]


@pytest.mark.parametrize("given, share", [((), 1 / (ROWS * WIDTH)), ((ROWS, 1), 1 / WIDTH), ((ROWS, WIDTH), 1)], ids=str)
def test_what_is_expanded_is_read_as_it_is(given, share):
    make = Maker()
    x, small = make.enter("x"), make.enter("small", given)
    wide = make.add("aten.expand.default", small, args=(("size", (ROWS, WIDTH)),))
    a = make.add("aten.mul.Tensor", x, wide)
    graph = make.graph(make.add("aten.sigmoid.default", a))
    groups, traffic = groups_of(graph)
    assert len(groups) == 1 and traffic[1].inputs == (1, share)


def test_a_chain_is_one_group_that_reads_and_writes_once():
    make = Maker()
    x = make.enter("x")
    a = make.add("aten.relu.default", x)
    b = make.add("aten.mul.Tensor", a, x)
    c = make.add("aten.sigmoid.default", b)
    graph = make.graph(c)
    groups, traffic = groups_of(graph)
    assert names_of(graph, groups) == [(a, b, c)]
    assert [traffic[i].inputs for i in range(3)] == [(True,), (False, False), (False,)]
    assert [traffic[i].outputs for i in range(3)] == [(False,), (False,), (True,)]
    assert [traffic[i].starts for i in range(3)] == [True, False, False]


def test_a_matmul_parts_groups_and_no_group_goes_around_it():
    """v0 and v2 could be one kernel by their shapes, but v2 needs the matmul that needs v0."""
    make = Maker()
    x, w = make.enter("x"), make.enter("w", (WIDTH, WIDTH), Kind.PARAM)
    a = make.add("aten.relu.default", x)
    m = make.add("aten.mm.default", a, w)
    b = make.add("aten.add.Tensor", a, m)
    graph = make.graph(b)
    assert groups_of(graph)[0] == ()


def test_what_is_made_between_may_be_moved_out_of_the_way():
    """The matmul stands between the two, but nothing leads through it."""
    make = Maker()
    x, w = make.enter("x"), make.enter("w", (WIDTH, WIDTH), Kind.PARAM)
    a = make.add("aten.relu.default", x)
    m = make.add("aten.mm.default", x, w)
    b = make.add("aten.mul.Tensor", a, m)
    graph = make.graph(b)
    assert names_of(graph, groups_of(graph)[0]) == [(a, b)]


def test_a_norm_written_out_is_one_group_with_its_numbers_per_row():
    make = Maker()
    x = make.enter("x")
    square = make.add("aten.mul.Tensor", x, x)
    total = make.add("aten.sum.dim_IntList", square, shape=(ROWS, 1), args=(("dim", (1,)), ("keepdim", True)))
    root = make.add("aten.rsqrt.default", total, shape=(ROWS, 1))
    out = make.add("aten.mul.Tensor", x, root)
    graph = make.graph(out)
    groups, traffic = groups_of(graph)
    assert names_of(graph, groups) == [(square, total, root, out)]
    assert sum(sum(t.inputs) for t in traffic.values()) == 1 and sum(sum(t.outputs) for t in traffic.values()) == 1


def test_modules_and_phases_are_not_crossed():
    for other in ({"path": "h.1"}, {"phase": Phase.BACKWARD}):
        make = Maker()
        x = make.enter("x")
        a = make.add("aten.relu.default", x)
        make.add("aten.sigmoid.default", a, **other)
        assert groups_of(make.graph("v1"))[0] == ()


def test_modules_without_a_number_are_as_one():
    """A norm and an activation are a kernel, whether they are modules or functions."""
    make = Maker()
    x = make.enter("x")
    a = make.add("aten.relu.default", x, path="norm")
    b = make.add("aten.mul.Tensor", a, x, path="head.act")
    c = make.add("aten.sigmoid.default", b, path="")
    graph = make.graph(c)
    assert names_of(graph, groups_of(graph)[0]) == [(a, b, c)]


def test_a_layout_may_change_but_not_the_rows_that_a_softmax_needs():
    for last, joined in (("aten.relu.default", True), ("aten._softmax.default", False)):
        make = Maker()
        x = make.enter("x")
        a = make.add("aten.relu.default", x)
        t = make.add("aten.permute.default", a, shape=(WIDTH, ROWS), args=(("dims", (1, 0)),))
        args = (("dim", 1), ("half_to_float", False)) if "softmax" in last else ()
        b = make.add(last, t, shape=(WIDTH, ROWS), args=args)
        graph = make.graph(b)
        assert names_of(graph, groups_of(graph)[0]) == ([(a, b)] if joined else [])


def test_a_softmax_along_the_first_dim_has_no_rows_to_itself():
    make = Maker()
    x = make.enter("x")
    a = make.add("aten.relu.default", x)
    b = make.add("aten._softmax.default", a, args=(("dim", 0), ("half_to_float", False)))
    assert groups_of(make.graph(b))[0] == ()


@pytest.mark.parametrize("seed", range(60))
def test_groups_can_run_one_after_the_other(seed):
    """Random graphs: with each group as one step the graph has no circle, and what is read or left is what somebody outside made or reads."""
    rng = random.Random(seed)
    make = Maker()
    known = [make.enter("x"), make.enter("y")]
    w = make.enter("w", (WIDTH, WIDTH), Kind.PARAM)
    for _ in range(rng.randint(5, 40)):
        op = rng.choice(("aten.relu.default", "aten.add.Tensor", "aten.mul.Tensor", "aten.mm.default"))
        inputs = [rng.choice(known[-6:]) for _ in range(2 if op in ("aten.add.Tensor", "aten.mul.Tensor") else 1)]
        inputs = [*inputs, w] if op == "aten.mm.default" else inputs
        known.append(make.add(op, *inputs))
    graph = make.graph(*rng.sample(known[2:], 2))
    groups, traffic = groups_of(graph)
    unit = {i: i for i in range(len(graph.nodes))} | {i: nodes[0] for nodes in groups for i in nodes}
    maker = {n.outputs[0]: i for i, n in enumerate(graph.nodes)}
    needs = {u: set() for u in unit.values()}
    for i, node in enumerate(graph.nodes):
        needs[unit[i]] |= {unit[maker[name]] for name in node.inputs if name in maker} - {unit[i]}
    done = set()
    while len(done) < len(needs):
        ready = [u for u in needs if u not in done and needs[u] <= done]
        assert ready, "groups wait for each other"
        done.update(ready)
    for nodes in groups:
        inside = {graph.nodes[i].outputs[0] for i in nodes}
        outside = {name for i in nodes for name in graph.nodes[i].inputs} - inside
        assert sorted(name for i in nodes for name, counted in zip(graph.nodes[i].inputs, traffic[i].inputs) if counted) == sorted(outside)
        left = {n for n in inside if n in graph.outputs or any(n in node.inputs and i not in nodes for i, node in enumerate(graph.nodes))}
        assert {graph.nodes[i].outputs[0] for i in nodes if traffic[i].outputs[0]} == left
        assert [traffic[i].starts for i in nodes] == [True] + [False] * (len(nodes) - 1)


def test_equal_blocks_move_the_same():
    make = Maker()
    value = make.enter("x")
    for k in range(4):
        gate = make.add("aten.sigmoid.default", value, path=f"h.{k}")
        value = make.add("aten.mul.Tensor", gate, value, path=f"h.{k}")
    case = build_case(make.graph(value))
    assert len({site.traffic for site in case.sites}) == 2


def test_sums_of_many_gradients_are_no_group():
    """A weight that is used again and again, on so many rows that its gradients are no one product: as one kernel they would hold all of them until the last is made."""
    torch = pytest.importorskip("torch")
    from autopar import Workload
    from autopar.graph.case import build_case
    from autopar.trace import trace_step

    class Again(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(64, 64, bias=False)

        def forward(self, x):
            for _ in range(6):
                x = x + torch.tanh(self.linear(x))
            return x

    case = build_case(trace_step(Workload(Again(), (torch.zeros(40, 64),), (torch.zeros(40, 64),), torch.nn.functional.mse_loss, torch.optim.SGD)).graph)
    graph, sizes = case.graph, {v.name: v.shape for v in case.graph.values}
    sums = [i for i, node in enumerate(graph.nodes) if node.op == "aten.add.Tensor" and sizes[node.outputs[0]] == (64, 64) and node.phase.value == "backward"]
    groups = find_groups(graph, case.sites, case.signatures)
    assert len(sums) == 5 and not any(set(group).intersection(sums) for group in groups)
    assert any("aten.tanh.default" in [graph.nodes[i].op for i in group] and len(group) > 1 for group in groups)


def chain(make, count, value, path="h.0", phase=Phase.FORWARD):
    """So many functions of one another; names of what they make."""
    made = []
    for _ in range(count):
        value = make.add("aten.relu.default", value, path=path, phase=phase)
        made.append(value)
    return made


def test_a_group_has_so_many_nodes_but_in_the_update():
    make = Maker()
    made = chain(make, 2 * MOST_NODES + 3, make.enter("x"))
    assert [len(nodes) for nodes in groups_of(make.graph(made[-1]))[0]] == [MOST_NODES, MOST_NODES, 3]
    make = Maker()
    made = chain(make, 2 * MOST_NODES, make.enter("x"), phase=Phase.UPDATE)
    assert [len(nodes) for nodes in groups_of(make.graph(made[-1]))[0]] == [2 * MOST_NODES]


@pytest.mark.parametrize("read", [False, True])
def test_a_group_reads_and_leaves_so_many_values(read):
    """Steps of a scan, each of which somebody else reads, or reads a part of what is there: a view of it is a value, too."""
    make = Maker()
    state, whole, ends = make.enter("x"), make.enter("whole", (60, ROWS, WIDTH)), []
    for k in range(60 if read else 50):
        part = make.add("aten.select.int", whole, args=(("dim", 0), ("index", k))) if read else state
        state = make.add("aten.mul.Tensor", state, part)
        ends.append(state)
    graph = make.graph(*(ends[-1:] if read else ends))
    groups, traffic = groups_of(graph)
    moved = [len({n for i in g for n in graph.nodes[i].inputs} - {out for i in g for out in graph.nodes[i].outputs}) + sum(traffic[i].outputs[0] for i in g) for g in groups]
    assert len(groups) == 2 and moved[0] == MOST_VALUES > moved[1] and {i for g in groups for i in g} == {i for i, node in enumerate(graph.nodes) if "mul" in node.op}


def test_large_blocks_that_are_alike_are_cut_alike():
    make = Maker()
    made = [make.enter("x")]
    for k in range(4):
        made += chain(make, MOST_NODES + 30, made[-1], f"h.{k}")
    groups = groups_of(make.graph(made[-1]))[0]
    assert [len(nodes) for nodes in groups] == [MOST_NODES, 30] * 4


def test_where_a_group_runs():
    """Where its last node stood; where it would hold more there than its nodes one by one, while others work, and all that it reads is there before, where that is; else nowhere."""

    def held(ready):
        make = Maker()
        x, big = make.enter("x"), make.enter("m", (4 * ROWS, 4 * ROWS))
        both = make.add("aten.add.Tensor", make.add("aten.relu.default", x), make.add("aten.sigmoid.default", x))  # node 2, the last to read two of its size
        product = make.add("aten.mm.default", big, big, shape=(4 * ROWS, 4 * ROWS))
        late = make.add("aten.tanh.default", x)
        return HeldLonger(make.graph(product, late, make.add("aten.mul.Tensor", both, x if ready else late)))

    assert held(True).place((2, 5)) == 2 and held(False).place((2, 5)) is None
    assert held(False).place((2, 5), joining={3, 4}) == 5, "what may be of the group is not in its way"
    assert held(False).place((0, 1, 2)) == 2 and held(False).place((4, 5)) == 5


HEADS = (1, 4, WIDTH, WIDTH)


def masked(op="aten.le.Tensor", mask_left=False):
    """Scores of all heads, filled in where positions say so: (graph, names)."""
    make = Maker()
    scores, rows, cols = make.enter("scores", HEADS), make.enter("rows", (WIDTH, 1)), make.enter("cols", (1, WIDTH))
    number = make.add("aten.full.default", shape=(), args=(("size", ()), ("fill_value", -1.0)))
    mask = make.add(op, rows, cols, shape=(WIDTH, WIDTH), args=(("other", Ref(1)),))
    made = make.add("aten.where.self", mask, scores, number, shape=HEADS, args=(("other", Ref(2)),))
    make.nodes[-1] = replace(make.nodes[-1], args=(("condition", Ref(0)), ("self", Ref(1)), ("other", Ref(2))))
    return make.graph(made, *([mask] if mask_left else [])), (number, mask, made)


def test_a_mask_of_positions_is_of_the_group_that_expands_it():
    """Whatever its rows: each element makes its own. The number is the kernel's, so nothing of it starts."""
    graph, (_, mask, made) = masked()
    groups, traffic = groups_of(graph)
    assert names_of(graph, groups) == [(mask, made)]
    assert traffic[1].outputs == (False,) and traffic[1].starts and not traffic[2].starts and traffic[2].inputs[:2] == (0, 1)
    assert not traffic[0].starts and traffic[0].outputs == (False,)


def test_a_mask_that_others_read_is_made_before():
    graph, (_, mask, made) = masked(mask_left=True)
    groups, traffic = groups_of(graph)
    assert (made,) in names_of(graph, groups) and not any(mask in names for names in names_of(graph, groups))
    assert traffic[2].starts and not traffic[0].starts, "one op that reads a number is a kernel, which has the number"


def test_what_takes_more_than_a_mask_is_made_once(monkeypatch):
    graph, (_, mask, made) = masked("aten.atan2.default")
    assert names_of(graph, groups_of(graph)[0]) == [(made,)]
    monkeypatch.setattr("autopar.graph.fusion._MOST_MASKING", 0)
    graph, (_, mask, made) = masked()
    assert names_of(graph, groups_of(graph)[0]) == [(made,)]


def test_what_is_made_of_a_sum_over_rows_is_made_once():
    """A kernel that reads its own sum again is two, which read everything twice."""
    make = Maker()
    x = make.enter("x")
    total = make.add("aten.sum.dim_IntList", x, shape=(WIDTH,), args=(("dim", (0,)),))
    mean = make.add("aten.mul.Scalar", total, shape=(WIDTH,), args=(("other", 1 / ROWS),))
    graph = make.graph(make.add("aten.add.Tensor", x, mean))
    assert all(len(nodes) < 3 for nodes in groups_of(graph)[0])


def test_pieces_beside_many_numbers_are_no_group():
    """Zeros on both sides of what comes in: a text as long as the list of them."""
    make = Maker()
    number = make.add("aten.full.default", shape=(), args=(("size", ()), ("fill_value", 0.0)))
    wide = make.add("aten.expand.default", number, args=(("size", (ROWS, WIDTH)),))
    made = make.add("aten.cat.default", wide, make.enter("x"), wide, shape=(3 * ROWS, WIDTH))
    make.nodes[-1] = replace(make.nodes[-1], args=(("tensors", (Ref(0), Ref(1), Ref(2))), ("dim", 0)))
    assert groups_of(make.graph(made))[0] == ()


def test_one_op_without_a_number_is_no_group():
    make = Maker()
    assert groups_of(make.graph(make.add("aten.add.Tensor", make.enter("x"), make.enter("y"))))[0] == ()


def test_a_number_that_somebody_else_reads_is_made():
    """Arithmetic of numbers alone, and a matmul beside a kernel."""
    make = Maker()
    x = make.enter("x")
    number = make.add("aten.full.default", shape=(), args=(("size", ()), ("fill_value", 2.0)))
    halved = make.add("aten.add.Tensor", x, number)
    groups, traffic = groups_of(make.graph(halved, number))
    assert groups == ((1,),) and 0 not in traffic
    make = Maker()
    number = make.add("aten.full.default", shape=(), args=(("size", ()), ("fill_value", 2.0)))
    groups, traffic = groups_of(make.graph(make.add("aten.mul.Tensor", number, make.add("aten.sqrt.default", number, shape=()), shape=())))
    assert 0 not in traffic, "a kernel without an argument is none"
