# %% [markdown]
# # 01 · The residual stream
# Series: Part 1 · Reading: 80 minutes · CPU: 1 minute
#
# **You will** take a transformer's last vector apart into the parts that wrote it, ask each part what it did for one word, and find out which of the numbers are facts and which depend on somebody's choice of coordinates. **You will learn** why the stream is a sum; how to attribute a logit; how a small direct effect can hide a large one; what a basis is worth; and that a model without layers is a table of word pairs. **You need** matrices and softmax. No training and no network: the models are in `weights/`.
#
# *Core* sections take about 50 minutes, *extensions* 30. Numbers in the text come from saved results. Each is a claim with its kind of evidence, and a claim that fails is printed as failing.
#
# **Notation.** Papers write columns and read from the right, $W_U W_{OV} W_E$. Code writes rows and reads from the left, `W_E W_OV W_U`. The maps are the same, transposed. Here a stream vector is a row `x`, and a weight stands on its right: `x @ W`.

# %%
from dataclasses import dataclass

import numpy as np
import torch

from circuitbook import bases, bigram, compose, corpus, gallery, plots, spine, stream, zoo
from circuitbook.check import check
from circuitbook.claims import all_of, atleast, atmost, between, claim, close, equal, show
from circuitbook.paths import model_set, sizes
from circuitbook.results import bound, measured

# %% [markdown] tags=["core"]
# ## 1 · The stream is a sum (core, 5 minutes)
# Each layer *adds* its result to the stream. Nothing is overwritten. So the last stream is the embedding plus one write for every head and every MLP. In our models the position is not in the sum: it goes to queries and keys only.
#
# **Predict:** how many parts has a model with two layers of eight heads and no MLP?

# %%
prompts = spine.name_prompts()
writes, last = stream.components(zoo.load("attn-only-2l"), prompts.tokens[:1])
print(spine.TEMPLATE.format(title="Aunt", name=prompts.names[0]), "→", prompts.names[0])
print(len(writes), "parts; they add up:", torch.allclose(sum(writes.values()), last, atol=1e-4))

# %% [markdown] tags=["core"]
# ## 2 · Reading is linear (core, 10 minutes)
# Whoever reads the stream multiplies it by a matrix. A matrix treats a sum part by part. So the logit of a token is a sum too, one number for each part. Which direction do we read? Softmax cannot see a constant added to all logits, so a raw logit means nothing alone. We read the *centred* logit: the token's column of `W_U` minus the mean over the vocabulary. Or we read a contrast: the right name minus the mean of the other names.


# %% tags=["save"]
def read_off(writes, direction):
    """(Σ w) · u = Σ (w · u): what each write contributes along a direction that someone reads.

    writes {name: [..., d_model]}, direction [..., d_model] → {name: [...]}.
    """
    return {name: (write * direction).sum(-1) for name, write in writes.items()}


# %% tags=["exercise", "core"]
# exercise: 01.centred_contribution points=2 minutes=10 difficulty=2
def centred_contribution(write, W_U, token):
    """What `write` [d_model] adds to the logit of `token`, minus what it adds to the mean logit.

    W_U [d_model, d_vocab] may be uncentred. Return one number.
    """
    # solution
    return (write @ W_U)[token] - (write @ W_U).mean()


# %%
check("01.centred_contribution", centred_contribution)

# %% [markdown] tags=["core"]
# ## 3 · Writes can point against the stream (core, 3 minutes)
# A write with a negative cosine takes away some of what the stream held in that direction. (The whole stream gets shorter only if $|w| < 2|x||\cos|$.) The cosine of a write $w$ with the stream $x$ it is added to tells, $w \cdot x / (|w||x|)$. Between random directions of width $d$ it is about normal with a standard deviation of $1/\sqrt d$, so it lies below $-1/\sqrt d$ for one pair in six.
# ## 4 · Direct and total effect (core, 4 minutes)
# *Direct*: take one write out of the last stream, and change nothing else. *Total*: remove the write where it is made and run the rest again; later heads then read a poorer stream. In the last layer of an attention-only model nobody reads afterwards, so both must agree. The write is replaced by nothing (*zero*), or by its mean over the batch (*mean*), which keeps what all prompts share.
#
# ## 5 · Subspaces and virtual weights (core, 7 minutes)
# A head of width 32 in a stream of 256 reads 32 dimensions and is blind to the other 224. What share of a write lies where a later head reads? For a random write: 32/256. The same without data: writer and reader together are one matrix `W_out @ W_in`, a *virtual weight* between two parts that never touch. Its score is its norm over the product of both norms. For random pairs the root mean square is $1/\sqrt{d}$.


