"""A graph's text parses back to the same graph, whatever is in it; texts of people's graphs stay readable (golden)."""

import random
from dataclasses import replace

import pytest
from codegen.chain import chain_graph

from autopar.errors import GraphError
from autopar.graph.graph import Graph
from autopar.graph.node import Const, Node, Phase, Ref
from autopar.graph.tensor import DTYPE_BYTES, Kind, Value
from autopar.graph.text import parse_graph, print_graph, print_program

from .drafts import Assigner

NASTY = ["_", "-", "None", "True", "nan", "inf", "-inf", "1", "-2", "1.5", "1e5", "1_0", "0.w@0", "a@00", "x:", "a b", "a,b", "(x)", "$0", "`", '"', "\\", "é",
         "\n", "f32[2]", "x: f32[2]", "|", "as", "#", "<dtype x>", "input:0", "exp_avg:h.0.w@1", "x~1", "@1", "a@", "\ud800"]  # fmt: skip
TEXTS = [*NASTY, "plain", "h.0.w", "a.py:91"]


class Draw:
    """Random names, arguments and graphs; the graphs are not legal ones."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def name(self):
        return self.rng.choice(TEXTS) if self.rng.random() < 0.7 else "".join(self.rng.choice("ab01.:@ _-`\"\\\t\xe9") for _ in range(self.rng.randint(1, 5)))

    def argument(self, depth=0):
        rng = self.rng
        some = [None, True, False, rng.randint(-9, 9), 10**20, rng.gauss(0, 1), 1e-300, 1e22, -0.0, 3.0, float("inf"), float("-inf"), "", self.name(), Const(self.name(), self.name())]
        if depth < 2 and rng.random() < 0.3:
            return tuple(self.argument(depth + 1) for _ in range(rng.randint(0, 3)))
        return rng.choice(some)

    def value(self, name):
        rng = self.rng
        storage = rng.choice([name, name.rpartition("@")[0] or name, self.name()])
        shape = tuple(rng.randint(0, 9) for _ in range(rng.randint(0, 3)))
        return Value(name, storage, rng.randint(0, 3), shape, rng.choice([*DTYPE_BYTES, "odd"]), rng.choice(list(Kind)))

    def node(self, known, outputs):
        rng = self.rng
        inputs = tuple(rng.choice(known) for _ in range(rng.randint(0, 3))) if known else ()
        args = [(self.name(), Ref(k)) for k in range(len(inputs))] + [(self.name(), self.argument()) for _ in range(rng.randint(0, 3))]
        if inputs and rng.random() < 0.3:
            args.append(("list", (Ref(0), (Ref(len(inputs) - 1),))))
        if rng.random() < 0.3:
            rng.shuffle(args)
        if rng.random() < 0.3:
            outputs.insert(rng.randint(0, len(outputs)), "")
        name = rng.choice([self.name(), outputs[0] if outputs else ""]) or "n"
        op = rng.choice(["aten.mm.default", "comm.keep", "state.write", self.name()])
        return Node(name, op, inputs, tuple(args), tuple(outputs), rng.choice(list(Phase)), rng.choice(["", self.name()]), rng.choice(["", self.name()]))

    def graph(self):
        fresh = list(dict.fromkeys(self.name() for _ in range(self.rng.randint(0, 14))))
        inputs = fresh[: self.rng.randint(0, len(fresh))]
        values, nodes, rest = [self.value(n) for n in inputs], [], fresh[len(inputs) :]
        while rest:
            count = self.rng.randint(0, 2)
            outputs, rest = rest[:count], rest[count:]
            values += [self.value(n) for n in outputs]
            nodes.append(self.node(fresh, outputs))
        updates, grads = (tuple((self.name(), self.name()) for _ in range(self.rng.randint(0, 2))) for _ in range(2))
        outputs = tuple(self.name() for _ in range(self.rng.randint(0, 2)))
        return Graph(self.name(), tuple(values), tuple(nodes), tuple(inputs), updates, self.rng.choice(["", self.name()]), outputs, grads)


def kinds_of(arg):
    return (type(arg), tuple(map(kinds_of, arg)) if isinstance(arg, tuple) else str(arg))


@pytest.mark.parametrize("start", range(0, 1000, 250))
def test_any_graph_parses_back(start):
    for seed in range(start, start + 250):
        graph = Draw(seed).graph()
        found = parse_graph(print_graph(graph))
        assert found == graph, seed
        for mine, theirs in zip(found.nodes, graph.nodes):  # 1 == 1.0 == True, and 0.0 == -0.0: the same types and digits too
            assert kinds_of(mine.args) == kinds_of(theirs.args), seed


def test_a_nan_parses_back():
    made = Node("n", "aten.fill", (), (("value", float("nan")), ("values", (float("-inf"), -0.0))), (), Phase.UPDATE)
    (found,) = parse_graph(print_graph(Graph("g", (), (made,), ()))).nodes
    assert repr(found.args) == repr(made.args)


@pytest.mark.parametrize("sizes", [(), (2,), (2, 2)], ids=str)
def test_local_graphs_parse_back(sizes):
    assigner = Assigner(chain_graph(2), *sizes)
    for seed in range(5):
        graph = assigner.program(assigner.draw(seed)).graph
        assert parse_graph(print_graph(graph)) == graph


def test_the_text_of_a_graph(golden):
    golden("chain_graph", print_graph(chain_graph(2)))


def test_the_text_of_a_program(golden):
    """Data parallel along a, ZeRO-3 by storage; column then row parallel along b."""
    assigner = Assigner(chain_graph(2), 2, 2)
    choices = {"mm_0": "m;n", "relu_0": ".1;.0", "mm_1": "m;k", "relu_1": ".1;R", "loss": "d0;R", "ones": "d0;R", "dy_1": ".1;R", "xt_1": "d0;d1",
               "dw_1": "k;m", "wt_1": "R;d0", "dx_1": "m;n", "dy_0": ".1;.0", "xt_0": "d0;R", "dw_0": "k;n", "dx_0": "m;R",
               "step_0": ".1;.0", "h.0.w@1": ".1;.0", "step_1": ".0;.1", "h.1.w@1": ".0;.1"}  # fmt: skip
    storages = {"h.0.w@0": "S0/6,S1/6", "h.1.w@0": "S1/6,S0/6", "input:0": "S0/4,R"}
    golden("chain_program", print_program(assigner.program(assigner.assign(storages, choices))))


def test_values_out_of_order_cannot_be_printed():
    graph = chain_graph(1)
    with pytest.raises(GraphError) as error:
        print_graph(replace(graph, values=graph.values[1:]))
    assert str(error.value) == "chain: cannot print: value 0 is input:0, expected h.0.w@0; inputs come first, then what nodes make, in order"
    with pytest.raises(GraphError) as error:
        print_graph(replace(graph, values=(*graph.values, Value("x", "x", 0, (), "float32", Kind.ACTIVATION))))
    assert str(error.value).startswith(f"chain: cannot print: value {len(graph.values)} is x, expected the end;")


GOOD = """graph g

