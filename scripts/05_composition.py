# %% [markdown]
# # 05 · Composition: how heads feed heads
# Series: Part 5 · Reading: 85 minutes · CPU: 1 minute
#
# One head writes, a later head reads. It can read the write as a query, as a key, or as a value. In this chapter you measure all three, and you find out how far the usual score can be trusted.
#
# **You will do**: split a second-layer score into its hundred terms, score every pair of heads, cut every edge between heads, and set the scores beside the cuts.
# **You will learn**: what composition is; why a high score may do nothing; why a low one may do a lot; what stays true in any coordinates.
# **You need**: chapters 02 and 03, singular values. Sections marked *core* take about 50 minutes, *extension* about 35.
#
# **Notation, once.** Papers write columns: Q-, K- and V-composition are $\lVert W_{QK}^\top W_{OV}\rVert$, $\lVert W_{QK}W_{OV}\rVert$, $\lVert W_{OV}^2W_{OV}^1\rVert$. The code writes rows: `W_OV W_QK`, `W_OV W_QK^T`, `W_OV1 W_OV2`. The norms are the same.

# %%
from dataclasses import dataclass

import torch

from circuitbook import compose, corpus, gallery, plots, zoo
from circuitbook.check import check
from circuitbook.claims import all_of, atleast, atmost, claim, close, equal, ours, show
from circuitbook.composition import bilinear, coordinates, edges, pairs
from circuitbook.gallery.ch05 import disagreement_rows, virtual_rows
from circuitbook.paths import device, models, sizes
from circuitbook.results import bound, measured
from circuitbook.taught.ch02 import thin_svd

# %% [markdown] tags=["core"]
# ## 1 · Two axes are not enough · core, 10 minutes
# A first-layer head is $A\otimes W$: one matrix on positions, one on features. Now substitute that into a second-layer *score*. A score has a query side and a key side, and each side can come through a head of its own. So a term has three matrices: $A_q$ on the query's position, $A_k$ on the key's position, $W$ between the features. We write $A_q\otimes A_k\otimes W$, and $W=W_{OV}^{a}\,W_{QK}\,(W_{OV}^{b})^\top$.


# %% tags=["save", "core"]
def both_sides_term(A_q, A_k, W, x):
    """(A_q ⊗ A_k ⊗ W) x: entry (i, j) = Σ_mn A_q[i, m] A_k[j, n] x_m W x_nᵀ, before √d_head.

    A_q, A_k [pos, pos], W [d_model, d_model], x [pos, d_model]. The identity as A_q means: direct.
    """
    return (A_q @ x) @ W @ (A_k @ x).mT


# %% [markdown] tags=["core"]
# ## 2 · A hundred terms · core, 10 minutes
# What can a second-layer query be made of? The token, the position, and the writes of eight heads: ten sources. The key has the same ten. A score is a product of two sums, so it is a sum of a hundred products. Four classes sort them. *Neither* side came through a head (*direct* means token and position together), only the *query side*, only the *key side*, or *both*. The position counts as direct in every layer: these models add it to queries and keys anew.
#
# **Which class matters?** Not the largest. Softmax ignores whatever is equal for all keys of a query. So centre each row over the keys that the query may see, and ask how a class varies *with* the whole: $\mathrm{share}_c=\sum_i\mathrm{Cov}_j(s_c,s)\,/\sum_i\mathrm{Var}_j(s)$. The shares sum to one. A negative share works against the rest.


# %% tags=["exercise", "core"]
# exercise: 05.covariance_shares points=3 minutes=15 difficulty=2
def covariance_shares(parts):
    """Share of each part in the variation over keys of their sum; the shares sum to one.

    parts [n, pos, key]: scores before the mask; query i sees keys 0 ... i. Returns [n]:
    sum over queries of Cov_j(part, whole), over the sum of Var_j(whole). Cov_j divides by the number of keys.
    """
    # solution
    parts = parts.tril()
    seen = torch.arange(1, parts.shape[-1] + 1).to(parts)[:, None]
    centred = (parts - parts.sum(-1, keepdim=True) / seen).tril()
    together = (centred * centred.sum(0) / seen).sum((-2, -1))
    return together / together.sum()


# %%
check("05.covariance_shares", covariance_shares)

