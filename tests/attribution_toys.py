"""Small models with MLPs and random transcoders, shared by the tests of attribution graphs."""

import torch
from small_model import gen, model_of

from circuitbook.autoencoders.sae import Dictionary
from circuitbook.config import Config

GELU = Config(2, d_model=20, n_heads=3, d_head=6, d_mlp=24, n_ctx=30, d_vocab=40, act="gelu")
DEEP = Config(3, d_model=20, n_heads=2, d_head=6, d_mlp=24, n_ctx=30, d_vocab=40, act="swiglu")


def random_transcoders(model, width=50, k=6, seed=5):
    """One random dictionary for each layer; k = 0 gives a plain ReLU."""
    d, g, like = model.cfg.d_model, gen(seed), model.W_E

    def draw(*shape):
        return torch.randn(shape, generator=g).to(like)

    return [
        Dictionary(draw(d, width) / d**0.5, draw(width) * 0.3, draw(width, d) / d**0.5, draw(d), k)
        for _ in range(model.cfg.n_layers)
    ]


def small(config=GELU, dtype=torch.float64, k=6, scale=2.0):
    """(model, transcoders) with random weights."""
    model = model_of(config, dtype, seed=4, scale=scale)
    return model, random_transcoders(model, k=k)


def prompt(config=GELU, length=12, seed=3):
    """One prompt, begin-of-sequence first."""
    tokens = torch.randint(1, config.d_vocab, (length,), generator=gen(seed))
    tokens[0] = 0
    return tokens


def trained(dtype):
    """The course model and its two transcoders."""
    from circuitbook.attribution import study

    return study.load(dtype)
