"""The sentences about the four patching methods, with the bounds that decide whether they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from circuitbook.claims import all_of, atleast, atmost, claim

CONTENT, REASON = "name exchanged", "match broken"


def part(a: Sequence[float], b: Sequence[float]) -> float:
    """a over b, of two [mean, error]; 0 where b is nothing: no effect, no part of it."""
    return a[0] / b[0] if b[0] else 0.0


def claims(d: dict[str, Any]) -> list[dict]:
    """All claims; d["runs"][role][task] as `methods_study.one` gives it."""
    runs = d["runs"]
    return [*_whole(d, runs), *_first_order(runs), *_paths(runs), *_worst(d)]


def _whole(d: dict[str, Any], runs: dict[str, Any]) -> list[dict]:
    every = [run for tasks in runs.values() for run in tasks.values()]
    return [
        claim(
            "methods.integrated_complete",
            "At every stream the integrated gradients of all writes add up to the whole change, "
            "within {value:.2%} at {steps} steps in {n} cases; {bound:.0%} was allowed.",
            label="approximation",
            values={"steps": d["steps"], "n": len(every)},
            holds=atmost(max(run["incomplete"] for run in every), 0.01),
        )
    ]


def _first_order(runs: dict[str, Any]) -> list[dict]:
    made = []
    worst = {
        task: [run[task]["agreement"]["attribution"]["worst"][0] for run in runs.values()]
        for task in (CONTENT, REASON)
    }
    made.append(
        claim(
            "methods.content_is_linear",
            "Another name in the prompt: no component's effect is misjudged by first order by more "
            "than {value:.1%} of the whole change, in either model (components for which first "
            "order is exact by construction are left out). One twentieth was allowed.",
            label="intervention",
            values={"value": max(worst[CONTENT])},
            holds=atmost(max(worst[CONTENT]), 0.05),
        )
    )
    writer = {role: run[REASON]["writer"] for role, run in runs.items()}
    names = {role: run[REASON]["pair"][0] for role, run in runs.items()}
    share = {r: part(w["attribution"], w["activation"]) for r, w in writer.items()}
    over = {r: part(w["attribution, other end"], w["break"]) for r, w in writer.items()}
    a, g = "attn-only-2l", "gelu-2l"
    made.append(
        claim(
            "methods.first_order_saturates",
            "A broken match: giving the previous-token head its write back restores {a:.2f} ± "
            "{a_se:.2f} logits in `attn-only-2l` (head {a_head}) and {g:.2f} ± {g_se:.2f} in "
            "`gelu-2l` (head {g_head}). First order at the broken prompt sees {a_share:.0%} and "
            "{g_share:.0%} of that. Taken at the whole prompt it says {a_over:.1f} and "
            "{g_over:.1f} times what breaking costs. Less than half, and more than one and a half, "
            "were asked.",
            label="intervention",
            values={
                "a": writer[a]["activation"][0], "a_se": writer[a]["activation"][1],
                "g": writer[g]["activation"][0], "g_se": writer[g]["activation"][1],
                "a_head": names[a], "g_head": names[g],
                "a_share": share[a], "g_share": share[g], "a_over": over[a], "g_over": over[g],
            },
            holds=all_of(
                *(atmost(share[r], 0.5) for r in (a, g)), *(atleast(over[r], 1.5) for r in (a, g))
            ),
        )
    )  # fmt: skip
    low = {r: run[REASON]["integrated_better"][0] for r, run in runs.items()}
    error = {
        r: {w: run[REASON]["agreement"][w]["error"] for w in ("attribution", "integrated")}
        for r, run in runs.items()
    }
    made.append(
        claim(
            "methods.integrated_is_nearer",
            "On broken matches integrated gradients differ from activation patching by {a_ig:.0%} "
            "of the mean effect in `attn-only-2l` and {g_ig:.0%} in `gelu-2l`, first order by "
            "{a_at:.0%} and {g_at:.0%}. The intervals of the differences, prompts drawn again, lie "
            "above zero.",
            label="measurement",
            values={
                "a_ig": error[a]["integrated"][0], "g_ig": error[g]["integrated"][0],
                "a_at": error[a]["attribution"][0], "g_at": error[g]["attribution"][0],
            },
            holds=all_of(*(atleast(x, 0.0) for x in low.values())),
        )
    )  # fmt: skip
    rank = {r: run[REASON]["agreement"]["attribution"]["rank"] for r, run in runs.items()}
    made.append(
        claim(
            "methods.ranks_hide_it",
            "Ranks do not show the failure: on the same broken matches first order and activation "
            "patching have a rank correlation of {a:.2f} ({a_low:.2f} to {a_high:.2f}, {a_n} "
            "components, most with an effect near zero) and {g:.2f} ({g_low:.2f} to {g_high:.2f}, "
            "{g_n} components). {bound} was asked of the lower ends.",
            label="measurement",
            values={
                "a": rank[a][0], "a_low": rank[a][1], "a_high": rank[a][2],
                "g": rank[g][0], "g_low": rank[g][1], "g_high": rank[g][2], "bound": 0.8,
                "a_n": sum(runs[a][REASON]["free"]), "g_n": sum(runs[g][REASON]["free"]),
            },
            holds=all_of(*(atleast(x[1], 0.8) for x in rank.values())),
        )
    )  # fmt: skip
    return made


def _paths(runs: dict[str, Any]) -> list[dict]:
    out = []
    for role, word in (("attn-only-2l", "two_layers"), ("gelu-2l", "with_mlps")):
        run = runs[role][REASON]
        edges, writer = run["edges"], run["writer"]
        value = abs(edges["value"][0])
        rival = max(edges["rival"], key=lambda n: abs(edges["rival"][n][0]))
        other = abs(edges["rival"][rival][0])
        out.append(
            claim(
                f"methods.pair_by_paths_{word}",
                "In `" + role + "` the same write, let into the keys of head {reader} only, "
                "restores {key:.2f} ± {se:.2f} where all its ways together restore {all:.2f}; into "
                "its values, {value:.2f}. Another first-layer head, {rival}, gives {other:.2f} "
                "through the same keys, the others less. Held: all other heads and MLPs up to the "
                "reader. Half of the whole, and twice the other head, was asked of the key; at "
                "most a tenth of the whole was allowed to the values. (Queries and logits at the "
                "end cannot be reached: the write changes elsewhere.)",
                label="intervention",
                values={
                    "reader": run["pair"][1], "key": edges["key"][0], "se": edges["key"][1],
                    "all": writer["activation"][0], "value": value, "rival": rival,
                    "other": other,
                },
                holds=all_of(
                    atleast(part(edges["key"], writer["activation"]), 0.5),
                    atmost(part([value], writer["activation"]), 0.1),
                    atleast(edges["key"][0], 2 * other),
                ),
            )
        )  # fmt: skip
    edges = runs["gelu-2l"][REASON]["edges"]
    gap, se = edges["key, MLPs against"]
    out.append(
        claim(
            "methods.mlp_works_against_the_match",
            "In `gelu-2l` the write into these keys restores {held:.2f} with `MLP 0` held and "
            "{answer:.2f} when `MLP 0` may answer it there: {gap:.2f} ± {se:.2f} less, paired. Two "
            "standard errors were asked.",
            label="intervention",
            values={"held": edges["key"][0], "answer": edges["key, MLPs answer"][0], "gap": gap,
                    "se": se},
            holds=atleast(gap, 2 * se),
        )
    )  # fmt: skip
    return out


def _worst(d: dict[str, Any]) -> list[dict]:
    case = d["cases"]["largest"]
    return [
        claim(
            "methods.worst_case",
            "The worst of {n} cases in `attn-only-2l`, found by program: head {node} on a prompt "
            "that ends in “{last}” and should go on with “{right}”. First order says {first:+.2f} "
            "logits, the run says {truth:+.2f}.",
            label="intervention",
            values={
                "n": case["cells"], "node": case["node"], "last": case["tokens"][-1].strip(),
                "right": case["right"].strip(), "first": case["first_order"],
                "truth": case["truth"],
            },
            holds=atleast(abs(case["truth"] - case["first_order"]), 1.0),
        )
    ]  # fmt: skip
