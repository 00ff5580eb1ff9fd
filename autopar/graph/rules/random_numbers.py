"""Random numbers: made from where an element is, so every dim may be split, and what is drawn does not depend on the plan.

The coordinates are inputs: splitting a dim splits its list of coordinates. Trace writes every random op with these two
(`autopar.trace.lowering.random_ops`); no op that draws from a generator of torch has a row, for its values would differ between ranks.
"""

from __future__ import annotations

from ..rule import Rule, Site
from .dims import letters, operand

STATE = "rng:draws"  # the storage that counts draws: an int64 scalar that enters every step which draws and leaves it moved on


def _uniform(site: Site) -> str:
    names = letters(len(site.outputs[0]))
    return f"{', '.join(['', *names])} -> {operand(names)}"


ROWS = (
    Rule("autopar.uniform", _uniform),
    Rule("autopar.poisson", "..., ... -> ..."),
)
