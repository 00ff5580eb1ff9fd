"""A step's opportunities as one page: a single HTML file that opens offline, with the graph by module (`page.html`, `html`).

In: `Opportunities`. Out: HTML text. The graph's own scripts are those of the plan's page; here an axis of the colours is a factor, and what
hangs on an edge is a place where ranks must synchronise if that factor alone is split.
"""

from __future__ import annotations

from pathlib import Path

from ..graph.opportunities.find import Opportunities
from .html import GRAPH_SCRIPTS, fill_page, frame_page, write_page
from .trace_page_data import trace_page_data
from .trace_terminal import opportunities_text

TRACE_SCRIPTS = (*GRAPH_SCRIPTS, "trace_details.js", "trace_tabs.js", "trace_page.js")


def opportunities_to_html(found: Opportunities) -> str:
    """The page."""
    return fill_page(_title(found), TRACE_SCRIPTS, trace_page_data(found), opportunities_text(found, 100))


def _title(found: Opportunities) -> str:
    return f"{found.graph.name}: what the step offers"


def opportunities_repr_html(found: Opportunities) -> str:
    """For a notebook (`html.frame_page`)."""
    return frame_page(_title(found), opportunities_text(found, 100), opportunities_to_html(found))


def save_opportunities_html(found: Opportunities, path: str | Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        PlanError: the file cannot be written.
    """
    write_page(opportunities_to_html(found), path)
