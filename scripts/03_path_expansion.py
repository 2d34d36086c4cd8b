# %% [markdown]
# # 03 · Path expansion: multiply out, then count
# Series: Part 3 · Reading: 85 minutes · CPU: 2 minutes
#
# A model with two layers of heads looks like one big machine. Freeze where each head looks, and it falls apart into a sum. Each term is a path: from a token, through some heads, to the logits. In this chapter you take all paths, weigh each one, and find out what freezing hides.
#
# **You will do**: write a head as one big matrix, compute a virtual head and cut it out of the running model, rebuild patterns from pieces, and measure what each path is worth.
# **You will learn**: where tensor products come from, why two layers of 8 heads have 81 terms, and why an exact sum can still miss the point.
# **You need**: matrix products, chapters 01 and 02. Sections marked *core* take about 53 minutes, *extension* about 32.
#
# **Notation, once.** Papers write columns: $(A\otimes W)\,x$, and a virtual head $(A^2A^1)\otimes(W_{OV}^2W_{OV}^1)$. The code writes rows: `A X W_OV`, and `A2 A1 X W_OV1 W_OV2`. The order of the features flips. The order of the positions does not.

# %%
from dataclasses import dataclass

import numpy as np
import torch

from circuitbook import corpus, gallery, plots, spine, zoo
from circuitbook.check import check
from circuitbook.claims import all_of, atleast, atmost, claim, close, equal, show
from circuitbook.expansion import expand, frozen, importance, pathchecks
from circuitbook.gallery.ch03 import strongest_rows
from circuitbook.paths import device, model_set, models, sizes
from circuitbook.results import bound, measured

# %% [markdown] tags=["core"]
# ## 1 · Two axes, two matrices · core, 7 minutes
# A stream is a table $X$: one row for each position, one column for each feature. A head mixes rows with its pattern $A$. It maps columns with a matrix $W$, the same at every position. The two do not get in each other's way. We write both in one symbol: $(A\otimes W)X := AXW^\top$. In our row notation $W^\top$ is `W_OV`. Two such maps in a row multiply axis by axis: $(A\otimes B)(C\otimes D)=(AC)\otimes(BD)$. This is the **mixed-product rule**. It will make paths out of heads.
# **The trap.** A table must be flattened before one big matrix can act on it. Row after row (as torch does), the big matrix is `kron(A, W)`. Column after column it is `kron(W, A)`. Nothing warns you if you mix them up.


# %% tags=["exercise", "core"]
# exercise: 03.one_big_matrix points=2 minutes=10 difficulty=2
def one_big_matrix(A, W_OV, by):
    """The matrix M with M @ flat(X) = flat(A X W_OV) for every X.

    A [pos, pos], W_OV [d, d] (rows, as in the code).  by: "rows" when flat(X) lists the rows of X one after
    the other, "columns" when it lists the columns.  (torch.kron wants a copy: W.T.contiguous().)
    """
    # solution
    W = W_OV.T.contiguous()
    return torch.kron(A, W) if by == "rows" else torch.kron(W, A)


# %%
check("03.one_big_matrix", one_big_matrix)

# %% [markdown] tags=["core"]
# ## 2 · Freeze the patterns, and the model is linear · core, 5 minutes
# A head is not linear. Its pattern depends on its input, through a product and a softmax. But run the model once, write the patterns down, and hold them. Now every head is $x\mapsto AxW_{OV}$ with a fixed $A$, and so the whole model is a linear map of its embeddings.
# **Predict**: feed the mixture $aX+bY$ of two texts. Is the output $a f(X)+b f(Y)$? With frozen patterns? And with living ones? *Frozen* always names its level. Here: patterns, nothing else. There is nothing else, because our models have no norm and these have no MLP.


# %% tags=["save", "core"]
def frozen_stream(x, patterns, W_V, W_O):
    """x → x + Σ_h A_h x W_V W_O, layer after layer: linear in x, because the patterns are given.

    x [batch, pos, d_model].  patterns: one [batch, head, pos, key] for each layer.
    W_V [layer, head, d_model, d_head], W_O [layer, head, d_head, d_model].
    """
    for A, V, O in zip(patterns, W_V, W_O):
        x = x + (A @ (x[:, None] @ V) @ O).sum(1)
    return x


