"""A plan as one page: a single HTML file that opens offline, in a browser or in a notebook, and asks nobody for anything.

In: a plan. Out: HTML text. The page's own scripts and style (`*.js`, `page.css`) are put into the template `page.html`; the plan travels as
gzip in base64, so no name in it can break out of its tag. A content security policy forbids every request, and every script but ours.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
from importlib import resources
from pathlib import Path

from ..errors import PlanError
from ..graph.check_plan import check_plan
from ..graph.plan import Plan
from ..graph.plan_json import Json
from .page_data import page_data
from .terminal import plan_text

GRAPH_SCRIPTS = ("data.js", "layout.js", "tables.js", "tree.js", "graph.js", "panel.js", "graph_tab.js", "start.js")  # what every page has
SCRIPTS = (*GRAPH_SCRIPTS, "details.js", "tabs.js", "stages.js", "page.js")  # joined in this order
FRAME_HEIGHT_PX = 760


def plan_to_html(plan: Plan) -> str:
    """The page.

    Raises:
        PlanError: the plan breaks a law, so its numbers would not add up.
    """
    check_plan(plan)
    return fill_page(f"{plan.model.name} on {plan.cluster.spec}: autopar plan", SCRIPTS, page_data(plan), plan_text(plan, 100))


def fill_page(title: str, scripts: tuple[str, ...], data: dict[str, Json], static: str) -> str:
    """The template with everything in it.

    Args:
        scripts: files of this folder, joined in this order.
        data: what the scripts draw.
        static: what is shown where no script runs.
    """
    room = resources.files(__package__)
    script = "(() => {\n'use strict';\n" + "\n".join(room.joinpath(name).read_text("utf-8") for name in scripts) + "\n})();\n"
    packed = base64.b64encode(gzip.compress(json.dumps(data, allow_nan=False, separators=(",", ":")).encode(), 6, mtime=0))
    parts = {
        "title": html.escape(title),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": room.joinpath("page.css").read_text("utf-8"),
        "static": html.escape(static),
        "data": packed.decode(),
        "script": script,
    }
    page = room.joinpath("page.html").read_text("utf-8")
    pieces = page.split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces[1:]))


def save_html(plan: Plan, path: str | Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        PlanError: the plan breaks a law, or the file cannot be written.
    """
    write_page(plan_to_html(plan), path)


def write_page(text: str, path: str | Path, flag: str = "--html") -> None:
    """Write a page, whole or not at all.

    Args:
        flag: that named the place.
    Raises:
        PlanError: the file cannot be written.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, "utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise PlanError(f"{path}: cannot be written: {error.strerror}; choose another place with {flag}") from None


def plan_repr_html(plan: Plan) -> str:
    """For a notebook (`frame_page`)."""
    return frame_page(f"{plan.model.name} on {plan.cluster.spec}: the plan", plan_text(plan, 100), plan_to_html(plan))


def frame_page(title: str, text: str, page: str) -> str:
    """For a notebook: the static summary first (all that a viewer without scripts shows), then the page in a sandboxed frame."""
    return (
        f"<details><summary>{html.escape(title)} as text</summary>"
        f'<pre style="font-size:12px;line-height:1.35">{html.escape(text)}</pre></details>'
        f'<iframe sandbox="allow-scripts" style="width:100%;height:{FRAME_HEIGHT_PX}px;border:1px solid #d5d9e0;border-radius:8px" '
        f'title="{html.escape(title, quote=True)}" srcdoc="{html.escape(page, quote=True)}"></iframe>'
    )
