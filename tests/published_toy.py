"""A small random model of the published form, and prompts for it, shared by some tests."""

import torch

from circuitbook import fold
from circuitbook.config import Config
from circuitbook.model import Transformer

DTYPES = [torch.float32, torch.float64]
LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}
HEADS = 3


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def published(dtype=torch.float64, seed=1, layers=2):
    """A random model of the published form, processed as `published.models.load` does."""
    cfg = Config(
        layers, 36, HEADS, 12, n_ctx=40, d_vocab=110, norm="layernorm", positions="standard",
        pos_kind="learned", attn_bias=True, unembed_bias=True,
    )  # fmt: skip
    model = Transformer(cfg, generator=gen(seed)).double().requires_grad_(False)
    for i, (name, p) in enumerate(model.named_parameters()):
        noise = torch.randn(p.shape, generator=gen(100 * seed + i)).double() * 0.3
        p.copy_(3 * p if "W_" in name else p + noise)
    return fold.process(model).to(dtype).requires_grad_(False)


def tokens_of(n=2, length=18, seed=3):
    tokens = torch.randint(1, 110, (n, length), generator=gen(seed))
    tokens[:, 0] = 7  # a begin-of-sequence token whose id is not 0
    return tokens


def gap(got, want):
    return ((got - want).abs().max() / want.abs().max()).item()
