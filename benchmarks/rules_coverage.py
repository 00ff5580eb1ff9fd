"""Our rule table and torch DTensor's, judged by torch's own operator database: ops covered, wrong claims, missed splits.

    python benchmarks/rules_coverage.py [--ops NAME ...] [--limit N] [--samples N] [--gradients] [--no-dtensor] [--json FILE] [--details]

Both are asked about the same samples of the same entries of `torch.testing._internal.common_methods_invocations.op_db`, in float64
(float32 where an op has no other), and both are held against the same referee (pieces computed apart and joined equal the whole) on the
sample's own numbers, their negatives, and a mixture with zeros and one huge number. What is counted:

    entries      of the database, with variants; skipped are those by which nobody can be judged, with the reason
    covered      every sample looked at becomes ops that all have a rule that applies to them. Of a sample we ask the graph that the tracer
                 makes of it, and its outputs must be torch's; DTensor is asked about the ATen ops that reach it, and a registered rule, a
                 strategy or a decomposition counts. Replicating everything because there is no rule (DTensor's implicit replication)
                 does not. An op that is discovered by running it (ours) is no row, and does not count either
    splittable   covered, and in some sample every op may cut an input or a result (ops that read single numbers apart)
    claims       placements that a rule says are sound on one axis of 2 or of 3 ranks, run and compared; equal calls are run once
    wrong        claims that are false: the number of different ones, and of entries in which there is one
    missed       splits that are sound on 2 and on 3 ranks for all those numbers and that a rule does not offer, found by trying R, S(dim),
                 P(sum) of the inputs against S(dim), P(sum, max, min) of the results. Not tried: more than --tries ways to place the
                 inputs, and kernels that read out of bounds on pieces that do not fit (`judge_rows.TRUSTING`). Both are tried alike, so the
                 counts can be compared, but each is a lower bound

With --gradients each sample is the op followed by its gradient, so that the rules of backward ops are asked for as well.

Each worker process takes one entry after another. Where one crashes (a claim may make a kernel read out of bounds) or takes more than
five minutes it is replaced and the sides are asked apart; such an entry is listed as failed and counted for neither.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from datetime import date
from pathlib import Path
from queue import Empty, Queue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIDES = ("ours", "dtensor")
PATIENCE_S = 300.0  # for one entry; then its worker is replaced


# --- the worker --------------------------------------------------------------------------------------------------------------------


def judge_entry(number: int, judges: dict[str, object], samples: int, seconds: float, has_gradient: bool) -> dict[str, object]:
    """One entry of the database, judged; as JSON has it."""
    from benchmarks import op_database

    entry = op_database.entries()[number]
    record: dict[str, object] = {"number": number, "name": op_database.entry_name(entry), "skipped": {}, "samples": 0}
    try:
        calls, skipped, total = op_database.calls(entry, samples, has_gradient)
    except Exception as error:
        return record | {"skipped": {f"its samples cannot be made: {type(error).__name__}": 1}}
    record |= {"skipped": skipped, "samples": len(calls), "of": total}
    for side, judge in judges.items():
        began = time.process_time()
        verdicts = [judge.judge(call, seconds / max(len(calls), 1)) for call in calls]
        record[side] = {
            "covered": sum(not v.why_not for v in verdicts),
            "why_not": sorted({v.why_not for v in verdicts if v.why_not}),
            "splits": any(v.splits for v in verdicts),
            "ops": sorted({op for v in verdicts for op in v.ops}),
            "checked": sum(v.checked for v in verdicts),
            "wrong": sorted({w for v in verdicts for w in v.wrong}),
            "missed": sorted({m for v in verdicts for m in v.missed}),
            "cut_short": any(v.is_cut_short for v in verdicts),
            "seconds": round(time.process_time() - began, 2),
        }
    return record


def work(samples: int, seconds: float, tries: int, has_dtensor: bool, has_gradient: bool) -> None:
    """Read (number of an entry, sides to ask) as JSON, a line each; write a line of JSON for each."""
    import torch

    from benchmarks import op_database
    from benchmarks.judge_rows import RowJudge

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    op_database.divisible_sizes()
    judges: dict[str, object] = {"ours": RowJudge(tries)}
    if has_dtensor:
        from benchmarks.judge_dtensor import DTensorJudge

        judges["dtensor"] = DTensorJudge(tries)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print is no answer
    for line in sys.stdin:
        number, sides = json.loads(line)
        print(json.dumps(judge_entry(number, {s: judges[s] for s in sides}, samples, seconds, has_gradient)), file=answers, flush=True)


# --- the parent --------------------------------------------------------------------------------------------------------------------


class Worker:
    """A process that answers for one entry at a time."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None

    def record(self, number: int, sides: tuple[str, ...]) -> dict[str, object]:
        """The entry's record. Where the process dies each side is asked apart, and the record says of which it died as `failed`."""
        found = self._ask(number, sides)
        if isinstance(found, dict):
            return found
        if len(sides) == 1:
            return {"number": number, "failed": {sides[0]: found}}
        apart = [self.record(number, (side,)) for side in sides]
        failed = {side: why for r in apart for side, why in r.get("failed", {}).items()}  # type: ignore[attr-defined]
        return {key: value for r in apart for key, value in r.items()} | {"failed": failed}

    def _ask(self, number: int, sides: tuple[str, ...]) -> dict[str, object] | str:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--worker", *self._arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([number, sides]) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        line = process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self.stop()
        return "the process crashed" if ready else f"more than {PATIENCE_S:.0f} s"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def run_all(numbers: list[int], sides: tuple[str, ...], arguments: list[str], jobs: int) -> list[dict[str, object]]:
    """Judge these entries."""
    queue: Queue[int] = Queue()
    for number in numbers:
        queue.put(number)
    records: list[dict[str, object]] = []

    def drain() -> None:
        worker = Worker(arguments)
        while True:
            try:
                number = queue.get_nowait()
            except Empty:
                worker.stop()
                return
            records.append(worker.record(number, sides))
            if len(records) % 50 == 0:
                print(f"{len(records)} of {len(numbers)}", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=drain) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(records, key=lambda r: r["number"])


