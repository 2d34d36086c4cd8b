# %% [markdown]
# # 08 · Superposition: more features than dimensions
# Series: Part 7 · Reading: 75 minutes · CPU: 1 minute
#
# Chapter 07 met neurons that answer to many unrelated things. Here is the smallest model in which that must happen, small enough to hold in your hands. You will know its true features, so you can check every sentence that you would like to say about them.
#
# **You will do**: store two features in one number, derive when that pays, train two thousand toys in a few batches, measure how much of a dimension a feature gets, and find out what can be read back.
# **You will learn**: why sparse features share dimensions; what the bias and the ReLU do; why directions are not a basis; which of these numbers belong to coordinates and not to the model.
# **You need**: chapters 01 and 02, means and variances. Sections marked *core* take about 47 minutes, *extension* about 28.
#
# **Notation, once.** This chapter follows the 2022 paper: features are columns, $h=Wx$, and column $W_i$ is the direction of feature $i$. $S$ is the probability that a feature is off, $p=1-S$ that it is on. A feature that is on is uniform between zero and one. Losses are summed over features, weighted by their importance $I_i$, and averaged over inputs.

# %%
from dataclasses import dataclass

import torch

from circuitbook import curves, gallery, plots, spine, zoo
from circuitbook.check import check
from circuitbook.claims import all_of, atleast, atmost, between, claim, close, equal, ours, show
from circuitbook.gallery import drawn
from circuitbook.gallery.tables08 import toy_survival_rows
from circuitbook.paths import quick
from circuitbook.results import bound, measured
from circuitbook.superposition import closed_forms, geometry, messages, record, recovery, study, toy

# %% [markdown] tags=["core"]
# ## 1 · Two features in one number · core, 5 minutes
# The toy squeezes $n$ features into $m$ numbers and reads them back with the same matrix: $x'=\mathrm{ReLU}(W^\top Wx+b)$. Put two features into one number, in opposite directions: $W=[1,\,-1]$, $b=0$. **Predict** what comes back for the inputs $(0.7,0)$, $(0,0.4)$ and $(0.7,0.4)$. And what would come back without the ReLU?


# %% tags=["save", "core"]
def read_back(W, b, x, relu=True):
    """x' = ReLU(WᵀWx + b), or without the ReLU. W [m, n], b [n], x [n, inputs]: features in rows."""
    z = W.mT @ (W @ x) + b[:, None]
    return z.relu() if relu else z


# %% tags=["core"]
W, b, x = torch.tensor([[1.0, -1.0]]), torch.zeros(2), torch.tensor(study.HAND_X).T
for name, relu in (("with the ReLU", True), ("without", False)):
    print(f"{name:<14}", read_back(W, b, x, relu).T.double().numpy().round(4).tolist())

# %% [markdown] tags=["core"]
# One feature on: it comes back whole, because the ReLU cuts off the *echo*, what one feature adds to the read-out of another. Both on: they cancel inside $h$, and nothing can undo that. So the price of sharing is paid when two features meet. If each is on with probability $p$, that happens with probability $p^2$. Giving up a feature costs something like $p$. For small $p$ the square is smaller. That is the whole idea.


# %% tags=["exercise", "core"]
# exercise: 08.toy_loss points=2 minutes=10 difficulty=1
def toy_loss(W, b, x, importance):
    """Mean over inputs of Σ_i I_i (x_i - x'_i)², where x' = ReLU(WᵀWx + b).

    W [m, n], b [n], x [n, inputs], importance [n]. Returns a number.
    """
    # solution
    guess = (W.T @ (W @ x) + b[:, None]).relu()
    return (importance[:, None] * (x - guess) ** 2).sum(0).mean().item()


# %%
check("08.toy_loss", toy_loss)

# %% [markdown] tags=["core"]
# ## 2 · When does sharing pay? · core, 7 minutes
# Two features, one number, importances $1$ and $r\le1$. Compare two plans that you can work out on paper. *First alone*: $W=[1,\,0]$. The second feature is given up, and its bias answers with the best constant, its mean. You need $E\,x=p/2$ and $E\,x^2=p/3$. *Opposite pair*: $W=[1,\,-1]$, $b=0$. Look at section 1: what is the error of each feature when both are on? For two uniform numbers $E\min^2=1/6$. **Derive** both losses. Set them equal and solve for $p$. You should find $p^*=4r/(2+5r)$: below it the pair is better. At equal importance that is four sevenths.


# %% tags=["exercise", "core"]
# exercise: 08.two_plans points=3 minutes=20 difficulty=2
def two_plans(p, r):
    """(loss of the first feature alone, loss of the opposite pair), as formulas in p and r.

    Each of two features is on with probability p, then uniform on (0, 1). Importances 1 and r.
    First alone: W = [1, 0], b = [0, mean of the second]. Pair: W = [1, -1], b = 0. Returns numbers.
    """
    # solution
    first_alone = r * (p / 3 - p**2 / 4)
    pair = (1 + r) * p**2 / 6
    return first_alone, pair


# %%
check("08.two_plans", two_plans)

# %% [markdown] tags=["core"]
# ## 3 · A share of a dimension · core, 7 minutes
# How much room does a feature get? $D_i=\dfrac{|W_i|^2}{\sum_j(\hat W_i\cdot W_j)^2}$, with $\hat W_i=W_i/|W_i|$. The numerator is the feature's own part along its direction, the denominator all that is written along it. An orthogonal feature has one dimension. Two opposite ones have a half each. **Predict** $D$ for a triangle, a pentagon and a tetrahedron. What must the sum over all features be, at most?


# %% tags=["exercise", "core"]
# exercise: 08.feature_dimensionality points=3 minutes=15 difficulty=2
def feature_dimensionality(W):
    """D_i = |W_i|² / Σ_j (Ŵ_i·W_j)² for every column of W [m, n]; zero for a column of zeros. Returns [n]."""
    # solution
    gram = W.T @ W
    size = gram.diagonal()
    written = (gram**2).sum(1)  # |W_i|² times the denominator
    return torch.where(size > 0, size**2 / written.clamp(min=1e-30), torch.zeros_like(size))


# %%
check("08.feature_dimensionality", feature_dimensionality)

# %% tags=["draw", "core"]
drawn.shares(drawn.TOY, feature_dimensionality(torch.tensor(drawn.TOY)))

