"""The bundled autoencoder of `gelu-1l`'s neurons, measured: (data, claims) for chapter 09."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from circuitbook import bases, corpus, vocabulary, zoo
from circuitbook.autoencoders import (
    bundle,
    codings,
    contexts,
    dashboards,
    latent_claims,
    latent_moves,
    quality,
    sae,
    steer,
)
from circuitbook.autoencoders.recipes import RECIPES
from circuitbook.model import Transformer
from circuitbook.probe import paired_difference

NAME = "sae-gelu-1l"
DOSES = (0.5, 1.0, 2.0, 4.0)
WORDS = 10  # a latent's most written words


def study(
    *, windows: int = 192, judged: int = 48, n: int = 12, seed: int = 11
) -> tuple[dict[str, Any], list[dict]]:
    """Everything the chapter says about the autoencoder.

    windows: held-out windows for contexts. judged: every few of them, for losses. n: positions
    that each unit's single-mindedness is counted on.
    """
    model, dictionary = zoo.load("gelu-1l"), bundle.load(NAME)
    text = corpus.heldout_windows(windows, seed=seed)
    tokens, doc = torch.as_tensor(text.tokens), torch.as_tensor(text.doc)
    seen = quality.read(model, tokens, doc)
    c = quality.codes(dictionary, seen.post.flatten(0, 1))
    every = slice(None, None, windows // judged)
    part = quality.Read(*(field[every] for field in seen))
    rest = seen.post[1 :: windows // judged].flatten(0, 1)  # text that is not judged
    worth, baselines = compared(model, part, dictionary, rest)
    fired = torch.bincount(c.latent[c.value > 0], minlength=dictionary.latents)
    units, top, of_latents = single_minded(seen, c, dictionary, n, seed)
    chosen = choose(of_latents, fired / len(c.value), seed)
    boards = {
        kind: dashboards.dashboard(
            model, dictionary, which, of_latents, top, fired / len(c.value), text
        )
        for kind, which in chosen.items()
    }
    small = quality.Read(*(field[: max(4, judged // 6)] for field in part))
    steering, away = steered(model, dictionary, small, seen, c, boards["best"], fired, seed)
    data = {
        "name": NAME,
        "k": dictionary.k,
        "latents": dictionary.latents,
        "tokens": RECIPES[NAME].rows,
        "windows": windows,
        "documents": int(doc.unique().numel()),
        "quality": worth
        | {
            "l0": float((c.value > 0).float().sum(1).mean()),
            "dead": float((fired == 0).float().mean()),
            "positions": len(c.value),
        },
        "baselines": baselines,
        **kept(),
        "minds": units,
        **boards,
        "steer": steering,
        "away": away,
        "moves": latent_moves.moves(
            model, dictionary, tokens[:2, :64], boards["best"][0]["latent"]
        ),
    }
    exact = identities(model, dictionary, small)
    return data, latent_claims.claims(data, exact)


def kept() -> dict[str, Any]:
    """What was measured when the dictionaries were trained: eight bits' cost, shorter runs."""
    stored = bundle.measured(NAME)
    return {"stored": stored["stored"], "frontier": stored["frontier"]}