# %% [markdown] tags=["core"]
# ## 3 · Multiply out · core, 8 minutes
# Write $1$ for "pass by" and $H$ for "through some head of this layer". Two layers are $(1+H_2)(1+H_1)$. Multiply out: $1+H_1+H_2+H_2H_1$. With 8 heads a layer this is the **direct path**, 16 paths through one head, and 64 through two: 81 terms. The number of heads on a path is its **order**. A path through two heads acts like a head of its own, with pattern $A_2A_1$ and map $W_{OV1}W_{OV2}$. The paper calls it a **virtual head**. Nobody trained it as one part.
# `expand.expand` gives the terms of any attention-only model, one at a time. With LayerNorm it freezes each scale. Biases, and positions when they enter the stream, are sources of their own, with paths of their own. Nothing is held that need not be: at the size of the published models, with a vocabulary of 48,262, a test keeps it under 4 GB.

# %%
model, prompts = zoo.load("attn-only-2l"), spine.name_prompts()
terms = list(expand.expand(model, prompts.tokens[:1], expand.record(model, prompts.tokens[:1])))
last = model.run_with_cache(prompts.tokens[:1])[1]["blocks.1.hook_resid_post"]
by_order = [sum(t.order == k for t in terms) for k in range(3)]
print(len(terms), "terms; of order 0, 1, 2:", by_order, "; three of them:", [t.name for t in terms[:3]])  # fmt: skip
print("they add up:", torch.allclose(sum(t.write for t in terms), last, atol=1e-4))


# %% tags=["exercise", "core"]
# exercise: 03.count_paths points=1 minutes=5 difficulty=1
def count_paths(layers, heads, order):
    """How many paths pass exactly `order` heads in a model of `layers` layers with `heads` heads each."""
    # solution
    counts = [1]  # by order, before any layer
    for _ in range(layers):
        passed, through = [*counts, 0], [0, *(heads * n for n in counts)]
        counts = [a + b for a, b in zip(passed, through)]
    return counts[order] if order <= layers else 0


# %%
check("03.count_paths", count_paths)


# %% tags=["exercise", "core"]
# exercise: 03.virtual_head points=3 minutes=10 difficulty=2
def virtual_head(A1, A2, X, V1, O1, V2, O2):
    """What the path through head 1, then head 2, writes: [pos, d_model].

    A1, A2 [pos, key] are the two patterns, head 1 is in the earlier layer.  X [pos, d_model].
    V1, V2 [d_model, d_head] and O1, O2 [d_head, d_model] are their W_V and W_O.
    """
    # solution
    return A2 @ (A1 @ X @ V1 @ O1) @ V2 @ O2


# %%
check("03.virtual_head", virtual_head)

# %% [markdown] tags=["core"]
# ## 4 · A term is an experiment · core, 9 minutes
# An algebraic term can be a mere way of writing. This one is not. Take the write of head 1 away from the *value* input of head 2, and only there: a **V-cut**. Head 2 looks where it looked before. It just does not find head 1's write in what it moves. In the last layer the logits then change by exactly minus the virtual head's term. So the term says what one edge carries, as values. What the same write does for queries and keys is another story, told in section 11. This is the best exercise of the chapter. Compute both sides.


# %% tags=["exercise", "core"]
# exercise: 03.term_and_cut points=5 minutes=25 difficulty=4
def term_and_cut(model, tokens, writer, reader):
    """(the virtual head's term in the logits, change of the logits under the V-cut), both [batch, pos, d_vocab].

    writer, reader: (layer, head) of the two layers of `model`.  Use circuitbook.cut for the second part, and
    the patterns (`blocks.l.attn.hook_pattern`), the embeddings and the weights for the first.
    """
    # solution
    from circuitbook import cut

    (l1, h1), (l2, h2) = writer, reader
    at = [f"blocks.{l}.attn.hook_pattern" for l in (l1, l2)]
    _, cache = cut.run(model, tokens, names=at)
    A1, A2 = cache[at[0]][:, h1], cache[at[1]][:, h2]
    W_OV1, W_OV2 = model.W_V[l1, h1] @ model.W_O[l1, h1], model.W_V[l2, h2] @ model.W_O[l2, h2]
    term = A2 @ A1 @ model.W_E[tokens] @ W_OV1 @ W_OV2 @ model.W_U
    return term, cut.logit_change(model, tokens, cut.cut_path(model, writer, reader, "v"))


