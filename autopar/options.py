"""Options: everything that a user may say beside model, loss, optimizer and cluster. They travel as one value."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from .constraints import Constraints
from .errors import OptionsError

PRECISIONS = ("fp32", "bf16", "fp16", "fp64")
BATCHNORM = ("batch", "microbatch")
LOCAL = ("kernels", "inductor", "ops")


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile.

    Args:
        precision: `fp32`, `bf16` or `fp16` (fp32 master weights and moments; nothing scales the loss), `fp64` (verification); None: bf16 on GPU clusters, fp32 on cpu.
        memory_bytes: limit per device; None: the device's own memory.
        time_limit_s: the solver stops then, with the best so far and its honest gap.
        dump_dir: each stage of the compiler is written there as a numbered text file.
        seed: of initial values and of random numbers.
        constraints: what the plan must be (`autopar.constrain`, docs/constraints.md); what they do not name stays free.
        batchnorm: `batch`: statistics of the whole batch, so no microbatches where a model has them; `microbatch`: of each microbatch, as many as the constraints say
            (`microbatches=N`).
        local: what a rank runs between collectives: `kernels`, groups of ops as kernels of our own (plain torch on a CPU); `inductor`, all of it through `torch.compile`,
            the groups of the update too where no Triton runs (else they are one launch for all parameters); `ops`, each op as a line of its own.
        cuda_graph: on GPUs a step is captured as a CUDA graph and replayed (docs/design/programs.md); refused where a graph cannot hold it. Losses equal to the bit on one GPU (H200); no graph has held nccl's collectives yet.
        measured: prices of GPUs at the level of this profile (`autopar profile`): a file, or a device that was measured for the package (H100-80GB, H200-141GB); None: of the cache's for such
            a GPU, where there is one, else the published tables'.
        price: solve again: without the constraints, so that the plan can say what they cost; where nothing fits, with changes that may.
    """

    precision: str | None = None
    memory_bytes: int | None = None
    time_limit_s: float = 60.0
    dump_dir: str | None = None
    seed: int = 0
    constraints: Constraints = Constraints()
    price: bool = True
    batchnorm: str = "batch"
    local: str = "kernels"
    cuda_graph: bool = False
    measured: str | None = None

    def __post_init__(self) -> None:
        if self.precision is not None and self.precision not in PRECISIONS:
            raise OptionsError(f"precision: expected one of {', '.join(PRECISIONS)}, found {self.precision!r}")
        if self.memory_bytes is not None and not (_is_number(self.memory_bytes) and 1 <= self.memory_bytes < float("inf")):
            raise OptionsError(f"memory: expected a positive number of bytes, found {self.memory_bytes!r}")
        if not isinstance(self.constraints, Constraints):
            raise OptionsError(f"constraints: expected autopar.constrain(tp=2, ...), found {type(self.constraints).__name__}")
        for name in ("price", "cuda_graph"):
            if not isinstance(getattr(self, name), bool):
                raise OptionsError(f"{name}: expected True or False, found {getattr(self, name)!r}")
        if self.batchnorm not in BATCHNORM:
            raise OptionsError(f"batchnorm: expected {' or '.join(BATCHNORM)}, found {self.batchnorm!r}")
        if self.batchnorm == "microbatch" and self.constraints.microbatches is None:
            raise OptionsError("batchnorm: microbatch needs the number of microbatches, for it decides the result: say microbatches=N (--fix microbatches=4)")
        if self.local not in LOCAL:
            raise OptionsError(f"local: expected {', '.join(LOCAL[:-1])} or {LOCAL[-1]}, found {self.local!r}")
        if self.measured is not None and not isinstance(self.measured, str):
            raise OptionsError(f"measured: expected a file of `autopar profile` or the name of a device, found {self.measured!r}")
        if not (_is_number(self.time_limit_s) and self.time_limit_s > 0):
            raise OptionsError(f"time limit: expected a positive number of seconds, found {self.time_limit_s!r}")
        if not (_is_number(self.seed) and isinstance(self.seed, Integral)):
            raise OptionsError(f"seed: expected a whole number, found {self.seed!r}")


def opens_buckets(local: str) -> bool:
    """Whether gradients are written where they travel (`graph.open_buckets`) in programs that run so between collectives, `local` as of `Options`: what `torch.compile` makes returns tensors of its own."""
    return local != "inductor"


def _is_number(found: object) -> bool:
    return isinstance(found, Real) and not isinstance(found, bool)


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str, where: str = "memory") -> int:
    """`2GiB`, `512MB`, `1.5 GiB` or a plain number of bytes.

    Raises:
        OptionsError: it is not a positive size.
    """
    number = text.strip().rstrip("BbGgKkMmTtIi ").strip()
    unit = text.strip()[len(number) :].strip().upper()
    try:
        size = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise OptionsError(f"{where}: expected a size such as 2GiB or 512MB, found {text!r}") from None
    if not 0 < size < float("inf"):
        raise OptionsError(f"{where}: expected a positive size, found {text!r}")
    return int(size)


def check_limit(limit_bytes: int | None, device: str, own_bytes: int, precision: str) -> None:
    """No limit is above what a GPU has. In float64, in which programs are verified, everything takes twice the bytes and the limit may, too.

    Args:
        device: its name.
        own_bytes: that it has.
    Raises:
        OptionsError: it is.
    """
    if limit_bytes is not None and limit_bytes > (2 if precision == "fp64" else 1) * own_bytes:
        raise OptionsError(
            f"memory: expected at most the {own_bytes / 2**30:.1f} GiB ({own_bytes} bytes) that {device} has, found {limit_bytes / 2**30:.1f} GiB; "
            "leave it out, name a device that has as much, or describe yours in a cluster file ([devices.NAME])"
        )
