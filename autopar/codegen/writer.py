"""Writer: the lines of one function, with the names that its values have there.

In: nodes, one after another. Invariant: a value has one Python name in a function; it is deleted right after the last line that reads
it, so that memory is held as long as the graph says. Comments group lines by module: path, source line, what was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from ..graph.kernel import is_kernel, written_states
from ..graph.node import Node, get_arg
from ..graph.program import MAKES, OPEN, STARTS, WAIT, WRITES, Origin
from ..graph.stages import COPY
from ..graph.turns import ACCUMULATE, COLLECT, RECEIVE, SEND, TAKE
from .expression import identifier, print_expression

_NUMBER = re.compile(r"[_.]\d+\b.*$")
_NAMED_BY_MODULE = ("autopar.linear", "autopar.attention", "aten.native_layer_norm.default", "autopar.embedding", "aten.convolution.default")


class Writer:
    """Collects the body of one function.

    Args:
        lists: ops of kernels that take lists: here of one entry.
    """

    def __init__(
        self, reserved: tuple[str, ...], state_text: Callable[[str], str], path_text: Callable[[str], str], notes: Mapping[str, str], lists: Collection[str] = ()
    ) -> None:
        self.lines: list[str] = []
        self.names: dict[str, str] = {}  # value -> Python name, where it has one here
        self._stored: dict[str, str] = {}  # new version of a state -> text of the state, once it is written
        self._taken = {"comm", "state", "batch", "kept", "grads", "ops", "kernels", "torch", "aten", "i", "name", *reserved}
        self._state_text, self._path_text = state_text, path_text
        self._notes, self._lists = notes, lists
        self._heading = ""
        self.came: frozenset[str] = frozenset()  # values that a collective brought and that are only written to a state

    def fresh(self, wish: str) -> str:
        """A Python name that is free in this function."""
        base = name = identifier(wish)
        count = 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def bind(self, value: str, wish: str) -> str:
        """Give a value a name here."""
        self.names[value] = self.fresh(wish)
        return self.names[value]

    def text_of(self, value: str) -> str:
        """The Python text that reads a value here: its name, or the state it is."""
        if value in self._stored:
            return self._stored[value]
        return self.names[value] if value in self.names else self._state_text(value)

    def store(self, write: Node) -> None:
        """From here on read a new version from the state into which `write` has put it: its own bytes go (the law of `graph.liveness`)."""
        state, value = write.inputs
        if value in self.names:
            self.drop([value])
            self._stored[value] = self._state_text(state)

    def is_stored(self, value: str) -> bool:
        """True for a new version that is read from the state."""
        return value in self._stored

    def line(self, text: str) -> None:
        """One line of the body."""
        self.lines.append(text)

    def node(self, node: Node, origin: Origin, dead_outputs: frozenset[str]) -> None:
        """The line(s) of one node.

        Args:
            dead_outputs: outputs that nobody reads.
        """
        if node.op != TAKE:
            self._group(node, origin)
        if node.op == "state.write":
            state, value = self._state_text(node.inputs[0]), self.text_of(node.inputs[1])
            self.line(f"ops.put({state}, {value})" if node.inputs[1] in self.came else f"{state}.copy_({value})")
            return
        single = node.op in self._lists
        text = print_expression(node, [f"[{self.text_of(name)}]" if single else self.text_of(name) for name in node.inputs])
        if node.op == SEND:
            self.line(f"{text}  # {node.inputs[0]}")
            return
        note = f"  # {origin.reason}" if node.op.startswith("comm.") else ""
        targets, replaced = [], {new: state for state, new in written_states(node)}
        for k, name in enumerate(node.outputs):
            if name in replaced:
                continue
            targets.append(self.bind(name, wish_of(node, k, self._path_text(node.path))) if name and name not in dead_outputs else "_")
        several = f"[{targets[0]}]" if node.op in STARTS and len(targets) == 1 else ", ".join(f"[{t}]" if single else t for t in targets)
        if node.op in STARTS and len(targets) > 2:
            self._start(several, node, text, note)
        else:
            self.line(f"{several} = {text}{note}" if targets else text)
        self._stored.update((new, self._state_text(state)) for new, state in replaced.items())
        if "_" in targets:
            self.line("del _")

    def _start(self, targets: str, node: Node, text: str, note: str) -> None:
        """Of many tensors each on a line of its own."""
        head, rest = text.split("[", 1)
        sent = [self.text_of(name) for name in node.inputs[: len(node.outputs)]]
        self.line(f"{targets} = {head}[{note}")
        self.lines += [f"    {one}," for one in sent]
        self.line(rest[len(", ".join(sent)) :])

    def accumulate(self, node: Node, entry: str, own: bool = False) -> None:
        """The line of a node that adds to a sum over the turns.

        Args:
            entry: the text of the sum's key in `grads`.
            own: whether the sum may take over what is added first.
        """
        self.line(f"ops.accumulate(grads, {entry}, {self.text_of(node.inputs[0])}{', own=True' if own else ''})")

    def collect(self, node: Node, entry: str) -> None:
        """The line of a node that puts the part of its turn in its place; `entry` as of `accumulate`."""
        dim, count = get_arg(node, "dim"), get_arg(node, "count")
        self.line(f"ops.collect(grads, {entry}, {self.text_of(node.inputs[0])}, turn, dim={dim}, count={count})")

    def grow(self, node: Node, origin: Origin, entry: str, own: bool) -> None:
        """The line of a node that adds to what outlives the turn (`turns.GROWN`); `own` as of `accumulate`."""
        if node.op == ACCUMULATE:
            self.accumulate(node, entry, own)
        elif node.op == COLLECT:
            self.collect(node, entry)
        else:
            self._group(node, origin)
            self.line(print_expression(node, [self.text_of(name) for name in node.inputs]).replace("(", f"(grads, {entry}, ", 1))

    def drop(self, values: list[str]) -> None:
        """Delete the names of values that are read no more."""
        names = [self.names.pop(v) for v in values if v in self.names]
        if names:
            self.line(f"del {', '.join(names)}")

    def _group(self, node: Node, origin: Origin) -> None:
        if node.op.startswith("comm."):
            return
        heading = f"{self._path_text(node.path)}|{node.source}|{origin.reason}"
        if heading == self._heading or node.op.startswith("state."):
            return
        self._heading = heading
        place = self._path_text(node.path) or "(root)"
        self.line(f"# {place}{f' ({node.source})' if node.source else ''}")
        if node.name in self._notes:
            self.line(f"#   {self._notes[node.name]}")


def wish_of(node: Node, output: int, path: str) -> str:
    """The name that a person would give to a node's output.

    Args:
        path: of its module as the text has it, `{i}` where it is of each block.
    """
    if node.op == TAKE:
        return node.inputs[0].partition("~")[0]
    if node.op == RECEIVE:
        return node.outputs[0].partition(COPY)[0]
    if node.op in _NAMED_BY_MODULE:
        tail = [part for part in path.replace("{i}", "").split(".") if part and not part.isdigit()]
        base = tail[-1] if tail else node.op.split(".")[1]
        return base if output == 0 else f"{base}_{output}"
    if is_kernel(node.op):  # as the op is called that makes it
        storage, at, _ = node.outputs[output].rpartition("@")
        if at:  # a new version of a state: of what it is, whoever's
            return storage.partition(":")[0] if ":" in storage else storage.rpartition(".")[2]
        return _NUMBER.sub("", node.outputs[output]).removeprefix("native_").strip("_") or "x"
    base = (MAKES if node.op == WRITES else node.op).split(".")[1]
    if base.startswith("native_"):
        base = base[len("native_") :]
    if node.op in STARTS:
        return "started"
    if node.op == OPEN:
        return "bucket"
    if node.op == WAIT:
        base = dict(node.args)["of"]
    if node.op.startswith("comm."):
        base = {"all_gather": "gathered", "reduce_scatter": "scattered", "all_reduce": "reduced", "all_to_all": "exchanged", "slice": "part", "keep": "owed"}[base]
    return base.strip("_") if output == 0 else f"{base.strip('_')}_{output}"
