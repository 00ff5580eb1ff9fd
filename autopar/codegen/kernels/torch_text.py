"""Plain torch: a kernel's graph as lines of Python, for devices that run no Triton and for groups that have no Triton text.

In: a `Kernel`. Out: the lines of a function's body whose arguments are the kernel's inputs. Invariant: the ops of the graph, one after the other; a value is deleted
after its last use, and a state is rewritten as soon as its old version has been read (the law of `graph.liveness`).

What an op makes takes the place of what it is the last to read, where the kernel itself made that and nothing is a view of it: `x.mul_(c)`. So ops that run one after the other hold no more
beside the kernel's arguments, which are all there until it is over, than they would by themselves. The old version of a state that the kernel rewrites is such a place, too, so an optimizer's update
needs no more passes than torch's own; but not for what the kernel returns or another state becomes, which would be that state's new version by then. An argument that the kernel may write over (`Kernel.given_up`) is one, too, for whatever is made.
"""

from __future__ import annotations

from ...graph.kernel import Kernel
from ...graph.liveness import is_view
from ...graph.node import Arg, Const, Node, Ref, get_arg
from ...graph.written_over import BY_OUT, BY_OUT_OTHER, INTO_ANY, gives_back, list_replaceable, reads_once
from ..expression import print_arg, print_expression

_WIDE = {"float32", "float64"}


def print_torch(kernel: Kernel) -> list[str]:
    """The lines, `return` included."""
    lines, results = print_body(kernel)
    return [*lines, *([f"return {', '.join(results)}"] if results else [])]


def print_body(kernel: Kernel) -> tuple[list[str], list[str]]:
    """The lines, and by which names they leave the results that are not written into an argument."""
    return _Printer(kernel).text()


