"""The measurement of chapter 09's last part: "Sally" from the values, and from the scores.

Every number over the prompts is a mean with its standard error over names: the frames of one name
are not independent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from circuitbook import cut, paths, spine, tokenizer, zoo
from circuitbook.aunt_sally import control, prompts, read_side
from circuitbook.aunt_sally.claims import claims
from circuitbook.aunt_sally.forward import Pass, forward, reader
from circuitbook.aunt_sally.prompts import Frame
from circuitbook.aunt_sally.sides import mean, ratio, read_numbers, reason_numbers, sally
from circuitbook.cut import Head
from circuitbook.model import Transformer

ROLES = ("attn-only-1l", "attn-only-2l", "attn-only-2l-again", "gelu-2l")
LEAST = 200  # prompts: the course asks for as many


def roles() -> tuple[str, ...]:
    """Of ROLES those that today's model set has: no published model was trained twice."""
    if paths.models() == "course":
        return ROLES
    from circuitbook.published import pins

    return tuple(role for role in ROLES if role in pins.MODELS)


def strongest(model: Transformer, frames: list[Frame], passes: list[Pass]) -> Head:
    """The last layer's head with most attention from the last title to the name, on average."""
    looks = torch.stack([p.patterns[-1][:, :, -1, f.name].mean(0) for f, p in zip(frames, passes)])
    return model.cfg.n_layers - 1, int(looks.mean(0).argmax())


def one_prompt(model: Transformer, frame: Frame, seen: Pass) -> dict[str, Any]:
    """The series' prompt: probability and rank of the name, five best tokens, strongest head."""
    i, tok = sally(), tokenizer.load()
    odds = control.odds(model, frame, seen.last)
    p, best = model.unembed(seen.last[None, i : i + 1])[0, 0].softmax(-1).topk(5)
    row = seen.patterns[-1][i, :, -1, frame.name]
    head = int(row.argmax())
    return {
        "p": odds.probability[i],
        "rank": odds.rank[i],
        "top5": [[tok.text(t), x] for t, x in zip(best.tolist(), p.tolist(), strict=True)],
        "head": [f"{model.cfg.n_layers - 1}.{head}", row[head]],
        "attention": seen.patterns[-1][i, head, -1],
    }


def all_prompts(
    model: Transformer, frames: list[Frame], clean: list[Pass], head: Head
) -> dict[str, Any]:
    """Every swap of titles on every prompt: attention to the name, probability, rank, named logit.

    other: probability of all names of the other sex together. When the first title is exchanged:
    fall: of the mean attention, relative. halved: share of prompts where it falls by half. moved:
    largest change of the head's score at (last title, name). token_part: how many numbers of what
    the head copies of the name's own token differ in the two runs. value: change of all that it
    copies there, its length over that of the whole. scale, with a norm only: the largest relative
    change of the scale that the head divides by at the name.
    """
    out: dict[str, Any] = {}
    raw: dict[str, dict[str, list[Tensor]]] = {}
    passes: dict[str, list[Pass]] = {}
    scores = {}
    for which in prompts.SWAPS:
        again = which != "none"
        passes[which] = (
            [forward(model, prompts.swapped(f, which)) for f in frames] if again else clean
        )
        found = [control.odds(model, f, p.last) for f, p in zip(frames, passes[which])]
        attention = [p.patterns[-1][:, head[1], -1, f.name] for f, p in zip(frames, passes[which])]
        rank = torch.cat([o.rank for o in found]).double()
        raw[which] = {
            "attention": attention,
            "p": [o.probability for o in found],
            "named": [o.named for o in found],
            "other": [o.other for o in found],
        }
        out[which] = {k: mean(v) for k, v in raw[which].items()} | {
            "rank": rank.median(),
            "first": (rank == 1).double().mean(),
        }
        r = [reader(model, p, head[1]) for p in passes[which]]
        s = torch.cat([(x.q * x.k[:, f.name]).sum(-1) for x, f in zip(r, frames)])
        scores[which] = s / model.cfg.d_head**0.5
    kept, se = ratio(raw["first"]["attention"], raw["none"]["attention"])
    own, value = what_is_copied(model, frames, passes, head)
    scale = {} if model.cfg.norm == "none" else {"scale": scale_change(frames, passes)}
    return scale | {
        "swap": out,
        "raw": raw,
        "passes": passes,
        "moved": (scores["first"] - scores["none"]).abs().max().item(),
        "fall": [1 - kept, se],
        "token_part": own,
        "value": value,
        "halved": torch.cat(
            [
                (b <= a / 2).double()
                for a, b in zip(raw["none"]["attention"], raw["first"]["attention"])
            ]
        ).mean(),
    }