# %% tags=["save"]
def readable_share(write, W):
    """|w P|² / |w|² with P the projection on W's columns: how much of w a reader x W can see.

    write [..., d_model], W [d_model, d_head]. A random write has d_head / d_model.
    """
    basis = torch.linalg.qr(W)[0]
    return ((write @ basis).square().sum() / write.square().sum()).item()


# %% [markdown] tags=["core"]
# **Controls before data.** A write inside the subspace, one across it, a random one. Then scores: random factors, a reader tuned to its writer, a reader that looks elsewhere.

# %%
gen = torch.Generator().manual_seed(0)
noise, Q = torch.randn(2000, 256, generator=gen), bases.rotation(256, gen).float()
writes = {"inside": noise[:, :32] @ Q[:32], "across": noise[:, 32:] @ Q[32:], "random": noise}
print({name: round(readable_share(w, Q[:32].mT), 3) for name, w in writes.items()})
readers = Q[:64].view(2, 32, 256)  # the first reads what the writer writes, the second another 32
tuned, elsewhere = compose.pair_scores(readers[:1].mT, readers[:1], readers.mT, readers)[0]
random = compose.simulated(32, 256, 50, gen).mean()
print(f"tuned {tuned:.3f}, elsewhere {elsewhere:.3f}, random {random:.4f}, theory {1 / 16}")

# %% [markdown] tags=["core"]
# ## 6 · No basis is special, almost (core, 10 minutes)
# Change every stream vector from `x` to `x @ G`. Multiply whoever writes by `G` and whoever reads by its inverse. The two meet as `G @ G⁻¹`, and no logit moves. Any invertible `G` will do; it need not be a rotation. So coordinate 17 of the stream means nothing by itself.
#
# The MLP is different. Its nonlinearity acts on hidden coordinates one by one, so *their* axes are special.


# %% tags=["exercise", "core"]
# exercise: 01.change_stream points=3 minutes=15 difficulty=3
def change_stream(weights, G):
    """The same function in stream coordinates x @ G. G [d, d] is invertible, not always a rotation.

    weights: W_E [vocab, d], W_pos [ctx, d] (added to queries and keys only), W_Q, W_K, W_V [d, h], W_O [h, d],
    W_in [d, m], b_in [m], W_out [m, d], b_out [d], W_U [d, vocab]. Return a new dict, all eleven in it.
    """
    # solution
    inverse = torch.linalg.inv(G)
    new = {name: weights[name] @ G for name in ("W_E", "W_pos", "W_O", "W_out", "b_out")}
    new |= {name: inverse @ weights[name] for name in ("W_Q", "W_K", "W_V", "W_in", "W_U")}
    return new | {"b_in": weights["b_in"]}


# %%
check("01.change_stream", change_stream)

# %% [markdown] tags=["extension"]
# ## 7 · The optimiser may see a basis (extension, 15 minutes)
# The function has no favourite axes. Training might. Rotate the stream, take one step, rotate back: is it the step without the rotation? Adam's first step is the *sign* of each coordinate of the gradient; later ones divide by a running scale of each coordinate.


# %% tags=["save"]
def polar(grad):
    """g = U S Vᵀ → U Vᵀ, Muon's update (Muon gets there by a polynomial, this is exact)."""
    U, _, Vt = torch.linalg.svd(grad, full_matrices=False)
    return U @ Vt


UPDATES = {"SGD": lambda g: g, "Muon": polar, "Adam": lambda g: g / (g.abs() + 1e-12)}


