"""A GPT of any size: `autopar plan examples/gpt.py:build --cluster 2x8xH100 --arg layers=48 --arg hidden=1600 --arg heads=25`.

The model is plain PyTorch, see autopar/demo/model.py.
"""

import functools

import torch

import autopar
from autopar.demo.model import Gpt, token_loss


def build(batch: int = 8, seq: int = 1024, vocab: int = 50257, layers: int = 12, hidden: int = 768, heads: int = 12) -> autopar.Workload:
    tokens = torch.randint(0, vocab, (batch, seq + 1))
    return autopar.Workload(
        model=Gpt(vocab, seq, layers, hidden, heads),
        example_inputs=(tokens[:, :-1],),
        example_targets=(tokens[:, 1:],),
        loss=token_loss,
        optimizer=functools.partial(torch.optim.AdamW, lr=3e-4),
        name="gpt",
    )
