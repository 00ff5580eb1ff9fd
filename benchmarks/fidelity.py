"""Predictions beside published tables: one table a group, and one line that says whether its aim is met.

    python benchmarks/fidelity.py [SECTION ...] [--rows GLOB] [--predict] [--cache FILE] [--data DIR] [--json FILE]

Sections: zero (model states), activations (2205.05198), bubbles (Zero Bubble's 1F1B), memory (peaks, and what does not fit), steps (step
times, order, regret); all where none is named. A row that is not predicted says why and prints no number; runs are predicted with --predict alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fidelity_activations import judge_activations
from benchmarks.fidelity_bubbles import judge_bubbles
from benchmarks.fidelity_memory import judge_memory
from benchmarks.fidelity_runs import Predictor, predict_nothing
from benchmarks.fidelity_steps import judge_steps
from benchmarks.fidelity_table import Group, group_as_json, print_group, select_rows
from benchmarks.fidelity_zero import judge_zero
from benchmarks.published import DATA, Published, PublishedError, load_published

SECTIONS: Mapping[str, Callable[[Published, Predictor], tuple[Group, ...]]] = {
    "zero": lambda tables, predict: judge_zero(tables),
    "activations": lambda tables, predict: judge_activations(tables),
    "bubbles": lambda tables, predict: judge_bubbles(tables),
    "memory": judge_memory,
    "steps": judge_steps,
}


def main(words: Sequence[str] | None = None, predict: Predictor = predict_nothing) -> int:
    """Print the sections.

    Args:
        predict: of runs, for the sections memory and steps.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--rows", default="*", metavar="GLOB", help="rows whose id matches (default: all)")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="folder of the published tables")
    parser.add_argument("--predict", action="store_true", help="predict runs by tracing and solving each: about 10 s a row and core")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="keep predictions there; delete it after a change of the cost model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows and figures there, too")
    asked = parser.parse_args(words)
    unknown = [name for name in asked.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"section {', '.join(unknown)}: expected some of {', '.join(SECTIONS)}")
    try:
        tables = load_published(asked.data)
    except PublishedError as error:
        print(error, file=sys.stderr)
        return 1
    for note in tables.notes:
        print(note, file=sys.stderr)
    if asked.predict:
        from benchmarks.fidelity_predict import SearchPredictor

        predict = SearchPredictor(asked.cache, asked.rows)
    found = []
    for name in asked.sections or SECTIONS:
        for group in SECTIONS[name](tables, predict):
            found.append(select_rows(group, asked.rows))
            print(print_group(found[-1]), end="\n\n", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps([group_as_json(g) for g in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