def compared(
    model: Transformer, part: quality.Read, dictionary: sae.Dictionary, rest: Tensor
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the autoencoder's quality, that of five codings of equal L0) on the judged windows.

    rest: neurons at other positions; as many of them as there are latents make one dictionary.
    """
    x = part.post.flatten(0, 1)
    mean, components = codings.principal(x)
    k, n, W_out = dictionary.k, dictionary.latents, model.blocks[0].mlp.W_out
    back, (_, written) = torch.linalg.pinv(W_out), codings.principal((x - mean) @ W_out)
    directions = codings.random_directions(n, x.shape[1], seed=1)
    examples = codings.examples(rest, mean, n, seed=1)
    grams = [rows @ rows.T for rows in (directions, examples)]
    ways = {
        "sae": quality.reconstruction(dictionary),
        "neurons": lambda rows: codings.top_coordinates(rows, mean, None, k),
        "PCA": lambda rows: codings.top_coordinates(rows, mean, components, k),
        "writes": lambda rows: codings.top_of_the_write(rows, mean, W_out, back, written, k),
        "random": lambda rows: codings.pursuit(rows, mean, directions, k, gram=grams[0]),
        "examples": lambda rows: codings.pursuit(rows, mean, examples, k, gram=grams[1]),
    }
    full = quality.losses(model, part)
    zero = quality.losses(model, part, torch.zeros_like)
    flat = quality.losses(model, part, lambda rows: mean.expand_as(rows))
    spread = float((x - mean).square().sum())
    found: dict[str, dict[str, Any]] = {}
    loss: dict[str, Tensor] = {}
    for name, way in ways.items():
        missed = 0.0

        def replace(rows: Tensor, way=way) -> Tensor:
            nonlocal missed
            out = way(rows)
            missed += float((rows - out).square().sum())
            return out

        loss[name] = quality.losses(model, part, replace)
        share = quality.recovered(full, zero, loss[name], part.doc)
        positions = part.post.shape[0] * (part.post.shape[1] - 1)
        found[name] = {
            "recovered": share.mean,
            "recovered_se": share.se,
            "variance_kept": 1 - missed / spread,
            "mean_square_error": missed / positions,
        }
        if name != "sae":
            behind = paired_difference(loss[name], loss["sae"], part.doc)
            found[name]["behind"] = [behind.mean, behind.se]
    worth = found.pop("sae") | {
        "loss": float(loss["sae"].mean()),
        "full": float(full.mean()),
        "zero": float(zero.mean()),
        "mean": float(flat.mean()),
        "mean_recovered": quality.recovered(full, zero, flat, part.doc).mean,
    }
    return worth, found


def single_minded(
    seen: quality.Read, c: quality.Codes, dictionary: sae.Dictionary, n: int, seed: int
) -> tuple[dict[str, Any], contexts.Peaks, contexts.Minds]:
    """Latents, neurons, random directions and shuffled latents by one measure."""
    windows = seen.post.shape[0]
    top = contexts.code_peaks(c, windows, dictionary.latents)
    directions = codings.random_directions(seen.post.shape[2], seen.post.shape[2], seed)
    peaks = {
        "latents": top,
        "neurons": contexts.peaks(seen.post),
        "random directions": contexts.peaks(seen.post @ directions.T),
    }
    generator = torch.Generator().manual_seed(seed)
    anywhere = torch.randint(1, seen.tokens.shape[1], top.at.shape, generator=generator)
    peaks["latents, shuffled"] = contexts.Peaks(top.value, anywhere)
    found = {kind: contexts.minds(p, seen.tokens, n) for kind, p in peaks.items()}
    shares = {kind: m.share[m.enough > 0] for kind, m in found.items()}
    rate = torch.bincount(c.latent[c.value > 0], minlength=dictionary.latents)
    often = rate > rate[found["latents"].enough > 0].median()
    halves = []
    for side in (0, 1):
        rows = seen.doc % 2 == side
        half = {
            kind: contexts.minds(
                contexts.Peaks(*(f[rows] for f in peaks[kind])), seen.tokens[rows], n
            )
            for kind in ("latents", "neurons")
        }
        ours, theirs = (h.share[h.enough > 0] for h in half.values())
        halves.append(contexts.above(ours, theirs))
    data = {
        "n": n,
        "kinds": {kind: contexts.spread(s) for kind, s in shares.items()},
        "counts": {
            kind: torch.bincount((n * s).round().long(), minlength=n + 1)[1:].tolist()
            for kind, s in shares.items()
        },
        "above": {k: contexts.above(shares["latents"], s) for k, s in shares.items()},
        "halves": halves,
        "often": contexts.spread(found["latents"].share[(found["latents"].enough > 0) & often]),
        "seldom": contexts.spread(found["latents"].share[(found["latents"].enough > 0) & ~often]),
    }
    return data, top, found["latents"]


def choose(found: contexts.Minds, fired: Tensor, seed: int) -> dict[str, list[int]]:
    """Ten best: the largest share, of equals the one that fires most. Ten of all that judged."""
    able = found.enough > 0
    order = (found.share + fired.clamp(max=1) / 1000).masked_fill(~able, -1.0)
    best = order.argsort(descending=True, stable=True)[:10].tolist()
    generator = torch.Generator().manual_seed(seed)
    pool = able.nonzero()[:, 0]
    drawn = pool[torch.randperm(len(pool), generator=generator)[:10]].tolist()
    return {"best": best, "random": drawn}


def steered(
    model: Transformer,
    dictionary: sae.Dictionary,
    small: quality.Read,
    seen: quality.Read,
    c: quality.Codes,
    best: list[dict],
    fired: Tensor,
    seed: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Steering one latent: of the ten best, the one that lifts its most written word most."""
    board = max(best, key=lambda b: b["lifts"][0])
    latent = board["latent"]
    lifts = dashboards.written(model, dictionary, torch.tensor([latent]))[0]
    words = lifts.topk(WORDS).indices
    generator = torch.Generator().manual_seed(seed)
    alive = (fired > 0).nonzero()[:, 0]
    others = alive[torch.randperm(len(alive), generator=generator)[:4]]
    controls = {
        "random directions": codings.random_directions(4, dictionary.W_dec.shape[1], seed + 1),
        "other latents": dictionary.W_dec[others[others != latent]],
    }
    row = dictionary.W_dec[latent]
    out = steer.doses(model, small, row, board["highest"], words, controls, DOSES)
    texts = vocabulary.texts()
    out |= {"index": latent, "highest": board["highest"], "written": [texts[t] for t in words]}
    return out, steer.taken_away(model, seen, dictionary.W_dec, c, latent, words)


def identities(
    model: Transformer, dictionary: sae.Dictionary, small: quality.Read
) -> dict[str, float]:
    """Errors of what must hold for any dictionary, relative to the largest entry."""
    x = small.post.flatten(0, 1)[:128]
    d = dictionary.to(torch.float64)
    y = x.double()

    def apart(a: Tensor, b: Tensor) -> float:
        return float((a - b).abs().max() / b.abs().max())

    generator = torch.Generator().manual_seed(0)
    s = torch.rand(d.latents, generator=generator, dtype=torch.float64) + 0.5
    plain = sae.Dictionary(d.W_enc, d.b_enc, d.W_dec, d.b_dec)  # the same weights, no TopK
    bare = sae.rescaled(plain, torch.full_like(s, 0.5))
    law = [float(sae.loss(each, y, y, 0.3)) for each in (plain, sae.rescaled(plain, s))]
    cheap = [
        float(0.3 * each.encode(y).sum(1).mean()) for each in (plain, bare)
    ]  # without the norm
    Q = bases.rotation(x.shape[1], generator).double()
    turned = sae.Dictionary(Q.T @ d.W_enc, d.b_enc, d.W_dec @ Q, d.b_dec @ Q, d.k)
    hook = "blocks.0.mlp.hook_post"

    def splice(post: Tensor, hook: object) -> Tensor:
        return torch.cat([post[:, :1], dictionary(post[:, 1:])], 1)

    with torch.no_grad():
        ran = model.run_with_hooks(
            small.tokens, return_type="loss_per_token", fwd_hooks=[(hook, splice)]
        )
    short = quality.losses(model, small, quality.reconstruction(dictionary))
    return {
        "short sums": apart(quality.decoded(d, quality.codes(d, y)), d(y)),
        "splice": apart(short, ran[:, 1:].mean(1)),
        "rescaled": abs(law[1] / law[0] - 1),
        "cheat": cheap[1] / cheap[0],
        "turned latents": apart(turned.encode(y @ Q), d.encode(y)),
        "turned neurons": apart(y @ Q, y),
    }
