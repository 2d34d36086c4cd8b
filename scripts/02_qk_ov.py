# %% [markdown]
# # 02 · QK and OV: where a head looks, what it moves
# Series: Part 2 · Reading: 85 minutes · CPU: 1 minute
#
# A head has four matrices and does two things. It decides where to look, and it decides what to bring back. In this chapter you take heads apart into those two things, and you meet a score that can fool you.
#
# **You will do**: rewrite a head in other coordinates, read its token tables, cut its rank, and score how much it copies.
# **You will learn**: which numbers belong to a head, and which only to the way its weights are written down.
# **You need**: matrix products, eigenvalues, chapter 01. Sections marked *core* take about 50 minutes, *extension* about 35.
#
# **Notation, once.** Papers write columns: $W_{QK}=W_Q^\top W_K$, $W_{OV}=W_OW_V$, OV circuit $W_UW_{OV}W_E$. The code writes rows: `W_QK = W_Q W_K^T` (the same matrix), `W_OV = W_V W_O` (transposed), OV circuit `W_E W_OV W_U` with one row per source token.

# %%
from dataclasses import dataclass

import numpy as np
import torch

from circuitbook import corpus, gallery, gauge, heads, plots, probe, scan, shapes, tokenizer, zoo
from circuitbook.check import check
from circuitbook.claims import all_of, atleast, atmost, claim, close, show
from circuitbook.gallery.ch02 import copying_rows, token_table
from circuitbook.inputs import positional, public_rows
from circuitbook.paths import device, model_set, sizes
from circuitbook.results import bound, measured

# %% [markdown] tags=["core"]
# ## 1 · Four matrices are two · core, 8 minutes
# Take a destination row $x_i$ and a source row $x_j$ of the stream. The score is $x_i W_Q\,(x_j W_K)^\top/\sqrt{d_{head}}$. Only $W_QW_K^\top$ matters, a **bilinear form**: two vectors in, one number out.
# What moves is $x_jW_VW_O$, times the attention. Only $W_VW_O$ matters, a **map**: one vector in, one vector out. Both have $d_{model}$ rows and columns, and their rank is at most $d_{head}$: everything passes through that door.

# %%
model, words = zoo.load("attn-only-2l"), tokenizer.load()
x = model.W_E[words.token(" Sally")]
print("QK: two rows in, one number out; shape", tuple((x @ model.QK[0, 0].AB @ x).shape))
print("OV: one row in, one row out; shape    ", tuple((x @ model.OV[0, 0].AB).shape))


# %% tags=["exercise", "core"]
# exercise: 02.qk_score points=1 minutes=5 difficulty=1
def qk_score(query, key, W_E, W_Q, W_K):
    """The attention score that a query token gives to a key token, by content alone.

    query, key: token ids.  W_E [d_vocab, d_model].  W_Q, W_K [d_model, d_head].  Returns a number.
    """
    # solution
    q, k = W_E[query] @ W_Q, W_E[key] @ W_K
    return (q @ k) / W_Q.shape[-1] ** 0.5


# %%
check("02.qk_score", qk_score)

# %% [markdown] tags=["core"]
# ## 2 · Head coordinates are free · core, 6 minutes
# The numbers inside a head are a private language. Take any invertible matrix $R$, translate on the way in and back on the way out, and nobody outside can tell. Such a freedom is called a *gauge*. A number that changes with $R$ is about the language, not about the head. **Predict**: which of $\lVert W_V\rVert$, $\lVert W_VW_O\rVert$ and the attention pattern change?


# %% tags=["save", "core"]
def change_head_coordinates(W_Q, W_K, W_V, W_O, R):
    """(W_Q R)(W_K R^-T)^T = W_Q W_K^T and (W_V R)(R^-1 W_O) = W_V W_O for every invertible R.

    Leading axes (layer, head) may stand before the matrices; R is [..., d_head, d_head].
    """
    back = torch.linalg.inv(R)
    return W_Q @ R, W_K @ back.mT, W_V @ R, back @ W_O


# %% [markdown] tags=["core"]
# ## 3 · One source sends one message · core, 8 minutes
# Stand at a source $j$. To each destination $i$ it sends $A_{ij}\,x_jW_{OV}$. The weight differs, the vector does not. So all writes that leave one source lie on one line.
# A destination can ask for more or less of the message, never for another one. Chapter 04 turns this into a bug that you can find in text. To see it, `heads.writes_from` silences the values of every position but the chosen sources, and records what the head writes everywhere. Then we compare the two largest singular values.


