"""The one scalar of a device: what a large matmul reaches when it runs for seconds on end, over what the cost model prices it at.

In: profiles of `autopar profile --quick` on GPUs that were at hand (`data/profile_*_quick.json`), their rows of `matmul_sustained`. Out: a share, and cost models with it. A training run of
hours is held by its board's power: an H100 begins a matmul of 8192 x 8192 x 8192 with 750 TFLOP/s and is at 650 some seconds later, with its clock at two thirds and 697 W of 700.

    python -m benchmarks.sustained          # the shares
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

from autopar.cost.matmul import find_matmul_rates, matmul_seconds
from autopar.cost.model import CostModel
from autopar.cost.rows import SUSTAINED



@lru_cache(maxsize=1)
def sustained_shares() -> dict[str, float]:
    """Preset -> share of its matmul level that is left after seconds; of the devices that were measured."""
    from benchmarks.one_gpu import PROFILES, preset_of

    found = {}
    for path in PROFILES:
        profile = json.loads(path.read_text(encoding="utf-8"))
        row = next(row for row in profile["ops"] if row["family"] == SUSTAINED)
        preset, (m, n, k) = preset_of(profile["machine"]["device"]), row["shape"]
        found[preset] = float(matmul_seconds(find_matmul_rates(preset), 1, m, n, k, row["dtype"])) / row["seconds"]
    return found


def with_share(model: CostModel, share: float) -> CostModel:
    """The cost model with that share of its matmul rates; so of attention, too; what bytes decide keeps its own."""
    assert model.rates is not None
    flops = tuple((dtype, rate * share) for dtype, rate in model.rates.flops_per_s)
    return replace(model, flops_per_s=flops, rates=replace(model.rates, flops_per_s=flops))


if __name__ == "__main__":
    for name, left in sustained_shares().items():
        print(f"{name}: {left:.3f}")
