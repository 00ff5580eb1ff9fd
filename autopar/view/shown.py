"""The plan, and a step's opportunities, as users get them: the noun with its ways to be seen and kept.

In: a `Plan` or `Opportunities`. Out: the same with `print`, `to_html`, `to_json` and a notebook page; a plan can be saved. Nothing is added or
decided; the nouns stay below, where solver and codegen meet in them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from ..graph import plan_json
from ..graph.opportunities.as_json import opportunities_to_json
from ..graph.opportunities.find import Opportunities
from ..graph.plan import Plan
from .html import plan_repr_html, save_html
from .terminal import plan_text
from .trace_page import opportunities_repr_html, save_opportunities_html
from .trace_terminal import opportunities_text


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


@dataclass(frozen=True, repr=False)
class ShownOpportunities(Opportunities):
    """What `autopar.opportunities` returns. `.graph.to_networkx()` is the graph for analyses of your own."""

    def __str__(self) -> str:
        return opportunities_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return opportunities_repr_html(self)

    def to_html(self, path: str | Path) -> None:
        """Write the page: one file that opens offline."""
        save_opportunities_html(self, path)

    def to_json(self) -> dict:
        """Everything as plain data (docs/cli.md, section trace)."""
        return opportunities_to_json(self)


def show_opportunities(found: Opportunities) -> ShownOpportunities:
    """The same, to be looked at."""
    return ShownOpportunities(**{f.name: getattr(found, f.name) for f in dataclasses.fields(Opportunities)})
