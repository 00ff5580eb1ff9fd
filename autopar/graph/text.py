"""Text: a graph as lines that a person reads and that parse back, and a program as the same lines with what was decided.

    graph chain

    inputs
      h.0.w@0: f32[12,12] param
      input:0: f32[8,12] batch

    nodes
      mm_0: f32[8,12] = aten.mm.default(self=input:0, mat2=h.0.w@0)  # forward h.0 chain.py:1
      max_0: f32[8], _ = aten.max.dim(self=mm_0, dim=1)  # forward - -
      h.0.w@1: f32[12,12] param = aten.add.Tensor(self=h.0.w@0, other=-0.1)  # update h.0 chain.py:1 as add_5

    loss loss_0
    outputs max_0
    sequences net
    updates
      h.0.w@0 <- h.0.w@1
    grads
      h.0.w@0 <- mm_7

In: a graph whose values are its inputs and then what its nodes make, in order. Out: text; and the other way. Invariant:
`parse_graph(print_graph(g)) == g`, whatever the names. What is usual is left out: the kind `activation`; the storage, where the name
says it (`storage@version`, else the name itself); the node's name, where the rest tells it (`_usual_name`). Names that could be read as anything
else stand in backquotes. Arguments that do not take the inputs once each in order name them by number: `(self=$0, other=$0 | x)`.
`parse_graph` reads; `check_graph` judges.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

from ..errors import GraphError
from .graph import Graph, value_table
from .mesh import print_mesh
from .node import Arg, Const, Node, Phase, Ref, list_refs
from .program import Program
from .tensor import Kind, Value

_SHORT = {
    "float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16", "complex64": "c64", "complex128": "c128",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
    "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2",
}  # fmt: skip
_LONG = {short: long for long, short in _SHORT.items()}

_PLAIN = re.compile(r"(?:[\w.@:~/+*-]*[\w.@~/+*-])", re.ASCII)  # a colon ends no name: `x: f32[2]`
_INT = re.compile(r"-?\d+(?![\w.@:~/+*-])", re.ASCII)
_FLOAT = re.compile(r"(?:-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf)|nan)(?![\w.@:~/+*-])", re.ASCII)
_QUOTED = re.compile(r"`(?:[^`\\]|\\.)*`")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SECTIONS = ("inputs", "nodes", "loss", "outputs", "sequences", "updates", "grads")
_NAMED = f"{', '.join(_SECTIONS[:-1])} or {_SECTIONS[-1]}"
_WORDS: Mapping[str, Arg] = {"None": None, "True": True, "False": False}

T = TypeVar("T")


def print_graph(graph: Graph) -> str:
    """The text of a graph; `parse_graph` gives the graph back.

    Raises:
        GraphError: the values are not the inputs followed by what the nodes make, in order.
    """
    values = value_table(graph)
    order = [*graph.inputs, *(out for node in graph.nodes for out in node.outputs if out)]
    found = [v.name for v in graph.values]
    if found != order:
        place = next((k for k, (a, b) in enumerate(zip(found, order)) if a != b), min(len(found), len(order)))
        listed, wanted = (names[place] if place < len(names) else "the end" for names in (found, order))
        raise GraphError(f"{graph.name}: cannot print: value {place} is {listed}, expected {wanted}; inputs come first, then what nodes make, in order")
    lines = [f"graph {_quote(graph.name)}", "", "inputs"]
    lines += [f"  {_print_value(values[name])}" for name in graph.inputs]
    lines += ["", "nodes"]
    lines += [f"  {_print_node(node, lambda name: _print_value(values[name]))}" for node in graph.nodes]
    return "\n".join([*lines, "", *_print_tail(graph)]) + "\n"


def print_program(program: Program) -> str:
    """The text of a program: a graph of local values, each with its sharding, each node with the reason why it is there."""
    graph = program.graph
    values = value_table(graph)
    shardings = {name: sharding for name, _, sharding in program.shardings}

    def shown(name: str) -> str:
        return f"{_print_type(values[name])} {shardings[name]}"

    lines = [f"program {_quote(graph.name)} on {print_mesh(program.mesh)}", "", "inputs"]
    lines += [f"  {shown(name)}" for name in graph.inputs]
    lines += ["", "nodes"]
    for node, origin in zip(graph.nodes, program.origins):
        lines.append(f"  {_print_node(node, shown)}" + (f"  | {origin.reason}" if origin.reason else ""))
    return "\n".join([*lines, "", *_print_tail(graph)]) + "\n"


def parse_graph(text: str) -> Graph:
    """Read back what `print_graph` printed.

    Raises:
        GraphError: with the number of the line, what was expected there and what was found.
    """
    name = None
    section = ""
    inputs: list[Value] = []
    values: list[Value] = []
    nodes: list[Node] = []
    outputs: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()
    loss = ""
    pairs: dict[str, list[tuple[str, str]]] = {"updates": [], "grads": []}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        at = _Cursor(line, number)
        if name is None:
            at.expect("graph ", "`graph NAME` on the first line")
            name = at.name("the name of the graph")
        elif line.startswith("  "):
            at.expect("  ", "two spaces")
            if section == "inputs":
                inputs.append(_parse_value(at))
            elif section == "nodes":
                nodes.append(_parse_node(at, values))
            elif section in pairs:
                old = at.name("a state" if section == "updates" else "a parameter")
                at.expect(" <- ", "` <- `")
                pairs[section].append((old, at.name("a value")))
            else:
                at.fail(f"a section: {_NAMED}")
        else:
            section = at.choose(_SECTIONS, f"a section: {_NAMED}")
            if section == "loss":
                at.expect(" ", "a space")
                loss = at.name("the name of the loss")
            elif section == "outputs":
                at.expect(" ", "a space")
                outputs = tuple(at.many(lambda: at.name("the name of an output"), ", "))
            elif section == "sequences":
                at.expect(" ", "a space")
                sequences = tuple(at.many(lambda: at.name("the path of a container"), ", "))
        at.end()
    if name is None:
        raise GraphError("graph text, line 1: expected `graph NAME` on the first line, found the end")
    everything = (*inputs, *values)
    return Graph(name, everything, tuple(nodes), tuple(v.name for v in inputs), tuple(pairs["updates"]), loss, outputs, tuple(pairs["grads"]), sequences)


# ---------------------------------------------------------------- printing


def _quote(name: str) -> str:
    """The name as it is, or in backquotes where it could be read as something else."""
    plain = _PLAIN.fullmatch(name) and name not in _WORDS and name not in ("_", "-") and not _INT.fullmatch(name) and not _FLOAT.fullmatch(name)
    return name if plain else "`" + json.dumps(name)[1:-1].replace('\\"', '"').replace("`", "\\u0060") + "`"


def _print_value(value: Value) -> str:
    usual = (value.storage, value.version) == _usual_storage(value.name)
    return _print_type(value) + ("" if usual else " of " + _quote(f"{value.storage}@{value.version}"))


def _print_type(value: Value) -> str:
    kind = "" if value.kind is Kind.ACTIVATION else f" {value.kind.value}"
    return f"{_quote(value.name)}: {_SHORT.get(value.dtype, value.dtype)}[{','.join(map(str, value.shape))}]{kind}"


def _usual_storage(name: str) -> tuple[str, int]:
    """Storage and version that the name alone tells."""
    storage, _, version = name.rpartition("@")
    return (storage, int(version)) if storage and re.fullmatch(r"[0-9]+", version) else (name, 0)


def _print_node(node: Node, shown: Callable[[str], str]) -> str:
    in_order = list_refs(tuple(arg for _, arg in node.args)) == list(range(len(node.inputs)))
    names = [_quote(name) for name in node.inputs] if in_order else [f"${k}" for k in range(len(node.inputs))]
    args = ", ".join(f"{_quote(key)}={_print_arg(arg, names)}" for key, arg in node.args)
    listed = "" if in_order else f" | {', '.join(_quote(name) for name in node.inputs)}"
    left = ", ".join(shown(name) if name else "_" for name in node.outputs)
    path, source = (_quote(text) if text else "-" for text in (node.path, node.source))
    own = "" if node.name == _usual_name(node.op, node.inputs, node.outputs) else f" as {_quote(node.name)}"
    return f"{left}{' ' if left else ''}= {_quote(node.op)}({args}{listed})  # {node.phase.value} {path} {source}{own}"


def _usual_name(op: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    """The node's name that the rest of it tells: its first output's; for what partition adds, what it does to which value."""
    if op == "state.write" and inputs:
        return f"write:{inputs[0]}"
    first = outputs[0] if outputs else ""
    return f"{op.removeprefix('comm.')}:{first}" if op.startswith("comm.") else first


def _print_arg(arg: Arg, names: list[str]) -> str:
    if isinstance(arg, Ref):
        return names[arg.index]
    if isinstance(arg, Const):
        return f"<{_quote(arg.kind)} {_quote(arg.name)}>"
    if isinstance(arg, tuple):
        return f"[{', '.join(_print_arg(item, names) for item in arg)}]"
    return json.dumps(arg) if isinstance(arg, str) else repr(arg)


def _print_tail(graph: Graph) -> list[str]:
    lines = [f"loss {_quote(graph.loss)}"] if graph.loss else []
    lines += [f"outputs {', '.join(map(_quote, graph.outputs))}"] if graph.outputs else []
    lines += [f"sequences {', '.join(map(_quote, graph.sequences))}"] if graph.sequences else []
    for title, pairs in (("updates", graph.updates), ("grads", graph.grads)):
        lines += [title, *(f"  {_quote(old)} <- {_quote(new)}" for old, new in pairs)] if pairs else []
    return lines


# ---------------------------------------------------------------- parsing


class _Cursor:
    """A place in one line. Every method takes what it expects, or fails."""

    def __init__(self, line: str, number: int) -> None:
        self.line, self.number, self.place = line, number, 0

    def fail(self, expected: str) -> NoReturn:
        rest = self.line[self.place :]
        found = repr(rest if len(rest) <= 40 else rest[:40] + "...") if rest else "the end of the line"
        raise GraphError(f"graph text, line {self.number}: expected {expected}, found {found}")

    def take(self, text: str) -> bool:
        """Go past this text if it is here."""
        here = self.line.startswith(text, self.place)
        self.place += len(text) if here else 0
        return here

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Go past this pattern if it is here."""
        found = pattern.match(self.line, self.place)
        if found is None:
            return None
        self.place = found.end()
        return found.group()

    def expect(self, text: str, expected: str) -> None:
        if not self.take(text):
            self.fail(expected)

    def choose(self, words: tuple[str, ...], expected: str) -> str:
        start = self.place
        word = self.match(_PLAIN)
        if word not in words:
            self.place = start
            self.fail(expected)
        return word

    def many(self, one: Callable[[], T], separator: str) -> list[T]:
        found = [one()]
        while self.take(separator):
            found.append(one())
        return found

    def name(self, expected: str) -> str:
        """A plain name, or one in backquotes."""
        quoted = self.match(_QUOTED)
        if quoted is None:
            return self.match(_PLAIN) or self.fail(expected)
        return self.unescape(quoted[1:-1].replace('"', '\\"'), expected)

    def unescape(self, inside: str, expected: str) -> str:
        try:
            return json.loads(f'"{inside}"')
        except ValueError:
            self.fail(f"{expected} with escapes as in JSON")

    def end(self) -> None:
        if self.place < len(self.line):
            self.fail("the end of the line")


