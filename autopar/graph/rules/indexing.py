"""Looking up and writing by index: the indexed dim is whole (each index may point anywhere in it), all others are free.

Where writes add up, the entries may be split too: each rank adds its own into a Partial, and the tensor that is added to is owed.
"""

from __future__ import annotations

from ..node import Ref
from ..rule import LinearSets, Rule, Shape, Site
from .dims import hold, letters, normal_dim, operand, whole_operand
from .pointwise import linear_if_zero

SELF = (("self",),)
_ANYWHERE = "an index may point anywhere in it"


def _embedding_backward(site: Site) -> str:
    if site.arg("scale_grad_by_freq", False):  # counts every use of a row
        rank = len(site.inputs[1])
        places = whole_operand(rank, "t")
        return f"{places} d, {places} -> [v] d"
    return "... d, ... -> [v] d"


# --- one dim: gather, scatter, index_select, index_add -----------------------------------------------------------------------


def along_entries(site: Site, others: tuple[Shape, ...], is_entry_whole: bool) -> tuple[str, list[str]]:
    """Texts of the indexed tensor and of the operands that run over entries; dims of unequal size are whole."""
    shape = site.inputs[0]
    rank = len(shape)
    dim = normal_dim(site.arg("dim"), rank)
    names, entries = letters(rank), [letters(rank) for _ in others]
    for d in range(rank):
        sizes = {other[d] for other in others} | ({shape[d]} if d != dim else set())
        if d == dim:
            names[d] = "[v]"
            fits = len(sizes) == 1 and not is_entry_whole
        else:
            fits = len(sizes) == 1
            names[d] = f"d{d}" if fits else f"[d{d}]"
        for k, row in enumerate(entries):
            row[d] = f"j{'' if d == dim else d}" if fits and d == dim else f"d{d}" if fits else f"[e{k}x{d}]"
    return operand(names), [operand(row) for row in entries]


def _gather(site: Site) -> str:
    table, (entries,) = along_entries(site, site.inputs[1:], is_entry_whole=False)
    return f"{table}, {entries} -> {entries}"


def _scatter(site: Site) -> str:
    table, entries = along_entries(site, site.inputs[1:], is_entry_whole=True)
    return f"{', '.join([table, *entries])} -> {table}"


def _scatter_add(site: Site) -> str:
    table, entries = along_entries(site, site.inputs[1:], is_entry_whole=False)
    return f"{', '.join([table, *entries])} -> {table}"


def _scatter_joined(site: Site) -> str:
    return _scatter_add(site) if site.arg("reduce") == "add" else _scatter(site)


def _linear_if_added(site: Site) -> LinearSets:
    return (("self", "src"),) if site.arg("reduce") == "add" else ()


def _index_select(site: Site) -> str:
    table = hold(letters(len(site.inputs[0])), dims := (normal_dim(site.arg("dim"), len(site.inputs[0])),))
    picked = ["j" if k in dims else name for k, name in enumerate(table)]
    return f"{operand(table)}, {'j' if site.inputs[1] else ''} -> {operand(picked)}"


def _index_add(site: Site) -> str:
    table = hold(letters(len(site.inputs[0])), dims := (normal_dim(site.arg("dim"), len(site.inputs[0])),))
    added = ["j" if k in dims else name for k, name in enumerate(table)]
    return f"{operand(table)}, {'j' if site.inputs[1] else ''}, {operand(added)} -> {operand(table)}"


# --- several dims: index, index_put ---------------------------------------------------------------------------------------------


def _may_be_mask(site: Site, number: int, at: int) -> bool:
    """A boolean mask has the shape of the dims that it covers; where nobody says the dtype, any table of that shape may be one."""
    index = site.inputs[number]
    if site.dtypes:
        return site.dtypes[number] in ("bool", "uint8")
    return bool(index) and index == site.inputs[0][at : at + len(index)]


def _index_operands(site: Site, indices: tuple[Shape, ...]) -> tuple[str, list[str], str, Shape] | None:
    """Texts of the table, of each index and of what is picked, and the picked shape. None: it may be a mask."""
    shape = site.inputs[0]
    listed = site.arg("indices")
    assert isinstance(listed, tuple)
    places = [k for k, item in enumerate(listed) if isinstance(item, Ref)]
    if any(_may_be_mask(site, number, at) for number, at in enumerate(places, 1)):
        return None
    rank = max(len(index) for index in indices)
    together = tuple(max((index[-1 - k] for index in indices if len(index) > k), default=1) for k in reversed(range(rank)))
    entry = letters(rank, "j")
    texts = [operand(entry[rank - len(index) :]) for index in indices]
    names = hold(letters(len(shape)), places)
    free = [k for k in range(len(shape)) if k not in places]
    start = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    before = [k for k in free if k < start]
    after = [k for k in free if k >= start]
    picked = [names[k] for k in before] + entry + [names[k] for k in after]
    size = (*(shape[k] for k in before), *together, *(shape[k] for k in after))
    return operand(names), texts, operand(picked), size


