"""Kernels: a group of nodes that runs as one, cut out of a program.

In: the nodes of a group, in order, and the graph around them. Out: a `Kernel`, and the one node that takes their place. A kernel is a small graph of its own
whose values have names that a person would give them, so equal groups of equal blocks are one kernel. Invariant: a kernel that rewrites a state reads
that state in no other kernel afterwards, and writes it when everything that it reads of it has been read.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from .graph import Graph
from .liveness import is_view
from .node import Arg, Node, Phase, Ref, get_arg, packet_of
from .tensor import STATE_KINDS, Kind, Value

KERNEL = "kernel"  # the namespace of ops that are kernels: `kernel.add_layer_norm`
INTO = "into"  # argument of such a node: ((output, input), ...): outputs that are written into the storage of an input

JOINS = frozenset(("aten.cat", "aten.stack"))  # in a kernel of the update: of numbers, one of each parameter
KINDS = {"aten.sum": "sum", "aten.amax": "max", "aten.amin": "min", "aten.any": "max", "aten.all": "min", "aten.count_nonzero": "sum"}  # what a reduction makes of the parts that programs leave
_PLAIN = frozenset(("_to_copy", "neg", "reciprocal", "expand", "view", "reshape", "permute", "unsqueeze", "squeeze", "full", "alias", "slice"))
_MOST_WORDS = 4
_RESERVED = ("row", "col", "first", "block", "part", "tl", "torch", "aten", "ops", "fused", "formulas", "uniform", "row_sums", "more_exps", "row_exps", "range", "float", "parts", "table", "entry",
             "together", "totals", "lists", "numbers", "inside", "along")  # in the texts of kernels
# Names that texts make of others (`x_ptr`, `x_out`, `x_sum`, ...), of widths (`col_7`), and those of sizes (`ROWS`): what would have one of these, or is a word of Python, gets a line behind it.
_MADE = re.compile(r".*_(ptr|out|sum|max|min|parts|kernel|launch|together|total|seen)|(col|input|inside|place)_\d+|[A-Z0-9_]+")
_OVER_EVERYTHING = {
    "aten.sum": "aten.sum.dim_IntList", "aten.amax": "aten.amax.default", "aten.amin": "aten.amin.default", "aten.any": "aten.any.default", "aten.all": "aten.all.default", "aten.count_nonzero": "aten.count_nonzero.default",
}  # fmt: skip  # packet -> the op that takes a tensor of any shape
_WITHOUT_DIMS = frozenset(("aten.any.default", "aten.all.default", "aten.count_nonzero.default"))
_SHAPED = frozenset(("dim", "dims", "size", "shape", "normalized_shape", "tensors", "keepdim", "num_rows"))  # arguments of ops that know a shape


@dataclass(frozen=True, slots=True)
class Kernel:
    """A group of nodes as a function of its own.

    Args:
        name: unique among the kernels of a program.
        graph: its nodes, views between them included. `inputs` and `outputs` in the order of its arguments and results.
        into: (output number, input number): results that are written into the storage of an argument instead of being returned.
        given_up: numbers of its arguments that nobody reads afterwards (`graph.given_up`): it may write over them.
        any_shape: it works on tensors of any one shape, and scalars: `graph` has the shapes of the first place where it was found.
        sources: `file.py:91 add` of each of its nodes that does work, as it was first found.
        layouts: of its arguments and results those that do not lie row by row on a GPU, with their strides (`graph.layouts`).
        in_parts: numbers of its outputs that are sums or extremes of a whole tensor and that only a total reads (`graph.totals`): programs of a device leave them in parts.
        roomy: of these, those with rows to walk along whose memory goes on behind each, the last one, too, until the next would begin: a kernel may read what is there, and leave anything there.
    """

    name: str
    graph: Graph
    into: tuple[tuple[int, int], ...]
    any_shape: bool
    sources: tuple[str, ...]
    layouts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    roomy: tuple[str, ...] = ()
    in_parts: tuple[int, ...] = ()
    given_up: tuple[int, ...] = ()


def cut_kernel(
    graph: Graph, values: Mapping[str, Value], makers: Mapping[str, tuple[int, int]], nodes: Sequence[int], outside: Sequence[str], into: Mapping[str, str]
) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel of a group, still without a name, and the values that its arguments are.

    Args:
        values, makers: of the graph (`value_table`, `producer_table`): it is asked for thousands of groups.
        nodes: of the group and the views between them, in order. Those of which nothing comes that others read (in the forward pass the first time of what the backward pass runs again) are left out.
        outside: values that the group makes and others read, in order.
        into: of these, new version -> the state into whose storage it goes.
    """
    nodes = _leading_to(graph, nodes, outside)
    made = {out: i for i in nodes for out in graph.nodes[i].outputs if out}

    def made_of(name: str) -> str:
        while name in made:
            name = graph.nodes[made[name]].inputs[0]
        return name

    listed = tuple(name for i in nodes if packet_of(graph.nodes[i].op) in JOINS and graph.nodes[i].phase is Phase.UPDATE for name in map(made_of, graph.nodes[i].inputs))
    arguments = tuple(dict.fromkeys((*listed, *(name for i in nodes for name in graph.nodes[i].inputs if name not in made))))
    arguments += tuple(old for old in into.values() if old not in arguments)
    names = _name_values(graph, values, makers, nodes, arguments, {*listed})
    entering = tuple(Value(names[a], names[a], 0, values[a].shape, values[a].dtype, Kind.ACTIVATION) for a in arguments)
    inner, own = [], []
    for number, i in enumerate(nodes):
        node = graph.nodes[i]
        outputs = tuple(names[o] if o else "" for o in node.outputs)
        op, args = _over_everything(node) if _reduces_everything(node, values) else (node.op, node.args)
        inner.append(Node(f"n{number}", op, tuple(names[n] for n in node.inputs), args, outputs, node.phase))
        own += [Value(names[o], names[o], 0, values[o].shape, values[o].dtype, Kind.ACTIVATION) for o in node.outputs if o]
    pairs = tuple((k, arguments.index(into[name])) for k, name in enumerate(outside) if name in into)
    cut = Graph("", (*entering, *own), tuple(inner), tuple(names[a] for a in arguments), outputs=tuple(names[o] for o in outside))
    work = [graph.nodes[i] for i in nodes if not is_view(graph.nodes[i].op)] or [graph.nodes[i] for i in nodes]
    sources = tuple(dict.fromkeys(f"{n.source or n.path or 'the step'}: {packet_of(n.op).partition('.')[2]}" for n in work))
    return Kernel("", cut, pairs, _takes_any_shape(cut), sources), arguments


