"""Tensors made of nothing: a constant may be made in pieces, what counts positions is whole."""

from __future__ import annotations

from ..rule import Rule, Site
from .dims import letters, operand, whole_operand
from .views import output_size

_POSITION = "each element depends on its position"


def _constant(site: Site) -> str:
    return f" -> {operand(letters(len(site.outputs[0])))}"


def _like_nothing(site: Site) -> str:
    """`new_full(self, size)` takes only dtype and device from self."""
    return f"{whole_operand(len(site.inputs[0]), 'x')} -> {operand(letters(len(site.outputs[0])))}"


def _whole(site: Site) -> str:
    return f" -> {whole_operand(len(site.outputs[0]), 'x')}"


ROWS = (
    *(Rule(f"aten.{name}", _constant, flops=0, localise=output_size("size")) for name in ("full", "zeros", "ones", "empty")),
    Rule("aten.scalar_tensor", _constant, flops=0),
    *(
        Rule(f"aten.new_{name}", _like_nothing, flops=0, localise=output_size("size"), why_whole="only its dtype is read")
        for name in ("full", "zeros", "ones", "empty")
    ),
    *(
        Rule(name, _whole, flops=0, why_whole=_POSITION)
        for name in ("aten.arange", "aten.linspace", "aten.logspace", "aten.eye", "aten.tril_indices", "aten.triu_indices", "autopar.row_numbers")
    ),
)