_NUMBER = re.compile(r"\d+", re.ASCII)
_DTYPE = re.compile(r"\w+(?=\[)", re.ASCII)


def _parse_value(at: _Cursor) -> Value:
    name = at.name("the name of a value")
    at.expect(": ", "`: ` and a type such as f32[8,12]")
    dtype = at.match(_DTYPE) or at.fail("a type such as f32[8,12]")
    at.expect("[", "`[`")
    shape = () if at.take("]") else tuple(at.many(lambda: int(at.match(_NUMBER) or at.fail("a size")), ","))
    if shape:
        at.expect("]", "`,` and a size, or `]`")
    kind = next((kind for kind in Kind if at.take(f" {kind.value}")), Kind.ACTIVATION)
    storage, version = _usual_storage(name)
    if at.take(" of "):
        start = at.place
        owner = at.name("storage@version")
        storage, version = _usual_storage(owner)
        if storage == owner:
            at.place = start
            at.fail("storage@version")
    return Value(name, storage, version, shape, _LONG.get(dtype, dtype), kind)


def _parse_node(at: _Cursor, values: list[Value]) -> Node:
    """One node; the values that it makes are added to `values`."""

    def output() -> Value | None:
        return None if at.match(re.compile(r"_(?=,| =)")) else _parse_value(at)

    made = [] if at.line.startswith("=", at.place) else at.many(output, ", ")
    if made:
        at.expect(" ", "` = ` and an op")
    at.expect("= ", "`= ` and an op")
    op = at.name("the name of an op")
    at.expect("(", "`(` and the arguments")
    inputs: list[str] = []
    args: list[tuple[str, Arg]] = []
    while not at.take(")"):
        if at.take(" | "):
            inputs = at.many(lambda: at.name("the name of an input"), ", ")
            at.expect(")", "`, ` and an input, or `)`")
            break
        if args:
            at.expect(", ", "`, ` and an argument, or `)`")
        key = at.name("the name of an argument")
        at.expect("=", "`=` and an argument")
        args.append((key, _parse_arg(at, inputs)))
    at.expect("  # ", "`  # ` and the phase")
    phase = Phase(at.choose(tuple(p.value for p in Phase), "a phase: forward, backward or update"))
    at.expect(" ", "the module path, - for the root")
    path = _parse_place(at, "the module path, - for the root")
    at.expect(" ", "the source line, - where unknown")
    source = _parse_place(at, "the source line, - where unknown")
    outputs = tuple(v.name if v else "" for v in made)
    name = _usual_name(op, tuple(inputs), outputs)
    if at.take(" as "):
        name = at.name("the name of the node")
    values += [value for value in made if value]
    return Node(name, op, tuple(inputs), tuple(args), outputs, phase, path, source)


