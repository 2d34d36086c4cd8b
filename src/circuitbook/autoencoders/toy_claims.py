"""The sentences of chapter 09's toy half.

Bounds are the plan's where it has one. Those of the clusters and of the spare latents were set
after a first look at other runs, and a reader asked for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from circuitbook.autoencoders import hand, recovery
from circuitbook.autoencoders.recovery import DIMS, FEATURES, FOUND, IDLE, NEAR
from circuitbook.claims import all_of, atleast, atmost, bound, claim, close

PUBLISHED = {"found": 32, "variance": 0.828}
ASKED = {"median": 0.98, "mended lanes": 0.9}


def _plain(values: Any) -> list[float]:
    return [float(v) for v in values]


def study(
    plan: recovery.Plan, match: recovery.Match, naive: hand.Naive
) -> tuple[dict[str, Any], list[dict]]:
    """(data, claims) of the toy half; see `recovery.study`."""
    data = recovery.study(plan, match, naive)
    return data, claims(data)


def claims(d: Mapping[str, Any]) -> list[dict]:
    """All claims of the toy half, in the order of the lesson."""
    return [*hand_claims(d), *recovery_claims(d), *mended_claims(d)]


def hand_claims(d: Mapping[str, Any]) -> list[dict]:
    """What algebra says about one latent, and about the length in the penalty."""
    h, far = d["hand"], d["cheat"]
    f, err, price = (_plain(h[k]) for k in ("f", "err", "l1_part"))
    right, wrong = far["trained"]["with the length"], far["trained"]["without it"]
    moved = [
        max(abs(v / case["with the length"][0] - 1) for v in case["with the length"])
        for case in far.values()
    ]
    falls = [min(a - b for a, b in zip(c["without it"], c["without it"][1:])) for c in far.values()]
    one, half = d["one_value"], d["half_penalty"]
    exact = max(abs(float(v) - max(0.0, float(a) - half)) for a, v in zip(one["a"], one["f"]))
    s = d["shrinkage"]
    long = {k: median(v for a, v in zip(_plain(s["value"]), _plain(s[k])) if a >= 0.45)
            for k in ("best", "median")}  # fmt: skip
    return [
        claim(
            "saes.by_hand",
            "The first input turns the latent on at {on:.1f}: error {error:.2f}, price {price:.1f}."
            " The second leaves it off: error {off_error:.4f}, price {off_price:.0f}.",
            label="identity",
            values={
                "on": f[0],
                "error": err[0],
                "price": price[0],
                "off_error": err[1],
                "off_price": price[1],
            },
            holds=all_of(
                close(f[0], 0.4, 1e-6),
                close(err[0], 0.01, 1e-6),
                close(price[0], 0.2, 1e-6),
                close(f[1], 0, 1e-6),
                close(err[1], 0.0025, 1e-6),
            ),
        ),
        claim(
            "saes.rescaling_law",
            "Make every decoder row {stretch:.0f} times as long and every latent as much smaller. "
            "With the row's length in the penalty the loss stays, to {limit:g} of itself. Without "
            "it the loss falls at every stretch, from {before:.3f} to {after:.3f}; the error in it "
            "is {error:.3f} throughout.",
            label="identity",
            values={
                "stretch": far["trained"]["stretch"][-1],
                "limit": 1e-6,
                "before": wrong[0],
                "after": wrong[-1],
                "error": far["trained"]["error"],
            },
            holds=all_of(
                bound(max(moved), 1e-6),
                atleast(min(falls), 0),
                atleast(right[-1] - wrong[-1], 0.9 * (right[0] - far["trained"]["error"])),
            ),
        ),
        claim(
            "saes.half_the_penalty",
            "The cheapest value of a single latent is its true value minus half of λ, or zero: the "
            "formula and the descent agree to {limit:g}.",
            label="identity",
            values={"limit": 1e-6},
            holds=bound(exact, 1e-6),
        ),
        claim(
            "saes.shrinkage",
            "With the cheapest latents for its own decoder, a single feature of the toys comes "
            "back {value:.3f} too short in the median, from a length of {least:.1f} on; half of λ "
            "is {target:.2f}. With the latents of the encoder, which turn on at a length of "
            "{threshold:.2f} in the median, it is {encoder:.3f}.",
            label="measurement",
            values={"least": 0.5, "threshold": s["threshold"], "encoder": long["median"]},
            holds=close(long["best"], half, 0.02),
        ),
    ]


def recovery_claims(d: Mapping[str, Any]) -> list[dict]:
    """What the published setting finds, from starts that nobody chose."""
    p, toy, rivals = d["plain"], d["toy"], d["rivals"]
    found, near, lanes = p["found"], p["near"], len(p["found"])
    middle = {name: median(_plain(r["median"])) for name, r in rivals.items()}
    centres = rivals["k-means"]["found"]
    real = ("units", "PCA", "ICA", "random")
    shuffled, chance = middle["shuffled truth"], middle["random truth"]
    on, variance = median(_plain(p["latents_on"])), median(_plain(p["variance"]))
    fewer = sum(f <= PUBLISHED["found"] for f in found)
    return [
        claim(
            "saes.toys",
            "All {features} features are represented in {value} of {lanes} toys; their losses lie "
            "between {low:.4f} and {high:.4f} (published: {published}).",
            label="measurement",
            values={
                "features": FEATURES,
                "lanes": lanes,
                "low": min(_plain(toy["loss"])),
                "high": max(_plain(toy["loss"])),
                "published": 0.1525,
            },
            holds=atleast(sum(int(r) == FEATURES for r in toy["represented"]), lanes),
        ),
        claim(
            "saes.plain_start",
            "From independent starts {half:.0f} of {features} features are found at a cosine "
            "above {found} in the median of {lanes} toys (from {low} to {high}), and "
            "{near_middle:.0f} above {near} (from {near_low} to {near_high}). The median best "
            "cosine is at least {value:.4f} in every toy ({bound} was asked), the worst is "
            "{worst:.3f}.",
            label="measurement",
            values={
                "half": median(found),
                "features": FEATURES,
                "found": FOUND,
                "lanes": lanes,
                "low": min(found),
                "high": max(found),
                "near_middle": median(near),
                "near": NEAR,
                "near_low": min(near),
                "near_high": max(near),
                "worst": min(_plain(p["worst"])),
            },
            holds=atleast(min(_plain(p["median"])), ASKED["median"]),
        ),
        claim(
            "saes.published_count",
            "The published run found {published}. Of our {lanes} plain runs {value} found as few "
            "or fewer; the fewest is {low}.",
            label="measurement",
            values={"published": PUBLISHED["found"], "lanes": lanes, "low": min(found)},
            holds=atleast(fewer, 1),
        ),
        claim(
            "saes.other_direction",
            "The other way round: {middle:.0f} of the latents match some feature above {found} in "
            "the median toy, and the median latent's best cosine is at least {value:.4f}. "
            "The worst latent that fires has {worst:.3f}; {dead} latents of all runs never fire.",
            label="measurement",
            values={
                "middle": median(p["learned_found"]),
                "found": FOUND,
                "worst": min(_plain(p["learned_worst"])),
                "dead": sum(p["dead"]),
            },
            holds=atleast(min(_plain(p["learned_median"])), ASKED["median"]),
        ),
        claim(
            "saes.price_of_few",
            "The plain runs keep {value:.1%} of the variance in the median (published: "
            "{target:.1%}) and turn on {on:.2f} latents where {true:.2f} features are on.",
            label="measurement",
            values={
                "value": variance,
                "target": PUBLISHED["variance"],
                "on": on,
                "true": d["features_on"],
            },
            holds=all_of(
                close(variance, PUBLISHED["variance"], 0.03), atleast(on, d["features_on"])
            ),
        ),
        claim(
            "saes.ten_directions",
            "Ten directions cannot hold {features}. Median best cosine of the features with raw "
            "units {units:.2f}, PCA {pca:.2f}, ICA {ica:.2f}; with {features} random directions "
            "{chance:.2f}. None finds more than {value} of a toy's features above {found}.",
            label="measurement",
            values={
                "units": middle["units"],
                "pca": middle["PCA"],
                "ica": middle["ICA"],
                "chance": middle["random"],
                "features": FEATURES,
                "found": FOUND,
            },
            holds=atmost(max(max(rivals[n]["found"]) for n in real), DIMS),
        ),
        claim(
            "saes.clusters",
            "As many directions as features can: the centres of {features} clusters of the same "
            "vectors (spherical k-means) find {centres:.0f} in the median toy, from {low} to "
            "{high}, and more than the plain autoencoder in {more} of {lanes} toys. In these toys "
            "clustering is nearly enough. The mended runs of the next section find as many or more "
            "in {value} of {lanes}.",
            label="measurement",
            values={
                "features": FEATURES,
                "centres": median(centres),
                "low": min(centres),
                "high": max(centres),
                "more": sum(a < b for a, b in zip(found, centres)),
                "lanes": lanes,
            },
            holds=atleast(sum(a >= b for a, b in zip(d["mended"]["found"], centres)), 0.9 * lanes),
        ),
        claim(
            "saes.shuffled_truth",
            "On a shuffled truth the learned directions score {value:.3f}, on random directions "
            "{target:.3f}: no better, as it must be.",
            label="measurement",
            holds=close(shuffled, chance, 0.03),
        ),
    ]


def mended_claims(d: Mapping[str, Any]) -> list[dict]:
    """Why features are lost, and what brings them back."""
    p, m, b = d["plain"], d["mended"], d["blind"]
    lanes, setting = len(p["found"]), d["setting"]
    shared, spare, lost, crowded = (sum(p[k]) for k in ("shared", "spare", "lost", "crowded"))
    rise = [float(x) - float(y) for x, y in zip(p["loss"], m["loss"])]
    dearer = [r for r, s in zip(rise, p["shared"]) if s]
    whole, blind = (sum(n == FEATURES for n in way["found"]) for way in (m, b))
    return [
        claim(
            "saes.shared_is_spare",
            "There are as many latents as features. So the features that go without a latent of "
            "their own and the spare latents are as many, by counting: {value} over all runs.",
            label="identity",
            values={"value": shared},
            holds=all_of(atleast(shared, 1), close(shared - spare, 0, 0)),
        ),
        claim(
            "saes.where_they_are",
            "{lost} features are lost in all plain runs together (no cosine above {found}). "
            "{crowded} of them answer to a latent to which another feature answers too; the other "
            "{tilted} have a latent of their own that is tilted. Of the {spare} spare latents "
            "{value} are on for less than {rare:.0%} of the inputs (half was asked), and {doubled} "
            "stand at a cosine above {near} to a latent in use.",
            label="measurement",
            values={
                "lost": lost,
                "found": FOUND,
                "crowded": crowded,
                "tilted": lost - crowded,
                "spare": spare,
                "rare": IDLE,
                "doubled": sum(p["doubled"]),
                "near": NEAR,
            },
            holds=atleast(sum(p["idle"]), spare / 2),
        ),
        claim(
            "saes.mended_finds_all",
            "Carry spare latents to where most error is left, at set times in training, {moved} "
            "in all runs together; start, data and price as before. After {steps} steps {features} "
            "of {features} features are found above {found} in {value} of {lanes} toys "
            "({bound:.0f} was asked; plain: {plain}). The worst cosine of all is {worst:.4f}.",
            label="intervention",
            values={
                "moved": sum(m["moved"]),
                "steps": setting["mended_steps"],
                "features": FEATURES,
                "found": FOUND,
                "lanes": lanes,
                "plain": sum(n == FEATURES for n in p["found"]),
                "worst": min(_plain(m["worst"])),
            },
            holds=atleast(whole, ASKED["mended lanes"] * lanes),
        ),
        claim(
            "saes.blind_move",
            "Where a spare latent is carried should matter. Carried in random directions, as often "
            "({moved} moves) and for as many steps, all features come back in {blind} of {lanes} "
            "toys: {value} fewer than with the error as guide, and {bound} fewer was expected.",
            label="conjecture",
            values={"moved": sum(b["moved"]), "blind": blind, "lanes": lanes},
            holds=atleast(whole - blind, 3),
        ),
        claim(
            "saes.stuck_not_better",
            "The plain runs in which features share did not find something cheaper. On the same "
            "toy and inputs their loss, after {steps} steps, is above that of the mended run, "
            "after {fewer}, by {value:.4f} to {high:.4f}.",
            label="measurement",
            values={
                "steps": setting["steps"],
                "fewer": setting["mended_steps"],
                "high": max(dearer, default=0.0),
            },
            holds=atleast(min(dearer, default=0.0), 0.001),
        ),
    ]