# %% tags=["save", "core"]
def second_direction(writes):
    """s2/s1 of [..., pos, d_model]: 0 when all rows lie on one line through zero."""
    s = torch.linalg.svdvals(writes)
    return s[..., 1] / s[..., 0].clamp_min(1e-30)


# %% tags=["exercise", "core"]
# exercise: 02.source_writes points=2 minutes=10 difficulty=2
def source_writes(pattern, x, W_V, W_O, source):
    """What one source sends to every position: row i is A[i, source] times the source's message.

    pattern [pos, pos], row = destination.  x [pos, d_model].  Returns [pos, d_model].
    """
    # solution
    message = x[source] @ W_V @ W_O
    return pattern[:, source, None] * message


# %%
check("02.source_writes", source_writes)

# %% [markdown] tags=["extension"]
# ## 4 · Spectra from small matrices · extension, 8 minutes
# How many of its directions does a head use? Singular values say. For $M=LR$ with thin factors we never build $M$: two triangles of size $d_{head}$ hold all that is needed. The **effective rank** is $(\sum\sigma^2)^2/\sum\sigma^4$. Ten equal singular values give ten; one giant gives one. We can also keep a few directions, drop the rest, and ask the model how much it minds.


# %% tags=["save", "extension"]
def thin_svd(left, right):
    """left right = u diag(s) v with d_head singular values, from d_head x d_head triangles alone.

    left = Q R and right^T = P S (orthonormal Q, P), so left right = Q (R S^T) P^T.
    """
    Q, R = torch.linalg.qr(left)
    P, S = torch.linalg.qr(right.mT)
    u, s, v = torch.linalg.svd(R @ S.mT)
    return Q @ u, s, v @ P.mT


def keep_directions(left, right, keep):
    """The same product with only the singular directions listed in `keep` (0 is the strongest).

    keep = 0 ... r-1 gives the nearest matrix of rank r (Eckart and Young 1936). Shapes stay.
    """
    u, s, v = thin_svd(left, right)
    mask = torch.zeros_like(s)
    mask[..., list(keep)] = 1
    return u * (s.sqrt() * mask)[..., None, :], s.sqrt()[..., None] * v


# %% [markdown] tags=["core"]
# ## 5 · What a head does with position alone · core, 6 minutes
# Token tables are blind to position. In our models the positions $p_t$ are added to the inputs of queries and keys only, so each score has a part that no token can change: $p_tW_{QK}\,p_j^\top/\sqrt{d_{head}}$. We read it by offset $t-j$: zero is the token itself, one is the token before.


# %% tags=["save", "core"]
def position_scores(W_Q, W_K, W_pos):
    """p_t W_QK p_j^T / sqrt(d_head) [..., pos, pos]: the part of a score that no token changes."""
    return W_pos @ W_Q @ (W_pos @ W_K).mT / W_Q.shape[-1] ** 0.5


# %% [markdown] tags=["core"]
# ## 6 · Copying, from a small matrix · core, 15 minutes
# Does a head raise the token that it looks at? The OV circuit $T=W_EW_{OV}W_U$ answers for all tokens: entry $(i,j)$ says how much reading $i$ raises $j$. A copying head has a strong diagonal. The paper's shortcut is the eigenvalues of $T$. All positive means that sets of tokens raise themselves. Score $=\sum\lambda/\sum|\lambda|$, between −1 and 1.
#
# **The trick.** $T$ has a row for each token, but $T=AB$ with thin $A=W_EW_V$ and $B=W_OW_U$. If $ABx=\lambda x$ with $\lambda\ne0$, then $BA\,(Bx)=\lambda\,(Bx)$. So the nonzero eigenvalues are those of the small matrix $BA$.
# **The trap.** Softmax cannot see $W_U+c\mathbf 1^\top$, but the eigenvalues can. Subtract from each row of $W_U$ its mean over the vocabulary first.
# **The second look.** Eigenvalues speak about directions, not tokens. So we also ask each token: are you on top of your own row, or in its top-10? `scan` answers in chunks of rows. The whole table is never built.


