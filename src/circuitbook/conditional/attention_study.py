"""What frozen patterns miss in trained heads, and by which route a head's write is read.

Directions are what earlier components wrote, and random vectors as long at every position. First
order: `attention_jacobian.routes`. The finite change beside it: the same edge cut, as in
chapter 06. With a norm its scale answers in both, and a head is linear in its values only while
that scale is held: the same comparison is made at this level too. Logits are read through the final
norm at the scale of the whole prompt (held).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitbook import corpus, cut, probe, spine, zoo
from circuitbook.bases import relative_change
from circuitbook.claims import all_of, atleast, bound, claim
from circuitbook.conditional.attention_jacobian import ROUTES, heads_write, read, routes, weights
from circuitbook.conditional.methods_claims import part
from circuitbook.curves import Bench
from circuitbook.model import Transformer
from circuitbook.stream import (
    components,
    final_scale,
    head_name,
    last_logits_only,
    layer_of,
    read_through,
)

LIMITS = {"float32": 1e-5, "float64": 1e-10}
MODELS = ("attn-only-2l", "gelu-2l")


def directions(
    model: Transformer, tokens: Int[Tensor, "batch pos"], layer: int
) -> tuple[Float[Tensor, "batch pos d_model"], dict[str, Tensor]]:
    """(the stream entering a layer, what each earlier component wrote into it)."""
    parts = components(model, tokens)
    below = parts.below(layer)
    bottom = ("embedding", "position")
    names = [n for n in parts.writes if n in bottom or layer_of(n) < layer]
    return below, {n: parts.writes[n] for n in names}


def located(model: Transformer, tokens: Int[Tensor, "batch pos"]) -> Tensor | None:
    """The positions that queries and keys see beside the stream; None when it holds them itself."""
    return model.W_pos[: tokens.shape[1]] if model.cfg.positions == "shortformer" else None


def like(w: Float[Tensor, "batch pos d_model"], generator: torch.Generator) -> Tensor:
    """A random direction at every position, as long as w is there."""
    r = torch.randn(w.shape, generator=generator).to(w)
    return r / r.norm(dim=-1, keepdim=True) * w.norm(dim=-1, keepdim=True)


def next_token(
    model: Transformer, tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos d_model"]:
    """u_i: the unembedding of the token after position i, minus the mean over the vocabulary.

    w_i . u_i is what a write adds directly to the centred logit of the next token, read through the
    final norm at this run's scale (held) where there is one. Zero at the end.
    """
    columns = model.W_U.T[tokens[:, 1:]] - model.W_U.mean(-1)
    u = torch.cat([columns, torch.zeros_like(columns[:, :1])], 1)
    if model.cfg.norm == "none":
        return u
    return read_through(model, u, final_scale(model, components(model, tokens).last))


@torch.no_grad()
def table(
    model: Transformer,
    tokens: Int[Tensor, "batch pos"],
    layer: int,
    generator: torch.Generator,
) -> dict[str, dict[str, Any]]:
    """Writer -> sizes of the routes into each head of a layer, on text.

    "size" [route, head]: root mean square over positions of |summand|. "missed" [head]: rms of
    query + key over rms of the whole. "logit" [route, head]: mean over positions of |summand . u|,
    u the direction of the next token: direct to the logits. Beside every writer a random direction
    of the same length at every position ("random ...").
    """
    x, writes = directions(model, tokens, layer)
    u, w = next_token(model, tokens), weights(model, layer)
    place = located(model, tokens)

    def rms(y: Tensor) -> Tensor:  # of each head, without the begin-of-sequence token
        return y[:, :, 1:].square().sum(-1).mean((0, 2)).sqrt()

    out = {}
    for name, write in writes.items():
        for label, dx in ((name, write), (f"random as {name}", like(write, generator))):
            found = routes(*read(model, layer, x, dx), place, w)
            out[label] = {
                "size": torch.stack([rms(y) for y in found]),
                "missed": rms(found.missed()) / rms(found.total()),
                "logit": torch.stack(
                    [(y * u[:, None]).sum(-1)[:, :, 1:-1].abs().mean((0, 2)) for y in found]
                ),
            }
    return out


class PairRoutes(NamedTuple):
    """One writer into one reader at the places where a repeat is predicted; logits, per row."""

    routes: dict[str, Float[Tensor, " n"]]  # first order, for the whole write
    cut: dict[str, Float[Tensor, " n"]]  # what removing it from that input alone takes away
    others: dict[str, dict[str, Tensor]]  # first order, other heads' writes made as long
    held: dict[str, Tensor]  # first order and cut along values, the norm's scale held; no norm: {}


@torch.no_grad()
def pair_routes(
    model: Transformer,
    batch: probe.RepeatedBatch,
    writer: cut.Head,
    reader: cut.Head,
) -> PairRoutes:
    """The writer's write along value, query and key of the reader, and the same edges cut.

    Read where a later copy repeats the first (mean over those places of a row): reader's write . u,
    u the centred direction of the right next token. Both are the reader's direct effect: what an
    MLP after it makes of the write is not in them. The cut is chapter 06's: direct edge, zero.
    """
    tokens = batch.tokens.to(model.W_E.device)
    x, writes = directions(model, tokens, reader[0])
    u, w = next_token(model, tokens), weights(model, reader[0], [reader[1]])
    place = located(model, tokens)
    at = batch.second[:, :-1].to(tokens.device)  # each predicts the block's next token
    rows = torch.arange(len(tokens), device=tokens.device)[:, None]

    def logit(y: Tensor) -> Tensor:
        return (y * u).sum(-1)[rows, at].mean(-1)

    write = writes[head_name(writer)]

    def first_order(dx: Tensor, scale_held: bool = False) -> dict[str, Tensor]:
        found = routes(*read(model, reader[0], x, dx, scale_held=scale_held), place, w)
        return dict(zip(ROUTES, (logit(y[:, 0]) for y in found), strict=True))

    long = write.norm(dim=-1, keepdim=True)
    rivals = {n: dx for n, dx in writes.items() if n.startswith("head") and dx is not write}
    name = f"blocks.{reader[0]}.attn.hook_result"

    def effect(change: cut.Cut | None) -> Tensor:
        with last_logits_only(model):
            return logit(cut.run(model, tokens, change, [name])[1][name][:, :, reader[1]])

    clean, held = effect(None), {}
    if model.cfg.norm != "none":
        hold = cut.Cut(((f"blocks.{reader[0]}.ln1.hook_scale", _same(model, reader[0], x)),))
        gone = effect(cut.cut_path(model, writer, reader, "v") + hold)
        held = {"value": first_order(write, True)["value"], "cut": clean - gone}
    return PairRoutes(
        first_order(write),
        {r: clean - effect(cut.cut_path(model, writer, reader, r[0])) for r in ROUTES},
        {n: first_order(dx / dx.norm(dim=-1, keepdim=True) * long) for n, dx in rivals.items()},
        held,
    )


def _same(model: Transformer, layer: int, x: Tensor) -> Callable:
    # Hook: the scale of this layer's norm stays that of the stream x, for every head's input.
    centred = x - x.mean(-1, keepdim=True)
    s = (centred.square().mean(-1, keepdim=True) + model.blocks[layer].ln1.eps).sqrt()
    return lambda scale, hook: s[:, :, None].expand_as(scale)


# ---------------------------------------------------------------- the study


def identity_error(model: Transformer, tokens: Int[Tensor, "batch pos"], layer: int) -> float:
    """max |value + query + key - forward-mode derivative| over its largest entry, all heads."""
    x, writes = directions(model, tokens, layer)
    dx, w, place = writes["embedding"], weights(model, layer), located(model, tokens)
    norm = model.blocks[layer].ln1
    _, whole = torch.func.jvp(lambda y: heads_write(norm(y), place, w), (x,), (dx,))
    return relative_change(whole, routes(*read(model, layer, x, dx), place, w).total())


def study(
    *, windows: int = 8, length: int = 128, sequences: int = 12, seed: int = 2
) -> tuple[dict[str, Any], list[dict]]:
    """(data, claims): sizes of the routes on held-out text; the pair's routes and cuts at repeats.

    Errors of the pair's numbers are over sequences, which are drawn independently.
    """
    text = torch.from_numpy(corpus.heldout_windows(windows, length=length, seed=seed).tokens)
    d: dict[str, Any] = {"windows": windows, "length": length, "sequences": sequences, "models": {}}
    errors: dict[str, float] = {}
    for role in MODELS:
        generator = torch.Generator().manual_seed(seed)
        model, exact = zoo.load(role), zoo.load(role, dtype=torch.float64)
        pair, layer = spine.heads_pair(model), model.cfg.n_layers - 1
        batch = probe.repeated_batch(Bench.frequent(500), sequences, copies=2, generator=generator)
        few = text[:2, :48]
        for kind, m in (("float32", model), ("float64", exact)):
            found = max(identity_error(m, few, l) for l in range(model.cfg.n_layers))
            errors[kind] = max(errors.get(kind, 0.0), found)
        d["models"][role] = {
            "pair": [head_name(head) for head in pair],
            "table": table(model, text, layer, generator),
            "routes": _summary(pair_routes(model, batch, *pair)),
        }
    d["identities"] = {kind: bound(x, LIMITS[kind]) for kind, x in errors.items()}
    return d, claims(d)


def _summary(found: PairRoutes) -> dict[str, dict]:
    """[mean, standard error] over sequences, which are drawn independently."""

    def of(values: dict[str, Tensor]) -> dict[str, list[float]]:
        return {k: [x.mean().item(), x.std().item() / len(x) ** 0.5] for k, x in values.items()}

    others = {name: of(values) for name, values in found.others.items()}
    out = {"routes": of(found.routes), "cut": of(found.cut), "others": others}
    return out | ({"scale held": of(found.held)} if found.held else {})


def _apart(one: list[float], two: list[float]) -> float:
    """|difference| of two [mean, standard error], as a share of their size where that is below 1.

    So a limit on it holds in logits and relative to the number. Size: |mean|, or the standard error
    where a mean over sequences happens to cancel.
    """
    size = max(abs(x) for x in (*one, *two))
    return abs(one[0] - two[0]) / max(min(size, 1.0), 1e-30)


def claims(d: dict[str, Any]) -> list[dict]:
    """All claims. Sizes are first order; cuts are interventions."""
    models = d["models"]
    missed = [float(x) for m in models.values() for x in m["table"]["embedding"]["missed"]]
    chance = [
        float(x) for m in models.values() for x in m["table"]["random as embedding"]["missed"]
    ]
    every = [float(x) for m in models.values() for k, row in m["table"].items()
             if not k.startswith("random") for x in row["missed"]]  # fmt: skip
    made = [
        claim(
            "attnjac.identity",
            "In every layer of both models value, query and key routes add up to the derivative of "
            "all heads that automatic differentiation gives: to {f32} in float32 and {f64} in "
            "float64.",
            label="identity",
            values={"f32": f"{LIMITS['float32']:.0e}", "f64": f"{LIMITS['float64']:.0e}"},
            holds=all_of(*d["identities"].values()),
        ),
        claim(
            "attnjac.frozen_misses",
            "Move what the second layer reads along the embedding: frozen patterns miss {low:.0%} "
            "to {high:.0%} of the change, root mean square, in {n} heads of two models. A tenth "
            "was asked of each. Over all earlier writes it is {all_low:.0%} to {all_high:.0%}, and "
            "for random directions as long as the embedding {r_low:.0%} to {r_high:.0%}: so it "
            "says something about these heads, not about what was written.",
            label="measurement",
            values={"low": min(missed), "high": max(missed), "n": len(missed),
                    "all_low": min(every), "all_high": max(every),
                    "r_low": min(chance), "r_high": max(chance)},
            holds=atleast(min(missed), 0.1),
        ),
    ]  # fmt: skip
    for role, word in (("attn-only-2l", "two_layers"), ("gelu-2l", "with_mlps")):
        m = models[role]
        first, gone, others = (m["routes"][k] for k in ("routes", "cut", "others"))
        rest = max(abs(first[k][0]) for k in ("value", "query"))
        other = max(abs(x[0]) for row in others.values() for x in row.values())
        cut_rest = max(abs(gone[k][0]) for k in ("value", "query"))
        names = {"writer": m["pair"][0], "reader": m["pair"][1]}
        linear, more = (first["value"], gone["value"]), ""
        if "scale held" in m["routes"]:
            linear = tuple(m["routes"]["scale held"][k] for k in ("value", "cut"))
            more = (
                " Their difference was asked to be below that share of their own size too. The "
                "scale of the norm that it reads through is held in both. Where the scale answers, "
                "first order says {rate:.2f} and the cut {free:.2f}."
            )
        made += [
            claim(
                f"attnjac.pair_key_{word}",
                "In `" + role + "` the write of {writer} reaches {reader} by its keys: to first "
                "order {key:.2f} ± {se:.2f} logits for the right word at repeats, by queries "
                "{query:.2f}, by values {value:.2f}. Twice the next was asked. The write of any "
                "other first-layer head, made as long at every place, reaches {other:.2f} at most.",
                label="measurement",
                values=names
                | {
                    "key": first["key"][0], "se": first["key"][1], "query": first["query"][0],
                    "value": first["value"][0],
                    "other": other,
                },
                holds=all_of(
                    atleast(first["key"][0], 2 * rest), atleast(first["key"][0], 2 * other)
                ),
            ),
            claim(
                f"attnjac.pair_cut_{word}",
                "Chapter 06's cut of the same key edge takes away {cut:.2f} ± {se:.2f}; the "
                "query's {query:.2f}, the value's {value:.2f} (zero, direct edge; {reader}'s own "
                "write, in "
                "`" + role + "`). First order at the whole prompt says {times:.2f} times what the "
                "key cut takes. Twice the next was asked.",
                label="intervention",
                values=names
                | {
                    "cut": gone["key"][0], "se": gone["key"][1], "query": gone["query"][0],
                    "value": gone["value"][0], "times": part(first["key"], gone["key"]),
                },
                holds=atleast(gone["key"][0], 2 * cut_rest),
            ),
            claim(
                f"attnjac.value_is_linear_{word}",
                "Along the values of {reader} in `" + role + "` first order and the cut are the "
                "same number, within {limit} logits: a head is linear in its values." + more,
                label="identity",
                values=names
                | {"limit": "1e-4"}
                | ({"rate": first["value"][0], "free": gone["value"][0]} if more else {}),
                holds=bound(_apart(*linear), 1e-4),
            ),
        ]  # fmt: skip
    return made
