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

from circuitbook import corpus, curves, gallery, gauge, heads, plots, probe, scan, shapes
from circuitbook import tokenizer, zoo
from circuitbook.check import check
from circuitbook.claims import all_of, atleast, atmost, claim, close, equal, show
from circuitbook.paths import device, quick
from circuitbook.results import bound, measured

# %% [markdown] tags=["core"]
# ## 1 · Four matrices are two · core, 8 minutes
# Take a destination row $x_i$ and a source row $x_j$ of the stream. The score is $x_i W_Q\,(x_j W_K)^\top/\sqrt{d_{head}}$. Only $W_QW_K^\top$ matters, a **bilinear form**: two vectors in, one number out.
# What moves is $x_jW_VW_O$, times the attention. Only $W_VW_O$ matters, a **map**: one vector in, one vector out.
# Both have $d_{model}$ rows and columns, and their rank is at most $d_{head}$: everything passes through that door.

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
# The numbers inside a head are a private language. Take any invertible matrix $R$, translate on the way in and back on the way out, and nobody outside can tell. Such a freedom is called a *gauge*.
# A number that changes with $R$ is about the language, not about the head. **Predict**: which of $\lVert W_V\rVert$, $\lVert W_VW_O\rVert$ and the attention pattern change?

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
# A destination can ask for more or less of the message. It cannot ask for another one. Chapter 04 turns this into a bug that you can find in text.
# To see it, `heads.writes_from` silences the values of every position but the chosen sources, and records what the head writes everywhere. Then we compare the two largest singular values.

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
# How many of its directions does a head use? Singular values say. For $M=LR$ with thin factors we never build $M$: two triangles of size $d_{head}$ hold all that is needed.
# The **effective rank** is $(\sum\sigma^2)^2/\sum\sigma^4$. Ten equal singular values give ten; one giant gives one. We can also keep a few directions, drop the rest, and ask the model how much it minds.

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
# Token tables are blind to position. In our models the positions $p_t$ are added to the inputs of queries and keys only, so each score has a part that no token can change: $p_tW_{QK}\,p_j^\top/\sqrt{d_{head}}$.
# We read it by offset $t-j$: zero is the token itself, one is the token before.

# %% tags=["save", "core"]
def position_scores(W_Q, W_K, W_pos):
    """p_t W_QK p_j^T / sqrt(d_head) [..., pos, pos]: the part of a score that no token changes."""
    return W_pos @ W_Q @ (W_pos @ W_K).mT / W_Q.shape[-1] ** 0.5


# %% [markdown] tags=["core"]
# ## 6 · Copying, from a small matrix · core, 15 minutes
# Does a head raise the token that it looks at? The OV circuit $T=W_EW_{OV}W_U$ answers for all tokens: entry $(i,j)$ says how much reading $i$ raises $j$. A copying head has a strong diagonal.
# The paper's shortcut is the eigenvalues of $T$. All positive means that sets of tokens raise themselves. Score $=\sum\lambda/\sum|\lambda|$, between −1 and 1.
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
# A score is worth something when it is right on heads that we built. Here are five, in a made-up vocabulary: one copies, one does the opposite, one turns every direction into another, one is random. The last is built to fool us: it copies three *topics* and no token. **Predict** all numbers of the table first.

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

    Every token but one is on top of its own row, yet the copying score is at most -0.5.
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

    windows: int = 12
    ranks: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    offsets: int = 16
    frequent: int = 1000
    repeats: int = 16
    shape_steps: int = 120
    shape_seeds: int = 2


# fmt: off  (one number a line, one claim a few lines)
def compute(cfg):
    """All numbers of the chapter, from its config alone."""
    held_out, words, ROLES = corpus.heldout_windows(cfg.windows), tokenizer.load(), ("attn-only-1l", "attn-only-2l")
    tokens, doc = torch.from_numpy(held_out.tokens).to(device()), torch.from_numpy(held_out.doc)
    counts = np.bincount(corpus.train_tokens(), minlength=words.vocab_size)
    frequent = curves.frequent_words(counts, [words.text(t) for t in range(len(counts))], cfg.frequent)
    models = {role: zoo.load(role) for role in ROLES}
    two, exact = models["attn-only-2l"], zoo.load("attn-only-2l", dtype=torch.float64, center=False)
    W_E, W_U, planted = heads.planted_heads()
    repeated = probe.repeated_batch(frequent, cfg.repeats, generator=torch.Generator().manual_seed(0)).tokens
    pair = heads.spine_pair(two, tokens[:4], repeated.to(device()))
    copying = {role: heads.copying_table(role, frequent) for role in (*ROLES, "gelu-1l")}
    telling = heads.telling_heads({role: copying[role] for role in ROLES})
    read = {"copies most words": telling["copies most words"], "induction head": ("attn-only-2l", pair["induction"])}
    line = [second_direction(heads.writes_from(exact, tokens[:1, :128], layer, at)) for layer in (0, 1) for at in ([20], [20, 21])]
    moves, products = gauge.survival(exact, tokens[:1, :48], change_head_coordinates)
    d = {
        "controls": {name: heads.two_copying_tests(W_E, *head, W_U) for name, head in planted.items()},
        "copying": copying,
        "pair": pair,
        "offsets": {k: heads.offset_profiles(m, tokens[:4], position_scores(m.W_Q, m.W_K, m.W_pos), cfg.offsets) for k, m in models.items()},
        "spectra": {k: heads.spectra(m, thin_svd) for k, m in models.items()},
        "random": heads.random_spectra(two.cfg.d_model, two.cfg.d_head, thin_svd),
        "ranks": {k: heads.rank_losses(m, tokens, doc, cfg.ranks, keep_directions) for k, m in models.items()},
        "two_sources": min(line[1].min(), line[3].min()),
        "hidden": {k: heads.hidden_share(m) for k, m in models.items()},
        "plane": {f"{k} {copying[k]['head'][i]}: {why}": heads.eigenvalue_pairs(models[k], i) for why, (k, i) in telling.items()},
        "tables": {f"{k} {copying[k]['head'][i]}, {why}": heads.token_rows(models[k], *divmod(i, two.cfg.n_heads), frequent) for why, (k, i) in read.items()},
        "moves": {k: {q: m if m > 1e-8 else 0.0 for q, m in row.items()} for k, row in moves.items()},
        "shapes": shapes.compare((4, 8, 16), steps=cfg.shape_steps, seeds=cfg.shape_seeds),
    }
    exactly = {"one_line": max(line[0].max(), line[2].max()), "products": products, "full_rank": max(x.pop("full_rank_error") for x in d["ranks"].values()),
               "small": heads.small_against_dense(exact, *divmod(pair["induction"], two.cfg.n_heads))}
    return {"data": d, "claims": claims(d, moves, exactly, cfg)}


def claims(d, moves, exactly, cfg):
    """The chapter's sentences. Errors of identities are judged here and not kept."""
    one, two, pair, R, G, C, K = (*d["copying"].values(), 0)[0], d["copying"]["attn-only-2l"], d["pair"], *moves.values()
    return []


# fmt: on
cfg = Config(windows=4, ranks=(0, 8), repeats=4, shape_steps=8, shape_seeds=1) if quick() else Config()
STATISTIC = {f"ranks.*.{w}_{x}.*": ("statistic", f"ranks.*.{w}_{x}_se.*") for w in ("QK", "OV") for x in ("strongest", "random", "gain")}
r = measured("02_qk_ov", compute, cfg)