def _leading_to(graph: Graph, nodes: Sequence[int], outside: Sequence[str]) -> list[int]:
    """Of these nodes, in order, those that these values are made of."""
    wanted, kept = {*outside}, []
    for i in reversed(nodes):
        if wanted.intersection(graph.nodes[i].outputs):
            kept.append(i)
            wanted.update(graph.nodes[i].inputs)
    return kept[::-1]


def kernel_node(kernel: Kernel, arguments: Sequence[str], outside: Sequence[str], like: Node) -> Node:
    """The node that runs a kernel.

    Args:
        outside: the values that it makes.
        like: whose name, phase, path and source it has.
    """
    count = len(joined_numbers(kernel))
    args: list[tuple[str, Arg]] = [("numbers", tuple(map(Ref, range(count))))] if count else []
    args += [(name, Ref(k)) for k, name in enumerate(kernel.graph.inputs) if k >= count]
    if kernel.into:
        args.append((INTO, kernel.into))
    return replace(like, op=f"{KERNEL}.{kernel.name}", inputs=tuple(arguments), args=tuple(args), outputs=tuple(outside))


def is_kernel(op: str) -> bool:
    """True for a node that runs a kernel."""
    return op.startswith(f"{KERNEL}.")


def is_number(node: Node) -> bool:
    """True for a number of the model's text, which a kernel has in its own."""
    return node.op == "aten.full.default" and get_arg(node, "size") == ()