# --- the table ---------------------------------------------------------------------------------------------------------------------


def count(records: list[dict], side: str) -> dict[str, int]:
    """The rows of the table for one side."""
    judged = [r for r in records if r.get("samples") and side in r and not r.get("failed")]
    covered = [r for r in judged if r[side]["covered"] == r["samples"]]
    return {
        "entries judged": len(judged),
        "covered": len(covered),
        "covered in part": sum(0 < r[side]["covered"] < r["samples"] for r in judged),
        "splittable": sum(r[side]["splits"] for r in covered),
        "claims run": sum(r[side]["checked"] for r in judged),
        "wrong claims": len({claim_of(w) for r in judged for w in r[side]["wrong"]}),
        "entries with a wrong claim": sum(bool(r[side]["wrong"]) for r in judged),
        "missed splits": len({m for r in judged for m in r[side]["missed"]}),
        "entries with a missed split": sum(bool(r[side]["missed"]) for r in judged),
        "entries cut short by time": sum(r[side]["cut_short"] for r in judged),
        "CPU seconds": round(sum(r[side]["seconds"] for r in judged)),
    }


def claim_of(wrong: str) -> str:
    """A wrong claim without its number of ranks and what came out."""
    return wrong.rpartition(" on ")[0] if " on " in wrong else wrong


def print_table(records: list[dict], sides: tuple[str, ...], samples: int, wall_s: float) -> None:
    import torch

    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{len(records)} entries of torch's operator database, up to {samples} samples each, {wall_s:.0f} s")
    skipped = Counter(max(r["skipped"], key=r["skipped"].get) for r in records if not r.get("samples") and r.get("skipped"))
    print("skipped: " + (", ".join(f"{n} {reason}" for reason, n in skipped.most_common()) or "none"))
    failed = [f"{r.get('name', r['number'])} ({side}: {why})" for r in records for side, why in r.get("failed", {}).items()]
    print("failed: " + (", ".join(failed) or "none"))
    tables = {side: count(records, side) for side in sides}
    names = {"ours": "autopar", "dtensor": "DTensor"}
    print(f"\n{'':30}" + "".join(f"{names[s]:>10}" for s in sides))
    for row in tables[sides[0]]:
        print(f"{row:30}" + "".join(f"{tables[s][row]:>10,}" for s in sides))


def print_details(records: list[dict], sides: tuple[str, ...]) -> None:
    for side in sides:
        for title in ("wrong", "missed", "why_not"):
            print(f"\n{side}: {title}")
            for r in records:
                for text in r.get(side, {}).get(title, ()):
                    print(f"  {r['name']}: {text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", nargs="+", metavar="NAME", help="only these ops of the database")
    parser.add_argument("--limit", type=int, help="only the first N entries")
    parser.add_argument("--samples", type=int, default=6, help="per entry (default 6)")
    parser.add_argument("--seconds", type=float, default=9.0, help="CPU seconds per entry and side (default 9)")
    parser.add_argument("--tries", type=int, default=64, help="ways to place the inputs of one op (default 64)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: one per core)")
    parser.add_argument("--no-dtensor", action="store_true", help="our table alone")
    parser.add_argument("--gradients", action="store_true", help="of each sample the op and its gradient: rules of backward ops too")
    parser.add_argument("--json", metavar="FILE", help="write the records there")
    parser.add_argument("--details", action="store_true", help="print every wrong claim, missed split and reason")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work(asked.samples, asked.seconds, asked.tries, not asked.no_dtensor, asked.gradients)
        return 0
    from benchmarks import op_database

    began = time.perf_counter()
    numbers = [k for k, e in enumerate(op_database.entries()) if not asked.ops or {e.name, op_database.entry_name(e)} & set(asked.ops)]
    if not numbers:
        print(f"--ops: none of {', '.join(asked.ops)} is in the database; its names are like nn.functional.linear", file=sys.stderr)
        return 2
    passed_on = ["--samples", str(asked.samples), "--seconds", str(asked.seconds), "--tries", str(asked.tries)]
    passed_on += ["--no-dtensor"] * asked.no_dtensor + ["--gradients"] * asked.gradients
    sides = SIDES[:1] if asked.no_dtensor else SIDES
    records = run_all(numbers[: asked.limit], sides, passed_on, asked.jobs)
    if asked.json:
        Path(asked.json).write_text(json.dumps(records, indent=1))
    print_table(records, sides, asked.samples, time.perf_counter() - began)
    if asked.details:
        print_details(records, sides)
    return int(any(r.get("ours", {}).get("wrong") for r in records))


if __name__ == "__main__":
    sys.exit(main())