class _Printer:
    """Prints one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        graph = kernel.graph
        self.graph = graph
        self.into = {graph.outputs[o]: graph.inputs[i] for o, i in kernel.into}
        self.results = [name for name in graph.outputs if name not in self.into]
        self.last = {name: place for place, node in enumerate(graph.nodes) for name in node.inputs}
        self.values = {v.name: v for v in graph.values}
        self.shared = {name for node in graph.nodes if is_view(node.op) for name in (*node.inputs[:1], *node.outputs)}  # views, and what they are of
        same = {node.inputs[0] for node in graph.nodes if gives_back(node, self.values)}
        self.given_up = {graph.inputs[i] for i in kernel.given_up} - self.shared - same
        self.texts = {name: name for name in graph.inputs}
        self.holder: dict[str, str] = {}  # state -> the value that is in its place meanwhile
        self.waiting: dict[str, str] = {}  # new version -> the state that it is to replace
        self.lines: list[str] = []
        self.lerps: dict[int, tuple[str, int]] = {}
        self.products: dict[int, int] = {}
        if kernel.any_shape:
            self.lerps = self._find_lerps()
            self.products = self._find_products()
        self.merged = {*(difference for _, difference in self.lerps.values()), *self.products.values()}

    def text(self) -> tuple[list[str], list[str]]:
        for place, node in enumerate(self.graph.nodes):
            if place in self.merged:
                continue
            if key := self._takes_place(place, node):
                self._in_place(place, node, key)
            elif free := self._find_given_up(place, node):
                self.lines.append(self._print_into(node, free))
                self.texts[node.outputs[0]] = free
            elif not self._copies_there(place, node):
                self._line(place, node)
            self._settle(place, node)
        return self.lines, [self.texts[name] for name in self.results]

    def _find_lerps(self) -> dict[int, tuple[str, int]]:
        """Place of `x + w (y - x)` -> (y, place of the difference that nobody else reads): one pass of torch's `lerp_`, which computes just that for w < 0.5."""
        makers = {out: k for k, node in enumerate(self.graph.nodes) for out in node.outputs}
        found = {}
        for place, node in enumerate(self.graph.nodes):
            args = dict(node.args)
            weight, other = args.get("alpha"), args.get("other")
            if node.op != "aten.add.Tensor" or not isinstance(weight, float) or not 0 < weight < 0.5 or not isinstance(other, Ref):
                continue
            difference = makers.get(node.inputs[other.index], -1)
            apart = self.graph.nodes[difference]
            if difference < 0 or apart.op != "aten.sub.Tensor" or get_arg(apart, "alpha") is not None or len(apart.inputs) != 2:
                continue
            end, start = apart.inputs
            readers = sum(n.inputs.count(apart.outputs[0]) for n in self.graph.nodes)
            alike = len({(self.values[n].shape, self.values[n].dtype) for n in (end, start, node.outputs[0])}) == 1
            if node.inputs[0] == start and readers == 1 and apart.outputs[0] not in self.graph.outputs and alike and self._takes_place(place, node):
                found[place] = (end, difference)
                self.last[end] = max(self.last[end], place)
        return found

    def _find_products(self) -> dict[int, int]:
        """Place of `x + y s`, where s is a number in a tensor, -> that of the product that nobody else reads: one pass of torch's `addcmul_`."""
        makers = {out: k for k, node in enumerate(self.graph.nodes) for out in node.outputs}
        found = {}
        for place, node in enumerate(self.graph.nodes):
            other = get_arg(node, "other")
            if node.op != "aten.add.Tensor" or get_arg(node, "alpha", 1) != 1 or not isinstance(other, Ref) or place in self.lerps:
                continue
            product = makers.get(node.inputs[other.index], -1)
            apart = self.graph.nodes[product]
            if product < 0 or apart.op != "aten.mul.Tensor" or len(apart.inputs) != 2 or self._takes_place(place, node) != "self":
                continue
            made, start = apart.outputs[0], node.inputs[1 - other.index]
            number, wide = sorted((self.values[name] for name in apart.inputs), key=lambda value: len(value.shape))
            new = self.values[node.outputs[0]]
            alike = {(v.shape, v.dtype) for v in (wide, self.values[made], self.values[start], new)} == {(new.shape, new.dtype)} and not number.shape
            readers = sum(n.inputs.count(made) for n in self.graph.nodes)
            if alike and {new.dtype, number.dtype} <= _WIDE and readers == 1 and made not in self.graph.outputs:
                before = dict(self.last)
                self.last.update((name, max(self.last[name], place)) for name in apart.inputs)
                merged = (*self.lerps, *found, place)
                if all(self._takes_place(k, self.graph.nodes[k]) == "self" for k in merged):  # what is read later now is the place of none of them
                    found[place] = product
                else:
                    self.last = before
        return found

    def _takes_place(self, place: int, node: Node) -> str:
        """The operand that the op may write over: `self`, or the other one of two that may change places, but for what two became; "": none."""
        keys = ("self",) if place in self.lerps or place in self.products else list_replaceable(node)
        return next((key for key in keys if self._may_go(place, node, get_arg(node, key))), "")

    def _may_go(self, place: int, node: Node, operand: Arg) -> bool:
        if not isinstance(operand, Ref):
            return False
        old, new = node.inputs[operand.index], node.outputs[0]
        states = set(self.into.values())
        ours = old in states | self.given_up if old in self.graph.inputs else not self._may_be_its_input(old)
        alike = (self.values[old].shape, self.values[old].dtype) == (self.values[new].shape, self.values[new].dtype)
        free = old not in self.results and old not in self.waiting and old not in self.into and old not in self.shared
        home = self.texts.get(old, old)
        stays = home not in states or new not in self.results and self.into.get(new, home) == home
        return ours and alike and free and stays and self.last[old] <= place and reads_once(node, old)

    def _find_given_up(self, place: int, node: Node) -> str:
        """An argument that is read no more, in whose place nothing is that is still read, and the op may put what it makes; "": none."""
        if node.op not in INTO_ANY or place in self.lerps or place in self.products or node.outputs[0] in self.into or node.outputs[0] in self.shared:
            return ""
        new = self.values[node.outputs[0]]
        taken = {text for name, text in self.texts.items() if self.last.get(name, -1) >= place or name in self.results or name in self.waiting}
        alike = (name for name in self.graph.inputs if name in self.given_up and (self.values[name].shape, self.values[name].dtype) == (new.shape, new.dtype))
        return next((name for name in alike if name not in taken), "")

    def _may_be_its_input(self, name: str) -> bool:
        """True for what a conversion to its own dtype made: torch then gives back what it got."""
        return gives_back(next(n for n in self.graph.nodes if name in n.outputs), self.values)

    def _in_place(self, place: int, node: Node, key: str) -> None:
        first = get_arg(node, key)
        assert isinstance(first, Ref)
        old, new = node.inputs[first.index], node.outputs[0]
        if place in self.lerps or place in self.products:
            call, rest = self._merged_call(place, node)
            self._over(old, new, f"{call}_({rest})")
            return
        names = [self.texts[name] for name in node.inputs]
        if node.op in BY_OUT or node.op in BY_OUT_OTHER and key == "other":
            self._over(old, new, self._print_into(node, self.texts[old]), method=False)
            return
        rest = []
        for name, arg in node.args:
            if name != key and not isinstance(arg, Const):
                text = print_arg(arg, names)
                rest.append(f"{name}={text}" if name in ("alpha", "value", "rounding_mode") else text)
        self._over(old, new, f"{node.op.split('.')[1]}_({', '.join(rest)})")

    def _print_into(self, node: Node, target: str) -> str:
        """The op as a function that puts what it makes into a tensor."""
        names = [self.texts[name] for name in node.inputs]
        given = [f"{name}={arg!r}" if name == "alpha" else print_arg(arg, names) for name, arg in node.args]
        return f"torch.{node.op.split('.')[1]}({', '.join(given)}, out={target})"

    def _merged_call(self, place: int, node: Node) -> tuple[str, str]:
        """The name of the op that two became, and what it is given behind `self`."""
        if place in self.lerps:
            return "lerp", f"{self.texts[self.lerps[place][0]]}, {get_arg(node, 'alpha')!r}"
        return "addcmul", ", ".join(self.texts[name] for name in self.graph.nodes[self.products[place]].inputs)

    def _over(self, old: str, new: str, call: str, method: bool = True) -> None:
        """The line that puts `new` in the place of `old`: a method of it, or a function."""
        target = self.texts.pop(old)
        self.lines.append(f"{target}.{call}" if method else call)
        self.texts[new] = target
        for state in {*self.into.values()} & {target}:
            self.holder[state] = new

    def _copies_there(self, place: int, node: Node) -> bool:
        """Put a copy that is a new version where the old one is, if nothing reads that any more; False where it is none."""
        state = self.into.get(node.outputs[0], "") if node.op == "aten.clone.default" else ""
        if not state or max(self.last.get(name, -1) for name in (state, self.holder.get(state, state))) > place or self.texts[node.inputs[0]] == state:
            return False
        if (self.values[node.inputs[0]].shape, self.values[node.inputs[0]].dtype) != (self.values[state].shape, self.values[state].dtype):
            return False
        self.lines.append(f"{state}.copy_({self.texts[node.inputs[0]]})")
        self.texts[node.outputs[0]], self.holder[state] = state, node.outputs[0]
        return True

    def _line(self, place: int, node: Node) -> None:
        if place in self.lerps or place in self.products:  # into memory of its own after all
            first = get_arg(node, "self")
            assert isinstance(first, Ref)
            call, rest = self._merged_call(place, node)
            text = f"torch.{call}({self.texts[node.inputs[first.index]]}, {rest})"
        else:
            text = print_expression(node, [self.texts[name] for name in node.inputs], f"{self.graph.inputs[0]}.device")
        read = {name for later in self.graph.nodes[place:] for name in later.inputs}
        targets = [name if name and (name in read or name in self.results or name in self.into) else "_" for name in node.outputs]
        self.lines.append(f"{', '.join(targets)} = {text}")
        self.texts.update((name, name) for name in targets if name != "_")

    def _settle(self, place: int, node: Node) -> None:
        """Put new versions where they belong, and delete what is read no more."""
        for name in node.outputs:
            if name in self.into and self.texts.get(name) != self.into[name]:
                self.waiting[name] = self.into[name]
        done = [name for name in node.inputs if self.last[name] <= place]
        dying = [name for name in dict.fromkeys((*done, *(o for o in node.outputs if o and self.last.get(o, -1) <= place))) if name not in self.waiting]
        for new, state in list(self.waiting.items()):
            held = self.holder.get(state, state)
            if self.last.get(held, -1) <= place and self.last.get(state, -1) <= place:
                self.lines.append(f"{state}.copy_({self.texts[new]})")
                dying.append(new)
                del self.waiting[new]
        kept = {*self.graph.inputs, *(self.texts[name] for name in self.results if name in self.texts)}
        gone = [t for name in dict.fromkeys(dying) if name not in self.results and (t := self.texts.get(name, "")) not in kept and t]
        alive = {self.texts[n] for n in self.texts if n not in dying and self.last.get(n, -1) > place}
        gone = [t for t in gone if t not in alive and t != "_"]
        for name in dying:
            if name in self.into:
                self.texts[name] = self.into[name]
        if gone:
            self.lines.append(f"del {', '.join(dict.fromkeys(gone))}")
