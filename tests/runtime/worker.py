"""What the processes of `test_processes.py` run: `python worker.py TASK ARGS...`, with torchrun's environment."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import warnings
from pathlib import Path

import torch

from autopar.errors import AutoparError
from autopar.graph import messages
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.runtime import Executable, ProcessComm, read_torchrun_env, run_ranks, run_training, start_process_group, stop_process_group

sys.path.insert(0, str(Path(__file__).parent))
from programs import zero3

warnings.simplefilter("error")
LARGE = messages.GATHERED_ALONE_BYTES = messages.REDUCED_ALONE_BYTES = 1 << 16  # so that the memory of all ranks here holds many that go alone


def batches():
    generator = torch.Generator().manual_seed(3)
    one = torch.randn(24, 4, generator=generator), torch.randn(24, 8, generator=generator)
    while True:
        yield one


def start_everything(comm, axis, x):
    """What is started alone and in buckets, all of it under way at once, waited for in another order."""
    xs = [x, x[3:].transpose(0, 1), x.sum(0).to(x.dtype)]
    long = x.repeat(1, 1, LARGE // x.nbytes + 1)  # alone on a CPU, among small ones
    dims, strides = [0, 0, 0], [16 // axis.size, 1, 2]
    whole = [x, x[:, :4].transpose(0, 1), x[:8, :, 0]]
    started = [
        *comm.start_all_gather(xs[:1], axis.name, dims[:1], strides[:1]), *comm.start_all_gather(xs, axis.name, [0, 1, 1], [1, 1, 1]),
        *comm.start_reduce_scatter(whole[:1], axis.name, [1], [8 // axis.size], alone=True),
        *comm.start_reduce_scatter(whole, axis.name, dims, [1, 1, 2], alone=True),
        *comm.start_all_reduce(xs[1:2], axis.name), *comm.start_all_reduce(xs, axis.name),
        *comm.start_all_reduce([x.clone()], axis.name, own=(0,)), *comm.start_all_reduce([x.transpose(0, 1)], axis.name, own=(0,)),
        *comm.start_all_reduce([x.clone(), long, x.new_ones(LARGE // x.itemsize), x.repeat(1, 1, LARGE // x.nbytes + 1).transpose(0, 1)], axis.name, own=(0, 2, 3)),
    ]  # fmt: skip
    bucket = comm.open_bucket([x.shape, (3, 5), long.shape, long.shape], x.dtype, (0, 2, 3))  # written here, one on the side; the third alone where it was made
    for k, made in ((0, x), (2, long)):
        bucket[k].copy_(made)
    started += comm.start_all_reduce([bucket[0], (x[:3, :5, 0] + 1).to(x.dtype), bucket[2], long.clone()], axis.name, own=(0, 2, 3), bucket=bucket)
    started += comm.start_all_gather([xs[0], long, xs[1], long.transpose(0, 1)], axis.name, [0, 1, 1, 1], [1, 2, 1, 16 // axis.size])
    started += comm.start_reduce_scatter([whole[0], long, whole[1], long.transpose(0, 1)], axis.name, [0, 1, 0, 0], [1, 2, 1, 8 // axis.size], alone=True)
    first = [pending.wait() for pending in started[::2]]
    return [*first, *(pending.wait() for pending in started[1::2])]


def start_jointly(comm):
    """Several tensors along two axes at once, the later axis first, too; digits of other dims and strides."""
    results = []
    for axes in (("a", "b"), ("b", "a")):
        for dtype in (torch.float32, torch.int64, torch.bool):
            x = ((torch.arange(16 * 8 * 3).view(16, 8, 3) + 7 * comm.rank) % 5 - 2).to(dtype)
            xs, dims, strides = [x, x[3:].transpose(0, 1), x.sum(0).to(dtype)], [(0, 1), (1, 1), (0, 0)], [(4, 2), (1, 1), (2, 4)]
            started = [
                *comm.start_all_gather(xs, axes, dims, strides), *comm.start_all_gather(xs[:1], axes, [(0, 0)], [(1, 2)]),
                *comm.start_reduce_scatter([x, x[:, :4].transpose(0, 1)], axes, [(0, 1), (1, 1)], [(2, 1), (2, 4)], alone=True),
                *comm.start_reduce_scatter([x], axes, [(0, 0)], [(4, 2)], alone=True), *comm.start_all_reduce(xs, axes),
            ]  # fmt: skip
            rows, cols = (next(axis.size for axis in comm.mesh.axes if axis.name == name) for name in axes)
            odd, stride = x[:, :7], -(-7 // cols)  # chunks that do not divide along the second of them
            piece = comm.slice(comm.slice(odd, axes[0], 0, 16 // rows), axes[1], 1, stride)
            results += [p.wait() for p in comm.start_all_gather([piece], axes[::-1], [(1, 0)], [(stride, 16 // rows)], [(stride * cols - 7, 0)])]
            results += [p.wait() for p in comm.start_reduce_scatter([odd], axes, [(0, 1)], [(16 // rows, stride)])]
            results += [pending.wait() for pending in started]
    return results


def exchange_everything(comm):
    """Every collective along every axis, on integers so that sums are exact."""
    results = []
    for axis in comm.mesh.axes:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.complex64):
            x = ((torch.arange(16 * 8 * 3).view(16, 8, 3) + 7 * comm.rank) % 5 - 2).to(dtype)
            for dim, stride in ((0, 1), (0, 16 // axis.size), (1, 2), (1, 1)):
                piece = comm.slice(x, axis.name, dim, stride)
                results += [
                    piece,
                    comm.keep(x, axis.name),
                    comm.all_gather(piece, axis.name, dim, stride),
                    comm.all_to_all(piece, axis.name, dim, stride, 1 - dim, 2),
                    comm.all_reduce(x, axis.name),
                    comm.reduce_scatter(x, axis.name, dim, stride),
                ]
                if not dtype.is_complex:
                    results += [f(x, axis.name, *cut, op) for op in ("max", "min") for f, cut in ((comm.all_reduce, ()), (comm.reduce_scatter, (dim, stride)))]
            empty = comm.slice(x[:, :, :0], axis.name, 0, 1)
            results += [comm.all_gather(empty, axis.name, 0, 1), comm.reduce_scatter(x[:, :, :0], axis.name, 0, 1)]
            for dim, whole in ((0, x[:15]), (1, x[:, :7]), (0, x[:, 0, 0][: axis.size + 1])):  # chunks that do not divide; ranks without a part of their own
                stride = -(-whole.shape[dim] // axis.size)
                piece, short = comm.slice(whole, axis.name, dim, stride), stride * axis.size - whole.shape[dim]
                results += [piece, comm.all_gather(piece, axis.name, dim, stride, short), comm.reduce_scatter(whole, axis.name, dim, stride)]
                [gathered], [scattered] = comm.start_all_gather([piece], axis.name, [dim], [stride], [short]), comm.start_reduce_scatter([whole], axis.name, [dim], [stride])
                results += [gathered.wait(), scattered.wait()]
                assert results[-4].shape == whole.shape and torch.equal(results[-2], results[-4]) and torch.equal(results[-1], results[-3])
            results.append(comm.all_reduce(x.sum().to(dtype), axis.name))
            results += start_everything(comm, axis, x)
    results += start_jointly(comm) if len(comm.mesh.axes) == 2 else []
    return [*results, comm.collect(comm.rank), comm.share(comm.rank)]


def task_comm(*_):
    """ProcessComm says what ThreadComm says, on every mesh of this many ranks."""
    env = read_torchrun_env()
    shapes = {2: [(2,), (1, 2)], 4: [(4,), (2, 2)]}[env.world_size]
    for sizes in shapes:
        mesh = Mesh(tuple(MeshAxis(name, size) for name, size in zip("ab", sizes)))
        comm = start_process_group(mesh, env, 60.0)
        assert isinstance(comm, ProcessComm)
        want = run_ranks(mesh, exchange_everything)[comm.rank]
        for a, b in zip(exchange_everything(comm), want, strict=True):
            assert torch.equal(a, b) and a.is_contiguous() if isinstance(a, torch.Tensor) else a == b
            if isinstance(a, torch.Tensor) and a.dtype == torch.bool and a.numel():
                assert a.contiguous().view(torch.uint8).max() <= 1, "neither true nor false"
        comm.barrier()
    stop_process_group()


def task_train(folder, steps, checkpoint, record=None):
    spec = importlib.util.spec_from_file_location("program", Path(folder) / "program.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    run_training(program, batches(), int(steps), checkpoint_dir=checkpoint if checkpoint != "-" else None, timeout_s=30.0, record=record)


def task_leave(*_):
    """Rank 1 goes while a collective is under way."""
    env = read_torchrun_env()
    comm = start_process_group(Mesh((MeshAxis("a", env.world_size),)), env, 20.0)
    comm.barrier()
    if comm.rank == 1:
        os._exit(0)
    try:
        for pending in comm.start_reduce_scatter([torch.ones(8), torch.ones(4)], "a", [0, 0], [4, 2]):
            pending.wait()
    except AutoparError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(2)


def task_endless(checkpoint, timeout_s):
    """Train and save without end: the test kills a rank."""
    try:
        env = read_torchrun_env()
        files = zero3(env.world_size)
        comm = start_process_group(Mesh((MeshAxis("a", env.world_size),)), env, float(timeout_s))
        run = Executable(None, files, comm)
        for number, batch in enumerate(batches()):
            run(*batch)
            if checkpoint != "-":
                run.save(checkpoint)
            if comm.rank == 0 and number == 3:
                print("running", flush=True)
            time.sleep(0.005)
    except AutoparError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        stop_process_group()
        raise SystemExit(2) from None


if __name__ == "__main__":
    globals()[f"task_{sys.argv[1]}"](*sys.argv[2:])
