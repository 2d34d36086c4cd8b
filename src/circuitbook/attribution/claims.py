"""The sentences about attribution graphs, with the bounds that decide whether they hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from circuitbook.claims import all_of, atleast, atmost, bound, claim, equal


def agreement(predicted: Any, measured: Any) -> float:
    """cos = p . m / (|p| |m|): 1 when every effect is the predicted one times one positive number.

    Effects are differences from the untouched model, so nothing is subtracted from them.
    """
    p, m = (np.asarray([float(v) for v in x]) for x in (predicted, measured))
    return float(p @ m / np.sqrt((p @ p) * (m @ m)))


def claims(d: dict[str, Any], errors: dict[str, float]) -> list[dict]:
    """All claims. Errors of identities are judged here and not kept."""
    return [*_sums(d, errors), *_switched(d, errors), *_hidden(d, errors), *_keys(d)]


def _sums(d: dict[str, Any], errors: dict[str, float]) -> list[dict]:
    prompts = d["prompts"]
    latents = sum(sum(p["whole"]["latents"]) for p in prompts.values())
    wrong = {n: sum(v for k, v in p["leaves"].items() if k.startswith("errors"))
             for n, p in prompts.items()}  # fmt: skip
    tokens = [p["leaves"]["tokens"] for p in prompts.values()]
    kept = [p["whole"]["node_share"] for p in prompts.values()]
    others = list(d["controls"].values())
    explained = [1 - wrong[n] / c["no latents"] for n, c in d["controls"].items()]
    rest = [sum(map(float, p["whole"]["into_logit"])) - float(p["logit"]) for p in prompts.values()]
    sally = prompts["Sally"]
    return [
        claim(
            "graph.edges_sum",
            "With patterns and the set of latents that are on held, the edges into each of {n} "
            "latents and of {m} logits sum to its pre-activation: to one part in {parts:,} or "
            "better, and to rounding in float64.",
            label="identity",
            values={"n": latents, "m": len(prompts), "parts": 100_000},
            holds=all_of(bound(errors["sum"], 1e-5), bound(errors["sum64"], 1e-11)),
        ),
        claim(
            "graph.leaves_sum",
            "All influence on the logit ends at tokens, errors or biases: their shares sum to one "
            "to one part in {parts:,} or better.",
            label="identity",
            values={"parts": 10_000},
            holds=bound(errors["leaves"], 1e-4),
        ),
        claim(
            "graph.errors_share",
            "Errors, what the transcoders did not explain, hold {low:.0%} to {high:.0%} of the "
            "influence on the logit in {n} prompts; tokens hold {t_low:.0%} to {t_high:.0%}. Edges "
            "sum as well when latents write each other's rows, but then errors hold {s_low:.0%} to "
            "{s_high:.0%}; without any latent they hold {e_low:.0%} to {e_high:.0%}. How much that "
            "is depends on how much the MLPs matter: with the latents it is {x_low:.0%} to "
            "{x_high:.0%} less than without any. At the begin-of-sequence token no latent "
            "is allowed; errors there hold up to {bos:.1%}.",
            label="measurement",
            values={
                "x_low": min(explained),
                "x_high": max(explained),
                "bos": max(p["whole"]["bos_errors"] for p in prompts.values()),
                "s_low": min(c["shuffled"] for c in others),
                "s_high": max(c["shuffled"] for c in others),
                "e_low": min(c["no latents"] for c in others),
                "e_high": max(c["no latents"] for c in others),
                "low": min(wrong.values()),
                "high": max(wrong.values()),
                "n": len(prompts),
                "t_low": min(tokens),
                "t_high": max(tokens),
            },
            holds=all_of(
                *(atmost(wrong[n], min(c.values())) for n, c in d["controls"].items()),
            ),
        ),
        claim(
            "graph.pruned",
            "A picture of at most {nodes} latents and errors keeps {low:.0%} to {high:.0%} of "
            "their influence, more than half in each of {n} prompts. On the Sally prompt, of "
            "{all_edges:,} edges it keeps {edges}; those into the logit sum to {kept:.2f}, the "
            "dropped ones to {dropped:.2f}.",
            label="measurement",
            values={
                "nodes": max(_inner(p) for p in prompts.values()),
                "n": len(prompts),
                "low": min(kept),
                "high": max(kept),
                "all_edges": sally["whole"]["edges"],
                "edges": len(sally["edges"]["weight"]),
                "kept": sally["whole"]["into_logit"][0],
                "dropped": sally["whole"]["into_logit"][1],
            },
            holds=all_of(atleast(min(kept), 0.5), *(bound(x, 1e-3) for x in rest)),
        ),
    ]


def _inner(p: dict[str, Any]) -> int:
    return sum(kind in ("latent", "error") for kind in p["nodes"]["kind"])


def _switched(d: dict[str, Any], errors: dict[str, float]) -> list[dict]:
    off, whole = d["edges_off"], d["nodes_off"]
    top = max(off, key=lambda n: abs(float(off[n]["edge"][0])))
    first = {k: v[0] for k, v in off[top].items()}
    edge = np.concatenate([np.asarray(x["edge"], dtype=float) for x in off.values()])
    again = np.concatenate([np.asarray(x["re-run"], dtype=float) for x in off.values()])
    x = {
        k: np.concatenate([np.asarray(g[k], dtype=float) for g in whole.values()])
        for k in ("predicted", "direct", "skip", "latents free", "patterns held", "re-run")
    }
    # The row's own write at the last position is in the prediction and the same at every level.
    p, q, direct = (x[k] - x["skip"] for k in ("predicted", "re-run", "direct"))
    cosine = agreement(p, q)
    each = [agreement(*(np.subtract(g[k], g["skip"]) for k in ("predicted", "re-run")))
            for g in whole.values()]  # fmt: skip
    rng = np.random.default_rng(0)
    shuffled = np.quantile([agreement(rng.permutation(p), q) for _ in range(1000)], 0.95)
    rest = np.abs(p).argsort()[:-1]
    return [
        claim(
            "graph.edge_moves_its_node",
            "Switch off latent {source} and hold the patterns: latent {target} falls from "
            "{before:.3f} by the edge, {edge:.3f}. So do the targets of all {n} tested edges, to "
            "one part in {parts:,}. Run again, with patterns and latents decided anew, it falls "
            "by {again:.3f}.",
            label="intervention",
            values={
                "source": first["source"],
                "target": first["target"],
                "edge": first["edge"],
                "again": first["re-run"],
                "before": first["before"],
                "n": len(edge),
                "parts": 100_000,
            },
            holds=bound(errors["edge"], 1e-5),
        ),
        claim(
            "graph.edges_rerun",
            "Over the {n} strongest edges between latents in {m} prompts, falls in the re-run "
            "model and edges have a cosine of {value:.3f}; the median difference is {gap:.1%} of "
            "the edge.",
            label="intervention",
            values={
                "n": len(edge),
                "m": len(off),
                "gap": float(np.median(np.abs(again - edge) / np.abs(edge))),
            },
            holds=atleast(agreement(edge, again), 0.9),
        ),
        claim(
            "graph.replay",
            "Edges and paths through later latents add up to what the frozen model does: in the "
            "replay that holds patterns, latents and errors, the logit falls as predicted for all "
            "{n} first-layer latents switched off, to one part in {parts:,}.",
            label="identity",
            values={"n": len(p), "parts": 10_000},
            holds=bound(errors["replay"], 1e-4),
        ),
        claim(
            "graph.prediction_holds",
            "Each of {n} first-layer latents switched off (its write, zero), all run again, the "
            "fall of the logit against the graph's prediction: cosine {whole:.2f}. But {ends} of "
            "them stand at the last position and write into the logit themselves, {share:.0%} of "
            "all that is predicted, the same at every level. Without that part it is {value:.2f} "
            "({rest:.2f} without the largest one; {low:.2f} to {high:.2f} within a prompt), the "
            "sign is right in {same:.0%}, and the model falls by {slope:.1f} times the prediction. "
            "The edge into the logit alone, without paths through latents: {direct:.2f}. "
            "Predictions shuffled among latents: {shuffled:.2f} or more in {tail:.0%} of shuffles.",
            label="intervention",
            values={
                "n": len(p),
                "ends": int((x["skip"] != 0).sum()),
                "share": float(np.abs(x["skip"]).sum() / np.abs(x["predicted"]).sum()),
                "whole": agreement(x["predicted"], x["re-run"]),
                "value": cosine,
                "rest": agreement(p[rest], q[rest]),
                "low": min(each),
                "high": max(each),
                "same": float(np.mean(np.sign(p) == np.sign(q))),
                "slope": float(p @ q / (p @ p)),
                "direct": agreement(direct, q),
                "shuffled": float(shuffled),
                "tail": 0.05,
            },
            holds=all_of(
                atleast(cosine, 0.5),
                atleast(cosine - agreement(direct, q), 0),
                atleast(cosine - float(shuffled), 0),
            ),
        ),
        claim(
            "graph.prediction_by_level",
            "The same falls, that part left out, level by level: cosine {free:.2f} when latents "
            "are decided anew, {held:.2f} when the MLPs run with patterns held, {again:.2f} when "
            "all runs again.",
            label="intervention",
            values={
                "free": agreement(p, x["latents free"] - x["skip"]),
                "held": agreement(p, x["patterns held"] - x["skip"]),
                "again": cosine,
            },
            holds=atleast(agreement(p, x["latents free"] - x["skip"]) - cosine, 0),
        ),
    ]


def _hidden(d: dict[str, Any], errors: dict[str, float]) -> list[dict]:
    name = max(d["hidden"], key=lambda n: abs(_through(d["hidden"][n])))
    h = d["hidden"][name]
    off = h["factors"].index(0.0)
    f = h["followers"]
    falls = {
        k: float(h[k]["logit"][0]) - float(h[k]["logit"][off])
        for k in ("all held", "patterns held", "re-run")
    }
    weaker = [float(x) > 0 for x in f["re-run"]]
    largest = max(abs(float(x)) for x in h["random"])
    return [
        claim(
            "graph.hidden_step",
            "Prompt {name}, the strongest of {prompts}: the graph gives latent {node} {total:.2f} "
            "logits, {through:.2f} of them through later latents. Switched off, all run again, "
            "the logit falls by {again:.2f} ({mlp:.2f} with patterns held), the answer from "
            "{p:.2f} to {q:.2f}. With the second MLP's write restored it falls by "
            "{restored:.2f}: that MLP carries {carried:.2f}. Of {random} random writes as long, "
            "none moves the logit by more than {largest:.2f}. Of its {n} chief followers, chosen "
            "by their edges, {weaker} weaken.",
            label="intervention",
            values={
                "name": name,
                "node": h["node"],
                "through": _through(h),
                "total": h["total"],
                "prompts": len(d["hidden"]),
                "restored": h["restored"],
                "carried": falls["re-run"] - float(h["restored"]),
                "random": len(h["random"]),
                "largest": largest,
                "mlp": falls["patterns held"],
                "again": falls["re-run"],
                "p": h["re-run"]["p"][0],
                "q": h["re-run"]["p"][off],
                "n": len(weaker),
                "weaker": sum(weaker),
            },
            holds=all_of(
                atleast(falls["re-run"] - largest, 0),
                atleast(falls["re-run"] - float(h["restored"]), 0),
            ),
        ),
    ]


def _through(h: dict[str, Any]) -> float:
    return float(h["total"]) - float(h["direct"])


def _keys(d: dict[str, Any]) -> list[dict]:
    b = d["blind"]
    pair = {"writer": b["pair"][0], "reader": b["pair"][1]}
    return [
        claim(
            "graph.blind_to_keys",
            "Cut head {writer} out of the keys of head {reader} (zero, direct edge) with patterns "
            "frozen: {changed} of {edges:,} edges of the Sally graph change, bit for bit. It "
            "cannot be otherwise: no edge reads a key.",
            label="identity",
            values=pair | {"changed": b["changed"], "edges": b["edges"]},
            holds=equal(b["changed"], 0),
        ),
        claim(
            "graph.keys_run_again",
            "The same cut of {writer} out of the keys of {reader}, nothing frozen: attention to "
            "the name falls from {a:.2f} to {b:.2f}, its edge into the logit from {e:.2f} to "
            "{f:.2f}, the answer from {p:.2f} to {q:.2f}.",
            label="intervention",
            values=pair | dict(zip("abefpq", [*b["attention"], *b["name"], *b["p"]], strict=True)),
            holds=atmost(float(b["attention"][1]), float(b["attention"][0]) / 2),
        ),
    ]