def _all_whole(site: Site) -> str:
    inputs = [whole_operand(len(shape), f"i{k}x") for k, shape in enumerate(site.inputs)]
    return f"{', '.join(inputs)} -> {whole_operand(len(site.outputs[0]), 'o')}"


def _index(site: Site) -> str:
    found = _index_operands(site, site.inputs[1:])
    if found is None or found[3] != site.outputs[0]:
        return _all_whole(site)
    table, indices, picked, _ = found
    return f"{', '.join([table, *indices])} -> {picked}"


def _masked_put(site: Site) -> str:
    """One boolean mask: elementwise where the values do not run over the masked places; else what the mask covers is whole."""
    table, mask, values = site.inputs
    listed = site.arg("indices")
    assert isinstance(listed, tuple)
    at = next(k for k, item in enumerate(listed) if isinstance(item, Ref))
    names, end = letters(len(table)), at + len(mask)
    picked = [*names[:at], "[places]", *names[end:]]
    shown = picked[len(picked) - len(values) :]
    if any(name == "[places]" and size != 1 for name, size in zip(shown, values)):
        names = hold(names, range(at, end))
    added = operand("1" if size == 1 else name for name, size in zip(shown, values))
    return f"{operand(names)}, {operand(names[at:end])}, {added} -> {operand(names)}"


def _index_put(site: Site) -> str:
    found = _index_operands(site, site.inputs[1:-1])
    if found is None:
        is_mask = len(site.inputs) == 3 and bool(site.dtypes) and site.inputs[1]
        return _masked_put(site) if is_mask else _all_whole(site).replace("o", "i0x")
    table, indices, picked, size = found
    if not site.arg("accumulate", False):  # the last write wins: the order of the entries counts
        kept = [name for name in indices[0].split()] if indices else []
        held = {name for text in indices for name in text.split()} | set(kept)
        indices = [operand(f"[{name}]" for name in text.split()) for text in indices]
        picked = operand(f"[{name}]" if name in held else name for name in picked.split())
    values = site.inputs[-1]
    last = picked.split()[len(size) - len(values) :]
    shown = operand("1" if have == 1 else name for have, name in zip(values, last))
    return f"{', '.join([table, *indices, shown])} -> {table}"


ROWS = (
    Rule("aten.embedding", "[v] d, ... -> ... d", flops=0, why_whole=_ANYWHERE),
    Rule("aten.embedding_dense_backward", _embedding_backward, (("grad_output",),), flops=0, why_whole=_ANYWHERE),
    Rule("aten.gather", _gather, SELF, flops=0, why_whole=_ANYWHERE),
    Rule("aten.scatter.src", _scatter, (("self", "src"),), flops=0, why_whole=_ANYWHERE),
    Rule("aten.scatter.value", _scatter, linear_if_zero, flops=0, why_whole=_ANYWHERE),
    Rule("aten.scatter.reduce", _scatter_joined, _linear_if_added, owed=("self",), flops=0, why_whole=_ANYWHERE),
    Rule("aten.scatter.value_reduce", _scatter_joined, owed=("self",), flops=0, why_whole=_ANYWHERE),
    Rule("aten.scatter_add", _scatter_add, (("self", "src"),), owed=("self",), flops=0, why_whole=_ANYWHERE),
    Rule("aten._unsafe_masked_index", _all_whole, flops=0, why_whole=_ANYWHERE),
    Rule("aten._unsafe_masked_index_put_accumulate", _all_whole, (("self", "values"),), flops=0, why_whole=_ANYWHERE),
    Rule("aten.embedding_renorm", _all_whole, flops=3, why_whole="a row is scaled where it is used and too long"),
    Rule("aten.index_select", _index_select, SELF, flops=0, why_whole=_ANYWHERE),
    Rule("aten.index_add", _index_add, (("self", "source"),), owed=("self",), flops=0, why_whole=_ANYWHERE),
    *(Rule(f"aten.{name}", _index, SELF, flops=0, why_whole=_ANYWHERE) for name in ("index", "_unsafe_index")),
    *(
        Rule(f"aten.{name}", _index_put, (("self", "values"),), owed=("self",), flops=0, why_whole=_ANYWHERE)
        for name in ("index_put", "_unsafe_index_put")
    ),
)