# %% [markdown] tags=["core"]
# **Derive the bound yourself**, on paper. Write $M=WW^\top$ and let $M^+$ be its pseudo-inverse. The *leverage* of feature $i$ is $\ell_i=W_i^\top M^+W_i$. Show that $D_i\le\ell_i$. Hint: Cauchy and Schwarz, for the two vectors $M^{1/2}W_i$ and $(M^+)^{1/2}W_i$. What is their product, and what are their lengths? Then: what do leverages sum to, and when is $D_i=\ell_i$? The answer stands below.


# %% tags=["exercise", "extension"]
# exercise: 08.leverages points=2 minutes=10 difficulty=2
def leverages(W):
    """ℓ_i = W_iᵀ (WWᵀ)⁺ W_i for every column of W [m, n], also when the rank is below m. Returns [n]."""
    # solution
    return ((torch.linalg.pinv(W @ W.T) @ W) * W).sum(0)


# %%
check("08.leverages", leverages)

# %% [markdown] tags=["core"]
# **The answer.** $W_i$ lies in the range of $M$, where $M^{1/2}(M^+)^{1/2}$ does nothing. So the product is $|W_i|^2$, and $|W_i|^4\le(W_i^\top MW_i)(W_i^\top M^+W_i)$. Divide by the first factor: it is $|W_i|^2$ times the denominator of $D_i$. What remains is $D_i\le\ell_i$. Leverages are the diagonal of a projection, so they sum to the rank of $W$, at most $m$. Hence $\sum_iD_i\le m$. $D_i=\ell_i$ where $MW_i$ is a multiple of $W_i$: for every feature of a *tight frame*, a set with $WW^\top$ a multiple of one. To fill the space is not enough. Two features of length one at right angles and one between them have rank two, but their $D_i$ sum to $\frac23+\frac23+\frac12$.
#
# **Controls before data.** Shapes whose answer is known, and two traps. In *mixed* the numerator knows lengths and the denominator does not: two correct formulas, mixed. In *dust* a feature of length one hundredth has a dimension for itself. **Predict** which of the numbers below are nonsense, and how you would notice.

# %% tags=["core"]
orthogonal, dust = (12 / 5) ** 0.5 * torch.eye(5), torch.diag(torch.tensor([1.0, 0.01]))
for name, W in (("pentagon", recovery.pentagon()), ("orthogonal", orthogonal), ("dust", dust)):
    print(f"{name:<12}D", geometry.dimensionality(W).numpy().round(3).tolist())
print("mixed, summed over five dimensions", geometry.mixed_dimensionality(orthogonal).sum().item())
print("dust is stored:", geometry.represented(dust).tolist())

# %% [markdown] tags=["core"]
# So $D$ is always read beside the length. As in the series, a feature counts as stored when $|W_i|>0.5$.
# ## 4 · An overcomplete set is not a basis · core, 5 minutes
# In a basis every vector has one set of coordinates. Five directions in a plane are no basis. Take the pentagon. Turn on features 2 and 5, both at one. They stand 72° to the left and to the right of feature 1, so their sum points along feature 1. Its length is $2\cos72°\approx0.618$. **Predict**: which input with a *single* feature on has the same $h$? Could any decoder tell the two apart? (An input that would explain $h$ is called a *code* of it. Here are two.)

# %% tags=["core"]
x = torch.tensor([[0, 1, 0, 0, 1], [(5**0.5 - 1) / 2, 0, 0, 0, 0]], dtype=torch.float64).T
print((recovery.pentagon() @ x).T.numpy().round(6).tolist())


# %% tags=["exercise", "core"]
# exercise: 08.two_codes points=4 minutes=20 difficulty=3
def two_codes(W):
    """(x, y), both [n]: different, no entry negative, and Wx = Wy. W [m, n] with n > m.

    At most m + 1 features are on in x and y together. Hint: m + 1 directions in m dimensions depend
    on each other. Which vector c says how? What becomes of its signs?
    """
    # solution
    m, n = W.shape
    c = torch.zeros(n, dtype=W.dtype)
    c[: m + 1] = torch.linalg.svd(W[:, : m + 1])[2][-1]  # the last right singular vector: W c = 0
    return c.clamp(min=0), (-c).clamp(min=0)


# %%
check("08.two_codes", two_codes)

# %% [markdown] tags=["core"]
# What saves us is sparsity, again. If few features are on, the *shortest* code, the one with the smallest sum, is often the right one. How few? We measure that in section 12.

# %% [markdown] tags=["extension"]
# ## 5 · Many toys, one batch · extension, 5 minutes
# One toy has a dozen numbers; calling a library for it costs more than computing. So all starts of one kind of toy are one tensor, and the gradient is written out. Where $z=W^\top h+b$ is positive the ReLU does nothing; elsewhere no gradient flows. $W$ is used twice, so its gradient has two terms.


# %% tags=["save", "extension"]
def toy_gradient(W, b, x, importance):
    """(dL/dW, dL/db) of L = mean over inputs of Σ I (x - ReLU(WᵀWx + b))². Shapes as in read_back."""
    h = W @ x
    z = W.mT @ h + b[:, None]
    g = 2 * importance[:, None] * (z - x) * (z > 0) / x.shape[1]  # dL/dz
    return h @ g.mT + (W @ g) @ x.mT, g.sum(1)


# %% tags=["extension"]
generator = torch.Generator().manual_seed(0)
W, b = (torch.randn(s, generator=generator, requires_grad=True) for s in ((2, 5), (5,)))
x, I = toy.sparse_inputs(torch.rand(5, 64, generator=generator), 0.3), 0.9 ** torch.arange(5)
((x - read_back(W, b, x)).square() * I[:, None]).sum(0).mean().backward()
by_hand = toy_gradient(W.detach(), b.detach(), x, I)
print("as autograd:", [torch.allclose(a, c.grad, atol=1e-6) for a, c in zip(by_hand, (W, b))])

# %% [markdown]
# ## 6 · The measurement
# All numbers come from this cell. Starts are normal draws; all instances see one stream of inputs; Adam, which fits the step of each weight to its past gradients, with a falling learning rate. Losses are read in double precision: the number of features that are on is summed over exactly, and the values are Sobol points, which fill a cube evenly. They are scrambled at random four times, which gives the error. *Best of three* means the first three starts, as in the series. Intervals of rates are Wilson's, at 95 %.


