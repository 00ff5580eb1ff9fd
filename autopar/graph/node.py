"""Nodes: one `Node` is one op of the step, with everything needed to call it again.

Attributes are the op's own schema arguments by name, so that nothing that torch was told is lost; tensors among them are
`Ref(i)`, the i-th of `inputs`. A node never holds a tensor, a callable or a torch object.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Union


class Phase(enum.Enum):
    """When in the step a node runs. PREPARE: once before the turns of a step that takes its batch in turns (`graph.microbatch`)."""

    __hash__ = object.__hash__  # enum's own is Python's, and these are in most keys

    PREPARE = "prepare"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands in a node's arguments for its input number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Const:
    """A torch constant that is not a Python number, by torch's own name: `torch.float32`, `torch.strided`, `cpu`."""

    kind: str  # "dtype" | "layout" | "device" | "memory_format"
    name: str


Arg = Union[None, bool, int, float, complex, str, Ref, Const, tuple["Arg", ...]]


@dataclass(frozen=True, slots=True)
class Node:
    """One call of one op.

    Args:
        name: unique in its graph, short and stable (`mm_3`).
        op: `namespace.name.overload` of an ATen op (`aten.mm.default`), or an op of ours (`autopar.linear`, `comm.all_gather`).
        inputs: names of the values it reads, in the order of the schema (a list of tensors is flattened).
        args: (schema argument name, argument) in schema order, defaults left out. Tensors are `Ref`.
        outputs: names of the values it makes, in order. Outputs that nobody can see (None) are `""`.
        phase: see `Phase`.
        path: module path (`transformer.h.3.attn`), "" for the root; for an update, the path of its parameter's module.
        source: `file.py:91` of the user's line, "" where unknown.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    args: tuple[tuple[str, Arg], ...]
    outputs: tuple[str, ...]
    phase: Phase
    path: str = ""
    source: str = ""


def packet_of(op: str) -> str:
    """`mylib.op.default` -> `mylib.op`."""
    return ".".join(op.split(".")[:2])


def is_known(op: str) -> bool:
    """True of an op that we know to be deterministic; a region or a user's op may draw or count."""
    return op.startswith(("aten.", "autopar."))


def get_arg(node: Node, name: str, default: Arg = None) -> Arg:
    """The node's argument of this schema name, or `default` where the call left it out."""
    for key, value in node.args:
        if key == name:
            return value
    return default


def list_refs(arg: Arg) -> list[int]:
    """The inputs that an argument holds, by number, in the order in which they stand there."""
    if isinstance(arg, Ref):
        return [arg.index]
    return [index for item in arg for index in list_refs(item)] if isinstance(arg, tuple) else []


def input_names(node: Node) -> tuple[str, ...]:
    """For each of `node.inputs` the schema name of the argument that holds it."""
    names = [""] * len(node.inputs)
    for key, arg in node.args:
        for index in list_refs(arg):
            names[index] = key
    return tuple(names)
