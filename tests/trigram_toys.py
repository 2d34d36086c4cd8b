"""Toy models, tables and texts with known skip-trigrams, shared by the tests of chapter 04."""

import numpy as np
import torch

from circuitbook import gauge, scan
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.skip_trigrams import trigrams
from circuitbook.skip_trigrams.triple_text import Text


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def toy(dtype=torch.float64, **more):
    """One attention-only layer with heads that matter, and a W_U that is not centred."""
    sizes = {"d_model": 24, "n_heads": 3, "d_head": 6, "n_ctx": 48, "d_vocab": 70}
    model = Transformer(Config(1, **{**sizes, **more}), seed=1).to(dtype).eval()
    model.requires_grad_(False)
    return gauge.with_weights(model, W_Q=3 * model.W_Q, W_U=model.W_U + 0.2)


def trained(dtype=torch.float64):
    from circuitbook import zoo

    return zoo.load("attn-only-1l", dtype=dtype, device="cpu")


def random_head(n=256, d=8, seed=0, dtype=torch.float64):
    draws = torch.randn(4, n, d, generator=gen(seed)).to(dtype)
    B = [x.T - x.T.mean(1, keepdim=True) for x in draws[2:]]
    return trigrams.Head(
        scan.Factors(draws[0], B[0]), scan.Factors(draws[1], B[1]), torch.arange(n)
    )


def tables(head):
    return head.qk.A @ head.qk.B, head.ov.A @ head.ov.B


def a_text(seed=0, docs=5, length=300, vocab=70, reach=6):
    rng = np.random.default_rng(seed)
    return Text([rng.integers(1, vocab, size=length) for _ in range(docs)], vocab, reach)


def planted_model():
    """One head, one-hot tokens: it looks for token 2 from token 1, and reading 2 raises 3."""
    cfg = Config(1, d_model=16, n_heads=1, d_head=16, n_ctx=48, d_vocab=16)
    model = Transformer(cfg, seed=None).double().eval().requires_grad_(False)
    eye, Q, O = torch.eye(16).double(), torch.zeros(16, 16).double(), torch.zeros(16, 16).double()
    Q[1, 2], O[2, 3] = 40.0, 5.0
    return gauge.with_weights(
        model,
        W_E=eye,
        W_U=eye,
        W_pos=torch.zeros(48, 16).double(),
        W_Q=Q[None, None],
        W_K=eye[None, None],
        W_V=eye[None, None],
        W_O=O[None, None],
    )


def slow_count(text, source, wanted, output):
    """(n, hits) by document, by hand."""
    n, hits = np.zeros(text.n_docs), np.zeros(text.n_docs)
    for t in range(1, len(text.tokens) - 1):
        if text.tokens[t] in wanted and text.follows[t] >= 0:
            window = text.tokens[max(0, t - text.reach) : t]
            if source in window:
                n[text.doc[t]] += 1
                hits[text.doc[t]] += text.follows[t] == output
    return n, hits
