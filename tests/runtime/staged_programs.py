"""A program in pipeline stages written by hand, in the form that codegen emits: a chain of linear layers, one a stage, each split along `tp`;
squared error, SGD."""

from __future__ import annotations

from autopar.graph.schedules.known import build_schedule
from autopar.graph.schedules.schedule import print_csv

LENGTH, WIDTH, LEARNING_RATE = 8, 4, 0.1

PROGRAM = '''\
from autopar.runtime import Batch, Stage

import {files}

MESH = (("pp", {stages}), ("tp", {tp}))
STAGES = ({rows},)
SCHEDULE = "schedule.csv"
MICROBATCHES = {microbatches}
BATCH = {{"input:x": Batch(({length}, {width}), "float32", "R,R"), "target:0": Batch(({length}, {width}), "float32", "R,R")}}
ALIASES = {{}}


def step(comm, state, batch):
    stage = STAGES[comm.coordinate("pp")]
    return comm.share_loss(stage.step(comm, state, batch), stage={last}, dtype="float32")
'''

STAGE = '''\
import torch
from autopar.runtime import Batch, State

STATES = {{"layers.{number}.weight": State("param", ({width}, {width}), "float32", "S0/{part}", (("normal_", 0.0, 0.5),))}}
BATCH = {batch}
COPIES = ()
SENDS = {sends}
WAITS = {waits}
RECEIVES = {receives}


def forward(comm, state, batch, grads, kept, turn):
    x = {x}
    kept["x"] = x
    y = comm.all_gather(x @ state["layers.{number}.weight"].t(), "tp", 1, {part})
    {forward}


def backward(comm, state, batch, grads, kept, turn):
    grad = {grad}
    own = comm.slice(grad, "tp", 1, {part})
    grads["weight"] = grads.get("weight", 0) + own.t() @ kept.pop("x")
    {backward}


def update(comm, state, grads):
    state["layers.{number}.weight"].sub_({rate} * grads.pop("weight"))


SECTIONS = {{"forward": forward, "backward": backward}}


def step(comm, state, batch):
    grads = {{}}
    turns = {{}}
    for section, turn in comm.actions():
        kept = turns.setdefault(turn, {{}})
        SECTIONS[section](comm, state, batch, grads, kept, turn)
    update(comm, state, grads)
    return grads.get("loss")
'''


def staged(stages: int, tp: int = 1, microbatches: int = 4, kind: str = "1f1b") -> dict[str, str]:
    """The files of the program; the stages between the first and the last share `stage_1.py`."""
    number = [k if k in (0, 1) else (stages - 1 if k == stages - 1 else 1) for k in range(stages)]
    rows = [f"Stage(stage_{n}" + (f", shift={{'layers': {k - n}}}" if k != n else "") + ")" for k, n in enumerate(number)]
    files = dict.fromkeys(f"stage_{n}" for n in number)
    program = PROGRAM.format(
        files=", ".join(files), stages=stages, tp=tp, rows=", ".join(rows), microbatches=microbatches,
        length=LENGTH, width=WIDTH, last=stages - 1,
    )  # fmt: skip
    texts = {f"stage_{n}.py": _stage(n, n == 0, n == stages - 1, tp, microbatches) for n in dict.fromkeys(number)}
    schedule = print_csv(build_schedule(kind, stages, microbatches))
    return {"program.py": program, **texts, "schedule.csv": schedule, "plan.json": '{"model": {"name": "chain", "graph_hash": "h"}}'}


def _stage(number: int, first: bool, last: bool, tp: int, microbatches: int) -> str:
    size, piece = LENGTH // microbatches, (LENGTH // microbatches, WIDTH)
    turn = f"[{size} * turn : {size} * turn + {size}]"
    before, after = ([] if first else [(-1, 0)]), ([] if last else [(1, 0)])
    count = LENGTH * WIDTH
    loss = "\n    ".join((
        f'error = y - batch["target:0"]{turn}',
        f'kept["grad"] = error * (2 / {count})',
        f'grads["loss"] = grads.get("loss", 0) + (error * error).sum() / {count}',
    ))  # fmt: skip
    to_input = f'comm.send(comm.all_reduce(own @ state["layers.{number}.weight"], "tp"), stage=-1, message=0, turn=turn)'
    batch = {name: f'Batch(({LENGTH}, {WIDTH}), "float32", "R")' for name, there in (("input:x", first), ("target:0", last)) if there}
    return STAGE.format(
        number=number, width=WIDTH, part=WIDTH // tp, rate=LEARNING_RATE,
        batch="{" + ", ".join(f'"{name}": {text}' for name, text in batch.items()) + "}",
        sends={name: row for name, row in (("forward", after), ("backward", before)) if row},
        waits={name: row for name, row in (("forward", before), ("backward", after)) if row},
        receives={key: (piece, "float32") for key in [*before, *after]},
        x=f'batch["input:x"]{turn}' if first else "comm.receive(stage=-1, message=0, turn=turn)",
        forward=loss if last else "comm.send(y, stage=1, message=0, turn=turn)",
        grad='kept.pop("grad")' if last else "comm.receive(stage=1, message=0, turn=turn)",
        backward="pass" if first else to_input,
    )  # fmt: skip