def what_is_copied(
    model: Transformer, frames: list[Frame], passes: dict[str, list[Pass]], head: Head
) -> tuple[int, list[float]]:
    """(token part, all) of what the head copies at the name, first title as it is or exchanged.

    Numbers of the token part that differ at all; mean change of the whole over its mean length.
    """
    differ, moved, length = 0, [], []
    for frame, *pair in zip(frames, passes["none"], passes["first"], strict=True):
        (own, whole), (own2, whole2) = (control.copied(model, p, head[1], frame.name) for p in pair)
        differ += int((own != own2).sum())
        moved.append((whole2 - whole).norm(dim=1))
        length.append(whole.norm(dim=1))
    return differ, ratio(moved, length)


def scale_change(frames: list[Frame], passes: dict[str, list[Pass]]) -> float:
    """Largest |s' / s - 1| of the last layer's norm at the name, first title exchanged."""
    worst = 0.0
    for f, a, b in zip(frames, passes["none"], passes["first"], strict=True):
        ratio = b.scales[-1][:, f.name] / a.scales[-1][:, f.name]
        worst = max(worst, (ratio - 1).abs().max().item())
    return worst


def cuts(
    model: Transformer, frames: list[Frame], passes: dict[str, list[Pass]], pair: tuple[Head, Head]
) -> dict[str, dict[str, list[float]]]:
    """Each edge cut and the one-edge patch on every prompt: attention, probability, named logit."""
    rows: dict[str, dict[str, list[Tensor]]] = {}
    for frame, seen, other in zip(frames, passes["none"], passes["first"], strict=True):
        after = control.edge_cuts(model, seen, pair)
        after["patched"] = control.patched(model, seen, other, pair)
        for name, (attention, last) in after.items():
            found = control.odds(model, frame, last)
            row = rows.setdefault(name, {"attention": [], "p": [], "named": []})
            row["attention"].append(attention[:, frame.name])
            row["p"].append(found.probability)
            row["named"].append(found.named)
    return {name: {k: mean(v) for k, v in row.items()} for name, row in rows.items()}


@torch.no_grad()
def frozen_and_rerun(
    model: Transformer, frame: Frame, pair: tuple[Head, Head]
) -> dict[str, float | int]:
    """The K-cut seen twice: by a graph with patterns frozen, and by the model run again.

    edges: how many of the read side's entries differ at all, bit for bit, under cut and freeze.
    kept: how many numbers of the reader's query and values, and of all other last-layer patterns,
    differ in the one-edge patch run again as a whole (must be 0). shortcut: the largest difference
    of `edge_cuts` and `patched` from whole runs.
    """
    writer, head = pair
    k_cut, i = cut.cut_path(model, *pair, "k"), sally()
    clean = forward(model, frame.tokens, cut.Cut())
    held = forward(model, frame.tokens, k_cut + cut.freeze_patterns(model, frame.tokens))
    again = forward(model, frame.tokens, k_cut)
    out: dict[str, float | int] = {}
    changed = int((held.last != clean.last).sum())
    if model.cfg.attn_only:
        u = read_side.directions(model, frame)[0]
        one, two = (
            read_side.paths_to_logit(model, frame.tokens, p.patterns, u, (p.scales, p.last_scale))
            for p in (clean, held)
        )
        changed += int((one != two).sum())
    at = (i, head[1], -1, frame.name)
    out |= {"changed": changed, "before": clean.patterns[-1][at], "after": again.patterns[-1][at]}
    other = forward(model, prompts.swapped(frame, "first"), cut.Cut())
    change = control.other_reason(pair, other.writes[:, writer[1]])
    names = [f"blocks.{head[0]}.attn.hook_{x}" for x in ("q", "v", "pattern")]
    want = cut.run(model, frame.tokens, names=names)[1]
    got = cut.run(model, frame.tokens, change, names)[1]
    rest = [h for h in range(model.cfg.n_heads) if h != head[1]]
    same = [(got[n] != want[n]).sum() for n in names[:2]]
    same.append((got[names[2]][:, rest] != want[names[2]][:, rest]).sum())
    out["kept"] = int(sum(same))
    after = control.edge_cuts(model, clean, pair)
    slow = forward(model, frame.tokens, change)
    out["shortcut"] = max(
        (after["none"][1] - clean.last).abs().max().item(),
        (after["key"][1] - again.last).abs().max().item(),
        (control.patched(model, clean, other, pair)[1] - slow.last).abs().max().item(),
    )
    return out