# %%
@dataclass(frozen=True)
class Config:
    """What defines this chapter's experiment."""

    starts: int = 64
    steps: int = 5000
    size: int = 512
    forty: int = 4
    forty_steps: int = 3000
    sweep_steps: int = 2500
    codes: int = 500
    repeats: int = 40


# Not formatted from here on: a line for each number, a few lines for each claim.
# fmt: off
def compute(cfg):
    """All numbers of the chapter, from its config alone."""
    five, floors, p40 = study.five_in_two(cfg.starts, cfg.steps, cfg.size), closed_forms.series_floors(study.importance(5).tolist()), 0.05
    toys = toy.train_toys(40, 10, p40, instances=cfg.forty, steps=cfg.forty_steps, size=1024, samples=16384)
    code, (edge, sides) = recovery.same_shadow(toys.W[0].double()), record.border()
    exact, words, pair = zoo.load("attn-only-2l", dtype=torch.float64), curves.Bench.frequent(), tuple(h for _, h in spine.heads_pair(zoo.load("attn-only-2l"), 16))
    d = {
        "hand": study.hand_case(), "runs": {name: study.summary(run, floors.get(name)) for name, run in five.items()}, "pentagon": study.pentagons(five["S0.9"]), "echo": study.echoes(five["S0.9"], study.best_of(five["S0.9"]), 0.1), "pairs_bias": study.pays_back(five["S0.7"], study.best_of(five["S0.7"]), 0.3),
        "border": edge, "sides": sides, **record.sticky(cfg.sweep_steps), "pairs": record.company(cfg.starts), "levels": record.learning(cfg.starts),
        "forty": study.forty(toys, p40), "codes": list(code), "recovery": record.reading(toys, cfg.codes), "room": record.room(cfg.repeats), "abs": record.shared(),
        "messages": {"pair": list(pair), **messages.study(exact, pair, words)},
        "moves": {"toy": record.tidy(study.toy_survival(toys.W[0], toys.b[0], p40)), "pair": record.tidy(messages.own_survival(40))},
    }
    exactly = {**record.errors(toys, five, code, cfg), "swept": max(d.pop("over")), "toys": sum(x.shape[0] for x in (toys.W, *(v.W for v in five.values()), d["small"]["D"].flatten(0, 1), d["large"]["D"]))}
    return {"data": d | {"series": record.series(d)}, "claims": ours(claims(d, exactly), but=("superposition.messages_share",))}


