"""Numbers of all parameters: which nodes are their kernel, what that moves, and what is left in parts for it."""

import pytest

from autopar.graph.cuts import resolve_all
from autopar.graph.fuse import fuse_program
from autopar.graph.fusion import find_groups, find_traffic
from autopar.graph.graph import Graph
from autopar.graph.kernel import joined_numbers
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.program import Origin, Program
from autopar.graph.random_plans import plain_mesh
from autopar.graph.rules import RULES
from autopar.graph.sections import phase_sections
from autopar.graph.tensor import Kind, Value

SHAPES = (4, 6), (5,), (3, 2)
SUM = "aten.sum.dim_IntList"


class Update:
    """Writes the update of a few parameters: of each the gradient enters."""

    def __init__(self):
        self.values, self.nodes = [], []
        self.grads = [f"grad_{k}" for k in range(len(SHAPES))]
        for name, shape in zip(self.grads, SHAPES):
            self.values.append(Value(name, name, 0, shape, "float32", Kind.BATCH))
        self.inputs = list(self.grads)

    def number(self, name):
        self.values.append(Value(name, name, 0, (), "float32", Kind.BATCH))
        self.inputs.append(name)
        return name

    def add(self, op, *inputs, shape=(), args=(), path="", key=None):
        name = f"v{len(self.nodes)}"
        refs = tuple(map(Ref, range(len(inputs))))
        keys = (("tensors", refs),) if key == "tensors" else tuple(zip(("self", "other"), refs))
        self.nodes.append(Node(name, op, inputs, (*keys, *args), (name,), Phase.UPDATE, path, ""))
        self.values.append(Value(name, name, 0, shape, "float32", Kind.ACTIVATION))
        return name

    def squares(self):
        """Of each gradient the sum of its squares."""
        found = []
        for k, grad in enumerate(self.grads):
            square = self.add("aten.mul.Tensor", grad, grad, shape=SHAPES[k], path=f"layer_{k}")
            found.append(self.add(SUM, square, args=(("dim", tuple(range(len(SHAPES[k])))),), path=f"layer_{k}"))
        return found

    def total(self, numbers, op=SUM):
        views = [self.add("aten.view.default", name, shape=(1,), args=(("size", (1,)),), path=f"layer_{k}") for k, name in enumerate(numbers)]
        beside = self.add("aten.cat.default", *views, shape=(len(views),), key="tensors")
        return self.add(op, beside, args=(("dim", (0,)),))

    def graph(self, *outputs):
        return Graph("g", tuple(self.values), tuple(self.nodes), tuple(self.inputs), (), "", outputs)


def groups_of(graph):
    sites, signatures = resolve_all(graph, RULES)
    groups = find_groups(graph, sites, signatures)
    return [tuple(graph.nodes[i].name for i in nodes) for nodes in groups], find_traffic(graph, groups)


def kernels_of(graph):
    program = Program(graph, plain_mesh(()), tuple(Origin(node.name, "", "") for node in graph.nodes), (), ())
    return fuse_program(program, phase_sections(graph))


def test_a_norm_and_the_factor_that_follows_are_one_kernel():
    make = Update()
    root = make.add("aten.sqrt.default", make.total(make.squares()))
    factor = make.add("aten.clamp.default", root, args=(("max", 1.0),))
    graph = make.graph(factor)
    groups, traffic = groups_of(graph)
    assert ("v9", "v10", "v11", factor) in groups and len(groups) == 4
    starts = [i for i, moved in traffic.items() if moved.starts]
    assert len(starts) == 4 and traffic[9].inputs == (1, 1, 1) and not any(traffic[9].outputs) and traffic[10].inputs == (0,)
    fused = kernels_of(graph)
    [total] = [kernel for kernel in fused.kernels if joined_numbers(kernel)]
    assert len(joined_numbers(total)) == 3 and total.name == "sum_sqrt_clamp" and {k.in_parts for k in fused.kernels if k is not total} == {(0,)}
    last = fused.program.graph.nodes[-1]
    assert last.args == (("numbers", (Ref(0), Ref(1), Ref(2))),) and not any(node.op == "aten.view.default" for node in fused.program.graph.nodes)


def test_numbers_that_others_read_are_added_up():
    """They are no longer left in parts; nor does what follows of a total run with it where others read the total."""
    make = Update()
    squares = make.squares()
    total = make.total(squares)
    graph = make.graph(make.add("aten.sqrt.default", total), make.add("aten.neg.default", squares[0], path="layer_0"), total)
    groups, _ = groups_of(graph)
    assert ("v9", "v10") in groups
    assert sorted(k.in_parts for k in kernels_of(graph).kernels if k.name.startswith("mul_sum")) == [(), (0,)]


def test_other_numbers_may_be_read_beside_a_total():
    make = Update()
    scale = make.number("scale")
    total = make.total(make.squares())
    graph = make.graph(make.add("aten.mul.Tensor", total, scale))
    [kernel] = [kernel for kernel in kernels_of(graph).kernels if joined_numbers(kernel)]
    assert kernel.graph.inputs[3:] == ("scale",)


def test_one_of_the_numbers_is_not_read_twice_by_the_kernel():
    make = Update()
    squares = make.squares()
    total = make.total(squares)
    graph = make.graph(make.add("aten.mul.Tensor", total, squares[1]))
    groups, _ = groups_of(graph)
    assert ("v9", "v10") in groups


@pytest.mark.parametrize("op", ["aten.amax.default", "aten.amin.default"])
def test_the_largest_of_sums_is_of_sums(op):
    """A sum must be there before it is compared: its parts are added up by themselves."""
    make = Update()
    graph = make.graph(make.total(make.squares(), op))
    fused = kernels_of(graph)
    assert [len(joined_numbers(kernel)) for kernel in fused.kernels].count(3) == 1 and not any(kernel.in_parts for kernel in fused.kernels)


def test_a_total_that_a_collective_parts_from_its_factor_stays_apart():
    """The number goes to other ranks between, so it is there by itself."""
    make = Update()
    total = make.total(make.squares())
    reduced = make.add("comm.all_reduce", total, args=(("axis", "dp"), ("op", "sum")))
    graph = make.graph(make.add("aten.sqrt.default", reduced))
    ops = [node.op for node in kernels_of(graph).program.graph.nodes]
    assert ops[-3:] == ["kernel.sum", "comm.all_reduce", "kernel.sqrt"]
