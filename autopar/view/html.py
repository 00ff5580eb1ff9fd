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
from .page_data import page_data
from .terminal import plan_text

SCRIPTS = ("data.js", "layout.js", "tables.js", "tree.js", "graph.js", "details.js", "tabs.js", "page.js")  # joined in this order
FRAME_HEIGHT_PX = 760


def plan_to_html(plan: Plan) -> str:
    """The page.

    Raises:
        PlanError: the plan breaks a law, so its numbers would not add up.
    """
    check_plan(plan)
    room = resources.files(__package__)
    script = "(() => {\n'use strict';\n" + "\n".join(room.joinpath(name).read_text("utf-8") for name in SCRIPTS) + "\n})();\n"
    packed = base64.b64encode(gzip.compress(json.dumps(page_data(plan), allow_nan=False, separators=(",", ":")).encode(), 6, mtime=0))
    parts = {
        "title": html.escape(f"{plan.model.name} on {plan.cluster.spec}: autopar plan"),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": room.joinpath("page.css").read_text("utf-8"),
        "static": html.escape(plan_text(plan, 100)),
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
    text = plan_to_html(plan)
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, "utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise PlanError(f"{path}: cannot be written: {error.strerror}; choose another place with --html") from None


def plan_repr_html(plan: Plan) -> str:
    """For a notebook: the static summary first (all that a viewer without scripts shows), then the page in a sandboxed frame."""
    page = html.escape(plan_to_html(plan), quote=True)
    return (
        f"<details><summary>{html.escape(plan.model.name)} on {html.escape(plan.cluster.spec)}: the plan as text</summary>"
        f'<pre style="font-size:12px;line-height:1.35">{html.escape(plan_text(plan, 100))}</pre></details>'
        f'<iframe sandbox="allow-scripts" style="width:100%;height:{FRAME_HEIGHT_PX}px;border:1px solid #d5d9e0;border-radius:8px" '
        f'title="autopar plan" srcdoc="{page}"></iframe>'
    )