def _parse_place(at: _Cursor, expected: str) -> str:
    return "" if at.match(re.compile(r"-(?=\s|$)")) else at.name(expected)


def _parse_arg(at: _Cursor, inputs: list[str]) -> Arg:
    """One argument. A name is an input: it is added to `inputs`."""
    if at.take("$"):
        return Ref(int(at.match(_NUMBER) or at.fail("the number of an input")))
    if at.take("["):
        items = () if at.take("]") else tuple(at.many(lambda: _parse_arg(at, inputs), ", "))
        if items:
            at.expect("]", "`, ` and an item, or `]`")
        return items
    if at.take("<"):
        kind = at.name("dtype, layout, device or memory_format")
        at.expect(" ", "a space and the name of a constant")
        const = Const(kind, at.name("the name of a constant"))
        at.expect(">", "`>`")
        return const
    expected = "an argument: the name of a value, a number, a string in double quotes, [a list], <dtype ...>, None, True or False"
    string = at.match(_STRING)
    if string is not None:
        return at.unescape(string[1:-1], expected)
    for pattern, read in ((_FLOAT, float), (_INT, int)):
        number = at.match(pattern)
        if number is not None:
            return read(number)
    start = at.place
    name = at.name(expected)
    if at.line[start] != "`" and name in _WORDS:
        return _WORDS[name]
    inputs.append(name)
    return Ref(len(inputs) - 1)