# %% tags=["exercise", "core"]
# exercise: 02.copying_score points=4 minutes=20 difficulty=3
def copying_score(W_E, W_V, W_O, W_U):
    """Sum of the eigenvalues over the sum of their sizes, blind to W_U + c 1^T.

    W_E [d_vocab, d_model], W_V [d_model, d_head], W_O [d_head, d_model], W_U [d_model, d_vocab].
    Use a d_head x d_head matrix: the table [d_vocab, d_vocab] may fit in no computer. A number.
    """
    # solution
    A = W_E @ W_V
    B = W_O @ (W_U - W_U.mean(1, keepdim=True))
    values = torch.linalg.eigvals(B @ A)
    return (values.real.sum() / values.abs().sum()).item()


# %%
check("02.copying_score", copying_score)

# %% [markdown] tags=["core"]
# ### Controls before data
# A score is worth something when it is right on heads that we built. Here are five, in a made-up vocabulary: one copies, one does the opposite, one turns every direction into another, one is random. The last is built to fool us: it copies three *topics*, and hardly any token is on top of its own row. **Predict** all numbers of the table first.

# %% tags=["core"]
W_E, W_U, planted = heads.planted_heads()
names = ("eigenvalue score (−1 to 1)", "own row, top-1 (share)", "own row, top-10 (share)")
tests = {k: heads.two_copying_tests(W_E, *head, W_U) for k, head in planted.items()}
plots.table([{"head": k, **dict(zip(names, np.round(t, 2) + 0.0))} for k, t in tests.items()])

# %% [markdown] tags=["extension"]
# Now fool it the other way round: a head that copies nearly every token while its score is strongly negative. Think of what one loud token can do. (10 minutes)


# %% tags=["exercise", "extension"]
# exercise: 02.fooling_head points=3 minutes=10 difficulty=3
def fooling_head(n):
    """(W_V, W_O), both [n, n], for n >= 8 one-hot tokens: W_E and W_U are the identity.

    Every token but one is on top of its own row, yet the copying score (centred, as above) is at most -0.5.
    """
    # solution
    loudness = torch.ones(n, dtype=torch.float64)
    loudness[0] = -10.0 * n
    return torch.eye(n, dtype=torch.float64), torch.diag(loudness)


# %%
check("02.fooling_head", fooling_head)

# %% [markdown]
# ## 7 · The measurement
# All numbers below come from this cell. It runs once; afterwards the saved results are read. Losses are on held-out text, paired by window, errors clustered by document. Frequent words are the most frequent tokens made of a blank and letters.


# %%
@dataclass(frozen=True)
class Config:
    """What defines this chapter's experiment."""

    windows: int = 8
    ranks: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    offsets: int = 16
    frequent: int = 1000
    repeats: int = 16
    shape_steps: int = 120
    shape_seeds: int = 2


# Not formatted: a line for each number, a few lines for each claim.
# fmt: off
def compute(cfg):
    """All numbers of the chapter, from its config alone."""
    held_out, frequent, ROLES = corpus.heldout_windows(cfg.windows), heads.frequent_words(cfg.frequent), ("attn-only-1l", "attn-only-2l")
    tokens, doc = torch.from_numpy(held_out.tokens).to(device()), torch.from_numpy(held_out.doc)
    models = {role: zoo.load(role) for role in ROLES}
    two, exact = models["attn-only-2l"], zoo.load("attn-only-2l", dtype=torch.float64, center=False)
    W_E, W_U, planted = heads.planted_heads()
    repeated = probe.repeated_batch(frequent, cfg.repeats, generator=torch.Generator().manual_seed(0)).tokens
    pair = heads.spine_pair(two, tokens[:4], repeated.to(device()))
    copying = {role: heads.copying_table(role, frequent) for role in (*ROLES, "gelu-1l")}
    telling = heads.telling_heads({role: copying[role] for role in ROLES})
    one, copier = zoo.load("attn-only-1l", dtype=torch.float64), int(np.argmax(copying["attn-only-1l"]["top10"]))
    line = [second_direction(heads.writes_from(exact, tokens[:1, :128], layer, at)) for layer in (0, 1) for at in ([20], [20, 21])]
    moves, products = gauge.survival(exact, tokens[:1, :48], change_head_coordinates)
    d = {
        "controls": {name: [round(x, 9) for x in heads.two_copying_tests(W_E, *head, W_U)] for name, head in planted.items()},
        "copying": copying,
        "pair": pair | {"copier": copier},
        "offsets": {k: heads.offset_profiles(m, tokens[:4], position_scores(*positional(m, tokens[:4])), cfg.offsets) for k, m in models.items()},
        "spectra": {k: heads.spectra(m, thin_svd) for k, m in models.items()},
        "random": heads.random_spectra(two.cfg.d_model, two.cfg.d_head, thin_svd),
        "ranks": heads.rank_losses(two, tokens, doc, cfg.ranks, keep_directions),
        "two_sources": min(line[1].min(), line[3].min()),
        "hidden": {k: heads.hidden_share(m) for k, m in models.items()},
        "plane": {f"{k} {copying[k]['head'][i]}: {why}": heads.eigenvalue_pairs(models[k], i) for why, (k, i) in telling.items()},
        "tables": {"copier": heads.token_rows(one, *divmod(copier, 8), frequent), "induction": heads.token_rows(exact, *divmod(pair["induction"], 8), frequent)},
        "moves": {k: {q: m if m > 1e-8 else 0.0 for q, m in row.items()} for k, row in moves.items()},
        "shapes": shapes.compare((4, 8, 16), steps=cfg.shape_steps, seeds=cfg.shape_seeds),
        **public_rows(models["attn-only-1l"], two, copying["attn-only-2l"], pair["induction"]),
    }
    exactly = {"one_line": max(line[0].max(), line[2].max()), "products": products, "full_rank": d["ranks"].pop("full_rank_error"), "against": heads.constant_against(zoo.load("attn-only-1l", center=False), copier), "small": heads.small_against_dense(exact, *divmod(pair["induction"], 8), frequent[:512])}
    return {"data": d, "claims": claims(d, moves, exactly, cfg)}


