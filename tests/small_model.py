"""A tiny random model whose heads matter, and prompts for it, shared by several tests."""

import torch

from circuitbook.config import Config
from circuitbook.model import Transformer

TINY = Config(n_layers=2, d_model=16, n_heads=2, d_head=8, n_ctx=16, d_vocab=24)


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def model_of(config=TINY, dtype=torch.float64, seed=0, scale=3.0):
    """A random model with weights large enough for its heads to matter; W_U centred."""
    model = Transformer(config, seed=seed).to(dtype).requires_grad_(False)
    for name, p in model.named_parameters():
        p.mul_(scale) if "W_" in name else p.copy_(torch.randn(p.shape, generator=gen(seed)) * 0.1)
    return model


def tokens_of(config=TINY, n=3, length=10):
    tokens = torch.randint(1, config.d_vocab, (n, length), generator=gen(3))
    tokens[:, 0] = 0
    return tokens
