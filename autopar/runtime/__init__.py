"""What an emitted program needs at run time, and what runs it."""

from . import ops
from .comm import Comm, ProcessComm
from .cuda_graph import Replayed
from .executable import Executable
from .folder import read_files, write_program
from .initial import initial_state, state_of_module
from .launch import TorchrunEnv, read_torchrun_env, start_process_group, stop_process_group
from .messages import Arrival, Key
from .names import expand_names, expand_states
from .reading import compile_program, read_program
from .spec import Batch, ProgramSpec, State, make_mesh
from .stages import Stage, here, open_stages
from .threads import ThreadComm, run_ranks, solo_comm
from .training import run_training
from .user_ops import load_ops

__all__ = [
    "Arrival", "Batch", "Comm", "Executable", "Key", "ProcessComm", "ProgramSpec", "Replayed", "Stage", "State", "ThreadComm", "TorchrunEnv",
    "compile_program", "expand_names", "expand_states", "here", "initial_state", "load_ops", "ops", "make_mesh", "open_stages", "read_files", "read_program", "read_torchrun_env", "run_ranks", "run_training",
    "solo_comm", "start_process_group", "state_of_module", "stop_process_group", "write_program",
]  # fmt: skip