def basis_gap(update, grad, Q):
    """|update(g Q) Qᵀ − update(g)| / |update(g)|: zero when the update cannot see the basis.

    grad [n, d]: gradient of a weight whose rows lie in the stream. Q [d, d] orthogonal.
    """
    return ((update(grad @ Q) @ Q.T - update(grad)).norm() / update(grad).norm()).item()


# %% [markdown] tags=["extension"]
# A favoured axis would show as a few coordinates far larger than the rest. The excess kurtosis over a vector's coordinates measures this. Its control is the same vector in a random basis, where the answer is known for *every* vector: $-6/(d+2)$ on average.
#
# **Controls before data.** In this order: Gaussian vectors; the same with one large coordinate; that one rotated; an adversary, Gaussian vectors of very different lengths. Pooled over tokens the adversary looks heavy-tailed. Vector by vector it does not.


# %% tags=["save"]
def excess_kurtosis(x):
    """mean(x_i⁴) / mean(x_i²)² − 3 over coordinates; in a random basis −6/(d + 2) on average.

    x [..., d] → [...]. About 0 for Gaussian coordinates, large when a few coordinates stand out.
    """
    return x.pow(4).mean(-1) / x.square().mean(-1).square() - 3


# %%
outlier = noise + 16 * (torch.arange(256) == 17)
for x in (noise, outlier, outlier @ Q, noise * torch.randn(2000, 1, generator=gen).exp()):
    print(f"{excess_kurtosis(x).mean():.2f} by vector, {excess_kurtosis(x.flatten()):.2f} pooled")

# %% [markdown] tags=["core"]
# ## 8 · A model without layers is a table of word pairs (core, 8 minutes)
# Without layers the logits are `W_E[token] @ W_U`. They depend on the current token only. So the best such model is the text's own table $p(b \mid a)$, as far as rank 256 can hold it. Its cross-entropy exceeds the table's entropy $H_2$ by exactly the mean Kullback–Leibler divergence, on the text that was counted. $H_2 \le$ loss then holds for *every* table, trained or not. Loss $\le H_1$, the entropy of single tokens, holds at the optimum, and for a trained model only if training came close.


# %% tags=["exercise", "core"]
# exercise: 01.mean_kl points=3 minutes=15 difficulty=3
def mean_kl(counts, log_q):
    """Σ_a p(a) Σ_b p(b|a) log(p(b|a) / q(b|a)), in nats.

    counts [a, b] and log_q [a, b] are numpy arrays. Counts may be zero, whole rows too.
    """
    # solution
    p = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    log_ratio = np.log(np.where(p > 0, p, 1)) - np.where(p > 0, log_q, 0)
    return (counts * log_ratio).sum() / counts.sum()


# %%
check("01.mean_kl", mean_kl)

# %% [markdown] tags=["core"]
# ## 9 · Two weight sets, one function (core, 15 minutes)
# Two people publish the weights of an attention-only model. The probabilities are equal on every prompt. Yet some of six printed numbers differ: the `"loss"`; the `"raw contribution"` and the `"centred contribution"` of a head's write to one logit; the `"virtual-weight score"` of a pair of heads; the `"size of W_V"` (Frobenius norm); the `"excess kurtosis"` of the stream. Which, and why?


# %% tags=["exercise", "core"]
# exercise: 01.which_numbers_move points=5 minutes=25 difficulty=4
def which_numbers_move(change):
    """The set of the names above whose number `change` alters, for a general matrix: {"loss", …}.

    change: "rotated stream" (x → x G, G orthogonal), "stretched stream" (x → x G, G invertible),
    "other head coordinates" (v → v R, q → q R, k → k R⁻ᵀ, R invertible), "shifted unembedding" (W_U → W_U + c 1ᵀ, c a vector of d numbers).
    """
    # solution
    return {
        "rotated stream": {"excess kurtosis"},  # lengths and angles stay, coordinates do not
        "stretched stream": {"virtual-weight score", "size of W_V", "excess kurtosis"},
        "other head coordinates": {"size of W_V"},  # a head is W_V W_O and W_Q W_Kᵀ, no more
        "shifted unembedding": {"raw contribution"},  # each part moves by w · c; softmax is blind
    }[change]


