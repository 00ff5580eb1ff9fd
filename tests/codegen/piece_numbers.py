"""Run kernels of wide rows that go in pieces in Triton's interpreter and compare with float64: prints one JSON object per kernel.

    TRITON_INTERPRET=1 python -m tests.codegen.piece_numbers
"""

from __future__ import annotations

import json

import torch
from torch.nn import functional as F

from autopar import Workload
from autopar.codegen.kernels.parts import print_parts
from benchmarks.norm_spills import Kind, Net
from tests.codegen.kernel_cases import ADAMW, kernels_of
from tests.codegen.kernel_numbers import differences, functions_of

KINDS = (Kind(5120, "LlamaNorm", "sandwich", False, 0.1, "fp32"), Kind(8192, "GemmaNorm", "sandwich", False, 0.1, "bf16"), Kind(8192, "LayerNorm", "after", True, 0.1, "fp32"), Kind(8192, "RMSNorm", "twice", True, 0.1, "fp32"))


def main() -> None:
    for kind in KINDS:
        with torch.device("meta"):
            net, x, y = Net(kind), torch.empty(3, 16), torch.empty(3, dtype=torch.long)
        kernels = kernels_of(Workload(net, (x,), (y,), F.cross_entropy, ADAMW), kind.precision)
        kernel = next(k for k in kernels if "norm" in k.name and any(part.text and part.text.pieces for part in print_parts(k)))
        function = functions_of([kernel])[kernel.name]
        print(json.dumps({"kernel": kernel.name, "precision": kind.precision, "difference": differences(kernel, function, False)}), flush=True)


if __name__ == "__main__":
    main()
