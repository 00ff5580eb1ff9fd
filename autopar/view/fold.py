"""Folding for people: equal rows of a table become one row with a count, equal blocks one block.

In: names with numbered parts (`h.0.attn.weight`), or a plan's repeats. Out: who stands for whom. Invariant: every member stands in
exactly one fold, and members of one fold are equal in everything that is shown, so a shown number times its count is the sum.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product

from ..graph.plan import Plan, RepeatPlan
from ..graph.repeats import BY_HAND, block_path, numbers_on
from ..graph.sequences import FEWEST_BY_HAND

_END = re.compile(r"(?<!\d)(?:0|[1-9]\d*)$")
_HERE = "#"


@dataclass(frozen=True, slots=True)
class NameFold:
    """One row for several: `h.[0..11].attn.weight` and the indices of its members, in order."""

    name: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockFold:
    """Equal blocks that were decided equally.

    Args:
        family: the module that holds them (`transformer.h`), `label`: `h[0..11]`.
        numbers: the number of each block.
        blocks: for each block the indices of its nodes in the plan, aligned; the first stands for all.
    """

    family: str
    label: str
    numbers: tuple[str, ...]
    blocks: tuple[tuple[int, ...], ...]


def print_numbers(numbers: Sequence[str]) -> str:
    """`0..11`, `0..4,6`; one number stands for itself."""
    runs: list[list[int]] = []
    for number in sorted({int(n) for n in numbers}):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}..{b}" for a, b in runs)


def fold_names(names: Sequence[str], keys: Sequence[Hashable]) -> tuple[NameFold, ...]:
    """Names that differ only in numbered parts (`h.0`; `layer0` where there are a few of them), and whose keys are equal, become one.

    Args:
        names: dotted names.
        keys: all that a row shows beside its name.
    """
    groups: dict[tuple[tuple[str, ...], Hashable], list[int]] = {}
    for i, group in enumerate(zip(_patterns(names), keys)):
        groups.setdefault(group, []).append(i)
    folds = [fold for (pattern, _), members in groups.items() for fold in _fold_group(names, pattern, members)]
    return tuple(sorted(folds, key=lambda fold: fold.members[0]))


def _patterns(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Each name in parts, a number that counts as `#`: `h.0.ln_1.weight` -> (`h`, `#`, `ln_1`, `weight`), `layer0.weight` -> (`layer#`, `weight`)."""
    parts = [tuple(_END.sub(_HERE, part) for part in name.split(".")) for name in names]
    numbers: dict[tuple[str, ...], set[str]] = {}
    for name, pattern in zip(names, parts):
        for k, part in enumerate(name.split(".")):
            if pattern[k] != part:
                numbers.setdefault(pattern[: k + 1], set()).add(part)
    return [
        tuple(mask if mask == _HERE or len(numbers.get(pattern[: k + 1], ())) >= FEWEST_BY_HAND else part for k, (mask, part) in enumerate(zip(pattern, name.split("."))))
        for name, pattern in zip(names, parts)
    ]


def fold_places(places: Sequence[str], keys: Sequence[Hashable]) -> tuple[NameFold, ...]:
    """`fold_names` for rows of which several may stand at one place: equal places are one where as many rows stand there.

    Args:
        places: dotted names.
        keys: all that a row shows beside its place.
    """
    groups: dict[tuple[str, Hashable], list[int]] = {}
    for i, group in enumerate(zip(places, keys)):
        groups.setdefault(group, []).append(i)
    distinct = list(groups)
    folds = fold_names([place for place, _ in distinct], [(key, len(groups[place, key])) for place, key in distinct])
    return tuple(NameFold(fold.name, tuple(i for m in fold.members for i in groups[distinct[m]])) for fold in folds)