def claims(d, exactly):
    """The chapter's sentences. Errors of identities are judged here and not kept."""
    R, P, E, F, B, Z, best, linear = d["runs"], d["pentagon"], d["echo"], d["forty"], d["border"], d["pairs_bias"], *(d["runs"][k]["best"] for k in ("S0.9", "linear_S0.9"))
    def off(name): return R[name]["best"]["loss"] / R[name]["floor"] - 1
    S, G, L, M, A, rec, T, Q = d["small"], d["large"], d["levels"], d["messages"], d["abs"], d["recovery"], d["moves"]["toy"], d["moves"]["pair"]
    half = sum(bool((D[w > 0.5] - 0.5).abs().le(0.01).double().mean() >= 0.8) for D, w in zip(G["D"], G["length"]))
    close_pairs, wide_pairs, jumps = d["pairs"]["0.1"], d["pairs"]["0.3"], int((L["jumps"] > 0.05).sum())
    sides, third = max(abs(v["pair"][0] - v["first alone"][0]) / (v["pair"][1] ** 2 + v["first alone"][1] ** 2) ** 0.5 for v in d["sides"].values()), (B["second"] > 0.1) & (B["second"] < 0.6) & (torch.arange(B["second"].numel()).view(B["second"].shape) < B["second"].numel() - 1)
    sliding, sticky, chance = (G["D"][-1][G["length"][-1] > 0.5], *(sum(S[k][v] for v in ("1/2", "2/5", "3/8", "2/3")) for k in ("near", "random")))
    slope, left = {k: recovery.growth(d["room"]["n"], d["room"][k]) for k in ("first", "expected")}, {k: [i + 1 for i, v in enumerate(rec["toy"][k]) if v < 0.5] + [9] for k in rec["toy"]}
    return [
        claim("superposition.two_in_one", "`W = [1, -1]`, `b = 0`: each feature alone comes back exactly, to {limit:g}. Of {a} and {b} together, {out:.1f} and zero come back.", label="identity", values={"a": 0.7, "b": 0.4, "out": d["hand"][2][0]}, holds=bound(exactly["hand"], 1e-12)),
        claim("superposition.not_a_basis", "In a pentagon, two features on at one have the same hidden vector as one feature on at {golden:.3f}, to {limit:g}. In the trained forty-in-ten toy two different codes, of {x} and of {y} features, have one hidden vector.", label="identity", values={"golden": (5**0.5 - 1) / 2, "x": int((d["codes"][0] > 0).sum()), "y": int((d["codes"][1] > 0).sum()), "limit": 1e-12}, holds=all_of(bound(exactly["pentagon"], 1e-12), bound(exactly["codes"], 1e-12))),
        claim("superposition.dense_keeps_two", "Dense features: the best of three starts stores {n} of five. Its loss is {loss:.4f}; the closed form of keeping two is {floor:.4f}, and {part:.0%} was allowed.", label="measurement", values={"n": R["S0.0"]["best"]["represented"], "loss": R["S0.0"]["best"]["loss"], "floor": R["S0.0"]["floor"], "part": 0.01}, holds=all_of(equal(int(R["S0.0"]["best"]["represented"]), 2), atmost(abs(off("S0.0")), 0.01))),
        claim("superposition.sparser_keeps_four", "Off {S:.0%} of the time: the best of three stores {n}, as two opposite pairs (cosines of {value:.3f} at most). Its loss, {loss:.4f}, is {part:+.1%} from the closed form of two such pairs without biases, {floor:.4f}.", label="measurement", values={"S": 0.7, "n": R["S0.7"]["best"]["represented"], "loss": R["S0.7"]["best"]["loss"], "part": off("S0.7"), "floor": R["S0.7"]["floor"]}, holds=all_of(equal(int(R["S0.7"]["best"]["represented"]), 4), between(off("S0.7"), -0.02, 0.005), atmost(Z["cosines"].max(), -0.99)) | {"value": Z["cosines"].max().item()}),
        claim("superposition.pentagon", "Off {S:.0%} of the time: the best of three stores {n}, with gaps of {low:.1f}° to {high:.1f}° ({right:.0f}° ± {allowed:.0f}° was asked), at a loss of {loss:.4f} (error {se:.5f}).", label="measurement", values={"S": 0.9, "n": best["represented"], "low": best["gaps"].min(), "high": best["gaps"].max(), "right": 72, "allowed": 3, "loss": best["loss"], "se": best["se"]}, holds=all_of(equal(int(best["represented"]), 5), atmost((best["gaps"] - 72).abs().max(), 3))),
        claim("superposition.linear_keeps_two", "Without the ReLU, equally sparse, the best of three stores {n}. Its loss is {loss:.4f} (closed form {floor:.4f}), {value:.1f} times that with the ReLU; {bound} times was asked.", label="measurement", values={"n": linear["represented"], "loss": linear["loss"], "floor": R["linear_S0.9"]["floor"]}, holds=all_of(equal(int(linear["represented"]), 2), atmost(abs(off("linear_S0.9")), 0.01), atleast(linear["loss"] / best["loss"], 2)) | {"value": (linear["loss"] / best["loss"]).item(), "bound": 2}),
        claim("superposition.pentagon_rate", "Of {value} starts, {hits} end in a pentagon: {rate:.0%}, interval {low:.0%} to {high:.0%}. Their mean loss is {loss:.4f}, that of the others {others:.4f}.", label="measurement", values={"hits": P["hits"], "rate": P["hits"] / P["of"], "low": P["low"], "high": P["high"], "loss": P["loss"], "others": P["others"]}, holds=all_of(atleast(P["of"], 20), atmost(P["high"] - P["low"], 0.25), atmost(P["loss"] - P["others"], 0)) | {"value": P["of"]}),
        claim("superposition.best_hides_the_rest", "Off {S:.0%} of the time, losses run from {least:.4f} over a median of {median:.4f} to {most:.4f}. The best of three is {value:.4f}, {part:.1%} above the least; the median start is {far:.1%} above it.", label="measurement", values={"S": 0.7, "least": R["S0.7"]["least"], "median": R["S0.7"]["median"], "most": R["S0.7"]["loss"][-1], "part": R["S0.7"]["best"]["loss"] / R["S0.7"]["least"] - 1, "far": R["S0.7"]["median"] / R["S0.7"]["least"] - 1}, holds=all_of(atmost(R["S0.7"]["best"]["loss"] / R["S0.7"]["least"], 1.005), atleast(R["S0.7"]["median"] / R["S0.7"]["least"], 1.02)) | {"value": R["S0.7"]["best"]["loss"].item()}),
        claim("superposition.bias_is_the_mean", "Dense: the biases of the features that are given up are {low:.3f} to {high:.3f}; the mean of a feature is {target}.", label="measurement", values={"low": R["S0.0"]["best"]["bias"][2:].min(), "high": R["S0.0"]["best"]["bias"][2:].max()}, holds=close(R["S0.0"]["best"]["bias"][2:].mean(), 0.5, 0.02)),
        claim("superposition.bias_is_a_filter", "In the pentagon the two neighbours hear feature `1` at {a:.2f} and {b:.2f}; behind biases of about {bias:.2f}, {c:.2f} and {d:.2f} are left. Set all biases to zero, nothing trained again: the loss goes from {loss:.4f} to {without:.4f}, {value:.1f} times; {bound} was asked. The part of features that are on goes from {on:.4f} to {on_cut:.4f}, that of features that are off from {off:.4f} to {off_cut:.4f}. With all lengths at {factor:.2f} of theirs, the best common factor, it is still {again:.2f} times.", label="intervention", values={"a": E["neighbours"][0], "b": E["neighbours"][1], "bias": best["bias"].mean(), "c": E["leak"][0], "d": E["leak"][1], "loss": E["loss"], "without": E["without_bias"], "on": E["on"][0], "on_cut": E["on"][1], "off": E["off"][0], "off_cut": E["off"][1], "factor": E["factor"], "again": E["rescaled"] / E["loss"]}, holds=all_of(atleast(E["without_bias"] / E["loss"], 1.5), atleast(E["off"][1] / E["off"][0], E["on"][1] / E["on"][0]), atleast(E["rescaled"] / E["loss"], 1)) | {"value": (E["without_bias"] / E["loss"]).item(), "bound": 1.5}),
        claim("superposition.bias_pays_back", "In the two opposite pairs the biases of the four stored features are {low:+.3f} to {high:+.3f}. Set these four to zero, nothing trained again: the loss goes from {loss:.4f} to {without:.4f}, and the part of features that are on from {on:.4f} to {on_cut:.4f}.", label="intervention", values={"low": Z["biases"].min(), "high": Z["biases"].max(), "loss": Z["loss"], "without": Z["without"], "on": Z["on"][0], "on_cut": Z["on"][1]}, holds=all_of(atleast(Z["biases"].min(), 0), atleast(Z["without"] - Z["loss"], 0), atleast(Z["on"][1] - Z["on"][0], 0))),
        claim("superposition.length_and_bias", "In the pentagon `|W_i|² + b_i` lies between {low:.2f} and {high:.2f}. The formula `|W_i| = 1/(1 - b_i)` that is in print would give lengths of about {formula:.2f}; they are {length:.2f}.", label="measurement", values={"low": E["square_plus_bias"].min(), "high": E["square_plus_bias"].max(), "formula": E["published_formula"].mean(), "length": E["norms"].mean()}, holds=all_of(atleast(E["square_plus_bias"].min(), 0.9), atmost(E["square_plus_bias"].max(), 1.1), atleast((E["norms"] - E["published_formula"]).abs().min(), 0.1))),
        claim("superposition.border_from_both_sides", "At the derived border, on random inputs, the losses of both plans differ by at most {value:.1f} of their standard errors, for two ratios of importance; {bound} was allowed.", label="measurement", holds=atmost(sides, 3)),
        claim("superposition.trained_border", "For each of {n} ratios of importance, trained toys store both features up to a `p` above the derived border: by {value:.3f} at least, on a grid of {step}. The derived pair has no biases; the trained one may use them. At {third} of {of} settings a third plan wins: the second feature is stored at {short:.2f} to {long:.2f} of the length of the first, and the loss is at most {gain:.1%} below that of the better derived plan.", label="measurement", values={"n": len(B["ratio"]), "step": 0.025, "third": int(third.sum()), "short": B["second"][third].min(), "long": B["second"][third].max(), "gain": B["gain"][third].max(), "of": B["second"].numel()}, holds=atleast((B["trained"] - B["predicted"]).min(), 0)),
        claim("superposition.share_is_bounded", "`D_i` is at most the leverage of feature `i`, and the `D_i` sum to at most the number of dimensions, in each of the {toys} toys of five, eight, forty and sixty features, to {limit:g}.", label="identity", values={"limit": 1e-9, "toys": exactly["toys"]}, holds=bound(max(exactly["over"], exactly["swept"], 0), 1e-9)),
        claim("superposition.mixed_formula", "With lengths in the numerator only, five orthogonal directions of squared length {square} sum to {twelve} dimensions out of five, to {limit:g}; the toy's forty features to {toy:.0f} out of ten.", label="identity", values={"square": 2.4, "twelve": 12, "toy": exactly["mixed toy"], "limit": 1e-9}, holds=bound(exactly["mixed"], 1e-9)),
        claim("superposition.sticky", "Eight features in two dimensions, {n} sparsities: {half:.0%} of stored features have a half of a dimension, {fifths:.0%} two fifths, {eighths:.0%} three eighths, but {thirds:.0%} two thirds (within {allowed}): {all:.0%} together. With the same lengths at random angles it would be {value:.0%}; {bound:.0%} was allowed.", label="measurement", values={"n": len(S["inverse"]), "half": S["near"]["1/2"], "fifths": S["near"]["2/5"], "eighths": S["near"]["3/8"], "thirds": S["near"]["2/3"], "allowed": 0.01, "all": sticky}, holds=all_of(atmost(chance, 0.25), atleast(sticky, 0.5)) | {"value": chance, "bound": 0.25}),
        claim("superposition.a_half_is_a_plateau", "Sixty features in twelve dimensions: at {value} of {n} sparsities at least {part:.0%} of the stored features have a half of a dimension each; {bound} was asked. At the sparsest they have {low:.2f} to {high:.2f}.", label="measurement", values={"n": len(d["large"]["inverse"]), "part": 0.8, "low": sliding.min(), "high": sliding.max()}, holds=atleast(half, 3)),
        claim("superposition.shares_fill_the_space", "The shares sum to {low:.3f} to {high:.3f} in every toy of two dimensions, and to {wide_low:.2f} to {wide_high:.2f} in those of twelve.", label="measurement", values={"low": S["sum"][0], "high": S["sum"][1], "wide_low": G["sum"][0], "wide_high": G["sum"][1]}, holds=atleast(min(S["sum"][0] / 2, G["sum"][0] / 12), 0.99)),
        claim("superposition.partners_keep_apart", "Features that come together avoid each other: at `p` of {p} they stand opposite in {hits} of {of} starts that store all four (at most {value:.0%} in the interval), independent ones in {free} of {free_of} (at least {bound:.0%}).", label="measurement", values={"p": 0.1, "hits": close_pairs["come together"]["hits"], "of": close_pairs["come together"]["of"], "free": close_pairs["independent"]["hits"], "free_of": close_pairs["independent"]["of"]}, holds=atmost(close_pairs["come together"]["interval"][1], close_pairs["independent"]["interval"][0])),
        claim("superposition.rivals_share", "Features that never come together share a line: at `p` of {p} they stand opposite in {hits} of {of} starts (at least {value:.0%} in the interval), independent ones in {free} of {free_of} (at most {bound:.0%}). At `p` of {low} it is {low_hits} of {low_of} against {low_free} of {low_free_of}, and the intervals overlap.", label="measurement", values={"p": 0.3, "low": 0.1, "low_hits": close_pairs["never together"]["hits"], "low_of": close_pairs["never together"]["of"], "low_free": close_pairs["independent"]["hits"], "low_free_of": close_pairs["independent"]["of"], "hits": wide_pairs["never together"]["hits"], "of": wide_pairs["never together"]["of"], "free": wide_pairs["independent"]["hits"], "free_of": wide_pairs["independent"]["of"]}, holds=all_of(atleast(wide_pairs["never together"]["interval"][0], wide_pairs["independent"]["interval"][1]), atleast(close_pairs["independent"]["interval"][1], close_pairs["never together"]["interval"][0])) | {"value": wide_pairs["never together"]["interval"][0], "bound": wide_pairs["independent"]["interval"][1]}),
        claim("superposition.partners_merge", "At `p` of {p}, {any} of {of} starts with features that come together merge at least one pair into one direction (cosine above {cut}), {both} merge both pairs; at `p` of {low}, {none} of {none_of}.", label="measurement", values={"p": 0.3, "low": 0.1, "cut": 0.9, "any": wide_pairs["come together"]["merged"][0], "both": wide_pairs["come together"]["merged"][1], "of": wide_pairs["come together"]["of"], "none": close_pairs["come together"]["merged"][0], "none_of": close_pairs["come together"]["of"]}, holds=atleast(wide_pairs["come together"]["merged"][0] / wide_pairs["come together"]["of"], 0.5)),
        claim("superposition.falls_are_moves", "{jumps} of {n} starts rest and then lose more than {part:.0%} within {window} steps; the largest such jump is {top:.0%}. In each of them the `D_i` move by {value:.2f} or more in all; in windows of rest (a fall below {rest:.0%}) by {calm:.2f} in the median and {bound:.2f} at most. Over all starts, falls and moves have a correlation of {c:.2f} from step {since} on, but most of that is the early decay: from step {late} on it is {none:.2f}.", label="measurement", values={"jumps": jumps, "n": len(L["jumps"]), "part": 0.05, "window": 200, "rest": 0.01, "top": L["jumps"][0], "calm": L["calm"][0], "c": L["correlation"][0], "since": L["since"][0], "late": L["since"][2], "none": L["correlation"][2]}, holds=atleast(L["moves"][: max(jumps, 1)].min(), L["calm"][1])),
        claim("superposition.abs_dense", "A network of ten neurons for the absolute values of twenty dense features: a neuron serves {features:.1f} features in the mean (paths above {part} of its largest), and no start does better than {least:.2f} of the plan with two neurons a feature.", label="measurement", values={"features": A["features"][0].double().mean(), "part": 0.3, "least": A["ratio"][0].min()}, holds=all_of(close(A["features"][0].double().mean(), 1, 0.05), atleast(A["ratio"][0].min(), 1))),
        claim("superposition.abs_sparse", "On one input in ten: {value:.1f} features a neuron in the mean, and a loss of {low:.2f} to {high:.2f} of that plan's (error {se:.2f}).", label="measurement", values={"low": A["ratio"][2].min(), "high": A["ratio"][2].max(), "se": A["se"][2].max()}, holds=all_of(atleast(A["features"][2].double().mean(), 2), atmost(A["ratio"][2].max(), 0.95)) | {"value": A["features"][2].double().mean().item()}),
        claim("superposition.forty_stored", "Forty features in ten dimensions, off {S:.0%} of the time, all equally important: in each of {n} starts at least {value} are stored; the first has a loss of {loss:.4f} (error {se:.4f}). Keeping ten costs {linear:.3f}, keeping none {nothing:.3f}.", label="measurement", values={"S": 0.95, "n": len(F["loss"]), "loss": F["loss"][0], "se": F["se"], "linear": F["linear"], "nothing": F["nothing"]}, holds=all_of(equal(int(F["represented"].min()), 40), close(F["loss"][0], 0.1525, 0.06 * 0.1525)) | {"value": int(F["represented"].min())}),
        claim("superposition.units_are_mixed", "Each of its ten hidden units is moved by {value} features or more (weights above {cut}), by {most} at most.", label="measurement", values={"cut": 0.3, "most": F["features_per_unit"].max()}, holds=atleast(F["features_per_unit"].min(), 5)),
        claim("superposition.units_are_random_axes", "Median best cosine of a feature with a hidden unit: {units:.2f} (in the other starts {least:.2f} to {most:.2f}); with a principal axis of the hidden vectors: {pca:.2f}. Axes of random orthonormal bases give {low:.2f} to {high:.2f} (`95 %` of draws). All `D_i` lie between {D_low:.3f} and {D_high:.3f}, all eigenvalues of `W Wᵀ` between {e_low:.2f} and {e_high:.2f}.", label="measurement", values={"units": F["median"]["hidden units"], "least": min(F["units"][1:]), "most": max(F["units"][1:]), "pca": F["median"]["principal axes of h"], "low": F["random_range"][0], "high": F["random_range"][1], "D_low": F["D"][0], "D_high": F["D"][-1], "e_low": F["spread"][0], "e_high": F["spread"][1]}, holds=all_of(atmost(max(*F["units"], F["median"]["principal axes of h"]), F["random_range"][1]), close(F["D"][0], 0.25, 0.01), close(F["D"][-1], 0.25, 0.01), atmost(F["spread"][1] / F["spread"][0], 1.05))),
        claim("superposition.sparse_codes_come_back", "From the ten numbers of the toy, one feature on is named in {value:.0%} of cases and three in {three:.0%}, by the shortest non-negative code; from {k} on, in less than half. The toy's own read-out names one in {own:.0%} and three in {own_three:.0%}.", label="measurement", values={"three": rec["toy"]["shortest"][2], "k": left["shortest"][0], "own": rec["toy"]["own"][0], "own_three": rec["toy"]["own"][2]}, holds=atleast(rec["toy"]["shortest"][0], 0.99)),
        claim("superposition.room_grows", "Draw random directions until two have an absolute cosine above {cut}: the median count grows by a factor of {ten:.1f} every ten dimensions, from {a:.0f} at {n_a} to {b:.0f} at {n_b}. The rate is {value:.3f} a dimension, {target:.3f} by the integral.", label="approximation", values={"cut": 0.5, "ten": float(torch.tensor(10 * slope["first"]).exp()), "a": d["room"]["first"][0], "b": d["room"]["first"][-1], "n_a": d["room"]["n"][0], "n_b": d["room"]["n"][-1]}, holds=close(slope["first"], slope["expected"], 0.004)),
        claim("superposition.many_fit", "Keep every random direction that fits: in {n} dimensions, after {tries} draws, {value} are kept with absolute cosines of at most {cut}. Orthogonal ones: {n}.", label="measurement", values={"n": d["room"]["wide"][-1], "cut": 0.5, "tries": d["room"]["tries"]}, holds=atleast(d["room"]["packed"][-1], 5 * int(d["room"]["wide"][-1]))),
        claim("superposition.batch_is_alone", "Two starts, each trained alone, end at the loss that they have in the batch, to {limit:g}.", label="identity", holds=bound(exactly["alone"], 1e-5)),
        claim("superposition.rotation", "Rotate the hidden space: outputs, lengths, angles and `D_i` stay to {limit:g}. The best cosine of a feature to a unit moves by {value:.2f} of its largest value, though the toy is the same.", label="identity", values={"limit": 1e-9, "value": T["rotation R"]["best cosine to a unit"]}, holds=all_of(bound(max(T["rotation R"][k] for k in ("outputs", "loss", "lengths |W_i|", "angles between features", "D_i", "leverages")), 1e-9), atleast(T["rotation R"]["best cosine to a unit"], 0.05))),
        claim("superposition.share_needs_the_tie", "Any invertible change of the hidden space, undone in the read-out, moves no output and no leverage by more than {limit:g}. It moves `D_i` by up to {value:.2f} of its largest value.", label="identity", values={"limit": 1e-9, "value": T["invertible G, undone"]["D_i"]}, holds=all_of(bound(max(T[c][k] for c in T for k in ("outputs", "loss", "leverages")), 1e-9), atleast(T["invertible G, undone"]["D_i"], 0.05))),
        claim("superposition.messages_share", "Head {writer} of `attn-only-2l` sends the {words} most frequent words through {rank} dimensions: shares of {D_low:.3f} to {D_high:.3f}, {D:.3f} in the mean. The closest other message has a median absolute cosine of {near:.2f} ({noise:.2f} for random directions). Still head {reader}, asking with a word, hears that word's own message loudest for {value:.0%} of them; {bound:.0%} was asked. From any other head of layer 0 it hears it for {others:.1%} at most, from the word's own embedding for {itself:.1%}, by chance for {chance:.1%}. Of the other readers, head {second} comes to {second_wins:.0%}.", label="measurement", values={"writer": "0.{}".format(M["pair"][0]), "reader": "1.{}".format(M["pair"][1]), "words": M["words"], "rank": M["rank"], "D": M["D"], "D_low": M["least_D"], "D_high": M["most_D"], "near": M["nearest"], "noise": M["nearest_random"], "others": M["other_writers"], "itself": M["itself"], "chance": 1 / M["words"], "second": "1.{}".format(M["other_reader"]), "second_wins": M["other_reader_wins"]}, holds=all_of(atleast(M["wins"], 0.5), atmost(max(M["other_writers"], M["itself"]), 0.05)) | {"value": M["wins"], "bound": 0.5}),
        claim("superposition.messages_survive", "Probabilities, and who hears what, survive head coordinates, stream coordinates, `W_U + c 1ᵀ` and a vector added to every key, to {limit:g}. The cosines between messages move by {value:.2f} of the largest in other stream coordinates.", label="identity", values={"limit": 1e-9, "value": Q["stream coordinates G"]["cosines between messages"]}, holds=all_of(bound(max(row[k] for row in Q.values() for k in ("probabilities", "words whose own message wins", "own score minus the mean echo", "leverage of messages")), 1e-9), atleast(Q["stream coordinates G"]["cosines between messages"], 0.05))),
    ]


