"""How a tensor lies, in words that can be read beside another plan's: `R`, `S0 on b`, `S0 on a,b, P on c`.

In: a shape, a sharding, a mesh. Out: text. Axes that cut one dim into equal chunks are named together, outermost first; any other digit
keeps its stride: `S0/64 on a`. Axes that replicate are not mentioned.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.mesh import Mesh, MeshAxis
from ..graph.sharding import Replicate, Shard, Sharding


def print_axis(axis: MeshAxis, sized: bool) -> str:
    """`a`, or `a=4` beside another mesh."""
    return f"{axis.name}={axis.size}" if sized else axis.name


def print_split(shape: Sequence[int], sharding: Sharding | None, mesh: Mesh, sized: bool = False) -> str:
    """`S0 on b`.

    Args:
        shape: of the whole tensor.
        sharding: None prints as `none`.
        sized: the size stands beside each axis, because the text is compared with one of another mesh.
    """
    if sharding is None:
        return "none"
    dims: dict[int, list[tuple[Shard, MeshAxis]]] = {}
    told = []
    for placement, axis in zip(sharding.placements, mesh.axes):
        if isinstance(placement, Shard):
            dims.setdefault(placement.dim, []).append((placement, axis))
        elif not isinstance(placement, Replicate):
            told.append(f"{placement} on {print_axis(axis, sized)}")
    split = []
    for dim, digits in sorted(dims.items()):
        digits.sort(key=lambda digit: -digit[0].stride)
        names = [print_axis(axis, sized) for _, axis in digits]
        if _are_chunks(shape[dim], digits):
            short = sum(placement.short for placement, _ in digits)
            split.append(f"S{dim} on {','.join(names)}" + (f" with {short} of padding" if short else ""))
        else:
            split += [f"{placement} on {name}" for (placement, _), name in zip(digits, names)]
    return ", ".join(split + told) or "R"


def _are_chunks(size: int, digits: Sequence[tuple[Shard, MeshAxis]]) -> bool:
    for placement, axis in digits:
        size = (size + placement.short) // axis.size
        if placement.stride != size:
            return False
    return True


def print_choices(choices: Sequence[str], mesh: Mesh, sized: bool = False) -> str:
    """A node's strategy: `b on a, o on b`; `R` where every rank does the same."""
    return ", ".join(f"{c} on {print_axis(axis, sized)}" for c, axis in zip(choices, mesh.axes) if c != "R") or "R"


def print_op(op: str) -> str:
    """`aten.mm.default` as `mm`."""
    return op.removeprefix("aten.").removeprefix("autopar.").removesuffix(".default")