# %%
check("01.which_numbers_move", which_numbers_move)

# %% [markdown]
# ## 10 · The measurement
# The spine of the course is a batch of prompts with single-token names, and one pair of heads in `attn-only-2l`: its best previous-token head and its best induction head, found by score and never by number. All is measured once and saved. The table is our prediction for the last section, made before measuring: 1 where a number stays what it is.

# %%
NORMAL_TAIL = 0.158655  # share of a normal distribution below minus one standard deviation
NUMBERS = (*spine.NUMBERS, "excess kurtosis")
SURVIVES = {
    "head coordinates R": (1, 1, 1, 1, 1, 1),
    "stream, orthogonal G": (1, 1, 1, 1, 1, 0),
    "stream, invertible G": (1, 1, 1, 0, 0, 0),
    "W_U + c 1ᵀ": (1, 1, 0, 1, 1, 1),
    "constant per query": (1, 1, 1, 1, 1, 1),
}


@dataclass(frozen=True)
class Config:
    """What defines this chapter's experiment."""

    windows: int = 8
    length: int = 256
    counted: int = 64  # training windows on which the model is run and its pairs are counted
    seed: int = 0


def say(name, label, text, holds, **values):
    """One claim of this chapter."""
    return claim(f"stream.{name}", text, label=label, values=values, holds=holds)


# %%
def measure_pair(pair, tokens, doc, gen):
    """The stream's parts, what they did for the name, and what one head can read of another."""
    model, (first, second) = zoo.load("attn-only-2l"), pair
    data, error = spine.study(model, pair, tokens, doc, gen)
    (writer, reader), named, against = data["pair"], data["named"], data["against"]
    write = stream.components(model, tokens).writes[writer][:, 1:]
    share, fair = readable_share(write, model.W_K[second]), model.cfg.d_head / model.cfg.d_model
    direct, total = (data["effects"]["mean"][k][first[1]] for k in ("direct", "total"))
    gap, chance = sum(x[0] for x in named.values()), data["chance"]
    worst, (slip, wrong, least) = max(against, key=against.get), error["slip"]
    return data | {"readable": [share, fair]}, [
        say("adds_up", "identity", "The {n} parts add up to the stream, to {small:g} of its largest entry. " + slip + " they miss by {wrong:.2f}.", all_of(bound(error["sum"], 1e-5), atleast(wrong, least)), n=len(named), small=1e-5, wrong=wrong),
        say("only_centred_counts", "identity", "After `W_U + c 1ᵀ` the centred contributions of {reader} have moved by less than {small:g}, its raw ones by up to {raw:.1f}.", all_of(bound(error["centred"], 1e-5), atleast(error["raw"], 0.1)), reader=reader, small=1e-5, raw=error["raw"]),
        say("name_is_written", "measurement", "The right name's logit stands {gap:.2f} above the mean of its rivals'. Of this {reader} writes {value:.2f}, {writer} itself {its:+.2f}. A quarter from {reader} was asked.", atleast(named[reader][0], gap / 4), gap=gap, reader=reader, writer=writer, its=named[writer][0]),
        say("writes_erase", "measurement", "At {value:.0%} of positions {worst} writes against the stream: a cosine below {edge:.4f}. Random directions would at {fair:.0%}; twice that was asked. {n} of {all} heads pass.", atleast(against[worst], 2 * NORMAL_TAIL), worst=worst, edge=-chance, fair=NORMAL_TAIL, n=sum(x >= 2 * NORMAL_TAIL for x in against.values()), all=len(against)),
        say("direct_is_not_total", "intervention", "Replace the write of {head} by its mean in the last stream only: the loss rises by {direct:.3f} nats. Replace it where it is made and run layer 1 again: {value:.3f}. Twice the direct effect was asked.", atleast(total, 2 * abs(direct)), head=writer, direct=direct),
        say("last_layer_is_direct", "identity", "For {head}, in the last layer, direct and total effect agree to {limit:g} nats.", bound(error["last layer"], 1e-4), head=reader),
        say("readable", "measurement", "{value:.1%} of what {writer} writes lies where the keys of {reader} read. A random write has {fair:.1%}; twice that was asked.", atleast(share, 2 * fair), writer=writer, reader=reader, fair=fair),
        say("virtual_weights", "measurement", "From {writer} to the keys of {reader} the virtual weights score {value:.3f}, random ones {chance:.4f}. Twice that was asked.", atleast(data["virtual"][first[1], second[1]], 2 * chance), writer=writer, reader=reader, chance=chance),
    ]  # fmt: skip