def _fold_group(names: Sequence[str], pattern: tuple[str, ...], members: list[int]) -> list[NameFold]:
    """One fold where the numbers are a full grid; else one per value of the outermost number that varies."""
    if len(members) == 1:
        return [NameFold(names[members[0]], (members[0],))]
    places = [k for k, part in enumerate(pattern) if part.endswith(_HERE)]
    parts = {i: {k: names[i].split(".")[k][len(pattern[k]) - 1 :] for k in places} for i in members}
    seen = [sorted({parts[i][k] for i in members}, key=int) for k in places]
    if len(members) == len(list(product(*seen))):
        text = {k: pattern[k][:-1] + (f"[{print_numbers(values)}]" if len(values) > 1 else values[0]) for k, values in zip(places, seen)}
        return [NameFold(".".join(text.get(k, part) for k, part in enumerate(pattern)), tuple(members))]
    outer = next(k for k, values in zip(places, seen) if len(values) > 1)
    split: dict[str, list[int]] = {}
    for i in members:
        split.setdefault(parts[i][outer], []).append(i)
    return [fold for part in split.values() for fold in _fold_group(names, pattern, part)]


def fold_blocks(plan: Plan) -> tuple[BlockFold, ...]:
    """The plan's repeats, each cut into blocks that were decided equally; blocks that stand alone are left out."""
    index = {node.name: i for i, node in enumerate(plan.nodes)}
    comms: dict[str, list[Hashable]] = {}
    for c in plan.comms:
        reader = plan.nodes[index[c.reader]] if c.reader in index else None
        slot = reader.inputs.index(c.value) if reader and c.value in reader.inputs else -1
        comms.setdefault(c.reader, []).append((c.kind, c.axis, c.bytes, c.seconds, c.source_sharding, c.target_sharding, slot))
    folds = []
    for repeat in plan.repeats:
        groups: dict[Hashable, list[tuple[int, ...]]] = {}
        for block in repeat.blocks:
            members = tuple(index[name] for name in block)
            key = tuple(_decision(plan, i, comms) for i in members)
            groups.setdefault(key, []).append(members)
        folds += [_build_fold(plan, repeat, blocks) for blocks in groups.values() if len(blocks) > 1]
    return tuple(folds)


def _decision(plan: Plan, i: int, comms: dict[str, list[Hashable]]) -> Hashable:
    node = plan.nodes[i]
    return (node.op, node.choices, node.seconds, node.flops, tuple(comms.get(node.name, ())))


def _build_fold(plan: Plan, repeat: RepeatPlan, blocks: list[tuple[int, ...]]) -> BlockFold:
    numbers = [_block_number(plan, block, repeat.family) for block in blocks]
    if all(number.isdigit() for number in numbers):
        order = sorted(range(len(blocks)), key=lambda k: int(numbers[k]))
        blocks, numbers = [blocks[k] for k in order], [numbers[k] for k in order]
        inside = print_numbers(numbers)
    else:
        numbers, inside = [str(k) for k in range(len(blocks))], f"{len(blocks)} blocks"
    return BlockFold(repeat.family, name_blocks(repeat.family, inside), tuple(numbers), tuple(blocks))


def name_blocks(family: str, inside: str) -> str:
    """`h[0..11]` of the blocks of `transformer.h`, `layer[0..11]` of those of `layer*`."""
    return f"{family.rpartition('.')[2].removesuffix(BY_HAND)}[{inside}]"


def _block_number(plan: Plan, block: tuple[int, ...], family: str) -> str:
    """The number of the block's module."""
    return next((str(number) for i in block if (number := dict(numbers_on(plan.nodes[i].path)).get(family)) is not None), "")


def place_in_tree(path: str, fold: BlockFold | None) -> tuple[str, ...]:
    """Where a node stands in the module tree; the number of a folded block becomes part of its family's name."""
    parts = tuple(path.split(".")) if path else ()
    if fold is None:
        return parts
    number = dict(numbers_on(path)).get(fold.family)
    if number is None:
        return parts
    block = block_path(fold.family, number)
    return (*fold.family.split(".")[:-1], fold.label, *path[len(block) :].split(".")[1:])