cfg = Config(starts=6, steps=600, size=256, forty=2, forty_steps=400, sweep_steps=200, codes=60, repeats=6) if quick() else Config()
CHANCE, SAME = ("runs", "pentagon", "echo", "forty", "codes", "small", "large", "pairs", "pairs_bias", "levels", "abs", "recovery", "series", "moves.toy"), {"runs.*.floor": "closed_form", "hand.*": ("closed_form", 1e-9), "series.part7.toy_one_dim.*": ("closed_form", 1e-6), "border.trained.*": ("closed_form", 0.026), "border.second.*": "stochastic", "border.gain.*": "stochastic", "messages.pair.*": "exact", "room.first.*": ("statistic", 0.3), "room.packed.*": ("statistic", 0.2), "sides.*": ("readout", 0.02)}
r = measured("08_superposition", compute, cfg, kinds=SAME | {key + ".*": "stochastic" for key in CHANCE})

# %% [markdown] tags=["core"]
# ## 7 · Five features in two dimensions · core, 6 minutes
# Importances $1,\,0.9,\,0.81,\dots$ **Predict** for $S=0$, $0.7$ and $0.9$ how many of the five are stored, and how they lie. Then the model without ReLU at $S=0.9$: what can a linear model do that a linear fit by principal axes cannot?