def claims(d, moves, exactly, cfg):
    """The chapter's sentences. Errors of identities are judged here and not kept."""
    one, two, pair, ranks = d["copying"]["attn-only-1l"], d["copying"]["attn-only-2l"], d["pair"], d["ranks"]
    (R, G, C, K), c, at, p, q, i = moves.values(), d["controls"], cfg.ranks.index(8), heads.PASS_SCORE, heads.PASS_TOP10, pair["induction"]
    first = [heads.passes(t, h)[1] for t in (one, two) for h in range(len(t["head"])) if heads.passes(t, h)[0]]
    passed = sum(all(heads.passes(one, h)) for h in range(len(one["head"])))
    shifted = exactly["against"] if "series" in d else max(abs(a - b) for t in (one, two) for a, b in zip(t["as_trained"], t["shifted"]))
    effective = {w: torch.cat([d["spectra"][k][f"{w}_rank"] for k in d["spectra"]]) for w in ("QK", "OV")}
    gain = {w: (ranks[f"{w}_gain"][at], ranks[f"{w}_gain_se"][at]) for w in ("QK", "OV")}
    profile, hidden, h = d["offsets"]["attn-only-2l"], torch.cat(list(d["hidden"].values())), pair["previous"]
    shape = {n: np.mean(x) for n, x in d["shapes"].items()}
    gap, seeds = max(shape.values()) - min(shape.values()), max(np.ptp(x) for x in d["shapes"].values())
    with model_set("course"):  # heads built by hand, and shapes trained on the course's text
        controls = claim("qkov.controls", "Planted heads score as they must: the copier {copies:.2f}, its opposite {anti:.2f}, the turner {turns:.2f}, the random one {random:.2f}. But the head that copies three topics scores {topics:.2f} while {share:.0%} of its tokens are on top of their own row.",
              label="measurement", values={"copies": c["copies"][0], "anti": c["anti-copies"][0], "turns": c["turns"][0], "random": c["random"][0], "topics": c["three topics"][0], "share": c["three topics"][1]},
              holds=all_of(close(c["copies"][0], 1, 1e-6), close(c["anti-copies"][0], -1, 1e-6), close(c["turns"][0], 0, 1e-6), close(c["random"][0], 0, 0.3), atleast(c["three topics"][0], 0.9), atmost(c["three topics"][1], 0.2)))
        head_shapes = claim("qkov.head_shapes", "The shape of heads matters at equal parameters: {few} heads reach {few_loss:.3f} nats a byte, {some} reach {some_loss:.3f}, {many} reach {many_loss:.3f}; the gap is {value:.1f} times the largest difference between seeds (asked: {bound}).",
              label="conjecture", values={f"{w}{x}": v for w, n in zip(("few", "some", "many"), shape) for x, v in (("", n), ("_loss", shape[n]))}, holds=atleast(gap / max(seeds, 1e-9), 2))
    return [controls,
        claim("qkov.small_equals_dense", "In float64, chunks of rows and a small matrix give the dense table's top-10, own ranks, eigenvalues and copying score, to {limit:g}.", label="identity", holds=bound(exactly["small"], 1e-9)),
        claim("qkov.head_gauge", "New head coordinates (condition {cond}) keep W_QK, W_OV, the pattern and the copying score to {limit:g}, and change the size of W_V by {size:.0%}.",
              label="identity", values={"cond": 10, "limit": 1e-10, "size": R["size of W_V"]}, holds=all_of(bound(max(exactly["products"], R["attention pattern"], R["copying score, centred W_U"]), 1e-10), atleast(R["size of W_V"], 0.1))),
        claim("qkov.one_message", "From one source, the second direction of every head's writes is at most {limit:g} of the first; from two sources it is at least {two:.3f}.",
              label="identity", values={"limit": 1e-5, "two": d["two_sources"]}, holds=all_of(bound(exactly["one_line"], 1e-5), atleast(d["two_sources"], 1e-3))),
        claim("qkov.blind_to_constant", "With W_U centred, adding `c 1ᵀ` to it moves no copying score by more than {limit:g}; without centring one head's score moves by {moved:.2f}." + " This c is made against that head." * ("series" in d),
              label="identity", values={"limit": 1e-8, "moved": shifted}, holds=all_of(bound(C["copying score, centred W_U"], 1e-8), atleast(shifted, 0.05))),
        claim("qkov.stream_gauge", **gauge.stream_claim(G)),
        claim("qkov.query_constant", "A constant per query moves raw scores by up to {raw:.0%} of the largest and no pattern by more than {limit:g}. In token QK tables such constants hold between {low:.0%} and {high:.0%} of a head's energy.",
              label="identity", values={"raw": K["raw attention score"], "limit": 1e-9, "low": hidden.min(), "high": hidden.max()}, holds=all_of(bound(K["attention pattern"], 1e-9), atleast(K["raw attention score"], 0.01))),
        claim("qkov.full_rank", "Rebuilding all heads from all their singular directions moves no window's loss by more than {limit:g} nats.", label="identity", holds=bound(exactly["full_rank"], 1e-4)),
        claim("qkov.spectra", "Effective ranks run from {q_low:.1f} to {q_high:.1f} for W_QK and from {o_low:.1f} to {o_high:.1f} for W_OV; Gaussian factors of this shape give {random:.1f}. None comes near one: {bound} was asked.",
              label="measurement", values={"q_low": effective["QK"].min(), "q_high": effective["QK"].max(), "o_low": effective["OV"].min(), "o_high": effective["OV"].max(), "random": d["random"]["rank"]}, holds=atleast(min(x.min() for x in effective.values()), 2)),
        claim("qkov.strongest_beat_random", "Keeping only the {rank} strongest directions of every W_QK of `attn-only-2l` raises the loss by {qk:.2f} nats, of every W_OV by {ov:.2f}; keeping as many at random raises it by {qk_gain:.2f} ± {qk_se:.2f} and {ov_gain:.2f} ± {ov_se:.2f} more (± one standard error).",
              label="intervention", values={"rank": 8, "qk": ranks["QK_strongest"][at], "ov": ranks["OV_strongest"][at], "qk_gain": gain["QK"][0], "qk_se": gain["QK"][1], "ov_gain": gain["OV"][0], "ov_se": gain["OV"][1]}, holds=all_of(*(atleast(m - 2 * e, 0) for m, e in gain.values()))),
        claim("qkov.heads_needed", "Without any OV (no head writes) the loss of `attn-only-2l` rises by {value:.2f} nats; without any QK (every head attends evenly) by {even:.2f}.",
              label="intervention", values={"even": ranks["QK_strongest"][0]}, holds=atleast(ranks["OV_strongest"][0], 0.2)),
        claim("qkov.previous_by_position", "Head {head} of `attn-only-2l` puts {text:.2f} of its attention on the previous token of a text; position alone would put {alone:.2f} there.",
              label="measurement", values={"head": two["head"][h], "text": profile["text_previous"][h], "alone": profile["alone_previous"][h]}, holds=all_of(atleast(profile["text_previous"][h], 0.5), atleast(profile["alone_previous"][h], 0.5))),
        claim("qkov.copying_heads", "{value} of {n} heads of `attn-only-1l` pass both copying tests: a score of {p} or more, and {q:.0%} or more of the frequent words in the top-10 of their own row.",
              label="measurement", values={"n": len(one["head"]), "p": p, "q": q}, holds=atleast(passed, 1)),
        claim("qkov.score_is_not_enough", "Of {n} heads of both models with a score of {p} or more, {value} fail the second test.", label="measurement", values={"n": len(first), "p": p}, holds=atleast(len(first) - sum(first), 1)),
        claim("qkov.induction_head_copies", "The induction head {head} of `attn-only-2l` (prefix matching {prefix:.2f}) has a copying score of {score:.3f}; {top:.0%} of the frequent words are on top of their own row, {ten:.0%} in its top-10.",
              label="measurement", values={"head": two["head"][i], "prefix": pair["prefix_score"], "score": two["score"][i], "top": two["top1"][i], "ten": two["top10"][i]}, holds=all_of(atleast(two["score"][i], p), atleast(two["top10"][i], q))),
        head_shapes]