def takes_lists(kernel: Kernel) -> bool:
    """True where the program calls it for many parameters at once, with a list for each argument: a kernel of the update that works on tensors of any one shape, or on
    scalars alone."""
    return kernel.graph.nodes[0].phase is Phase.UPDATE and (kernel.any_shape or not any(v.shape for v in kernel.graph.values))


def joined_numbers(kernel: Kernel) -> tuple[str, ...]:
    """The first arguments of a kernel of the update that makes one number of one of each parameter: these, which it takes as a list. None of another kernel."""
    nodes = kernel.graph.nodes
    join = next((node for node in nodes if packet_of(node.op) in JOINS and node.phase is Phase.UPDATE), None)
    return kernel.graph.inputs[: len(join.inputs)] if join is not None else ()


def written_states(node: Node) -> tuple[tuple[str, str], ...]:
    """(state, new version) of the states that a kernel's node rewrites in place."""
    pairs = next((arg for key, arg in node.args if key == INTO), ()) if is_kernel(node.op) else ()
    return tuple((node.inputs[i], node.outputs[o]) for o, i in pairs)  # type: ignore[misc]


def rewritten_early(graph: Graph) -> tuple[tuple[str, str], ...]:
    """(state, new version) of the states that kernels before the update rewrite (`graph.rewrites`): who reads such a version reads the state."""
    return tuple(pair for node in graph.nodes if node.phase is not Phase.UPDATE for pair in written_states(node))


def result_places(kernel: Kernel) -> dict[int, int]:
    """Output number -> the number of the argument in whose storage a Triton function writes it."""
    return {**dict(kernel.into), **places_given_up(kernel)}


def places_given_up(kernel: Kernel) -> dict[int, int]:
    """Output number -> the number of the argument in whose place a Triton function makes the result, because nobody reads that afterwards."""
    values, into = {v.name: v for v in kernel.graph.values}, dict(kernel.into)
    found: dict[int, int] = {}
    for number in kernel.given_up if kernel.any_shape else ():
        old = values[kernel.graph.inputs[number]]
        free = ((k, values[name]) for k, name in enumerate(kernel.graph.outputs) if k not in into and k not in found)
        alike = next((k for k, new in free if (new.shape, new.dtype) == (old.shape, old.dtype)), None)
        if alike is not None:
            found[alike] = number
    return found


def kernel_key(kernel: Kernel) -> object:
    """Equal for kernels that are one: all but names and sources."""
    graph = kernel.graph
    number = {v.name: k for k, v in enumerate(graph.values)}
    nodes = tuple((n.op, n.args, tuple(number[i] for i in n.inputs), tuple(number[o] if o else -1 for o in n.outputs)) for n in graph.nodes)
    shapes = tuple((bool(v.shape) if kernel.any_shape else v.shape, v.dtype) for v in graph.values)
    layouts = tuple((number[name], strides) for name, strides in kernel.layouts)
    roomy = tuple(number[name] for name in kernel.roomy)
    return nodes, shapes, len(graph.inputs), tuple(number[o] for o in graph.outputs), kernel.into, takes_lists(kernel), layouts, roomy, kernel.in_parts, kernel.given_up


def leaves_sums(kernel: Kernel) -> bool:
    """True where it makes a number of a whole tensor."""
    return any(_is_over_everything(node) for node in kernel.graph.nodes)


def _reduces_everything(node: Node, values: Mapping[str, Value]) -> bool:
    """True for a sum or extreme of a whole tensor in the update: which dims that are says only how many it has."""
    return node.phase is Phase.UPDATE and packet_of(node.op) in _OVER_EVERYTHING and bool(values[node.inputs[0]].shape) and not values[node.outputs[0]].shape


def _over_everything(node: Node) -> tuple[str, tuple[tuple[str, Arg], ...]]:
    """The op and arguments that say so of a tensor of any shape."""
    op = _OVER_EVERYTHING[packet_of(node.op)]
    dims = () if op in _WITHOUT_DIMS else (("dim", ()),)
    return op, (node.args[0], *dims, *(arg for arg in node.args[1:] if arg[0] not in ("dim", "keepdim")))