# %%
check("03.term_and_cut", term_and_cut)

# %% [markdown] tags=["extension"]
# ## 5 · The sum cannot check the patterns · extension, 8 minutes
# Here is a hole in what we did. We took the patterns from the run and played them again. If our idea of how patterns arise were wrong, say without the $1/\sqrt{d_{head}}$, the sum would still be right. So we also rebuild the patterns. Each side of a second-layer score is a sum: token, position, eight first-layer writes. The score is the sum over all pairs. Then mask and softmax. Chapter 05 reads these pairs one by one.


# %% tags=["exercise", "extension"]
# exercise: 03.pattern_from_parts points=3 minutes=15 difficulty=3
def pattern_from_parts(parts, W_Q, W_K):
    """A head's pattern [pos, pos] from the parts of what it reads: a list of [pos, d_model] that add up.

    Go over all pairs (one part on the query side, one on the key side).  W_Q, W_K [d_model, d_head].
    Row t of the result is about query t, which sees the keys 0 … t only.
    """
    # solution
    scores = sum(a @ W_Q @ (b @ W_K).T for a in parts for b in parts) / W_Q.shape[1] ** 0.5
    later = torch.ones_like(scores).triu(1) > 0
    return scores.masked_fill(later, -torch.inf).softmax(-1)


# %%
check("03.pattern_from_parts", pattern_from_parts)

# %% [markdown] tags=["extension"]
# ## 6 · The paper's procedure · extension, 8 minutes
# How much do all paths of one order matter? The paper answers without writing down a single term. Run the model with its patterns frozen. In the first run every layer adds zero, but we note what it would have added. In the next run each layer adds what was noted, and we note again. Run $k$ holds all terms of order $0\dots k$. Two layers need three runs, and the last run is the model.


# %% tags=["save", "extension"]
def streams_by_order(model, tokens, patterns):
    """Run k adds what the layers computed in run k - 1, so its last stream holds orders 0 … k.

    patterns: one [batch, head, pos, key] for each layer. Returns n_layers + 1 streams.
    What a layer adds without any head, its bias, is there from the first run on.
    Source: Elhage et al. 2021, for models without MLPs; a norm needs its scales held as well.
    """
    noted = {}

    def swap(new, hook):
        b_O = model.blocks[hook.layer()].attn.b_O
        old = noted.get(hook.name, torch.zeros_like(new) if b_O is None else b_O.expand_as(new))
        noted[hook.name] = new
        return old

    def hold(A):
        return lambda pattern, hook: A

    hooks = [(f"blocks.{l}.attn.hook_pattern", hold(A)) for l, A in enumerate(patterns)]
    hooks += [(f"blocks.{l}.hook_attn_out", swap) for l in range(model.cfg.n_layers)]
    with model.hooks(fwd_hooks=hooks):
        return [model.stream(tokens) for _ in range(model.cfg.n_layers + 1)]


# %% [markdown] tags=["core"]
# ## 7 · What is a term worth? · core, 4 minutes
# Two questions, and they are not the same. **Added**: start from the direct path alone and add the term. How far does the loss fall? **Removed**: start from all terms and take this one away. How far does it rise? Terms can share work, then each looks small when removed. Terms can cancel, then each looks large.
#
# **Controls before data.** Four models built by hand, with one head a layer, whose working path we know. The last is built to fool us: its second head writes minus what the first one wrote. Added alone, the first head makes a perfect model. The whole model knows nothing. **Predict** the row of the virtual head before you look.

# %% tags=["core"]
orders = ("order 0 (nats)", "orders 0–1 (nats)", "orders 0–2 (nats)")
built = importance.planted_losses()
plots.table([{"planted": k, **dict(zip(orders, np.round(v["orders"], 2))), "direct + first head (nats)": round(v["first head"][0], 2)} for k, v in built.items()])  # fmt: skip

