"""Real models in pipeline stages beside plain PyTorch: the worst relative error of each kind, in float64, all ranks in one process.

    python benchmarks/pipeline_numbers.py [--only GLOB] [--list] [--seconds S]

The cases are those of tests/end_to_end/staged_models.py. A GLOB is matched against MODEL:FIX (`llama:*`, `*schedule=zero-bubble*`).
Prints a row for each case; ends with 1 where a case is not equal to 1e-10 or did not run.
"""

from __future__ import annotations

import argparse
import fnmatch
import platform
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from autopar.errors import AutoparError  # noqa: E402
from tests.end_to_end.staged_models import Case, compare_case, list_cases  # noqa: E402

_KINDS = {"loss": "loss", "gradient": "grad", "parameter": "param", "buffer": "buffer", "optimizer state": "optim"}


def run_case(case: Case, time_limit_s: float) -> bool:
    """Print its row; True where it is equal."""
    began = time.perf_counter()
    inside = f"{case.tp} {case.dp} {'-' if case.zero is None else case.zero} {case.recompute or '-':9}"
    row = f"{case.model:12} {case.stages} {inside} {case.microbatches} {case.schedule:11}"
    try:
        report = compare_case(case, time_limit_s)
    except Exception as error:  # noqa: BLE001 - a row of its own; the others go on
        kind = type(error).__name__ if isinstance(error, AutoparError) else f"BUG {type(error).__name__}"
        print(f"{row} {time.perf_counter() - began:5.0f}  {kind}: {' '.join(str(error).split())[:600]}", flush=True)
        return False
    worst = {k.kind: k.relative.relative for k in report.kinds}
    told = " ".join(f"{worst[kind]:8.1e}" if kind in worst else f"{'-':>8}" for kind in _KINDS)
    wrong = f"  MISMATCH {report.failures[0].kind} {report.failures[0].name}" if report.failures else ""
    print(f"{row} {time.perf_counter() - began:5.0f}  {told}{wrong}", flush=True)
    return not report.failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="*", metavar="GLOB")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    parser.add_argument("--seconds", type=float, default=10.0, help="time limit of each plan")
    asked = parser.parse_args()
    cases = [case for case in list_cases() if fnmatch.fnmatchcase(case.name, asked.only)]
    if asked.list:
        print("\n".join(case.name for case in cases))
        return 0
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads, {len(cases)} cases")
    print(f"{'model':12} p t d z {'recompute':9} m {'schedule':11} {'s':>5}  " + " ".join(f"{name:>8}" for name in _KINDS.values()))
    equal = sum([run_case(case, asked.seconds) for case in cases])
    print(f"{equal} of {len(cases)} cases equal plain PyTorch to 1e-10")
    return int(equal < len(cases))


if __name__ == "__main__":
    sys.exit(main())