def measure_bases(pair, tokens, gen):
    """Other bases: of the stream, of the MLP, of an optimiser's step; which numbers survive them."""
    gelus = [zoo.load("gelu-1l", dtype=t) for t in (torch.float32, torch.float64)]
    single, double = (bases.logit_moves(m, tokens[:2, :128], gen) for m in gelus)
    grad, Q = torch.randn(64, 32, generator=gen, dtype=torch.float64), bases.rotation(32, gen)
    gaps = {name: basis_gap(update, grad, Q) for name, update in UPDATES.items()}
    model, prompts = zoo.load("attn-only-2l", dtype=torch.float64), spine.name_prompts()

    def six(model, change):
        numbers, last = spine.pair_numbers(model, prompts, pair, change)
        return *numbers, excess_kurtosis(last)

    table, of = bases.survival(model, six, gen), 6 * len(SURVIVES)
    right = sum(p == q for n, row in SURVIVES.items() for p, q in zip(table[n], row))  # fmt: skip
    return {"survives": table, "numbers": NUMBERS}, [
        say("no_stream_basis", "identity", "`gelu-1l` in other stream coordinates, " + bases.stretch_words(model) + ": no logit moves by {small:g} in float32 or {tiny:g} in float64. With the positions left behind they move by up to {left:.1f}.", all_of(bound(max(single[:2]), 1e-4), bound(max(double[:2]), 1e-11), atleast(double.positions_left, 1e-2)), small=1e-4, tiny=1e-11, left=double.positions_left),
        say("mlp_basis", "intervention", "Rotate the MLP's hidden coordinates, and rotate back behind the nonlinearity: logits move by up to {value:.1f}.", atleast(double.hidden, 0.1)),
        say("adam_sees_axes", "identity", "One step in rotated coordinates, rotated back: for SGD and Muon it is the plain step, to {small:g}. For Adam it differs by {adam:.0%} of its length.", all_of(bound(max(gaps["SGD"], gaps["Muon"]), 1e-9), atleast(gaps["Adam"], 0.1)), small=1e-9, adam=gaps["Adam"]),
        say("survival", "identity", "Of {n} predictions about which number survives which change, {value} are right.", equal(right, of), n=of),
    ]  # fmt: skip