# fmt: on
small = {"windows": 4, "ranks": (0, 8), "repeats": 4, "shape_steps": 8}
cfg = Config(**sizes(quick=small, published={"windows": 6, "ranks": (0, 1, 2, 4, 8, 16, 32)}))
SE = {f"ranks.{w}_{x}.*": ("statistic", f"ranks.{w}_{x}_se.*") for w in ("QK", "OV") for x in ("strongest", "random", "gain")}  # fmt: skip
CLOSE = {"copying.*.top1*": ("closed_form", 0.003), "copying.*.all1*": ("closed_form", 0.003), "shapes.*": ("closed_form", 0.05), "plane.*": ("closed_form", 1e-3)}  # fmt: skip
r = measured("02_qk_ov", compute, cfg, kinds={**SE, **CLOSE})

# %% [markdown] tags=["core"]
# ## 8 · Do the scores tell the truth? · core, 4 minutes
# First the heads that we built, then the identities. An identity that fails means broken code, not a surprising model.

# %% tags=["core"]
show(r, "qkov.controls", "qkov.small_equals_dense", "qkov.head_gauge", "qkov.one_message")
gallery.control_heads(r)

# %% [markdown] tags=["extension"]
# ## 9 · How many directions does a head need? · extension, 8 minutes
# **Predict**: what hurts the model more, heads that write nothing or heads that attend evenly? And which of the two, $W_{QK}$ or $W_{OV}$, can live with fewer directions? The control: as many directions, drawn at random from the same head. Only the gap between the two curves says that the strong directions are the ones that matter.

