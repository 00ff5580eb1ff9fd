"""The plan as users get it: the noun with its ways to be seen and kept.

In: a `Plan`. Out: the same plan with `print`, `save`, `to_html` and a notebook page. It adds no field and decides nothing; the noun stays
below, where solver and codegen meet in it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from ..graph.plan import Plan
from ..graph import plan_json
from .html import plan_repr_html, save_html
from .terminal import plan_text


@dataclass(frozen=True, repr=False)
class ShownPlan(Plan):
    """What `autopar.plan` returns and `autopar.compile(...).plan` is."""

    def __str__(self) -> str:
        return plan_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return plan_repr_html(self)

    def save(self, path: str | Path) -> None:
        """Write `plan.json`, whole or not at all."""
        plan_json.save_plan(self, path)

    def to_html(self, path: str | Path) -> None:
        """Write the page: one file that opens offline."""
        save_html(self, path)

    def to_json(self) -> dict:
        """The plan as `plan.json` has it (docs/plan-format.md)."""
        return plan_json.plan_to_json(self)


def show_plan(plan: Plan) -> ShownPlan:
    """The same plan, to be looked at."""
    return ShownPlan(**{f.name: getattr(plan, f.name) for f in dataclasses.fields(Plan)})


def load_plan(path: str | Path) -> ShownPlan:
    """Load and check `plan.json`.

    Raises:
        PlanError: see `plan_json.load_plan`.
    """
    return show_plan(plan_json.load_plan(path))