@model_set("course")
def measure_course(cfg, gen):
    """What only the course has: twins of two optimisers, and a model without layers."""
    (tokens, doc), text = stream.windows(cfg.windows, cfg.length), corpus.train_tokens()
    twin = {name: zoo.load(f"twin-{name.lower()}") for name in ("Adam", "SGD")}
    twins, known, worst = stream.places(twin, tokens, doc, excess_kurtosis, gen)
    claims = [
        say("twins_are_comparable", "measurement", "The SGD twin's held-out loss minus the Adam twin's is {value:+.2f} nats; {high:g} either way was allowed.", between(twins["SGD"]["loss"] - twins["Adam"]["loss"], -0.2, 0.2)),
        say("random_basis_control", "measurement", "In random bases the excess kurtosis stays within {tolerance:g} of the {target:.3f} of theory; the farthest is {value:.3f}.", close(worst, known, 0.05)),
    ]  # fmt: skip
    for name, of in twins.items():
        k = of["last stream"]
        asked = max(0.1, 2 * k["gap_se"])
        verdict = "heavier tails" if k["gap"] >= asked else "a null result"
        test = atleast if name == "Adam" else atmost  # what Caples and Neuhaus would predict
        claims.append(say(f"axes_of_{name.lower()}", "measurement", "The {twin} twin's last stream has an excess kurtosis of {own:.2f} in its own basis and {random:.2f} in random ones. With {asked:.2f} as the threshold for the difference: {verdict}.", test(k["gap"], asked), twin=name, own=k["own"], random=k["random"], asked=asked, verdict=verdict))  # fmt: skip
    data, missed = bigram.study([f"attn-only-{n}l" for n in range(3)], text, cfg.counted, cfg.seed)
    zero, one, two = data["tables"].values()
    return data | {"twins": twins, "kurtosis_theory": known}, claims + [
        say("bigram_identity", "identity", "On {n} training tokens, run and counted: loss minus the entropy of pairs is the mean divergence from the text's table, to {limit:g} nats.", bound(missed, 1e-5), n=data["run_on"]),
        say("between_the_entropies", "measurement", "On all training tokens the zero-layer loss is {value:.3f} nats, between the entropies of pairs, {low:.3f}, and of single tokens, {high:.3f}.", between(zero["loss"], data["H2"], data["H1"])),
        say("rows_are_bigrams", "measurement", "Over {n} frequent pairs the model's log-probabilities correlate with the text's at {value:.3f}; {bound} was asked. Its likeliest next token is the text's own for {same:.0%} of tokens.", atleast(zero["correlation"], 0.9), n=zero["pairs"], same=zero["same_best"]),
        say("direct_path_is_no_bigram", "measurement", "As tables of pairs the direct paths of one and two layers lose {one:.2f} and {two:.2f} nats, the zero-layer model {zero:.2f}: at least {value:.2f} more, and {bound:g} was asked.", atleast(min(one["loss"], two["loss"]) - zero["loss"], 0.1), zero=zero["loss"], one=one["loss"], two=two["loss"]),
    ]  # fmt: skip


def compute(cfg):
    """All numbers of the chapter, from its config alone."""
    (tokens, doc), gen = stream.windows(cfg.windows, cfg.length), torch.Generator().manual_seed(cfg.seed)  # fmt: skip
    pair = spine.heads_pair(zoo.load("attn-only-2l"))
    data, claims = zip(measure_pair(pair, tokens, doc, gen), measure_bases(pair, tokens, gen), measure_course(cfg, gen), (bigram.series(), []))  # fmt: skip
    return {k: v for part in data for k, v in part.items()} | {"claims": sum(claims, [])}


# %%
cfg = Config(**sizes(quick={"windows": 4, "length": 128, "counted": 16}, published={"length": 128}))
kinds = dict.fromkeys(("pair.*", "survives.*", "tables.*.pairs", "top.*"), "exact")
r = measured("01_residual_stream", compute, cfg, kinds=kinds)

# %% [markdown] tags=["core"]
# ## 11 · Results (core, 15 minutes)
# **Predict** first. Which part writes the name into the last stream: the embedding of "Aunt", the previous-token head, or the induction head? And what does a constant added to all logits do to your answer?

# %%
show(r, "stream.adds_up", "stream.only_centred_counts", "stream.name_is_written")
gallery.stream_contributions(r)

# %% [markdown] tags=["core"]
# The two bars of a part differ by what it does for *all* names. **Predict:** do heads mostly add, or also erase? And how much does the loss rise without the previous-token head, directly and in total?

# %%
show(r, "stream.writes_erase", "stream.direct_is_not_total", "stream.last_layer_is_direct")
gallery.stream_overlaps(r)

# %%
gallery.stream_effects(r)

# %% [markdown] tags=["core"]
# A head far from the diagonal works through others. **Predict:** how much of its write can the keys of the induction head see, if chance is one part in eight? And does only one reader see it?

# %%
show(r, "stream.readable", "stream.virtual_weights")
gallery.stream_virtual_weights(r)

