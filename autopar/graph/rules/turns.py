"""The ops of a step that takes its batch in turns (`graph.microbatch`) and of one that is cut into stages (`graph.stages`)."""

from __future__ import annotations

from collections.abc import Mapping

from ..node import Arg
from ..rule import Rule, Shape, Site
from .dims import letters, operand


def _take(site: Site) -> str:
    """The turn is the outermost digit of the dim; what is inside of it is free."""
    dim, count = site.arg("dim"), site.arg("count")
    assert isinstance(dim, int)
    names = letters(len(site.inputs[0]))
    whole = operand(tuple(f"([turn:{count}] {name})" if k == dim else name for k, name in enumerate(names)))
    return f"{whole} -> {operand(names)}"


def _collect(site: Site) -> str:
    """The turn is the outermost digit of what all of them make."""
    dim, count = site.arg("dim"), site.arg("count")
    assert isinstance(dim, int)
    names = letters(len(site.inputs[0]))
    whole = operand(tuple(f"([turn:{count}] {name})" if k == dim else name for k, name in enumerate(names)))
    return f"{operand(names)} -> {whole}"


def _receive(site: Site) -> str:
    return f"-> {operand(letters(len(site.outputs[0])))}"


def _local_shape(site: Site, whole_inputs: tuple[Shape, ...]) -> Mapping[str, Arg]:
    return {"shape": site.outputs[0]}


ROWS = (
    Rule("autopar.microbatch", _take, (("x",),), flops=0, why_whole="each turn takes one part of it on every rank"),
    Rule("autopar.accumulate", "... -> ...", (("x",),)),
    Rule("autopar.collect", _collect, (("x",),), flops=0, why_whole="each turn makes one part of it on every rank"),
    Rule("pipe.send", "... -> ...", (("x",),), flops=0),
    Rule("pipe.receive", _receive, flops=0, localise=_local_shape),
)