def _is_over_everything(node: Node) -> bool:
    return node.op == _OVER_EVERYTHING.get(packet_of(node.op)) and get_arg(node, "dim") == (None if node.op in _WITHOUT_DIMS else ())


def _takes_any_shape(graph: Graph) -> bool:
    """True where no op knows a shape or a dim: all work element by element on tensors of one shape, or sum up such a tensor for somebody else."""
    shape_of = {v.name: v.shape for v in graph.values}
    read = {name for node in graph.nodes for name in node.inputs}
    for node in graph.nodes:
        if is_number(node):
            continue
        sums = _is_over_everything(node) and not read.intersection(node.outputs)
        if any(key in _SHAPED and not (sums and key == "dim") for key, _ in node.args):
            return False
        if not sums and any(not shape_of[out] and any(shape_of[name] for name in node.inputs) for out in node.outputs if out):
            return False
    return len({shape for shape in shape_of.values() if shape}) == 1


def suggest_name(kernel: Kernel) -> str:
    """A name that says what it does: `add_layer_norm`, `gelu_backward_sum`; `update_exp_avg_sq` where it rewrites states. What is spelled in several ops and has a name
    of its own goes by that (`_find_phrase`)."""
    if kernel.into:
        states = [kernel.graph.inputs[i] for _, i in kernel.into]
        return "_".join(dict.fromkeys(["update", *sorted(states, key=lambda s: s != "param")]))[:60]
    words: list[str] = []
    joins = bool(joined_numbers(kernel))
    spelled, first, last = _find_phrase(kernel.graph)
    for number, node in enumerate(kernel.graph.nodes):
        word = spelled if first <= number <= last else short_op(node)
        if first <= number <= last and words[-1:] != [spelled]:
            words.append(spelled)
        elif packet_of(node.op).partition(".")[2] not in _PLAIN and not (joins and packet_of(node.op) in JOINS) and (not words or words[-1] != word):
            words.append(word)
    words = words or [short_op(next((n for n in kernel.graph.nodes if packet_of(n.op) == "aten.expand"), kernel.graph.nodes[-1]))]
    if len(words) > _MOST_WORDS and spelled:
        words = list(dict.fromkeys((words[0], spelled, words[-1])))
    if len(words) > _MOST_WORDS:
        words = [*words[: _MOST_WORDS - 1], words[-1]]
    return "_".join(words)


def _find_phrase(graph: Graph) -> tuple[str, int, int]:
    """The name of what several nodes spell, and the first and last of them: the loss of a vocabulary, the norm of a row by its root mean square or
    its variance, and that norm's gradient."""
    ops = [packet_of(node.op).partition(".")[2] for node in graph.nodes]
    parts = [k for k, op in enumerate(ops) if op in ("amax", "sum_exp", "pick", "log", "sub")]
    if "sum_exp" in ops and "pick" in ops:
        return "cross_entropy", parts[0], parts[-1]
    row_sums = [k for k, node in enumerate(graph.nodes) if ops[k] in ("sum", "mean") and _is_along_rows(node, graph)]
    root = next((k for k, op in enumerate(ops) if op == "rsqrt" and _is_of_sums(graph, k, row_sums)), 0)
    sums = [k for k in row_sums if k < root]
    if sums:
        squares = [k for k in range(sums[-1]) if ops[k] in ("pow", "square", "mul")]
        centred = len(sums) > 1 and bool(squares) and "sub" in ops[sums[0] : squares[-1]]  # a mean is taken off before what is left is squared
        early = [k for k in squares if k < sums[0]]
        last = max((k for k in _readers(graph, graph.nodes[root].outputs[0]) if ops[k] == "mul"), default=root)
        return ("layer_norm", sums[0], last) if centred else ("rms_norm", early[-1] if early else sums[0], last)
    given = [name for name in graph.inputs if name.startswith("rsqrt")]
    if given and row_sums and graph.nodes[0].phase is Phase.BACKWARD:
        reads = [k for name in given for k in _readers(graph, name)]
        centred = "neg" in ops[row_sums[0] : row_sums[-1]]  # the gradient of a mean that was taken off
        return "layer_norm_backward" if centred else "rms_norm_backward", min([*reads, row_sums[0]]), max([*reads, row_sums[-1]])
    return "", 0, -1