# %% [markdown]
# ## 8 · The measurement
# All numbers below come from this cell. It runs once; afterwards the saved results are read. Losses are on held-out text, paired by window, errors clustered by document. In all of them the patterns are frozen: nothing is run again.


# %%
@dataclass(frozen=True)
class Config:
    """What defines this chapter's experiment."""

    windows: int = 196  # of 511 predictions each: more than 100,000 tokens
    length: int = 512
    identity_windows: int = 8
    seed: int = 0


OURS = ("controls", "tensor_products")  # about toys and random matrices
LOOKS = 3.36  # standard errors: two-sided 5 % over 64 looks at once (Bonferroni)
SURVIVES = {
    "head coordinates R": (1, 1, 1, 1, 0, 1),
    "stream, orthogonal G": (1, 1, 1, 1, 1, 1),
    "stream, invertible G": (1, 1, 1, 0, 1, 1),
    "W_U + c 1ᵀ": (1, 1, 0, 1, 1, 1),
    "constant per query": (1, 1, 1, 1, 1, 0),
}


# Not formatted: a line for each number, a few lines for each claim.
# fmt: off
def compute(cfg):
    """All numbers of the chapter, from its config alone."""
    gen, held_out = torch.Generator().manual_seed(cfg.seed), corpus.heldout_windows(cfg.windows)
    tokens, doc = torch.from_numpy(held_out.tokens[:, : cfg.length]).to(device()), torch.from_numpy(held_out.doc)
    each = {f"{word}{more}": zoo.load(f"attn-only-{n}l", dtype=dtype) for n, word in ((1, "one"), (2, "two")) for more, dtype in (("", torch.float32), (" double", torch.float64))}
    two, double = each["two"], each["two double"]
    pair, prompts, some = spine.heads_pair(two), spine.name_prompts(), tokens[: cfg.identity_windows]
    losses, single = importance.term_losses(two, tokens), importance.term_losses(each["one"], tokens, single=False)
    gaps = pathchecks.gaps(each, some, frozen_stream, streams_by_order, cfg.seed) | {"kron": pathchecks.tensor_product_gaps(gen)}
    gaps["model"], gaps["table"] = pathchecks.order_loss_gaps(two, some, losses.orders[: len(some)])
    gaps["cut"] = pathchecks.cut_gap(double, tokens[:1, :96], pair)

    def by_prompt(found):
        return {name: [x.mean(), x.std(), x.abs().mean()] for name, x in found.items()}

    d = {
        "pair": [spine.head_name(h) for h in pair], "path": importance.path_name(pair),
        "tokens": tokens[:, 1:].numel(), "documents": len(set(held_out.doc.tolist())),
        "planted": importance.planted_losses(),
        "two": importance.study(losses, doc), "one": importance.study(single, doc),
        "second_layer": importance.gain(single.orders[:, -1], losses.orders[:, -1], doc),
        "named": by_prompt(frozen.name_terms(two, prompts)),
        "cuts": by_prompt(frozen.pair_cuts(two, prompts, pair)),
        "replaced": {what: frozen.frozen_and_rerun(two, prompts, what)[1:] for what in ("name", "title")},
        "survives": frozen.survival(double, tokens[:1, :64], pair, gen),
        "numbers": frozen.NUMBERS, "looks": LOOKS,
    }
    if models() == "published":
        d["series"] = {"vocabulary": two.cfg.d_vocab}
    return {"data": d, "claims": claims(d, gaps)}


def say(name, label, text, holds, **values):
    """One claim of this chapter; those of OURS are the same in either model set."""
    with model_set("course" if name in OURS else models()):
        return claim(f"paths.{name}", text, label=label, values=values, holds=holds)


