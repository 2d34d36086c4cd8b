"""Steering: add a latent's direction to the neurons, or take it away where it fires.

Added is dose times the latent's highest activation times its row of W_dec, at every position but
the first, and the model is run on from there. Controls are random directions of the same length
and other latents' rows. In a one-layer model the added logits are the same at every position, so
the tables say what happens to logits exactly; what happens to probabilities and to the loss is what
the run is for.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook.autoencoders.quality import Codes, Read
from circuitbook.model import Transformer
from circuitbook.probe import clustered_mean, paired_difference


@torch.no_grad()
def after(
    model: Transformer, seen: Read, added: Float[Tensor, " d_mlp"], words: Int[Tensor, " word"]
) -> tuple[Float[Tensor, " window"], Float[Tensor, " window"]]:
    """(loss in nats, probability of all the words together), window means, with `added` put in."""
    mlp, flat = model.blocks[0].mlp, slice(None, -1)
    last = seen.mid[:, flat] + (seen.post[:, flat] + added) @ mlp.W_out + mlp.b_out
    log_p = model.unembed(model.ln_final(last)).log_softmax(-1)
    right = log_p.gather(-1, seen.tokens[:, 2:, None])[..., 0]
    return -right.mean(1), log_p[..., words].exp().sum(-1).mean(1)


def doses(
    model: Transformer,
    seen: Read,
    row: Float[Tensor, " d_mlp"],
    highest: float,
    words: Int[Tensor, " word"],
    controls: dict[str, Float[Tensor, "some d_mlp"]],
    steps: tuple[float, ...],
) -> dict[str, Any]:
    """For each dose: mean probability of the words, rise of the loss; paired errors by document.

    controls: name -> directions; each is given the length of the latent's row, and the mean over
    the directions of a kind is reported beside the largest.
    """
    plain_loss, plain_p = after(model, seen, torch.zeros_like(row), words)
    length = row.norm()
    out: dict[str, Any] = {"doses": list(steps), "before": float(plain_p.mean())}
    kinds = {"latent": row[None], **{n: F.normalize(d) * length for n, d in controls.items()}}
    for name, directions in kinds.items():
        rows: dict[str, list] = {k: [] for k in ("p", "rise_se", "p_most", "loss", "loss_se")}
        for step in steps:
            both = [after(model, seen, step * highest * d, words) for d in directions]
            p = torch.stack([b[1] for b in both])
            rise = torch.stack([b[0] - plain_loss for b in both])
            l_mean = clustered_mean(rise.mean(0), seen.doc)
            rows["p"].append(float(p.mean()))
            rows["rise_se"].append(paired_difference(p.mean(0), plain_p, seen.doc).se)
            rows["p_most"].append(float(p.mean(1).max()))
            rows["loss"].append(l_mean.mean)
            rows["loss_se"].append(l_mean.se)
        out[name] = rows
    return out


@torch.no_grad()
def taken_away(
    model: Transformer,
    seen: Read,
    W_dec: Float[Tensor, "latents d_mlp"],
    c: Codes,
    latent: int,
    words: Int[Tensor, " word"],
) -> dict[str, Any]:
    """Where the latent fires, without its write: the words' log-odds there, in nats.

    From the model's own neurons f_j W_dec_j is subtracted, at one position at a time as it were:
    no later position is read in a one-layer model. Control: the other latent that is strongest at
    the same position is taken away instead. Changes, so negative where the words lose.
    """
    rows, slot = (c.latent == latent).logical_and(c.value > 0).nonzero(as_tuple=True)
    mlp, doc = model.blocks[0].mlp, seen.doc.repeat_interleave(seen.post.shape[1])
    others = c.value.clone()
    others[rows, slot] = 0.0
    strongest = others[rows].argmax(1)

    def log_odds(removed: Tensor) -> Tensor:
        neurons = seen.post.flatten(0, 1)[rows] - removed
        last = seen.mid.flatten(0, 1)[rows] + neurons @ mlp.W_out + mlp.b_out
        log_p = model.unembed(model.ln_final(last[None]))[0].log_softmax(-1)
        p = log_p[:, words].exp().sum(1)
        return p.log() - (1 - p).log()

    with_it = log_odds(torch.zeros(len(rows), W_dec.shape[1]))
    own = log_odds(c.value[rows, slot][:, None] * W_dec[latent])
    other = log_odds(c.value[rows, strongest][:, None] * W_dec[c.latent[rows, strongest]])
    falls = {"own": own - with_it, "other": other - with_it, "apart": own - other}
    return {"n": len(rows)} | {k: clustered_mean(v, doc[rows])[:2] for k, v in falls.items()}