def study(
    n_frames: int = len(prompts.FRAMES), least: int = LEAST
) -> tuple[dict[str, Any], list[dict]]:
    """(data, claims) of the part; `n_frames` of the sentence frames are used, eight at most.

    least: how many prompts the comparison of one layer with two must have.
    """
    frames = prompts.frames(prompts.FRAMES[:n_frames])
    tok, data, errors = tokenizer.load(), {}, {}
    found_roles: dict[str, Any] = {}
    for role in roles():
        model = zoo.load(role, device="cpu")  # short prompts; the CPU will do
        two = model.cfg.n_layers == 2
        clean = [forward(model, f.tokens) for f in frames]
        pair = spine.heads_pair(model, 8) if two else None
        head = pair[1] if pair else strongest(model, frames, clean)
        found = all_prompts(model, frames, clean, head)
        passes = found.pop("passes")
        raw = found.pop("raw")
        found_roles[role] = found | {
            "head": f"{head[0]}.{head[1]}",
            "prompt": one_prompt(model, frames[0], clean[0]),
            "heads": torch.cat(
                [p.patterns[-1][:, :, -1, f.name] for f, p in zip(frames, clean)]
            ).mean(0),
        }
        found_roles[role]["raw_p"] = raw["none"]["p"]
        error = {}
        writer = pair[0][1] if pair else None
        numbers, error["reason"] = reason_numbers(model, frames, clean, head, writer)
        found_roles[role]["reason"] = numbers
        if model.cfg.attn_only:
            found_roles[role]["read"], error["read"] = read_numbers(model, frames, clean)
            exact = zoo.load(role, dtype=torch.float64, device="cpu")
            seen = [forward(exact, frames[0].tokens)]
            error["read64"] = read_numbers(exact, frames[:1], seen)[1]
            error["reason64"] = reason_numbers(exact, frames[:1], seen, head, writer)[1]
        if pair:
            found_roles[role]["writer"] = f"0.{writer}"
            found_roles[role]["cuts"] = cuts(model, frames, passes, pair)
            frozen = frozen_and_rerun(model, frames[0], pair)
            error["shortcut"] = frozen.pop("shortcut")
            found_roles[role]["frozen"] = frozen
        errors[role] = error
    raw_p = {role: model.pop("raw_p") for role, model in found_roles.items()}
    two_less_one = mean(
        [b - a for a, b in zip(raw_p["attn-only-1l"], raw_p["attn-only-2l"], strict=True)]
    )
    row = frames[0].tokens[sally()].tolist()
    data = {
        "tokens": [tok.text(t) for t in row],
        "n": sum(len(f.tokens) for f in frames),
        "frames": len(frames),
        "names": len(frames[0].tokens),
        "places": [[f.first, f.name, f.last] for f in frames],
        "gap": two_less_one,
        "roles": found_roles,
    }
    return data, claims(data, errors, least)


def series(data: dict[str, Any]) -> dict[str, Any]:
    """Our numbers under the ids of the series (reference/series.json)."""
    out: dict[str, Any] = {"part7.aunt_sally.tokens": len(data["tokens"])}
    for role in ROLES[:2]:
        one = data["roles"][role]["prompt"]
        out |= {
            f"part7.aunt_sally.{role}.p_sally": one["p"],
            f"part7.aunt_sally.{role}.top5": one["top5"],
            f"part7.aunt_sally.{role}.head": one["head"],
        }
    return out