# %% tags=["core"]
show(r, "superposition.two_in_one", "superposition.dense_keeps_two", "superposition.sparser_keeps_four", "superposition.pentagon", "superposition.linear_keeps_two")
gallery.five_in_two(r)

# %% [markdown] tags=["core"]
# The closed forms say what a plan costs that we could write down. Dense and linear toys meet theirs. (A linear model can do nothing that principal axes cannot.) The two opposite pairs do a little better than ours; section 8 says why. **Best of three is a choice.** Here are all starts. **Predict** how many of them find the pentagon.

# %% tags=["core"]
show(r, "superposition.pentagon_rate", "superposition.best_hides_the_rest", "superposition.batch_is_alone")
gallery.starts_spread(r)

# %% [markdown] tags=["core"]
# ## 8 · Three jobs for one bias · core, 4 minutes
# Three kinds of feature: given up; stored among neighbours whose echo is positive; stored opposite to a partner, whose echo is negative. **Predict** the sign of the bias of each. Then we do not trust the story: we set biases to zero and read the loss again.

# %% tags=["core"]
show(r, "superposition.bias_is_the_mean", "superposition.bias_is_a_filter", "superposition.bias_pays_back", "superposition.length_and_bias")
gallery.echoes(r)

# %% [markdown] tags=["core"]
# Where neighbours leave positive echoes, the bias is negative: a filter. The cut alone is unfair, because the lengths were trained to live with the bias; so they may shrink before we read again. In opposite pairs the ReLU already cuts the echo. There the bias is slightly positive: features that are on come back too low when partners meet, and it gives a little back.
# ## 9 · The border, trained · core, 3 minutes
# Your formula against trained toys, for forty values of $p$ and ten ratios of importance. There is no sampling here: two features are few enough for a weighted sum over a grid. **Predict** on which side of the curve the trained border lies. What may a trained pair use that yours does without? And is there a third plan, between the two? (At $p=r=1$ every split of the length costs the same; that cell is left blank.)

