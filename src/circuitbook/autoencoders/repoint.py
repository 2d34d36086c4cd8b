"""A spare latent gets no gradient towards what is missing; so it must be carried there.

A latent that never fires has no gradient at all. One that repeats another latent has a gradient,
which says: stay. Both are *spare*, and both can be seen without knowing the truth. To re-point one,
give it the direction of an input along which most error is left, and forget its past.
Source of the idea: resampling of dead latents, Bricken et al. 2023; here also of repeated ones.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from circuitbook.autoencoders.sae import Dictionary

IDLE, TWIN, APART, CANDIDATES = 0.01, 0.9, 0.7, 1024


def spare_latents(
    dictionary: Dictionary, f: Float[Tensor, "n latents"]
) -> Bool[Tensor, " latents"]:
    """Spare: on for less than 1 % of the inputs, or repeating (cosine > 0.9) one that does more.

    f: the latents of n inputs. Of two equal twins neither is spare.
    """
    idle = (f > 0).to(f.dtype).mean(0) < IDLE
    unit, total = torch.nn.functional.normalize(dictionary.W_dec), f.sum(0)
    twin = (unit @ unit.T > TWIN) & (total[None, :] > total[:, None])
    return idle | twin.any(1)


def missing_directions(
    h: Float[Tensor, "n d"], residual: Float[Tensor, "n d"], count: int
) -> Float[Tensor, "count d"]:
    """Unit inputs v with the largest mean of max(0, r·v)², their cosines with each other <= 0.7.

    r: the residual. Candidates: the first 1,024 inputs longer than the median of those not zero.
    """
    size = h.norm(dim=1)
    candidates = h[size > size[size > 0].median()][:CANDIDATES]
    unit = torch.nn.functional.normalize(candidates)
    left = (residual @ unit.T).clamp_min_(0).square_().mean(0)
    found = []
    for _ in range(count):
        best = unit[int(left.argmax())]
        found.append(best)
        left = left.masked_fill(unit @ best > APART, -1.0)
    return torch.stack(found)


def blind_directions(
    h: Float[Tensor, "n d"], residual: Float[Tensor, "n d"], count: int, seed: int = 0
) -> Float[Tensor, "count d"]:
    """The control: random directions; where error is left plays no part."""
    g = torch.Generator().manual_seed(seed + len(h))
    return torch.nn.functional.normalize(torch.randn(count, h.shape[1], generator=g))
