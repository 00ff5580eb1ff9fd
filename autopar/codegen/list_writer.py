"""List writer: the lines of a function that updates many parameters at once.

In: the nodes of one parameter's update, one after another. Out: lines in which each value is a list with an entry per parameter, in the order of `names`:

    mul, mul_2 = kernels.update_step([state[f"step:{name}"] for name in names])       a kernel takes lists: it is launched once for all
    part = [comm.slice(state[name], 'dp', dim=0, stride=384) for name in names]       anything else runs for one after the other
    norm = [torch.sqrt(x) for x in sum]

What is the same for all parameters (a clipping factor) is no list. Invariant: parameters need nothing of each other, so it does not matter that line by line is not
parameter by parameter; within one the order is that of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from ..graph.kernel import is_kernel, written_states
from ..graph.node import Arg, Node
from ..graph.program import STARTS, Origin
from .expression import print_expression
from .writer import Writer, wish_of

_MEETINGS = ("comm.all_reduce", "comm.all_gather")
_ELEMENTS = ("x", "y", "z", "w")


class ListWriter(Writer):
    """Collects the body of one function.

    Args:
        state_text: of a state or batch entry, the text that reads it and whether it is each parameter's own (it has `name` then).
        lists: ops of kernels that take lists.
        small: values of a few bytes: sums and gathers of these go as one collective, for what each costs is that ranks meet.
    """

    def __init__(self, state_text: Callable[[str], tuple[str, bool]], lists: Collection[str], small: Collection[str] = ()) -> None:
        super().__init__(("names", *_ELEMENTS), lambda name: state_text(name)[0], lambda path: "", {}, lists)
        self._find_state, self._small = state_text, small
        self._shared: set[str] = set()  # values that are no lists

    def take(self, value: str, key: str, own: bool, stays: bool) -> None:
        """Take a value out of `grads`.

        Args:
            key: the text of its key there.
            own: each parameter has its own: the key has `name`.
            stays: somebody else reads it afterwards.
        """
        text = f"grads[{key}]" if stays else f"grads.pop({key})"
        self.line(f"{self.bind(value, 'grad')} = {f'[{text} for name in names]' if own else text}")
        if not own:
            self._shared.add(value)

    def put(self, value: str, key: str) -> None:
        """Put a value into `grads`, for each parameter under a key of its own."""
        self.line(f"grads.update(zip({'names' if key == 'name' else f'[{key} for name in names]'}, {self._list_of(value)}))")

    def node(self, node: Node, origin: Origin, dead_outputs: frozenset[str]) -> None:
        """The line(s) of one node for all parameters."""
        note = f"  # {origin.reason}" if node.op.startswith("comm.") else ""
        if node.op == "state.write":
            loop, [_, value] = self._loop(node)
            self.lines += [f"for {loop}:", f"    {self._state_text(node.inputs[0])}.copy_({value})"]
            return
        replaced = {new: state for state, new in written_states(node)}
        targets = [self.bind(name, wish_of(node, k, node.path)) if name and name not in dead_outputs else "_" for k, name in enumerate(node.outputs) if name not in replaced]
        if node.op in self._lists:
            text = print_expression(node, [self._list_of(name) for name in node.inputs])
        elif node.op in STARTS and len(node.inputs) == 1:
            text = f"comm.{node.op.removeprefix('comm.')}({self._list_of(node.inputs[0])}, {print_start_options(node)})"
        elif node.op in _MEETINGS and node.outputs[0] in self._small:
            text = f"[x.wait() for x in comm.start_{node.op.removeprefix('comm.')}({self._list_of(node.inputs[0])}, {print_start_options(_each(node))})]"
        else:
            loop, elements = self._loop(node)
            one = print_expression(node, elements)
            if not targets:
                self.lines += [f"for {loop}:", f"    {one}"]
            text = f"[{one} for {loop}]" if len(targets) == 1 else f"ops.columns([{one} for {loop}], {len(targets)})"
        if targets or is_kernel(node.op) and node.op in self._lists:
            self.line(f"{', '.join(targets)} = {text}{note}" if targets else text)
        self._stored.update((new, self._state_text(state)) for new, state in replaced.items())
        if "_" in targets:
            self.line("del _")

    def _own(self, value: str) -> bool:
        """True for what is read from `state` by name."""
        return value in self._stored or value not in self.names and self._find_state(value)[1]

    def _list_of(self, value: str) -> str:
        """The text of a list with a value of each parameter."""
        text = self.text_of(value)
        if self._own(value):
            return f"[{text} for name in names]"
        return f"[{text}] * len(names)" if value in self._shared or value not in self.names else text

    def _loop(self, node: Node) -> tuple[str, list[str]]:
        """What stands between `for` and the end of a loop over the parameters, and the text of each input in it."""
        lists = [name for name in dict.fromkeys(node.inputs) if name in self.names and name not in self._shared and name not in self._stored]
        elements = dict(zip(lists, (*_ELEMENTS, *(f"x_{k}" for k in range(len(lists))))))
        variables = [*(["name"] if any(self._own(n) for n in node.inputs) or not lists else []), *elements.values()]
        sources = [*(["names"] if variables[0] == "name" else []), *(self.names[n] for n in lists)]
        loop = f"{variables[0]} in {sources[0]}" if len(sources) == 1 else f"{', '.join(variables)} in zip({', '.join(sources)})"
        return loop, [elements.get(n) or self.text_of(n) for n in node.inputs]


def _each(node: Node) -> Node:
    """A collective of one tensor with its arguments as those of a start are, an entry per tensor."""
    return replace(node, args=tuple((name, (arg,) if name in ("dim", "stride", "short") else arg) for name, arg in node.args))


def print_start_options(node: Node) -> str:
    """The arguments of a collective that starts for many parameters, after the list of what it reads."""
    args: Mapping[str, Arg] = dict(node.args)
    many = [f"{name}={list(args[name])!r} * len(names)" for name in ("dim", "stride", "short") if name in args]  # type: ignore[arg-type]
    return ", ".join([repr(args["axis"]), *many, *(f"{name}={args[name]!r}" for name in ("op",) if name in args)])