def claims(d, gaps):
    """The chapter's sentences. Errors of identities are judged here and not kept."""
    two, one, named, cuts = d["two"], d["one"], d["named"], d["cuts"]
    removed, added = dict(zip(two["names"], two["removed"])), dict(zip(two["names"], two["added"]))
    heads, virtual = ([n for n in removed if (" → " in n) == v] for v in (False, True))
    top, best = (max(names, key=lambda n: removed[n].mean) for names in (heads, virtual))
    seen = sum(abs(removed[n].mean) > LOOKS * removed[n].se for n in virtual)
    (writer, reader), path, p = d["pair"], d["path"], d["planted"]
    (step1, se1), (step2, se2), (shared, se_shared) = *two["steps"], two["shared"]
    moved = {what: [x.mean().item() for x in pairs] for what, pairs in d["replaced"].items()}
    total, of, still = sum(x[0] for x in named.values()), 6 * len(SURVIVES), d["replaced"]["title"][0].abs().mean().item()
    right = sum(a == b for n in SURVIVES for a, b in zip(d["survives"][n], SURVIVES[n]))
    norm, level, normed = gaps["norm"], np.log(12), models() == "published"
    held, table = ("patterns and scales", "`W_E + W_pos` and the biases read at frozen scales") if normed else ("patterns", "the table `W_E W_U`, read from the weights")
    return [
        say("tensor_products", "identity", "The big matrix of a head is `kron(A, W)` row by row and `kron(W, A)` column by column, and the mixed-product rule holds, to {small:g}. The wrong one of the two misses by {wrong:.0%} of the largest entry.", all_of(bound(gaps["kron"][0], 1e-12), atleast(gaps["kron"][1], 1e-2)), small=1e-12, wrong=gaps["kron"][1]),
        say("frozen_is_linear", "identity", f"With {held} held, `f(aX + bY) = a f(X) + b f(Y)` to {{small:g}} of the largest logit. With patterns free the two sides differ by {{free:.0%}}.", all_of(bound(gaps["linear"][0], 1e-5), atleast(gaps["linear"][1], 0.1)), small=1e-5, free=gaps["linear"][1]),
        say("terms_add_up", "identity", "{one} terms of the one-layer model and {two} of the two-layer model add up to their logits: to {single:g} of the largest logit in float32, {double:g} in float64.", all_of(bound(gaps["sum"], 1e-5), bound(gaps["sum double"], 1e-12), equal(len(heads) + len(virtual) + 1, 81)), one=9, two=81, single=1e-5, double=1e-12),
        say("order_matters", "identity", "Swap the patterns in the virtual heads, `A1 A2`, and the sum misses by {positions:.0%}. Swap the maps, `W_OV2 W_OV1`, and it misses by {features:.0%}.", all_of(*(atleast(x, 1e-2) for x in gaps["swapped"].values())), **gaps["swapped"]),
        say("patterns_rebuilt", "identity", "Patterns rebuilt from expanded scores, without running the model, agree to {small:g}. Without the `1/√d_head` an entry is off by {wrong:.2f}.", all_of(bound(gaps["patterns"][0], 1e-5), atleast(gaps["patterns"][1], 1e-2)), small=1e-5, wrong=gaps["patterns"][1]),
        say("term_is_v_cut", "identity", "Cut {writer} out of the values of {reader}" + ", scales held" * normed + ": the logits change by minus the term {path}, to {limit:g} of its largest entry (float64).", bound(gaps["cut"], 1e-10), writer=writer, reader=reader, path=path),
        say("layer_norm", "identity", ("The two-layer model" if normed else "A random model") + " with LayerNorm, biases and positions in its stream expands as well, to {small:g}. Forget the scales and the sum misses by {scales:.0%}, the biases by {biases:.0%}, the positions by {positions:.0%}.", all_of(bound(norm["nothing"], 1e-10), *(atleast(norm[k], 1e-2) for k in ("scales", "biases", "positions"))), small=1e-10, **{k: norm[k] for k in ("scales", "biases", "positions")}),
        say("last_run_is_model", "identity", f"The paper's runs hold the terms of their orders, to {{small:g}}. The last run has the model's loss, to {{nats:g}} nats a window; order 0 has that of {table}.", all_of(bound(gaps["procedure"], 1e-5), bound(gaps["model"], 1e-4), bound(gaps["table"], 1e-4)), small=1e-5, nats=1e-4),
        say("controls", "measurement", "In the planted models the loss falls at the order of the working path: direct {direct:.2f}, head {head:.2f}, virtual head {virtual:.2f}. In the cancelling pair the first head added alone leaves a loss of {alone:.2f}, and the whole model has {whole:.2f}.", all_of(*(atmost(p[k]["orders"][i], 0.01) for i, k in enumerate(importance.PLANTED[:3])), *(close(p[k]["orders"][i - 1], level, 0.01) for i, k in enumerate(importance.PLANTED[:3]) if i), atmost(p["cancelling pair"]["first head"][0], 0.01), close(p["cancelling pair"]["orders"][2], level, 0.01)), direct=p["direct path"]["orders"][0], head=p["one head"]["orders"][1], virtual=p["virtual head"]["orders"][2], alone=p["cancelling pair"]["first head"][0], whole=p["cancelling pair"]["orders"][2]),
        say("heads_matter", "intervention", f"On {{tokens:,}} held-out tokens from {{documents}} documents, {held} frozen: the direct path of the two-layer model has a loss of {{zero:.3f}} nats. All paths through one head lower it by {{step:.3f}} ± {{se:.3f}} (one standard error).", atleast(step1 - 2 * se1, 0), tokens=d["tokens"], documents=d["documents"], zero=two["orders"][0][0], step=step1, se=se1),
        say("virtual_heads_together", "intervention", "The {n} virtual heads lower the loss by another {step:.3f} ± {se:.3f} nats, {share:.0%} of what the single heads did. Removed one at a time they cost {one_by_one:.3f} in all.", atleast(step2 - 2 * se2, 0), n=len(virtual), step=step2, se=se2, share=step2 / step1, one_by_one=sum(removed[n].mean for n in virtual)),
        say("one_layer", "intervention", "In the one-layer model the heads lower the loss of the direct path from {zero:.3f} nats by {step:.3f} ± {se:.3f}.", atleast(one["steps"][0].mean - 2 * one["steps"][0].se, 0), zero=one["orders"][0].mean, step=one["steps"][0].mean, se=one["steps"][0].se),
        say("credit_is_shared", "intervention", "The heads of layer 1, reading the direct path only, lower the loss by {first1:.3f} nats when they come first and by {second1:.3f} after layer 0's; those of layer 0 by {first0:.3f} and {second0:.3f}. The difference, {shared:+.3f} ± {se:.3f}, is the same for both.", atleast(abs(shared) - 2 * se_shared, 0), first0=two["first"][0].mean, first1=two["first"][1].mean, second0=two["second"][0].mean, second1=two["second"][1].mean, shared=shared, se=se_shared),
        say("more_than_values", "measurement", "The two-layer model's loss is {gap:.3f} ± {se:.3f} nats below the one-layer model's. The terms of its virtual heads are worth {step:.3f}; less than the gap, by two standard errors, was asked.", atleast(d["second_layer"].mean - step2 - 2 * (d["second_layer"].se + se2), 0), gap=d["second_layer"].mean, se=d["second_layer"].se, step=step2),
        say("one_term", "intervention", "The term missed most is {top}: without it the loss rises by {rise:.4f} ± {se:.4f} nats (added to the direct path it gains {gains:.3f}). The virtual head missed most is {best}: {least:.4f} ± {se_least:.4f}.", atleast(removed[top].mean - removed[best].mean, 0), top=top, rise=removed[top].mean, se=removed[top].se, gains=added[top].mean, best=best, least=removed[best].mean, se_least=removed[best].se),
        say("many_looks", "intervention", "{value} of {n} virtual heads have an effect beyond {z} standard errors when removed, the limit for that many looks at once.", atleast(seen, 1), n=len(virtual), z=LOOKS),
        say("pair_on_text", "intervention", "On held-out text the pair's own virtual head, {path}, is worth {rise:+.4f} ± {se:.4f} nats. The path through {reader} alone is worth {alone:.4f}, and more was asked of it.", atleast(removed[reader[5:]].mean - removed[path].mean, 0), path=path, reader=reader, rise=removed[path].mean, se=removed[path].se, alone=removed[reader[5:]].mean),
        say("pair_on_names", "measurement", "The right name stands {total:.2f} above its rivals. The path through {reader} alone writes {value:.2f} of it (half was asked). The direct path moves a single name by {direct:.2f} either way, {writer} alone by {first:.2f}, the pair's virtual head by {virtual:.2f}.", atleast(named[reader[5:]][0], total / 2), reader=reader, writer=writer, total=total, direct=named["direct"][2], first=named[writer[5:]][2], virtual=named[path][2]),
        say("freezing_sees_values", "intervention", "Put another name in the first place. The frozen sum says the old name's lead over its rivals moves by {held:+.2f}; run again, it moves by {again:+.2f}. They agree to within {gap:.1%}, and a quarter was allowed.", atmost(abs(moved["name"][0] / moved["name"][1] - 1), 0.25), held=moved["name"][0], again=moved["name"][1], gap=abs(moved["name"][0] / moved["name"][1] - 1)),
        say("freezing_hides_reasons", "intervention", "Put the other title before the name instead. The frozen sum moves a name's lead by {held:.2f} either way; run again, it moves by {again:+.2f} in the mean. At least twice the frozen number was asked.", atleast(abs(moved["title"][1]), 2 * still), held=still, again=moved["title"][1]),
        say("pair_works_by_keys", "intervention", "Cut {writer} out of the keys of {reader} and run again: the name's lead falls by {k:.2f} in the mean. Cut out of the values, a single name moves by {v:.2f} either way; out of the queries, by {q:.2f}. Twice the larger of these was asked of the keys.", atleast(cuts["k"][0], 2 * max(cuts["v"][2], cuts["q"][2])), writer=writer, reader=reader, k=cuts["k"][0], v=cuts["v"][2], q=cuts["q"][2]),
        say("survival", "identity", "Of {n} predictions about which number survives which change, {value} are right.", equal(right, of), n=of),
    ]


