"""A sparse autoencoder writes an activation as a short sum of directions, x ~ f W_dec + b_dec.

    pre = x W_enc + b_enc                         [.., latents]
    f   = ReLU(pre)                               the standard autoencoder
    f   = the k largest entries of ReLU(pre)      the TopK autoencoder (the others are 0)
    out = f W_dec + b_dec                         [.., d_out]

x [.., d_in] are rows; W_enc [d_in, latents] has one column, W_dec [latents, d_out] one row for each
latent. The same formulas with another target are a transcoder: it reads what an MLP reads and
predicts what the MLP writes. Here nothing is subtracted from x before the encoder: a form that
reads x - b_dec is this one with b_enc - b_dec W_enc in place of b_enc.

Source: Bricken et al. 2023 and Anthropic's April 2024 update (decoder norm in the penalty), Gao et
al. 2024 (TopK), Dunefsky et al. 2024 (transcoders).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor


def top_k(f: Float[Tensor, "*lead latents"], k: int) -> Float[Tensor, "*lead latents"]:
    """The k largest entries of each row stay, all others are 0; f >= 0, so at most k are on."""
    kept, at = f.topk(k, dim=-1, sorted=False)
    return torch.zeros_like(f).scatter_(-1, at, kept)


@dataclass(frozen=True)
class Dictionary:
    """The weights of a standard (k = 0) or TopK (k > 0) autoencoder or transcoder."""

    W_enc: Float[Tensor, "d_in latents"]
    b_enc: Float[Tensor, " latents"]
    W_dec: Float[Tensor, "latents d_out"]
    b_dec: Float[Tensor, " d_out"]
    k: int = 0

    @property
    def latents(self) -> int:
        """How many directions there are."""
        return self.W_dec.shape[0]

    def pre(self, x: Float[Tensor, "*lead d_in"]) -> Float[Tensor, "*lead latents"]:
        """pre = x W_enc + b_enc: linear in x, so it splits over whatever x is a sum of."""
        return x @ self.W_enc + self.b_enc

    def encode(self, x: Float[Tensor, "*lead d_in"]) -> Float[Tensor, "*lead latents"]:
        """f = ReLU(pre), of which a TopK autoencoder keeps the k largest."""
        f = self.pre(x).relu_()
        return top_k(f, self.k) if self.k else f

    def decode(self, f: Float[Tensor, "*lead latents"]) -> Float[Tensor, "*lead d_out"]:
        """out = f W_dec + b_dec."""
        return f @ self.W_dec + self.b_dec

    def __call__(self, x: Float[Tensor, "*lead d_in"]) -> Float[Tensor, "*lead d_out"]:
        """The reconstruction of x (autoencoder), or the prediction of the MLP's write."""
        return self.decode(self.encode(x))

    def to(self, dtype: torch.dtype) -> Dictionary:
        """The same weights in another precision."""
        names = ("W_enc", "b_enc", "W_dec", "b_dec")
        return replace(self, **{name: getattr(self, name).to(dtype) for name in names})


def loss(
    dictionary: Dictionary,
    x: Float[Tensor, "n d_in"],
    target: Float[Tensor, "n d_out"],
    penalty: float = 0.0,
) -> Float[Tensor, ""]:
    """L = mean over rows of |target - out|^2 + lambda sum_j f_j |W_dec_j|.

    The norm of the decoder's row stands in the penalty. So L does not change when a latent is made
    smaller and its row longer, and the penalty cannot be cheated that way.
    """
    f = dictionary.encode(x)
    error = (target - dictionary.decode(f)).square().sum(-1)
    return (error + penalty * (f @ dictionary.W_dec.norm(dim=1))).mean()


def rescaled(dictionary: Dictionary, s: Float[Tensor, " latents"]) -> Dictionary:
    """f_j -> s_j f_j and W_dec_j -> W_dec_j / s_j with s > 0: the same output from every input.

    For TopK the choice of the k largest may change, unless all s are equal.
    """
    return replace(
        dictionary,
        W_enc=dictionary.W_enc * s,
        b_enc=dictionary.b_enc * s,
        W_dec=dictionary.W_dec / s[:, None],
    )


def unit_rows(dictionary: Dictionary) -> Dictionary:
    """The rescaling after which every row of W_dec has length 1 (rows of length 0 stay)."""
    norm = dictionary.W_dec.norm(dim=1)
    return rescaled(dictionary, torch.where(norm > 0, norm, torch.ones_like(norm)))