# %% tags=["extension"]
show(r, "qkov.spectra", "qkov.full_rank", "qkov.heads_needed", "qkov.strongest_beat_random")
gallery.spectra_and_rank(r)

# %% [markdown] tags=["core"]
# ## 10 · Position alone · core, 6 minutes
# **Predict**: will a head that looks at the previous token need tokens at all? Bright squares are offsets that a head likes, on text and with positions alone.

# %% tags=["core"]
show(r, "qkov.previous_by_position")
gallery.attention_by_offset(r)

# %% [markdown] tags=["core"]
# ## 11 · Token tables · core, 6 minutes
# Six frequent words, drawn by a seed, not chosen by us. For each: its rank in its own OV row, what reading it raises most, and which keys it looks for as a query (QK row minus its mean). Position is not in this table.

# %% tags=["core"]
plots.table(token_table(r, "copier"))

# %% [markdown] tags=["core"]
# That was the head of `attn-only-1l` that copies most words. Here is the induction head of `attn-only-2l`. Its true queries and keys hold what first-layer heads wrote, so its token QK column is only a part of why it looks where it looks.

# %% tags=["core"]
plots.table(token_table(r, "induction"))

# %% [markdown] tags=["core"]
# Ask it about a word of your own. It must be one token, blank included.

# %% tags=["core"]
layer, head = divmod(r["pair"]["induction"], model.cfg.n_heads)
table = scan.ov_factors(model.W_E, model.W_V[layer, head], model.W_O[layer, head], model.W_U)
ids = scan.top_k(*table, 8, rows=[words.token(" Sally")]).ids[0].tolist()
print("reading ␣Sally raises:", " · ".join(plots.token(words.text(i)) for i in ids))