cfg = Config(**sizes(quick={"windows": 4, "identity_windows": 2}, published={"windows": 16, "length": 256, "identity_windows": 4}))
exact = ("pair.*", "path", "survives.*", "tokens", "documents", "two.names.*")
r = measured("03_path_expansion", compute, cfg, kinds=dict.fromkeys(exact, "exact"))
# fmt: on

# %% [markdown] tags=["core"]
# ## 9 · Identities first · core, 4 minutes
# An identity that fails means broken code, not a surprising model. So each comes with a **mutant**, the same sum with one mistake in it, which must miss. "Exact" is a word about this one forward pass: these patterns, this text.

# %% tags=["core"]
show(r, "paths.tensor_products", "paths.frozen_is_linear", "paths.terms_add_up", "paths.order_matters", "paths.patterns_rebuilt", "paths.term_is_v_cut")  # fmt: skip

# %% [markdown] tags=["extension"]
# ### With LayerNorm · extension, 5 minutes
# The same algebra serves models with LayerNorm, biases and positions in the stream. Fold the norm's weights into their readers, freeze each scale, and let each bias start paths of its own. **Predict** which of the three you can forget without being caught.

# %% tags=["extension"]
show(r, "paths.layer_norm", "paths.last_run_is_model")

# %% [markdown] tags=["core"]
# ## 10 · Which orders matter? · core, 6 minutes
# **Predict**: 16 paths through one head, 64 through two. Which group lowers the loss more? And layer 1 reads the direct path only, or comes after layer 0: does it matter who is counted first? (The paper's authors saw virtual heads matter least in their own two-layer model.)