inputs
  x: f32[2] batch

nodes
  y: f32[2] = aten.add.Tensor(self=x, other=[1, 2])  # forward h.0 a.py:1
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("graph g", "plan g", "line 1: expected `graph NAME` on the first line, found 'plan g'"),
        ("inputs", "input", "line 3: expected a section: inputs, nodes, loss, outputs, sequences, updates or grads, found 'input'"),
        ("inputs", "inputs x", "line 3: expected the end of the line, found ' x'"),
        ("x: f32", "x f32", "line 4: expected `: ` and a type such as f32[8,12], found ' f32[2] batch'"),
        ("x: f32[2]", "x: 3", "line 4: expected a type such as f32[8,12], found '3 batch'"),
        ("x: f32[2]", "x: f32[a]", "line 4: expected a size, found 'a] batch'"),
        ("x: f32[2]", "x: f32[2", "line 4: expected `,` and a size, or `]`, found ' batch'"),
        ("batch", "bitch", "line 4: expected the end of the line, found ' bitch'"),
        ("batch", "batch of y", "line 4: expected storage@version, found 'y'"),
        ("= aten", "aten", "line 7: expected `= ` and an op, found 'aten.add.Tensor(self=x, other=[1, 2])  #...'"),
        ("self=x", "self", "line 7: expected `=` and an argument, found ', other=[1, 2])  # forward h.0 a.py:1'"),
        ("self=x, ", "self=x ", "line 7: expected `, ` and an argument, or `)`, found ' other=[1, 2])  # forward h.0 a.py:1'"),
        ("[1, 2]", "[1, 2", "line 7: expected `, ` and an item, or `]`, found ')  # forward h.0 a.py:1'"),
        ("[1, 2]", "$x", "line 7: expected the number of an input, found 'x)  # forward h.0 a.py:1'"),
        ("[1, 2]", "<dtype>", "line 7: expected a space and the name of a constant, found '>)  # forward h.0 a.py:1'"),
        ("[1, 2]", "<dtype f32", "line 7: expected `>`, found ')  # forward h.0 a.py:1'"),
        ("[1, 2]", "?", "line 7: expected an argument: the name of a value, a number, a string in double quotes, [a list], <dtype ...>, None, True or False, "
         "found '?)  # forward h.0 a.py:1'"),
        ("forward", "sideward", "line 7: expected a phase: forward, backward or update, found 'sideward h.0 a.py:1'"),
        ("  # forward h.0 a.py:1", "", "line 7: expected `  # ` and the phase, found the end of the line"),
        (" h.0 a.py:1", "", "line 7: expected the module path, - for the root, found the end of the line"),
        (" a.py:1", "", "line 7: expected the source line, - where unknown, found the end of the line"),
        ("a.py:1", "a.py:1 for y", "line 7: expected the end of the line, found ' for y'"),
        ("a.py:1\n", "a.py:1\n\nupdates\n  x -> y\n", "line 10: expected ` <- `, found ' -> y'"),
        ("a.py:1\n", "a.py:1\nloss y\n  z\n", "line 9: expected a section: inputs, nodes, loss, outputs, sequences, updates or grads, found 'z'"),
        ("x: f32[2]", "`x: f32[2]", "line 4: expected the name of a value, found '`x: f32[2] batch'"),
    ],
)  # fmt: skip
def test_messages(old, new, message):
    assert parse_graph(GOOD).nodes[0].name == "y"
    assert old in GOOD
    with pytest.raises(GraphError) as error:
        parse_graph(GOOD.replace(old, new))
    assert str(error.value) == f"graph text, {message}"


def test_no_text():
    with pytest.raises(GraphError) as error:
        parse_graph("\n\n")
    assert str(error.value) == "graph text, line 1: expected `graph NAME` on the first line, found the end"