# %% tags=["core"]
show(r, "superposition.border_from_both_sides", "superposition.trained_border")
gallery.phase_border(r)

# %% [markdown] tags=["extension"]
# ## 10 · Sticky shares, levels, company · extension, 13 minutes
# Equal importance now, and sparsity swept. If features shared space like water, $D$ would slide smoothly. **Predict** what it does instead. The histogram needs a control: the same lengths at random angles.

# %% tags=["extension"]
show(r, "superposition.share_is_bounded", "superposition.mixed_formula", "superposition.sticky", "superposition.a_half_is_a_plateau", "superposition.shares_fill_the_space")
gallery.sticky_shares(r)

# %% [markdown] tags=["extension"]
# Both answers are half right. In two dimensions shares stick. In twelve they rest at a half, and then slide like water. (At the left end nothing is sparse: any twelve dimensions cost the same, and $D$ is arbitrary.) What holds nearly everywhere is the bound, met. The space is full, and more than that: every $W_i$ is nearly an eigenvector of $WW^\top$.
#
# **While it learns.** We follow all starts at $S=0.9$ and a small, constant learning rate. The figure shows the start with the largest late jump, chosen for that. **Predict** what the $D_i$ do when the loss falls. Early on everything moves at once, which proves little. So we compare a late fall with times of rest.

# %% tags=["extension"]
show(r, "superposition.falls_are_moves")
gallery.levels(r)

# %% [markdown] tags=["extension"]
# **Company.** Four features in two dimensions, in two pairs. In one world partners always come together, in one they never do. Each feature is on equally often in both. Opposite directions are cheap for those who never meet. *Opposite* means: the most negative cosine of each feature is its partner's; by chance one start in three does that. Only starts that store all four count. **Predict** who stands opposite to whom.

# %% tags=["extension"]
show(r, "superposition.partners_keep_apart", "superposition.rivals_share", "superposition.partners_merge")
gallery.company(r)