def _is_of_sums(graph: Graph, root: int, row_sums: Collection[int]) -> bool:
    """True for a root of sums along rows, where nothing but numbers goes into it behind them (not of a mean of many steps, of which an optimizer takes the root)."""
    makers = {out: k for k, node in enumerate(graph.nodes) for out in node.outputs}
    shapes = {v.name: v.shape for v in graph.values}
    found, todo = False, [root]
    while todo:
        for name in graph.nodes[todo.pop()].inputs:
            if name not in makers and shapes[name]:
                return False
            found |= makers.get(name) in row_sums
            todo += [makers[name]] if name in makers and makers[name] not in row_sums else []
    return found


def _is_along_rows(node: Node, graph: Graph) -> bool:
    """True for a sum over the last dim alone."""
    shape = next(v.shape for v in graph.values if v.name == node.inputs[0])
    dims = get_arg(node, "dim", None)
    over = {int(d) % len(shape) for d in (dims if isinstance(dims, tuple) else (dims,))} if shape and dims not in (None, ()) else set()  # type: ignore[arg-type]
    return over == {len(shape) - 1}


def _readers(graph: Graph, name: str) -> list[int]:
    """The nodes that read a value, itself or through views and casts."""
    names, found = {name}, []
    for k, node in enumerate(graph.nodes):
        if names.intersection(node.inputs):
            if is_view(node.op) or packet_of(node.op) == "aten._to_copy":
                names.update(node.outputs)
            else:
                found.append(k)
    return found


def short_op(node: Node) -> str:
    """The word for what it does: `layer_norm_backward`."""
    word = packet_of(node.op).partition(".")[2]
    return word.strip("_").removeprefix("native_").removeprefix("fused_").replace("backward_data", "backward")


def _name_values(
    graph: Graph, values: Mapping[str, Value], makers: Mapping[str, tuple[int, int]], nodes: Sequence[int], arguments: Sequence[str], listed: Collection[str]
) -> dict[str, str]:
    """Value -> its name in the kernel; those that are listed have no names in its text."""
    names: dict[str, str] = {}
    taken = set(_RESERVED)
    phase = graph.nodes[nodes[0]].phase
    for name in arguments:
        wish = "number" if name in listed else _argument_wish(values[name], short_op(graph.nodes[makers[name][0]]) if name in makers else "", phase)
        names[name] = fresh_name(_identifier(wish), taken)
    for i in nodes:
        for out in graph.nodes[i].outputs:
            if out:
                names[out] = fresh_name(_identifier(short_op(graph.nodes[i])), taken)
    return names


def _argument_wish(value: Value, op: str, phase: Phase) -> str:
    if value.kind is Kind.PARAM and phase is Phase.UPDATE:
        return "param"
    if value.kind in STATE_KINDS:
        role, _, owner = value.storage.partition(":")
        return role if owner else value.storage.rpartition(".")[2]
    if value.kind is Kind.GRAD:
        return "grad"
    return value.name.partition(":")[0] if value.kind is Kind.BATCH else op or "x"


def fresh_name(wish: str, taken: set[str]) -> str:
    """`wish`, with a number where it is taken; taken from now on."""
    name, count = wish, 1
    while name in taken:
        count += 1
        name = f"{wish}_{count}"
    taken.add(name)
    return name


def _identifier(wish: str) -> str:
    base = re.sub(r"\W+", "_", wish).strip("_") or "x"
    base = f"v_{base}" if base[0].isdigit() else base
    return f"{base}_" if keyword.iskeyword(base) or _MADE.fullmatch(base) else base