# %% [markdown] tags=["core"]
# **Predict:** stretch the stream by up to ten in some directions and undo it at every reader. Rotate the MLP's 1,024 hidden coordinates and undo it. Which one changes the logits?

# %%
show(r, "stream.no_stream_basis", "stream.mlp_basis")

# %% [markdown] tags=["extension"]
# **Predict:** two twins of one size, one trained with Adam alone and one with SGD and momentum alone. Both saw the same text in the same order. Whose coordinates stand out? Caples and Neuhaus saw strong outliers with Adam and none with SGD, in TinyStories models of 12 million parameters with LayerNorm. Ours are far smaller and have no norm, so a null result would not contradict them.

# %%
show(r, "stream.adam_sees_axes", "stream.twins_are_comparable", "stream.random_basis_control", "stream.axes_of_adam", "stream.axes_of_sgd")  # fmt: skip
gallery.stream_kurtosis(r)

# %% [markdown] tags=["core"]
# **Predict:** the path from embedding to logits is still there in a deeper model, `W_E W_U`. Is it still a table of word pairs, or have the heads taken over some of its work?

# %%
show(r, "stream.bigram_identity", "stream.between_the_entropies", "stream.rows_are_bigrams", "stream.direct_path_is_no_bigram")  # fmt: skip
gallery.stream_bigrams(r)

# %%
plots.table(r["top"])

# %% [markdown] tags=["core"]
# ## Does it survive?
# Six numbers, five changes that keep every probability (with LayerNorm the stretch is a shear). **Predict** each cell, then run. What a change moves says how the weights are written down, not what the model does. The centred contribution survives all five. The virtual-weight score does not survive a stretched stream: read it as a hint.

# %%
show(r, "stream.survival")
rows = r["survives"].items()
words = {n: {k: ("moves", "stays")[v] for k, v in zip(r["numbers"], row)} for n, row in rows}
plots.table([{"change": n} | row for n, row in words.items()])

# %% [markdown] tags=["written", "core"]
# <!-- written: 01.city_coordinate points=3 minutes=10 difficulty=2 -->
# **In your own words.** *Coordinate 17 of the stream is large whenever the text is about cities*, says a report; *it is the city coordinate*. Then its authors publish the weights once more, in other stream coordinates: `x → x @ G`, undone at every reader. Now coordinate 17 has nothing to do with cities. Why has no prediction changed? Must `G` be a rotation? And how would you word the finding, so that it is true of both files?

# %% [markdown] tags=["solution"]
# **Model answer.** *1 point*: whoever writes has `G` on its right, whoever reads has the inverse on its left, and the two meet as `G @ G⁻¹`. So every query, key, value, pre-activation and logit is the number that it was. *1 point*: no, any invertible `G` will do; nothing that the model computes depends on lengths or angles in the stream. (LayerNorm leaves fewer choices.) *1 point*: it names a writer *and* a reader, not a place in a list. "What this head writes in city texts raises the centred logit of these words", or "a linear read-out of the stream tells city texts from others". *Half right*: "because a rotation keeps lengths" earns the first point only if it says where the inverse goes. "Another coordinate does it now" earns nothing for the third: the direction need not be an axis at all.

# %% [markdown]
# **What would change our mind?** A part of the stream that is not in the list. A last-layer head whose direct and total effects differ. A rotation that moves a logit. Outlier coordinates that survive a random basis.
#
# **What we simplified.** No LayerNorm: with it a part's share depends on a scale set by all parts, and only turns about the all-ones direction and shears along it are free. Zero and mean ablation put the model where it has never been. The twins are one seed each, and their losses are near, not equal. Plug-in entropies belong to the text that was counted.
#
# **Further reading.** Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*. Elhage et al. 2023, *Privileged Bases in the Transformer Residual Stream*. Caples and Neuhaus 2024, *Adam Optimizer Causes Privileged Basis in Transformer LM Residual Stream*. McGrath et al. 2023, *The Hydra Effect* (direct and total effect).
#
# **The spine.** What we now know of the pair:

# %%
show(r, "stream.name_is_written", "stream.direct_is_not_total", "stream.virtual_weights")