# %% [markdown] tags=["core"]
# ## 11 · Forty in ten · core, 4 minutes
# The toy that chapter 09 will take apart. The series does not state its importances. We take them equal: with importances that fall as above, storing nothing would already cost about the loss that it reports. (A mild fall would fit too.) **Predict**: of forty features, how many are stored in ten dimensions? And how close does a feature come to its best hidden unit? The comparison that matters is the last one: the axes of a *random* orthonormal basis.

# %% tags=["core"]
show(r, "superposition.forty_stored", "superposition.units_are_mixed", "superposition.units_are_random_axes")
gallery.forty_in_ten(r)

# %% [markdown] tags=["core"]
# A hidden unit is worth no more than an axis of a random basis; in the toy shown, less. The reason is in the last sentence above: every feature has a quarter of a dimension, and $WW^\top$ is nearly a multiple of one. Then all directions of $h$ have nearly the same variance, and principal axes are as arbitrary as any. That is what "polysemantic" means here. Nothing is wrong with the features. We look along the wrong axes.
# ## 12 · What can be read back? · core, 3 minutes
# Ten numbers, forty candidates, $k$ of them on, with values from 0.2 to 1. Three readers try: the toy's own read-out (on: above 0.1), a greedy search that is told $k$, and the shortest non-negative code (on: above 0.05). Right means: exactly the right features. **Predict** at which $k$ each fails half of the time. (When the shortest code is wrong, the search need not have failed: an explanation exists that is no longer than the true one.)

# %% tags=["core"]
show(r, "superposition.not_a_basis", "superposition.sparse_codes_come_back")
gallery.reading_back(r)

# %% [markdown] tags=["extension"]
# ## 13 · How much room is there? · extension, 5 minutes
# Exactly orthogonal directions: $n$. Almost orthogonal ones: exponentially many in $n$. We draw directions at random until two are too close. For a cosine bound $\epsilon$ a clash has a probability near $(1-\epsilon^2)^{n/2}/\sqrt n$, up to a constant, and by the birthday rule the count grows like one over its root. (A cosine of one half, 60°, is a generous bound.) That is far fewer than could be placed with care; already it is exponential.

# %% tags=["extension"]
show(r, "superposition.room_grows", "superposition.many_fit")
gallery.room(r)

# %% [markdown] tags=["extension"]
# ## 14 · Neurons that are shared while they compute · extension, 5 minutes
# So far features were only stored. Two ReLU neurons compute $|x|$ exactly: one for each sign. Twenty features, ten neurons: a plan with two neurons a feature serves five. **Predict** what dense and sparse features do to that plan. We claim no more than that neurons are shared and the plan is beaten. Whether small toys show *computation* in superposition, or a hidden layer that is denoised on the way out, is disputed.

# %% tags=["extension"]
show(r, "superposition.abs_dense", "superposition.abs_sparse")
gallery.shared_neurons(r)

# %% [markdown] tags=["core"]
# ## Does it survive? · core, 3 minutes
# First the toy. Its read-out is tied, $W^\top$. A rotation of the hidden space keeps that tie. Any other invertible $G$ must be undone in the read-out: $W\to GW$, $W^\top\to W^\top G^{-1}$. No output moves. **Predict** for every row what moves it. Then look for the surprise: an *untied* model has no lengths, no angles and no $D_i$ of its own. Outputs and leverages do belong to it.

# %% tags=["core"]
show(r, "superposition.rotation", "superposition.share_needs_the_tie")
plots.table(toy_survival_rows(r))

# %% [markdown] tags=["core"]
# Now our language model. A *message* is what the first head of the pair writes for a word, minus the mean over words. Four changes: another basis inside the heads (head coordinates R), another basis of the stream, undone where it is read (stream coordinates G), $W_U+c\mathbf1^\top$, and a vector added to every key, which gives each query a constant. **Predict** each row again.

# %% tags=["core"]
show(r, "superposition.messages_survive")
gallery.messages_survive(r)

# %% [markdown] tags=["written", "core"]
# <!-- written: 08.full_room points=3 minutes=10 difficulty=3 -->
# **In your own words.** A table lists $D_i$ for all features of a toy. They sum to $m$. *So this is superposition*, says one reader. *And feature 7 has $D=1$: it is stored best*, says another. Why does neither follow, and what must be printed beside $D$? A third reader has an *untied* model and asks for its $D_i$. What do you tell her?

# %% [markdown] tags=["solution"]
# **Model answer.** *1 point*: $\sum D_i\le m$ is algebra, and there are several ways to meet it. A toy that stores $m$ features at right angles and gives up all others meets it without superposition. (And superposition need not meet it: two features at right angles and one between them fall short of two.) Print how many features are stored ($|W_i|>0.5$) beside $m$. *1 point*: $D=1$ says that no other feature has a part along this direction. It does not say how long the feature is: a speck of dust in a direction of its own has $D=1$. Print the lengths. *1 point*: $W\to GW$, undone in the read-out, moves no output, but it moves lengths and angles, and $D$ with them. An untied model has no $D_i$ of its own. Outputs and leverages are its own. *Half right*: "it is only an upper bound" without a case where it is met for another reason. "Normalise the columns first": everywhere, the lengths are gone for good, and dust still has $D=1$; in the denominator alone, that is the wrong formula of section 3.

# %% [markdown] tags=["core"]
# ## What would change our mind, what we left out
# **Change our mind**: a model that stores more sparse features than it has dimensions without a nonlinearity; or toys whose features sit on single units in *every* training run. **Simplified**: features are independent, equally frequent and never negative, except where we say so. In a real model nobody hands you the list of features, and "feature" may be the wrong word for some of what is there. All toys are trained with Adam; its own axes could favour some rotations. Rates of starts are rates of *our* starts. **Read on**: Elhage et al. 2022, *Toy Models of Superposition* (arXiv 2209.10652); Scherlis et al. 2022, *Polysemanticity and Capacity in Neural Networks* (arXiv 2210.01892); Vaintrob, Mendel and Hänni 2024 on computation in superposition; Donoho 2006, *Compressed Sensing*.
# ## The pair so far
# The pair of heads talks through a channel of a few dimensions, shared by every word. The first head writes who came before; the second asks for one word and hears it above the echoes of all others. Another writer in its place would not be understood; a second reader would be. That is a *measurement*, read from weights.

# %% tags=["core"]
show(r, "superposition.messages_share")
