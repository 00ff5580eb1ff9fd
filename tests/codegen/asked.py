"""The words of the modules that print numbers of kernels: where these run, and which part of the cases one process takes.

    python -m tests.codegen.MODULE [--device cuda] [--part 2/8] [CASE ...]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch

from autopar.runtime import fused

from .quick_interpreter import quicken_interpreter

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """What a module was asked.

    Args:
        names: of cases; none: all.
        part, parts: of the cases, beginning with 0.
    """

    device: torch.device
    names: tuple[str, ...]
    part: int
    parts: int

    def share(self, cases: Iterable[T]) -> Iterator[T]:
        """Every so-manieth of them."""
        return islice(cases, self.part, None, self.parts)

    def place(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return [x.to(self.device) for x in tensors]


def read_words(about: str | None, words: Sequence[str] | None = None) -> Asked:
    """From the command line; ends the process where kernels do not run as Triton's on that device."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="of the cases, so that several processes share them")
    asked = parser.parse_args(words)
    part, parts = map(int, asked.part.split("/"))
    device = torch.device(asked.device)
    if not fused.runs_triton(torch.zeros(1, device=device)):
        parser.error("TRITON_INTERPRET=1 is needed on a CPU")
    if fused.interprets():
        quicken_interpreter()
    warnings.simplefilter("ignore")  # numpy on lanes that are masked out, and on what is infinite
    return Asked(device, tuple(asked.names), part - 1, parts)
