"""An emitted program with its states on this rank: step, state dicts, checkpoints, emit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..errors import AutoparError, InputError, RankError
from ..graph.mesh import num_ranks, print_mesh
from ..graph.plan import Plan
from .checkpoint import load_state, save_state
from .comm import Comm
from .folder import write_program
from .initial import initial_state
from .place import place_error
from .reading import compile_program, read_program
from .shards import cut
from .spec import Batch, ProgramSpec, State, local_piece, torch_dtype
from .stages import here, open_stages
from .steps import gather_state

_NOTHING = (0,)


class Executable:
    """What `autopar.compile` returns: call it with a batch, on every rank alike.

    Args:
        plan: what the program was made from; None where only the emitted folder is at hand.
        files: the emitted files, name -> text; `program.py` is run.
        comm: this rank's end of the mesh; None in a process that is none of the plan's ranks: it can look and emit, not step.
        state: this rank's pieces (`runtime.initial_state`); None makes them from recipes.
        seed: of the recipes.
        given: the model's own tensors by name, for `emit` in a process that holds no state.
    """

    def __init__(
        self,
        plan: Plan | None,
        files: Mapping[str, str],
        comm: Comm | None,
        state: dict[str, Tensor] | None = None,
        seed: int = 0,
        given: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self.plan = plan
        self.files = dict(files)
        self.comm = comm
        self._given = given
        program = read_program(compile_program(files))
        self.program: ProgramSpec = program if comm is None else here(program, comm.rank)
        if comm is not None:
            open_stages(comm, program)
        self.state: dict[str, Tensor] = {} if state is None else state
        if state is None and comm is not None:
            self.state = initial_state(self.program, comm.rank, None, seed, comm.device)

    def step(self, *inputs: Tensor, **keywords: Tensor) -> Any:
        """Run one step on a batch.

        Args:
            inputs: the model's inputs, then the loss's targets, in order, each the whole global batch or this rank's own part of it
                (told by shape).
            keywords: inputs by the name under which the model takes them.
        Returns:
            the loss, a tensor without dims that is the same on every rank; of a forward-only program its outputs, whole.
        Raises:
            InputError: an input is missing, unknown, or has another shape, dtype or device.
            RankError: another rank is gone.
        """
        self._need_ranks("step")
        with torch.no_grad():
            result = self._run(self._bind(inputs, keywords))
        return result if self.program.output is None else _rebuild(self.program.output, result)

    __call__ = step

    def _run(self, batch: Mapping[str, Tensor]) -> Any:
        try:
            return self.program.step(self.comm, self.state, batch)
        except Exception as error:
            told = error if self.program.pipeline is not None else place_error(error, self.comm.rank)
            if told is error:
                raise
            raise told from error

    def _need_ranks(self, what: str) -> None:
        if self.comm is None:
            need = num_ranks(self.program.mesh)
            raise RankError(
                f"{what}: the plan needs {need} ranks (mesh {print_mesh(self.program.mesh)}), and this process was not started by torchrun: "
                f"start it with `torchrun --nproc-per-node {need} ...`; without it the plan can be looked at and emitted"
            )

    def local_batch(self, *inputs: Tensor, **keywords: Tensor) -> tuple[Tensor, ...]:
        """This rank's own parts of a global batch, in the order in which `step` takes them positionally: without elements where its stage reads none."""
        self._need_ranks("local_batch")
        bound = self._bind(inputs, keywords)
        return tuple(bound[name] for name in self.program.batch)

    def state_dict(self, full: bool = True) -> dict[str, Tensor]:
        """Parameters and persistent buffers under the model's own names, tied names too. All ranks must call it together.

        Args:
            full: whole tensors on the CPU of every rank; False gives this rank's pieces as they are (in stages: of what its stage has).
        Returns:
            name -> tensor. Where a parameter has a float32 master (bf16 training), the master, so that nothing is lost.
        """
        self._need_ranks("state_dict")
        found = {}
        for name, state in self.program.states.items():
            if state.kind == "optim" or not state.persistent:
                continue
            source = f"master:{name}" if f"master:{name}" in self.program.states else name
            if full:
                found[name] = self._whole(source).cpu()
            elif self.program.holds(source):
                found[name] = self.state[source]
        found.update({alias: found[name] for alias, name in self.program.aliases.items() if name in found})
        return found

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Set parameters and buffers from whole tensors (or from this rank's pieces) under the model's own names.

        Tied weights need one of their names. Optimizer states stay, but masters follow their parameters. Everything is checked
        before anything is changed.

        Raises:
            InputError: names are missing or unknown, or a shape differs.
        """
        self._need_ranks("load_state_dict")
        chosen = self._check_state_dict(state_dict)
        with torch.no_grad():
            for name, tensor in chosen.items():
                for target in (name, f"master:{name}"):
                    if target in self.program.states and self.program.holds(target):
                        self.state[target] = self._placed(self.program.states[target], tensor)

    def save(self, directory: str | os.PathLike) -> None:
        """Write a checkpoint (parameters, buffers, optimizer states) on all ranks together; the last one stays whole until it is done."""
        self._need_ranks("save")
        save_state(self.comm, self.program, self.state, directory, self._model())

    def load(self, directory: str | os.PathLike) -> None:
        """Read a checkpoint of this model, saved under any plan.

        Raises:
            CheckpointError: the folder is no checkpoint, is damaged or of another model.
        """
        self._need_ranks("load")
        load_state(self.comm, self.program, self.state, directory)

    def emit(self, directory: str | os.PathLike) -> Path:
        """Write the program into a folder (rank 0 does), whole or not at all.

        First values that no recipe makes (the model came with its own) go with it as `weights.pt`. All ranks must call it together.

        Raises:
            ProgramError: the folder holds something that is no emitted program.
        """
        needed = [name for name, state in self.program.states.items() if state.init == ("given",)]
        if self.comm is None:
            weights = {name: self._given[name].detach() for name in needed if name in self._given and not self._given[name].is_meta}
            return write_program(self.files, directory, weights)
        weights = {name: self._whole(name).cpu() for name in needed}
        failed: AutoparError | None = None
        if self.comm.rank == 0:
            try:
                write_program(self.files, directory, weights)
            except AutoparError as error:
                failed = error
        problem = self.comm.share(failed)
        if problem is not None:
            raise problem
        return Path(directory)

    def num_bytes(self) -> dict[str, int]:
        """Measured bytes of this rank's pieces: `param`, `buffer`, `optim`. Tensors that share memory count once."""
        sizes, seen = {"param": 0, "buffer": 0, "optim": 0}, set()
        for name, state in self.program.states.items():
            if not self.program.holds(name):
                continue
            storage = self.state[name].untyped_storage()
            if storage.data_ptr() not in seen or storage.nbytes() == 0:
                sizes[state.kind] += storage.nbytes()
            seen.add(storage.data_ptr())
        return sizes

    def _model(self) -> dict[str, object]:
        if self.plan is not None:
            return {"name": self.plan.model.name, "graph_hash": self.plan.model.graph_hash}
        try:
            return {key: value for key, value in json.loads(self.files["plan.json"])["model"].items() if key in ("name", "graph_hash")}
        except (KeyError, ValueError, AttributeError):
            return {"name": "unnamed", "graph_hash": ""}

    def _whole(self, name: str) -> Tensor:
        with torch.no_grad():
            whole = gather_state(self.comm, self.program, self.state, name)
        return whole.clone() if whole is self.state.get(name) else whole

    def _placed(self, state: State, tensor: Tensor) -> Tensor:
        sharding, shape = local_piece(state, self.program.mesh)
        piece = cut(tensor.detach(), sharding, self.program.mesh, self.comm.rank) if tuple(tensor.shape) == state.shape else tensor.detach().clone()
        return piece.to(self.comm.device, torch_dtype(state.dtype)).reshape(shape)

    def _check_state_dict(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = {n: s for n, s in self.program.states.items() if s.kind != "optim" and s.persistent}
        names = {n: [n, *(a for a, target in self.program.aliases.items() if target == n)] for n in own}
        lines = [f"missing: {name}" for name in own if not any(n in state_dict for n in names[name])]
        known = {n for entry in names.values() for n in entry} | set(self.program.states) | set(self.program.aliases)
        lines += [f"unexpected: {name}" for name in state_dict if name not in known]
        chosen = {}
        for name, state in own.items():
            given = [n for n in names[name] if n in state_dict]
            wrong = [n for n in given if not isinstance(state_dict[n], torch.Tensor)]
            lines += [f"{n}: expected a tensor, found {type(state_dict[n]).__name__}" for n in wrong]
            given = [n for n in given if n not in wrong]
            for n in given:
                shape, allowed = tuple(state_dict[n].shape), (state.shape, local_piece(state, self.program.mesh)[1])
                if shape not in allowed:
                    lines.append(f"{n}: expected shape {list(state.shape)}, found {list(shape)}")
            if given:
                chosen[name] = state_dict[given[0]]
            for n in given[1:]:
                if state_dict[n].shape == chosen[name].shape and not torch.equal(state_dict[n], chosen[name]):
                    lines.append(f"{given[0]} and {n} are tied in the model, but differ here")
        if lines:
            rest = f"\n  and {len(lines) - 8} more" if len(lines) > 8 else ""
            raise InputError("this state dict does not fit the model:\n  " + "\n  ".join(lines[:8]) + rest)
        return chosen

    def _bind(self, inputs: tuple[Tensor, ...], keywords: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Batch entry -> this rank's piece."""
        names = list(self.program.batch)
        unknown = [k for k in keywords if f"input:{k}" not in self.program.batch]
        if unknown:
            raise InputError(f"unknown input {', '.join(unknown)}: the program takes {_listing(names)}")
        found = {f"input:{k}": v for k, v in keywords.items()}
        rest = [n for n in names if n not in found]
        if len(inputs) != len(rest):
            raise InputError(f"expected {len(rest)} positional inputs ({_listing(rest)}), found {len(inputs)}")
        found.update(zip(rest, inputs))
        return {name: self._own_part(name, self.program.batch[name], found[name]) for name in names}

    def _own_part(self, name: str, spec: Batch, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, Tensor):
            raise InputError(f"{name}: expected a tensor {spec.dtype}{list(spec.shape)}, found {type(tensor).__name__}")
        sharding, local = local_piece(spec, self.program.mesh)
        shape = tuple(tensor.shape)
        nothing = not self.program.reads(name)  # what only other stages read is not held here
        if shape not in (spec.shape, local) and not (nothing and shape == _NOTHING):
            part = f", or {list(local)} for this rank's own part" if local != spec.shape else ""
            raise InputError(f"{name}: expected shape {list(spec.shape)}{part}, found {list(shape)}")
        if tensor.dtype != torch_dtype(spec.dtype):
            raise InputError(f"{name}: expected dtype {spec.dtype}, found {str(tensor.dtype).removeprefix('torch.')}")
        if tensor.device.type != self.comm.device.type:
            raise InputError(f"{name}: expected device {self.comm.device.type}, found {tensor.device.type}")
        if nothing:
            return tensor.new_empty(_NOTHING)
        if shape == local:
            return tensor.detach().contiguous()
        return cut(tensor.detach(), sharding, self.program.mesh, self.comm.rank)


def _rebuild(output: object, tensors: tuple[Tensor, ...]) -> object:
    """The model's output, with tensors where `output` has their numbers."""
    if isinstance(output, dict):
        return {key: _rebuild(value, tensors) for key, value in output.items()}
    if isinstance(output, tuple):
        return tuple(_rebuild(value, tensors) for value in output)
    return tensors[output] if isinstance(output, int) and not isinstance(output, bool) else output


def _listing(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
