"""Random numbers: everything is whole, so that a run with dropout gives the same numbers under every plan."""

from __future__ import annotations

from ..rule import Rule, Site
from .dims import whole_operand

_WHY = "random numbers are drawn whole, so that they do not depend on the plan"

NAMES = """
rand randn randint randperm rand_like randn_like randint_like bernoulli native_dropout normal normal_functional uniform exponential
cauchy log_normal geometric multinomial poisson rrelu_with_noise_functional
""".split()


def _whole(site: Site) -> str:
    left = [whole_operand(len(shape), f"i{k}x") for k, shape in enumerate(site.inputs)]
    right = [whole_operand(len(shape), f"o{k}x") for k, shape in enumerate(site.outputs)]
    return ", ".join(left) + " -> " + ", ".join(right)


ROWS = tuple(Rule(f"aten.{name}", _whole, why_whole=_WHY) for name in NAMES)