# %% tags=["core"]
show(r, "paths.controls", "paths.one_layer", "paths.heads_matter", "paths.virtual_heads_together", "paths.more_than_values", "paths.credit_is_shared")  # fmt: skip
gallery.paths_by_order(r)

# %% [markdown] tags=["core"]
# A gain that depends on who is counted first belongs to nobody alone. Two heads that write the same helpful thing share one gain: the softmax pays for it once. And what does the second layer buy? Compare the gap between the two models with what the virtual heads are worth: most of it lies in the paths through *one* head. There are twice as many, and those of layer 1 can look where layer 0 told them to. This number cannot tell the two apart; a one-layer model with sixteen heads would. Section 11 tests the second on our pair.

# %% [markdown] tags=["extension"]
# ### Term by term · extension, 11 minutes
# Each of the 80 terms with a head in it, added alone and removed alone. **Predict** the picture: will a head's two numbers agree? Does any virtual head matter as much as a head?

# %% tags=["extension"]
show(r, "paths.one_term", "paths.many_looks", "paths.pair_on_text")
gallery.paths_heads(r)

# %% tags=["extension"]
gallery.paths_virtual_heads(r)

# %% [markdown] tags=["extension"]
# Read the right panel before the left one. A square whose number is small there is noise, however deep its colour on the left. With 64 squares, three of them would pass two standard errors by luck.

