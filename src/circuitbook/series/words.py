"""What the page says in its own words: how to read it, the kinds, and names of fields."""

__all__ = ["COLUMNS", "INTRO", "KIND_WORDS", "NAMES", "TITLE"]

TITLE = "The series beside the course"

INTRO = (
    "This page lists every published number that the course refers to: those of Part 7 of the "
    "series, and public results about the same models and papers. Beside each stands ours, with a "
    "verdict.",
    "Some of them need no language model: counts, examples by hand, and small models that the "
    "course trains itself. These are judged here, and every machine must agree.",
    "Others were read from the series' own language models. The course's models are smaller and "
    "learned from other text, so ours is a number about another model. Both are shown, and nothing "
    "is judged.",
    "So the column “Ours, no download” holds two things. For the first group it is our value of "
    "the very same thing. For the second it is a number read from the course's models.",
    "The series' models are downloaded from a hub: `make published` fetches them, runs every "
    "chapter on them and writes a page of your own, `build/comparison.html`, where these numbers "
    "are judged too. Until then their column says “needs the hub”.",
    "In a token, ␣ stands for a space. M is a million.",
    "The page is built from the saved results by `make compare`. Nobody edits it by hand.",
)

KIND_WORDS = {
    "exact": "Must be equal.",
    "closed form": "Follows from algebra: equal to the printed digits.",
    "readout": "Read from fixed weights in one run: inside the stated tolerance.",
    "statistic": "A mean over texts, with its standard error: its score is inside two standard "
    "errors of the difference. Where that is wider than the score itself, zero would agree as "
    "well, and agreement is not counted.",
    "stochastic": "The outcome of a training run: its settings and what it represents must be "
    "equal, its loss inside the stated tolerance. Other fields have no stated tolerance; they are "
    "shown, and bear no mark. Equal settings alone are no agreement.",
    "external": "A public result about the same weights or the same paper, not from the series: "
    "compared loosely.",
}

COLUMNS = (
    "Number",
    "Series, or public",
    "Ours, published models",
    "Ours, no download",
    "Kind and tolerance",
    "Verdict",
)

# Fields whose name in the file is not yet a name for people; "_" becomes a space by itself.
NAMES = {
    "W": "weights W", "at_50": "losses at token 50", "at_500": "losses at token 500",
    "b_dec": "b_dec", "b_enc": "b_enc", "best_unit_cos_max": "best cosine to a unit, largest",
    "best_unit_cos_median": "best cosine to a unit, median", "bias_about": "bias, about",
    "broad": "broad score", "circuit_prob_diff": "probability difference, circuit alone",
    "cos_gt_0.9": "found, cosine > 0.9", "cos_gt_0.99": "found, cosine > 0.99",
    "d": "direction d", "dims": "dimensions", "direct": "direct path",
    "direct_attribution_predicted_drop": "drop that direct attribution predicts",
    "eigen_score": "copying score", "err": "squared error", "f": "activation f",
    "gap_degrees": "gaps (degrees)", "in": "input", "io_preferred":
    "share with the right name preferred", "l1": "price λ", "l1_part": "λ times activation",
    "latents_on": "latents on per input", "layer1_after_layer2": "first layer after the second",
    "layer1_on_direct": "first layer on the direct path",
    "layer2_after_layer1": "second layer after the first",
    "layer2_on_direct": "second layer on the direct path", "logit_diff": "logit difference",
    "loss_50": "loss at token 50", "loss_500": "loss at token 500", "max": "largest activation",
    "median_best_cos": "best cosine, median", "mlps": "MLPs", "norms": "lengths of directions",
    "off": "share of the time off", "one_layer": "one layer", "our_head": "our head",
    "out": "output", "plus_minus": "± (read as one standard error)",
    "prob_diff": "probability difference",
    "reads": "excited directly by", "s_inhibition": "S-inhibition",
    "self_top1": "share of tokens on top of their row",
    "self_top10": "share in the top 10 of their row", "true_on": "features on per input",
    "three_name_movers_mean_ablated": "three name movers mean-ablated",
    "two_layer_second_layer": "two layers, the second", "worst": "best cosine, worst feature",
    "writes": "raises", "x": "input x", "x_hat": "rebuilt x",
}  # fmt: skip