# %% [markdown] tags=["core"]
# ## 12 · Who copies? · core, 10 minutes
# **Predict**: how many of the eight heads of `attn-only-1l` have a score above 0.9? Will those heads put frequent words on top of their own rows?
# The dashed lines are the pass marks, one for each test. A head with a tall first bar and low others warns like the three-topics head: the score alone does not show that the head copies words. (That head had a vocabulary of its own, 400 tokens; these rows have 4,096.)

# %% tags=["core"]
show(r, "qkov.copying_heads", "qkov.score_is_not_enough", "qkov.induction_head_copies")
gallery.copying_heads(r)

# %% tags=["core"]
gallery.eigenvalue_plane(r)

# %% [markdown] tags=["extension"]
# All heads in numbers, `gelu-1l` too. There the MLP stands between the heads and the logits, and the table shows the direct path only. The two last columns are the score without centring.

# %% tags=["extension"]
plots.table(copying_rows(r), digits=2)

# %% [markdown] tags=["core"]
# ## Does it survive? · core, 8 minutes
# Four changes keep every next-token probability: head coordinates R, stream coordinates G, $W_U+c\mathbf1^\top$, a constant added to all scores of a query. **Predict** for each row of the figure which changes move it. Write your guess down, then run the cell.

# %% tags=["core"]
show(r, "qkov.blind_to_constant", "qkov.stream_gauge", "qkov.query_constant")
gallery.survival_box(r)

# %% [markdown] tags=["core"]
# Print a moving number only together with the coordinates that it was measured in. Even the effective rank belongs to them. Rank, eigenvalues of closed loops, patterns and ranks within a row belong to the model.

# %% [markdown] tags=["extension"]
# ## Few wide heads or many narrow ones? · extension, 5 minutes
# Width 256 can be spent as 4 heads of 64, 8 of 32, or 16 of 16, with the same number of parameters. We trained each for a few seconds on bytes of the course text: one layer, two seeds. **Read it as a rehearsal, not as an answer**: a hundred-odd steps at one size cannot say what a trained model prefers, and a shape may need other rates.

# %% tags=["extension"]
show(r, "qkov.head_shapes")
gallery.head_shapes(r)

# %% [markdown] tags=["written", "core"]
# <!-- written: 02.what_a_score_says points=3 minutes=10 difficulty=2 -->
# **In your own words.** A report prints one number for a head, an eigenvalue copying score of nearly one, and says: *this head copies the token that it looks at*. Which head of this chapter has such a score and puts hardly any token on top of its own row, and how can that be? Which second number would you ask for? And why must you know whether $W_U$ was centred?

# %% [markdown] tags=["solution"]
# **Model answer.** *1 point*: the head of three topics. A positive eigenvalue says that a *direction* raises itself. A topic is a direction: to read a token raises all of its topic, and mostly another token of the topic more than this one. *1 point*: a number that asks each token, such as the share of tokens on top of their own row; or an intervention, such as the token's logit without this head. *1 point*: $W_U+c\mathbf1^\top$ changes no probability, but it does move the eigenvalues. An uncentred score may be made of something that no output shows. *Half right*: "a score is only a correlation" names no head and no mechanism. "Look at more eigenvalues" stays inside the same instrument.

# %% [markdown] tags=["core"]
# ## What would change our mind, what we left out
# **Change our mind**: a head with a high score *and* high top-1 share whose removal does not lower the logit of what it attends to (chapter 06 removes heads); or a previous-token head that loses its pattern on shuffled text.
# **Simplified**: no LayerNorm and no biases, so the algebra is exact here and not in most published models. Tables take the stream as a bare embedding; in layer 1 it holds other heads' writes too. Spectra also carry the optimiser's hand: Muon pushes singular values together.
# **Read on**: Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits* (QK and OV circuits, eigenvalue test); Olsson et al. 2022 (copying in induction heads, arXiv 2209.11895); Eckart and Young 1936 (nearest matrix of lower rank).
# ## The pair so far
# We follow one pair of heads through the course. What we now know of it are *measurements*: how much position alone makes the first look one back, and how well the second's OV circuit copies. Why the second looks where it looks, we do not know yet.

# %% tags=["core"]
show(r, "qkov.previous_by_position", "qkov.induction_head_copies")