# %% tags=["extension"]
plots.table(strongest_rows(r))

# %% [markdown] tags=["core"]
# ## 11 · What freezing hides · core, 6 minutes
# Back to the prompts of the spine: *I always loved visiting Aunt Mary. Whenever I was feeling sad, Aunt* …  **Predict**: which of the 81 paths writes "Mary"? Our pair is a previous-token head and an induction head. How much does *its* virtual head write?

# %% tags=["core"]
show(r, "paths.pair_on_names")
gallery.paths_of_a_name(r)

# %% [markdown] tags=["core"]
# Now change one word of the prompt and ask the frozen sum what happens. First another name, then another title before the name. **Predict** for both whether the frozen sum and the model will agree.

# %% tags=["core"]
show(r, "paths.freezing_sees_values", "paths.freezing_hides_reasons", "paths.pair_works_by_keys")
gallery.paths_frozen_or_rerun(r)

# %% [markdown] tags=["core"]
# One caution. The rivals of a name are the other names with its title. A write that is the same in all their prompts cancels in the mean, so we say how far a *single* name moves. The sum of paths tells what is moved, once it is settled where to look. Why a head looks there is in the pattern, and a frozen pattern answers no such question. A path with a small term can still carry the reason for everything. Whether it does here is what the last claim tests, by cutting.

# %% [markdown] tags=["written", "core"]
# <!-- written: 03.last_digit points=3 minutes=10 difficulty=3 -->
# **In your own words.** *The 81 terms give the logits to the last digit. All terms that pass through the previous-token head are small. So the model could do without it.* What does the last digit prove? Which of a later head's three inputs do the terms see, and why only that one? Which experiment would decide?

# %% [markdown] tags=["solution"]
# **Model answer.** *1 point*: that algebra and code are right, for this pass and these patterns. It is an identity, and it would hold in a model with random weights too. *1 point*: the value input. Queries and keys act through the pattern, and the patterns are held. *1 point*: let the pattern answer. Take the head's write out of the later head's key (and, as a control, out of its query, and other heads' writes out of its key) and compute that pattern again; or change the title and run the model. *Half right*: "remove the head and run again" earns the third point if it says that patterns are computed anew; with patterns kept it is the same sum once more. "Many small terms may add up" is true, and is not the reason.

# %% [markdown] tags=["core"]
# ## Does it survive? · core, 4 minutes
# Six numbers, five changes that keep every next-token probability. **Predict** each cell, then run. A virtual head's *z* is what its second head moves before $W_O$.

# %% tags=["core"]
show(r, "paths.survival")
words = {n: {k: ("moves", "stays")[v] for k, v in zip(r["numbers"], row)} for n, row in r["survives"].items()}  # fmt: skip
plots.table([{"change": n} | row for n, row in words.items()])

# %% [markdown] tags=["core"]
# ## What would change our mind, what we left out
# **Change our mind**: a term that is not one of the 81. A V-cut whose effect is not minus its term. A title that matters with frozen patterns, or a pair that writes its word by values after all.
# **Simplified**: no LayerNorm in the trained models. Loss counts every token alike, so a path that matters for rare words looks small here. Added alone and removed alone are two of many ways to share a gain among 80 terms; Shapley values would average over all orders. Removing a term leaves a stream the model never saw.
# **Read on**: Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits* (path expansion, virtual heads, term importance); Goldowsky-Dill et al. 2023, *Localizing Model Behavior with Path Patching* (arXiv 2304.05969); Veit et al. 2016 (residual networks as ensembles of paths).
# ## The pair so far
# Two sentences, two labels. A *measurement* says what each path writes. An *intervention* says through which input the first head reaches the second. The expansion of the logits sees only one of the three inputs. Chapter 05 expands the scores.

# %% tags=["core"]
show(r, "paths.pair_on_names", "paths.pair_works_by_keys")