# %% [markdown] tags=["core"]
# ## 3 · One number for a pair · core, 12 minutes
# The paper scores a pair by the size of the product: $\lVert M_1M_2\rVert/(\lVert M_1\rVert\lVert M_2\rVert)$, Frobenius norms. $M_1$ is the writer's `W_OV`. $M_2$ is what the reader does with it: `W_QK` for a query, `W_QK^T` for a key, `W_OV` for a value. `compose` takes all pairs at once. It uses $\lVert M_1M_2\rVert^2=\mathrm{tr}(M_1^\top M_1\,M_2M_2^\top)$: the inner product of one matrix per writer and one per reader.
#
# **What is a high score?** Turn the writer by a random rotation $U$. Then $E\lVert M_1UM_2\rVert^2=\mathrm{tr}(M_1^\top M_1\,E[US U^\top])$ with $S=M_2M_2^\top$, and a rotation in all directions alike leaves $E[USU^\top]=\mathrm{tr}(S)\,I/d$. So $E[\mathrm{score}^2]=1/d$ exactly, whatever the two matrices are. At width 256 that is a root mean square of 0.0625. Heads of few directions scatter more, so we simulate a baseline at a rank no larger than either head's effective one.
# **It is not a cosine.** The score asks whether what is written can be read. Two matrices may have inner product zero and score one.


# %% tags=["exercise", "core"]
# exercise: 05.k_score points=3 minutes=15 difficulty=2
def k_score(W_V, W_O, W_Q, W_K):
    """K-composition of one pair: ||W_OV W_QK^T|| / (||W_OV|| ||W_QK||), Frobenius norms.

    W_V [d, r], W_O [r, d] of the earlier head; W_Q, W_K [d, r] of the later one. Returns a number.
    """
    # solution
    W_OV, W_QK = W_V @ W_O, W_Q @ W_K.mT
    return ((W_OV @ W_QK.mT).norm() / (W_OV.norm() * W_QK.norm())).item()


# %%
check("05.k_score", k_score)

# %% [markdown] tags=["core"]
# **Controls before data.** A pair tuned to compose through keys only; the same with the transpose forgotten, which gives the Q-score; a pair with inner product zero and score one; and random pairs. **Predict** the five numbers.

# %% tags=["core"]
print({name: round(value, 4) for name, value in pairs.controls().items()})

# %% [markdown] tags=["core"]
# ## 4 · The erratum · core, 7 minutes
# $XY$ and $YX$ have the same trace and the same nonzero eigenvalues. They do not have the same size. The authors of the 2021 paper once used the shortcut for eigenvalues to speed up a norm, and said so later: there was more composition in their model than one diagram showed. Here is a pair small enough for paper and pencil. **Predict** both norms before you run it.


# %% tags=["save", "core"]
def rotated_score(left_1, right_1, left_2, right_2):
    """The slip: factors turned round, ‖R₂L₁·R₁L₂‖ / (‖R₁L₁‖ ‖R₂L₂‖). Not the size of M₁M₂.

    A cyclic rotation keeps trace and eigenvalues only. This number moves with head coordinates.
    """
    turned, one, two = right_2 @ left_1 @ right_1 @ left_2, right_1 @ left_1, right_2 @ left_2
    return torch.linalg.matrix_norm(turned) / (one.norm() * two.norm())


SLIP_X = ((1.0, 2.0, 0.0), (0.0, 1.0, 1.0))
SLIP_Y = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))

# %% tags=["core"]
X, Y = torch.tensor(SLIP_X), torch.tensor(SLIP_Y)
print("traces", (X @ Y).trace().item(), (Y @ X).trace().item())
print("squared norms", (X @ Y).square().sum().item(), (Y @ X).square().sum().item())

# %% [markdown] tags=["extension"]
# ## 5 · Which directions carry a pair? · extension, 8 minutes
# Write $M_1=\sum\sigma_i\,a_iv_i$ and $M_2=\sum\tau_j\,u_jb_j$. Then the squared score is a weighted mean of squared overlaps between what is written, $v_i$, and what is read, $u_j$. Each pair of directions gets its own part.


# %% tags=["save", "extension"]
def overlap_parts(left_1, right_1, left_2, right_2):
    """score² = Σ_ij σ_i² τ_j² (v_i·u_j)² / (Σσ² Στ²): the part of every pair of directions [r, r]."""
    _, s, v = thin_svd(left_1, right_1)
    u, t, _ = thin_svd(left_2, right_2)
    size = s.square()[:, None] * t.square()
    return size * (v @ u).square() / size.sum()


# %% [markdown] tags=["core"]
# ## 6 · The deepest criticism · core, 8 minutes
# Chapter 01 changed the stream by any invertible $G$, and no output moved. The matrices do move: $W_{OV}$ becomes $G^{-1}W_{OV}G$, and $W_{QK}$ becomes $G^{-1}W_{QK}G^{-\top}$. Writer and reader still meet as $G\,G^{-1}$, so nothing that the model does has changed. But a Frobenius norm counts squared entries, and entries belong to coordinates. Only a rotation keeps it. So the score is a number about coordinates as much as about heads. How bad can it get? Make one coordinate a thousand times shorter. Then one entry of $W_{QK}$ grows a millionfold, one row of $W_{OV}$ a thousandfold, and their product only a millionfold. **All** scores sink, as far as we like. And for any pair we can look for coordinates that flatter it. We do both in the measurement.

# %% [markdown]
# ## 7 · The measurement
# All numbers below come from this cell. It runs once; afterwards the saved results are read. Cuts remove one head's write from one input of one later head (direct edge, zero), and only what follows is recomputed. Losses are paired by window, errors clustered by document.


# %%
@dataclass(frozen=True)
class Config:
    """What defines this chapter's experiment."""

    windows: int = 16
    repeats: int = 16
    every: int = 4
    bootstrap: int = 1000


# Not formatted from here on: a line for each number, a few lines for each claim.
# fmt: off
def compute(cfg):
    """All numbers of the chapter, from its config alone."""
    held_out, role = corpus.heldout_windows(cfg.windows), "attn-only-2l"
    tokens, doc = torch.from_numpy(held_out.tokens).to(device()), torch.from_numpy(held_out.doc)
    model, exact, H = zoo.load(role), zoo.load(role, dtype=torch.float64), range(8)
    (h1, h2), batch, width, rank = *pairs.followed(model, cfg.repeats), model.cfg.d_model, model.cfg.d_head
    texts, repeats = ([bilinear.take_apart(model, t.to(device())) for t in some[:4]] for some in (tokens, batch.tokens))
    split = {name: [bilinear.shares(model, w, h) for h in H] for name, w in (("text", texts), ("repeats", repeats))}
    scores, effects = pairs.scores(model), edges.all_effects(model, tokens, doc, cfg.every)
    several = pairs.several_tokens_back(torch.stack([w.patterns for w in texts]))
    wide = int(several.index_fill(0, torch.tensor([h1], device=several.device), -1).argmax())
    wanted = [(a, b, "k") for a in H for b in H] + [(h1, h2, "q"), (h1, h2, "v")]
    cut = pairs.repeat_cuts(model, batch, wanted)
    one, two = pairs.writer(exact, h1), pairs.reader(exact, h2, "k")
    noise = torch.randn(4, width, rank, generator=torch.Generator().manual_seed(1)).double()
    parts, chance = overlap_parts(*one, *two), overlap_parts(noise[0], noise[1].mT, noise[2], noise[3].mT)
    table = torch.stack([scores.q, scores.k, scores.v]).double().cpu()
    moves = coordinates.survival(exact, tokens[0, :48], (h1, h2), rotated_score)
    def rho(x, y, which): return list(edges.rank_interval(x[which].cpu(), y[which].cpu(), cfg.bootstrap))
    Q, K, V, QK, ALL = [0], [1], [2], [0, 1], [0, 1, 2]
    d = {
        "pair": [h1, h2], "wide": wide, "several": several,
        "shares": {n: {c: [s[0][c] for s in split[n]] for c in bilinear.CLASSES} for n in split},
        "sources": split["repeats"][h2][1],
        "values": [bilinear.value_shares(model, texts, h) for h in H],
        "scores": {"q": scores.q, "k": scores.k, "v": scores.v},
        "baseline": pairs.baselines(model),
        "simulated": {"mean": compose.simulated(rank, width, 200, torch.Generator().manual_seed(0)).mean(), "rank_one": compose.simulated(1, width, 4000, torch.Generator().manual_seed(1)).mean() / compose.random_baseline(width)},
        "rotated": pairs.rotated_scores(model, rotated_score),
        "effects": effects,
        "rank": {"K pattern": rho(table, effects["pattern"], K), "Q pattern": rho(table, effects["pattern"], Q), "all loss": rho(table, effects["loss"], ALL), "V size": rho(table, effects["size"], V),
                 "QK score": rho(table, effects["pattern"], QK), "QK spread": rho(effects["spread"], effects["pattern"], QK)},
        "repeats": {"whole": cut["whole"], "prefix": cut["prefix"][:64].view(8, 8), "loss": cut["loss"][:64].view(8, 8), "pair_q": [cut["prefix"][64], cut["loss"][64]], "pair_v": [cut["prefix"][65], cut["loss"][65]]},
        "directions": {"pair": parts.flatten().sort(descending=True).values.cumsum(0)[: parts.numel() // 4] / parts.sum(), "random": chance.flatten().sort(descending=True).values.cumsum(0)[: parts.numel() // 4] / chance.sum(), "top": parts[:8, :8] / parts.sum()},
        "coordinates": coordinates.criticism(cfg.windows),
        "moves": {k: {q: m if m > 1e-8 else 0.0 for q, m in row.items()} for k, row in moves.items()},
        "eigenvalue": pairs.virtual_eigenvalue_score(exact, h1, h2),
    }
    (apart, own), some, short = (d["coordinates"].pop(k) for k in ("logits", "pair")), [(0, 1, "q"), (h1, h2, "k"), (wide, h2, "k"), (2, 3, "v"), (h1, h2, "v")], tokens[0, :128]
    exactly = {
        "terms": [bilinear.sum_error(m, tokens[:1, :128]) for m in (model, exact)], "dropped": bilinear.sum_error(exact, tokens[:1, :128], position=False),
        "dense": (pairs.dense_scores(model) - torch.stack(list(scores))).abs().max(), "singular": abs(parts.sum().sqrt() - compose.pair_scores(*(x[None] for x in (*one, *two))).item()),
        "slow": pairs.slow_error(model, short, some), "frozen": pairs.frozen_cut(model, batch.tokens[:2].to(device()), (h1, h2)), "virtual": pairs.virtual_head_error(exact, short, (h1, h2)),
        "apart": apart, "own": own, "normed": models() == "published", "parts": parts.numel(), "shape": (rank, width), "share": max(abs(sum(s[0].values()) - 1) for n in split for s in split[n]), **pairs.local_changes(model, tokens[:1, :128], (h1, h2))}
    return {"data": d | {"rungs": pairs.rungs(d, exactly["frozen"])}, "claims": claims(d, moves, exactly)}


def claims(d, moves, exactly):
    """The chapter's sentences. Errors of identities are judged here and not kept."""
    (h1, h2), wide, S, E, rank, fixed = d["pair"], d["wide"], d["scores"], d["effects"], d["rank"], d["repeats"]
    names, c = {"writer": f"0.{h1}", "reader": f"1.{h2}", "wide": f"0.{wide}"}, d["coordinates"]
    place = {n: 1 + int((t > t[h1, h2]).sum()) for n, t in (("k", S["k"]), ("rotated", d["rotated"][1]))}
    X, Y = torch.tensor(SLIP_X), torch.tensor(SLIP_Y)
    R, G, C, Kq = (moves[k] for k in ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query"))
    share = d["shares"]["repeats"]
    half = {n: 1 + int((d["directions"][n] < 0.5).sum()) for n in ("pair", "random")}
    left, spared = fixed["prefix"][h1, h2] / fixed["whole"][h2], fixed["pair_q"][0] / fixed["whole"][h2]
    fed, others = 1 - fixed["prefix"][wide, h2] / fixed["whole"][h2], min(fixed["prefix"][a, h2] for a in range(8) if a not in (h1, wide))
    worth = E["loss"].flatten().argsort(descending=True).tolist().index(64 + 8 * h1 + h2) + 1
    given, own, normed, (rank_of, width) = torch.stack(d["values"])[:, 2:10].sum(1), exactly["own"], exactly["normed"], exactly["shape"]
    v_gain, v_se, best = E["loss"][2], E["loss_se"][2], int(E["loss"][2].argmax())
    strong, P = S["k"].cpu() >= 1.5 * d["baseline"]["high"][1], E["pattern"][1]
    moved, gain = (P[strong].sum() / max(1, int(strong.sum())), P[~strong].sum() / max(1, int((~strong).sum()))), rank["QK spread"][0] - rank["QK score"][0]
    return [
        claim("compose.terms_sum", ("All terms, with biases among the sources," if normed else "The hundred terms") + " of every second-layer head add up to its score before the mask, to {limit:g} in float32 and {fine:g} in float64; without the positions they miss it by {value:.0%} of its size. The shares of the four classes sum to one, to {limit:g}.", label="identity", values={"limit": (1e-5, 1e-4)[normed], "fine": 1e-12, "value": exactly["dropped"]}, holds=all_of(bound(exactly["terms"][0], (1e-5, 1e-4)[normed]), bound(exactly["terms"][1], 1e-12), bound(exactly["share"], 1e-5), atleast(exactly["dropped"], 1e-2))),
        claim("compose.key_side", "On repeated tokens the terms with a head on the key side only carry {value:.0%} of what head {reader} varies over keys (asked: {bound:.0%}); on the query side only {query:.0%}, both {both:.0%}, neither {neither:.0%}.", label="measurement", values={**names, "query": share["query side"][h2], "both": share["both"][h2], "neither": share["neither"][h2]}, holds=atleast(share["key side"][h2], 0.3)),
        claim("compose.small_equals_dense", "Small matrices give the Q-, K- and V-scores of all pairs of the definition, to {limit:g}.", label="identity", holds=bound(exactly["dense"], 1e-5)),
        claim("compose.baseline", "{n} random pairs of rank {rank} have a mean score of {mean:.4f}, just below {theory:.4f}, the root mean square of theory; at rank {one} the mean is {ratio:.2f} of that.", label="measurement", values={"n": 200, "rank": rank_of, "mean": d["simulated"]["mean"], "theory": compose.random_baseline(width), "one": 1, "ratio": d["simulated"]["rank_one"]}, holds=all_of(close(d["simulated"]["mean"], compose.random_baseline(width), 0.008 * compose.random_baseline(width)), close(d["simulated"]["rank_one"], 0.8, 0.03))),
        claim("compose.pair_scores_high", "The K-score of the pair {writer} → {reader} is {value:.3f}, number {place} of {n}; {bound:.3f} was asked, twice what random pairs of its rank reach at most in {q} of {of} draws.", label="measurement", values={**names, "place": place["k"], "n": S["k"].numel(), "q": 39, "of": 40}, holds=atleast(S["k"][h1, h2], 2 * d["baseline"]["high"][1, h1, h2])),
        claim("compose.norms_of_xy", "In the small example ‖XY‖² is {xy:.0f} and ‖YX‖² is {yx:.0f}; both traces are {trace:.0f}.", label="identity", values={"xy": (X @ Y).square().sum(), "yx": (Y @ X).square().sum(), "trace": (X @ Y).trace()}, holds=all_of(close((X @ Y).square().sum(), 10, 1e-6), close((Y @ X).square().sum(), 18, 1e-6), close((X @ Y).trace() - (Y @ X).trace(), 0, 1e-6))),
        claim("compose.slip_has_no_gauge", "New head coordinates leave the K-score of the pair within {limit:g} and move the score of the rotated product by {value:.0%}.", label="identity", values={"limit": 1e-6, "value": R["score of the rotated product"]}, holds=all_of(bound(R["K-composition score"], 1e-6), atleast(R["score of the rotated product"], 0.01))),
        claim("compose.slip_on_ours", "Among the K-scores of our model the pair is number {place} of {n}; with the slip it is number {slip}. The slip moves the K-score of some pair by {value:.2f}.", label="measurement", values={"place": place["k"], "slip": place["rotated"], "n": S["k"].numel()}, holds=atleast((d["rotated"][1] - S["k"].cpu()).abs().max(), 0.02)),
        claim("compose.wide_head_feeds_too", "Head {wide} puts {attention:.2f} of its attention two to six tokens back. Cutting its write from the keys of head {reader} takes away {value:.0%} of the prefix matching there; {bound:.0%} was asked. The other heads but the pair's own take {rest:.1%} or less.", label="intervention", values={**names, "attention": d["several"][wide], "rest": 1 - others / fixed["whole"][h2]}, holds=atleast(fed, 0.1)),
        claim("compose.singular_directions", "The squared score of the pair is the sum of its {n} parts, to {limit:g}.", label="identity", values={"n": exactly["parts"]}, holds=bound(exactly["singular"], 1e-6)),
        claim("compose.few_directions", "{value} pairs of directions hold half of the squared score of the pair; for two random heads it takes {random}. Few would be {bound}, half of that.", label="conjecture", values={"random": half["random"]}, holds=atmost(half["pair"], half["random"] / 2)),
        claim("compose.same_layer", "Without the write of head {reader} no query, key, value or pattern of its layer changes in one bit: {value} changed.", label="intervention", values=names, holds=equal(exactly["same layer"], 0)),
        claim("compose.k_cut_is_local", "Cutting {writer} from the keys of {reader} changes its keys and its pattern, and bit for bit nothing else in the layer: {value} other tensors changed.", label="intervention", values={**names, "value": exactly["K-cut"]}, holds=all_of(equal(exactly["K-cut"], 0), equal(exactly["K-cut, own"], 2))),
        claim("compose.fast_cuts", "Recomputing one head gives the logits of a whole run with the cut, to {limit:g} of their size.", label="identity", holds=bound(exactly["slow"], 1e-5)),
        claim("compose.v_cut_is_virtual", "The logit change of a V-cut" + " with scales held" * normed + " is minus the virtual head's term, to {limit:g} of its size, and no V-cut moves a pattern.", label="identity", values={"limit": 1e-5}, holds=all_of(bound(exactly["virtual"], 1e-5), bound(E["pattern"][2].abs().max(), 0))),
        claim("compose.pair_edge", "Of {n} edges cut alone, {writer} → keys of {reader} is number {value} by rise of the loss: {loss:.3f} ± {se:.3f} nats (± one standard error).", label="intervention", values={**names, "n": E["loss"].numel(), "loss": E["loss"][1, h1, h2], "se": E["loss_se"][1, h1, h2]}, holds=atmost(worth, 3)),
        claim("compose.pair_needs_the_key", "On repeats, cutting {writer} from the keys of {reader} leaves {left:.0%} of its prefix matching and costs {loss:.2f} nats on the second copy. Cutting it from the queries leaves {spared:.0%} and costs {q_loss:.2f} nats; from the values, where no pattern can change, it costs {v_loss:.2f}.", label="intervention", values={**names, "left": left, "loss": fixed["loss"][h1, h2], "spared": spared, "q_loss": fixed["pair_q"][1], "v_loss": fixed["pair_v"][1]}, holds=all_of(atmost(left, 0.2), atleast(spared, 0.8))),
        claim("compose.score_and_pattern", "Over the key edges the score and the change of the pattern have a rank correlation of {rho:.2f} (interval {value:.2f} to {high:.2f}, heads drawn again); over the query edges {q:.2f} ({q_low:.2f} to {q_high:.2f}). If the score ranked the key edges, the interval would lie above {bound}.", label="conjecture", values=dict(zip(("rho", "value", "high", "q", "q_low", "q_high"), (*rank["K pattern"], *rank["Q pattern"]))), holds=atleast(rank["K pattern"][1], 0)),
        claim("compose.high_scores_matter", "{n} key edges stand out, with {times} times what random pairs reach. Cutting one of them changes the pattern by {mean:.2f} in the mean; cutting another key edge, by {rest:.3f}: {value:.0f} times less ({bound} asked).", label="intervention", values={"n": int(strong.sum()), "times": 1.5, "mean": moved[0], "rest": moved[1]}, holds=atleast(moved[0] / moved[1], 3)),
        claim("compose.score_and_loss", "Over all {n} edges the score and the rise of the loss have a rank correlation of {rho:.2f}, with an interval from {value:.2f} to {high:.2f}; an interval above {bound} was asked.", label="conjecture", values={"n": E["loss"].numel(), "rho": rank["all loss"][0], "high": rank["all loss"][2]}, holds=atleast(rank["all loss"][1], 0)),
        claim("compose.spread_says_more", "What an edge's term varies over keys on text has a rank correlation of {rho:.2f} with the change of the pattern; the score has {score:.2f}.", label="intervention", values={"rho": rank["QK spread"][0], "score": rank["QK score"][0]}, holds=atleast(gain, 0)),
        claim("compose.stream_gauge", label="identity", **coordinates.stream_claim(G, d["eigenvalue"], *((S["k"][h1, h2], None) if normed else (c["before"][own], c["stretched"][own])))),
        *ours([claim("compose.order_is_borrowed", "{low} has the lowest K-score of all pairs, {before:.3f}, and the followed pair {ours:.3f}. In coordinates made for {low} they score {value:.3f} and {new:.3f}, and no logit has moved by more than {limit:g} of the largest.", label="identity", values={"low": "0.{} → 1.{}".format(*c["low"]), "before": c["before"].min(), "ours": c["before"][own], "value": c["favoured"][tuple(c["low"])], "new": c["favoured"][own], "limit": 1e-6}, holds=all_of(bound(exactly["apart"], 1e-6), atleast(c["favoured"][tuple(c["low"])], c["favoured"][own]))),
        claim("compose.all_scores_can_sink", "With the first coordinate of the stream shortened to {part:g}, the highest of all K-scores is {value:.4f} (at most {bound} was asked); it was {before:.3f}. The logits stay within {limit:g}.", label="identity", values={"part": coordinates.SHRINK, "value": c["shrunk"].max(), "bound": 0.02, "before": c["before"].max(), "limit": 1e-6}, holds=all_of(atmost(c["shrunk"].max(), 0.02), bound(exactly["apart"], 1e-6)))]),
        claim("compose.constants", "A constant per query moves the raw share of the pair's term by {value:.0%} of its size, and the centred share by no more than {limit:g}; `W_U + c 1ᵀ` moves neither.", label="identity", values={"limit": 1e-6, "value": Kq["raw share of the pair's term"]}, holds=all_of(bound(max(Kq["covariance share of the pair's term"], C["covariance share of the pair's term"], C["raw share of the pair's term"]), 1e-6), atleast(Kq["raw share of the pair's term"], 0.01))),
        claim("compose.values_are_not_tokens", "Of what a second-layer head moves, the token supplies most: the writes of earlier heads make between {low:.0%} and {value:.0%} ({bound:.0%} was asked of the largest).", label="measurement", values={"low": given.min()}, holds=atleast(given.max(), 0.05)),
        claim("compose.virtual_head", "The virtual head that is missed most is {a} → {b} through values: without it the loss rises by {loss:.4f} ± {se:.4f} nats, {value:.1f} standard errors ({bound} asked; chapter 03 uses more text).", label="conjecture", values={"a": f"0.{best // 8}", "b": f"1.{best % 8}", "loss": v_gain.flatten()[best], "se": v_se.flatten()[best]}, holds=atleast(v_gain.flatten()[best] / v_se.flatten()[best], 3)),
        claim("compose.frozen_is_blind", "With every pattern held nothing reads a key any more: the same K-cut changes no logit in one bit. Run again, it costs {loss:.2f} nats on repeats.", label="intervention", values={"limit": 0, "loss": fixed["loss"][h1, h2]}, holds=all_of(bound(exactly["frozen"], 0), atleast(fixed["loss"][h1, h2], 0.1))),
    ]


cfg = Config(**sizes(quick={"windows": 3, "repeats": 4, "every": 32, "bootstrap": 100}, published={"windows": 10, "repeats": 12, "every": 16}))
SE = {"effects.loss.*": ("statistic", "effects.loss_se.*"), "effects.reader.*": ("statistic", "effects.reader_se.*")}
KINDS = {"pair": "exact", "wide": "exact", "rank.*": ("closed_form", 0.05), "effects.loss_se.*": ("readout", 0.02, 1e-4)}
r = measured("05_composition", compute, cfg, kinds={**SE, **KINDS})

# %% [markdown] tags=["core"]
# ## 8 · Is the algebra right? · core, 4 minutes
# An identity that fails means broken code. Each comes with the mistake that would break it: forgotten positions, a forgotten transpose, factors turned round.

# %% tags=["core"]
show(r, "compose.terms_sum", "compose.small_equals_dense", "compose.baseline", "compose.norms_of_xy", "compose.fast_cuts")

# %% [markdown] tags=["core"]
# ## 9 · What moves a second-layer score? · core, 6 minutes
# **Predict**: for a head that looks after earlier copies of a token, which class must be large? What must the *key* know that its own token cannot tell?

# %% tags=["core"]
show(r, "compose.key_side")
gallery.score_classes(r)

# %% [markdown] tags=["core"]
# ## 10 · All pairs · core, 6 minutes
# **Predict**: how many of the 64 pairs stand clear of the baseline for keys? For queries? Heads of one layer are not in the table. They read the stream before any of them has written, so none can feed another. The last line cuts one of them to show it.

# %% tags=["core"]
show(r, "compose.pair_scores_high", "compose.same_layer")
gallery.composition_tables(r)

# %% [markdown] tags=["core"]
# **The slip, on our model.** Both versions for every key edge. The rotated number is not even a property of the two heads: it moves when a head changes its private coordinates. The authors' correction also found that induction heads lean on a head that looks at the last *several* tokens. So we take the first-layer head, other than the pair's, with most attention two to six tokens back, and cut it.

# %% tags=["core"]
show(r, "compose.slip_on_ours", "compose.slip_has_no_gauge", "compose.wide_head_feeds_too")
gallery.slip(r)

# %% [markdown] tags=["extension"]
# ## 11 · The directions that carry it · extension, 5 minutes
# **Predict**: of 1,024 pairs of directions, how many hold half of the squared score?

# %% tags=["extension"]
show(r, "compose.singular_directions", "compose.few_directions")
gallery.carrying_directions(r)

# %% [markdown] tags=["core"]
# ## 12 · Score against effect · core, 12 minutes
# The score never saw a text. So now the test: cut each of the 192 edges alone. Only the reader changes, so we recompute one head instead of running the model 192 times. *Effect on the pattern*: half the summed change of the attention, averaged over queries. *Effect on the loss*: the rise on held-out text. A V-cut cannot move a pattern; it removes a virtual head, exactly.
# **Predict**: do edges with an outstanding score matter? And what rank correlation do you expect over *all* edges? These are two questions.

# %% tags=["core"]
show(r, "compose.k_cut_is_local", "compose.v_cut_is_virtual", "compose.pair_edge", "compose.high_scores_matter", "compose.score_and_pattern", "compose.score_and_loss")
gallery.score_against_effect(r)

# %% [markdown] tags=["core"]
# ### Where they disagree
# Here are the edges with the largest gap between both ranks, three in each direction. The other columns show candidate causes. *Visible share*: how much of the term varies over keys; softmax ignores the rest. *Size of the write*: the score divides by the size of the weights, a text does not. *Spread*: what the term varies over keys in the end, in units of the score. *Reader*: what the loss gains from the reading head at all.

# %% tags=["core"]
show(r, "compose.spread_says_more")
plots.table(disagreement_rows(r))

# %% [markdown] tags=["core"]
# Now build both kinds of disagreement yourself. The first is the adversarial control of this chapter. (15 minutes each)


# %% tags=["exercise", "core"]
# exercise: 05.blind_pair points=4 minutes=15 difficulty=3
def blind_pair(d):
    """(W_V, W_O, W_Q, W_K), all [d, d]: K-score at least 5/sqrt(d), and cutting it moves no pattern.

    Coordinate 0 of every stream vector is one; the others are random. d >= 64. The later head must
    read: W_Q and W_K not zero. Hint: what does a head write when all it reads is coordinate 0?
    """
    # solution
    W_V, W_O, W_Q, W_K = (torch.zeros(d, d, dtype=torch.float64) for _ in range(4))
    W_V[0, 0] = W_O[0, d - 1] = 1.0  # reads the constant, writes it into the last coordinate
    W_Q[1, 0] = W_K[d - 1, 0] = 1.0  # the key reads that coordinate and nothing else
    return W_V, W_O, W_Q, W_K


# %%
check("05.blind_pair", blind_pair)


# %% tags=["exercise", "core"]
# exercise: 05.quiet_pair points=4 minutes=15 difficulty=3
def quiet_pair(d):
    """(W_V, W_O, W_Q, W_K), all [d, d]: K-score below 1/sqrt(d), and cutting it moves the pattern a lot.

    Stream vectors are random, coordinate 0 is one. A lot: half the summed change of the attention
    is at least 0.2 on average. d >= 64.
    """
    # solution
    W_V, W_O, W_Q, W_K = (torch.zeros(d, d, dtype=torch.float64) for _ in range(4))
    W_V[1, 0], W_O[0, 2] = 1.0, 100.0  # the write that is read
    W_V[3, 1], W_O[1, 4] = 1.0, 10000.0  # a larger one that nobody reads
    W_Q[0, 0], W_K[2, 0] = 10.0, 10.0
    return W_V, W_O, W_Q, W_K


# %%
check("05.quiet_pair", quiet_pair)

# %% [markdown] tags=["core"]
# ## Does it survive? · core, 6 minutes
# Head coordinates R, stream coordinates G, $W_U+c\mathbf1^\top$, a constant added to all scores of a query. No probability moves under any of them. **Predict** for each row of the figure what moves it. Here G is one diagonal matrix with entries of one or ten, chosen against the pair.

# %% tags=["core"]
show(r, "compose.stream_gauge", "compose.order_is_borrowed", "compose.all_scores_can_sink", "compose.constants")
gallery.composition_survives(r)

# %% [markdown] tags=["core"]
# A score compares pairs in *one* set of coordinates, those the optimiser happened to leave. Two models, or two training runs, need not share them. Patterns, effects of cuts, centred shares and the eigenvalues of closed loops belong to the function.

# %% [markdown] tags=["extension"]
# ## 13 · What a head moves: the token, and what was written there · extension, 12 minutes
# "The head looks at *Sally*" sounds as if it read the word. It reads what stands there by now: the word plus eight writes about its neighbours. We split what each second-layer head writes, after its pattern, by source, again with covariance shares. The inner product is the stream's own, so these shares do depend on its coordinates.

# %% tags=["extension"]
show(r, "compose.values_are_not_tokens", "compose.virtual_head")
gallery.who_supplies_values(r)

# %% [markdown] tags=["extension"]
# **Virtual heads.** V-composition makes a head out of two: pattern $A_2A_1$, map $W_{OV}^1W_{OV}^2$. Its size depends on both patterns, so we measure it on text: the mean norm of what the V-cut takes away. Here are the five largest, and what the loss says without each.

# %% tags=["extension"]
plots.table(virtual_rows(r))

# %% [markdown] tags=["core"]
# ## The ladder for our pair · core, 5 minutes
# *The first head feeds the keys of the second.* Four rungs ask for four kinds of evidence. **Predict**: which rung cannot see it at all? Remember chapter 03: with patterns held, the model is a sum of paths through values.

# %% tags=["core"]
show(r, "compose.frozen_is_blind", "compose.pair_needs_the_key")
gallery.composition_ladder(r)

# %% [markdown] tags=["written", "core"]
# <!-- written: 05.two_pairs points=3 minutes=10 difficulty=3 -->
# **In your own words.** Pair A has the highest K-composition score of a model, and cutting its key edge changes nothing. Pair B lies at the baseline, and cutting its key edge destroys a pattern. Give one mechanism for each. Somebody says: *then print the scores in other stream coordinates, in which B is on top*. Is that allowed? What does it teach?

# %% [markdown] tags=["solution"]
# **Model answer.** *1 point* (A): what is read may be the same for all keys, and softmax does not see it; or text never uses the directions that fit; or, if *nothing* speaks of the loss, the pattern moves and the loss does not hang on it. The score never saw a text. *1 point* (B): the score divides by the size of *all* weights. What is read may be a small part of the matrix and large on text, and a sharp reader makes much of it. *1 point*: it is allowed, as every invertible $G$ keeps all outputs. So the order of the pairs was a fact about coordinates too. A sentence about *use* needs a cut, and says which edge, what stands in and what was computed again. *Half right*: "a score is not causal" without a mechanism. "Only rotations are allowed" confuses what keeps the score with what keeps the model.

# %% [markdown] tags=["core"]
# ## What would change our mind, what we left out
# **Change our mind**: a pair with a high score in *every* training run whose cut does nothing; or an induction head that keeps its pattern without any write in its keys. **Simplified**: two layers, no LayerNorm, no MLP between the heads, so a direct edge is the only edge. Cuts are to zero; chapter 06 uses others. Edges were cut one by one: two that back each other up would both look idle.
# **Read on**: Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits* (composition, and the later note on the norm); Olsson et al. 2022 (arXiv 2209.11895); Wang et al. 2022, *Interpretability in the Wild* (cutting edges, arXiv 2211.00593).
# ## The pair so far
# A score is a *measurement* in borrowed coordinates. The sum of a hundred terms is an *identity*. That the second head looks where it looks because of what the first wrote into its keys is an *intervention*, and it is what we now know.

# %% tags=["core"]
show(r, "compose.pair_needs_the_key")
