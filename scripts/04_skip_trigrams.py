# %% [markdown]
# # 04 · Skip-trigrams: what one layer of attention knows
# Series: Part 4 · Reading: 80 minutes · CPU: 1 minute
#
# One layer of attention is a list of rules. Each rule names three tokens: *if this token stood somewhere before, and you stand on that one, expect a third*. In this chapter you search all of these rules. You read the strongest, and you test them in the running model and in text that it never saw. Then you find rules that the model wants and cannot have.
# **You will do**: search, read, test with controls, and find bugs by program.
# **You will learn**: why scores must be centred before they are compared, why a good control lives in the same document, and what one message per source makes impossible.
# **You need**: chapters 02 and 03. Sections marked *core* take about 53 minutes, *extension* about 28.

# %%
from dataclasses import dataclass

import numpy as np
import torch

from circuitbook import corpus, gallery, heads, plots, tokenizer, zoo
from circuitbook.check import check
from circuitbook.claims import all_of, atleast, atmost, claim, equal, show
from circuitbook.gallery.ch04 import bug_table, kind_table, survival_table
from circuitbook.paths import model_set, models, sizes
from circuitbook.results import bound, measured
from circuitbook.skip_trigrams import bug_pairs, copying, trigrams
from circuitbook.skip_trigrams import triple_controls as controls
from circuitbook.skip_trigrams import triple_study as study
from circuitbook.skip_trigrams import triple_text as texts
from circuitbook.taught.ch02 import change_head_coordinates

# %% [markdown] tags=["core"]
# ## 1 · Three tokens and two tables · core, 5 minutes
# A head has two token tables (chapter 02). The QK table says how much a *destination* token looks for a *source* token. The OV table says how much reading that source raises an *output* token. Together they make a **skip-trigram**:
# $$[\text{source}]\;\cdots\;[\text{destination}]\to[\text{output}]$$
# The three dots matter. The source may stand anywhere before: the tables hold no position.
# **Strength** of a skip-trigram: QK entry times OV entry. It is a ranking rule, not yet a prediction: attention is a softmax, and it has rivals and positions.

# %% [markdown] tags=["core"]
# ## 2 · Centre first, then look at signs · core, 6 minutes
# Two traps wait here.
# **Rows of different queries do not compare.** Softmax does not see a constant that is added to all scores of one query. So from each QK row we subtract its mean over the sources, and from each OV row its mean over the outputs. Now zero means "like the average token".
# **Minus times minus is plus.** A source that is avoided (negative QK) and that would lower the output (negative OV) has a large positive product. It predicts nothing: nobody looks there. So both factors must be positive.


# %% tags=["exercise", "core"]
# exercise: 04.triple_strength points=2 minutes=8 difficulty=1
def triple_strength(QK, OV, source, destination, output):
    """Strength of [source] … [destination] → [output]: centred QK entry times centred OV entry.

    QK [destination, source] and OV [source, output], not centred. Zero unless both are positive.
    """
    # solution
    qk = QK[destination, source] - QK[destination].mean()
    ov = OV[source, output] - OV[source].mean()
    return qk * ov if qk > 0 and ov > 0 else 0.0 * qk


# %%
check("04.triple_strength", triple_strength)


# %% tags=["save", "core"]
def strongest_triples(QK, OV, k, positive=True):
    """The k largest QK[d, s] OV[s, o] of centred tables, by brute force: strengths, s, d, o.

    QK [d, s], OV [s, o], square. positive=False forgets the signs, to show the trap.
    """
    QK, OV, n, best = QK - QK.mean(1, keepdim=True), OV - OV.mean(1, keepdim=True), len(QK), []
    for s in range(n):  # one source at a time: d x o products
        table = torch.outer(QK[:, s], OV[s])
        if positive:
            table[(QK[:, s] <= 0)[:, None] | (OV[s] <= 0)] = -torch.inf
        value, at = table.flatten().topk(min(k, n * n))
        best.append(torch.stack([value, torch.full_like(value, s), at // n, at % n]))
    best = torch.cat(best, 1)
    value, s, d, o = best[:, best[0].argsort(descending=True)[:k]]
    return value, s.long(), d.long(), o.long()


# %% [markdown] tags=["core"]
# ### Controls before data
# Here are two made-up tables of 60 tokens: small noise, one planted skip-trigram (7 … 11 → 13), and one pair of large *negative* entries as a trap. **Predict** what the search finds first, with the sign check and without.

# %% tags=["core"]
QK, OV = controls.planted_tables(60)
for positive in (True, False):
    value, s, d, o = (x[0].item() for x in strongest_triples(QK, OV, 1, positive))
    print(f"sign check {positive}: {s} … {d} → {o}, centred QK {QK[d, s] - QK[d].mean():.0f}")

# %% [markdown] tags=["extension"]
# ## 3 · Search without a table · extension, 6 minutes
# Our vocabulary has 4,096 tokens; a cube of that holds nearly seventy billion triples a head. Three facts save us.
# 1. Fix the source. Its best triple is (the largest entry of its QK column) × (the largest entry of its OV row). No other pair can beat this one, and this one exists.
# 2. So the k-th largest of these products is a floor for the k-th best triple. At most k sources (and ties) reach it. Only those need to be opened.
# 3. Inside one source, with both lists falling, the k best products sit at places with $(i+1)(j+1)\le k$.
#
# `trigrams.search` does this in tiles that are reduced at once, over all allowed tokens. No square table is ever held. A **frequency floor** says which tokens are allowed: rare tokens may have loud rows that nobody trained.


# %% tags=["exercise", "extension"]
# exercise: 04.best_triple points=3 minutes=15 difficulty=2
def best_triple(QK, OV):
    """(source, destination, output) of the strongest triple, without looking at all triples.

    QK [destination, source], OV [source, output], both centred already, n x n. n may be 3,000: then
    there are 27 billion triples. Both entries must be positive; at least one triple has that.
    """
    # solution
    looked, raised = QK.max(0), OV.max(1)
    strength = looked.values.clamp_min(0) * raised.values.clamp_min(0)
    s = int(strength.argmax())
    return s, int(looked.indices[s]), int(raised.indices[s])


# %%
check("04.best_triple", best_triple)

# %% [markdown] tags=["core"]
# ## 4 · What does the text say? · core, 7 minutes
# A rule is worth something when the text obeys it. Take every place where the destination stands with the source at most 32 tokens before. How often does the output follow? That rate alone means little. **The control**: the same destination in the same document, with *another source of like frequency* before it.
# **The trap**: documents have topics. In code, `self` follows many things, and `def` stands before many things, with or without a rule. So both rates are taken *inside the same document*, and then averaged. Errors come from drawing whole documents (a bootstrap).


# %% tags=["exercise", "core"]
# exercise: 04.counts_after points=3 minutes=12 difficulty=2
def counts_after(tokens, source, destination, output, reach):
    """(n, hits): destinations with the source at one of the `reach` places before, and then output.

    tokens: a list of ids, one document. A destination at the very end has no next token: no count.
    A destination is counted once, however often the source stands before it.
    """
    # solution
    n = hits = 0
    for t in range(len(tokens) - 1):
        if tokens[t] == destination and source in tokens[max(0, t - reach) : t]:
            n += 1
            hits += tokens[t + 1] == output
    return n, hits


# %%
check("04.counts_after", counts_after)

# %% [markdown] tags=["core"]
# Two texts that we wrote. In *rule* the source really matters. In *topic* half of the documents love both the source and the output, and the source itself does nothing. **Predict** which comparison is fooled. Inside documents finds less than the rule's full strength, because many control places have the source too: it errs on the safe side. (*Naive*: the destination with the source before it against the destination without, over all documents.)

# %% tags=["core"]
made, unit = controls.made_up_controls(), "(difference of rates)"
plots.table([{"made-up text": k} | {f"{n} {unit}": x for n, x in v.items()} for k, v in made.items()], digits=2)  # fmt: skip

# %% [markdown] tags=["core"]
# ## 5 · One message, so one order · core, 7 minutes
# A head sends *one* message per source (chapter 02). Destination $d$ receives it with weight $A(d,s)$. So the boosts of two outputs at two destinations are a table of rank one. Its determinant is zero. Say it without algebra: **if the message of `keep` prefers *mind* to *bay*, it prefers *mind* at every destination.** The head can say it louder after *in* than after *at*. It cannot turn the order round. English does: *keep … in mind*, *keep … at bay*. A head that learns both must also push *keep … in bay*. The paper calls this a skip-trigram bug.


# %% tags=["save", "core"]
def boosts(attention, message):
    """boost[d, o] = A(d, s) m[o]: what one source does to outputs at destinations; rank one.

    attention [destination]: how much each looks at the source. message [output]: OV row, centred.
    """
    return attention[:, None] * message[None, :]


# %% tags=["exercise", "core"]
# exercise: 04.bug_pair points=4 minutes=20 difficulty=3
def bug_pair(attention, message, counts):
    """A skip-trigram bug of one source: ((d1, d2), (o1, o2), determinant, odds ratio), or None.

    attention [d], message [o]: arrays; counts [d, o]: how often o follows source … d in text.
    All four boosts are positive. o1 is commoner than o2 after d1, o2 than o1 after d2. The odds
    ratio with half a count added to each cell is 10 or more. Any such pair will do.
    The determinant is that of the head's 2 x 2 boosts, in the order of the answer.
    """
    # solution
    for d1, d2 in np.ndindex(len(attention), len(attention)):
        for o1, o2 in np.ndindex(len(message), len(message)):
            b = np.outer(attention[[d1, d2]], message[[o1, o2]])
            n = counts[np.ix_([d1, d2], [o1, o2])]
            m = n + 0.5
            odds = m[0, 0] * m[1, 1] / (m[0, 1] * m[1, 0])
            crosses = n[0, 0] > n[0, 1] and n[1, 1] > n[1, 0]
            if d1 != d2 and o1 != o2 and (b > 0).all() and crosses and odds >= 10:
                return (d1, d2), (o1, o2), b[0, 0] * b[1, 1] - b[0, 1] * b[1, 0], odds
    return None


# %%
check("04.bug_pair", bug_pair)

# %% [markdown]
# ## 6 · The measurement
# All numbers below come from this cell. The lists of triples are made from weights alone. Held-out text judges them. *Put*: one token of a real context is replaced by the source, so no position moves. Bugs are searched in training text, because the question is what the model was taught.


# %%
@dataclass(frozen=True)
class Config:
    """What defines this chapter's experiment."""

    floor: int = 1000  # occurrences in the training text
    triples: int = 512  # a head
    reach: int = 32
    destinations: int = 64
    shuffles: int = 24
    length: int = 40
    gaps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    bug_tokens: int = 4_000_000
    bugs: int = 24
    bugs_a_head: int = 4
    words: int = 480
    windows: int = 8


# Not formatted: a line for each number, a few lines for each claim.
# fmt: off
def compute(cfg):
    """All numbers of the chapter, from its config alone."""
    model, exact, raw = zoo.load("attn-only-1l"), zoo.load("attn-only-1l", dtype=torch.float64), zoo.load("attn-only-1l", dtype=torch.float64, center=False)
    train, words = corpus.train_tokens(), tokenizer.load()
    counts, names = np.bincount(train, minlength=words.vocab_size), [words.text(t) for t in range(words.vocab_size)]
    text, H = texts.Text(corpus.held_out_documents(), words.vocab_size, cfg.reach, words.bos), range(model.cfg.n_heads)
    found = [study.listed(exact, h, counts, text, cfg.floor, cfg.triples, cfg.length) for h in H]
    kinds, rows = study.readable(found, names, text, 3)
    running = [study.in_model(model, found[h], h, text, cfg.gaps, cfg.length, h) for h in H]
    frequent = heads.frequent_words(1000)
    copiers, windows = copying.copiers(model, frequent), corpus.heldout_windows(cfg.windows)
    others = sorted((h for h in H if h not in copiers), key=lambda h: kinds["copying"][h])[:len(copiers)]
    tokens = torch.from_numpy(windows.tokens).to(model.W_E.device)
    some = trigrams.some_tokens(counts, cfg.floor, 256)
    checked = [study.search_check(exact, h, some, 50, strongest_triples) for h in H]
    taught = texts.Text([train[:cfg.bug_tokens]], words.vocab_size, 16, words.bos)
    bugs, worst = bug_pairs.rows(model, exact, {h: found[h].head for h in H}, {h: found[h].pairs[:, 0] for h in H}, taught, text, names, cfg.bugs, cfg.bugs_a_head)
    d = {
        "made_up": controls.made_up_controls(),
        "allowed": len(found[0].head.ids), "vocabulary": words.vocab_size, "held_out": int((text.tokens >= 0).sum()),
        "kinds": kinds, "table": rows,
        "met": [study.meetings(x, text) for x in found],
        "model": {k: [x[k] for x in running] for k in running[0] if k != "sums"} | {"all": study.pooled(running)},
        "text": study.text_rows([study.in_text(found[h], text, cfg.destinations, cfg.shuffles, h) for h in H]),
        "copying": {"copiers": copiers, "others": others, "loss": copying.loss_without(model, tokens, windows.doc, {"copiers": copiers, "others": others}), **copying.words_placed(model, frequent, text, cfg.gaps, cfg.length, cfg.words)},
        **study.shares(model, tokens[:4]),
        "bugs": bugs,
        "moves": {c: {q: m if m > 1e-8 else 0.0 for q, m in row.items()} for c, row in study.survival(raw, found[0].triples, 0, change_head_coordinates).items()},
        "pair": study.induction_list(zoo.load("attn-only-2l"), tokens[:2], frequent, counts, names, cfg.floor, cfg.triples),
    }
    return {"data": d, "claims": claims(d, checked, worst, some, cfg)}


def claims(d, checked, worst, some, cfg):
    """The chapter's sentences. Errors of identities are judged here and not kept."""
    m, t, c, b, moves, made, pair = d["model"], d["text"], d["copying"], d["bugs"], d["moves"], d["made_up"], d["pair"]
    whole, n, names = m["all"], len(m["n"]), ("pairs", "triples")
    above = {u: sum(row[1] > 0 for row in t[u]["true"][:-1]) for u in names}
    zero = {u: sum(row[1] <= 0 <= row[2] for row in t[u]["shuffled OV"][:-1]) for u in names}
    wrong, right, prefers = [w for x in b for w in (x["rise"][0][1], x["rise"][1][0])], sum(p > 0 for x in b for p in x["prefers"]), {k: np.mean([x[k] for x in b] or [0]) for k in ("direct", "own", "others")}
    order = sum((x["boost"][0][0] - x["boost"][0][1]) * (x["boost"][1][1] - x["boost"][1][0]) <= 0 for x in b)
    present, loss, other, gaps, elsewhere = sum(sum(x) > 0 for x in d["kinds"].values()), c["loss"]["copiers"], c["loss"]["others"], whole["by_gap"]["change"], 1 - np.mean(m["first"])
    gap, o_gap = (x["seen"][0] - x["new"][0] for x in (loss, other))
    with model_set("course"):  # texts that we wrote: of no model at all
        planted = claim("trigrams.planted", "In the text with a rule the comparison inside documents finds {rule:.2f}. In the text with only a topic it finds {topic:.2f} (interval {low:.2f} to {high:.2f}), where the naive one finds {naive:.2f}.",
              label="measurement", values={"rule": made["rule"]["inside"], "topic": made["topic"]["inside"], "low": made["topic"]["low"], "high": made["topic"]["high"], "naive": made["topic"]["naive"]},
              holds=all_of(atleast(made["rule"]["inside"], 0.5), atmost(made["topic"]["low"], 0), atleast(made["topic"]["high"], 0), atleast(made["topic"]["naive"], 0.1)))
    return [planted,
        claim("trigrams.search_is_brute_force", "On {tokens} tokens the search gives brute force's {k} best strengths of every head, to {limit:g}. Without the sign check {below} of the {lists} listed triples have a QK entry below its row's mean.",
              label="identity", values={"tokens": len(some), "k": 50, "limit": 1e-9, "below": sum(x[1] for x in checked), "lists": 50 * n}, holds=all_of(bound(max(x[0] for x in checked), 1e-9), atleast(sum(x[1] for x in checked), 1))),
        claim("trigrams.kinds", "Searched were the {allowed:,} of {vocabulary:,} tokens with {floor} or more places in the " + ("training" if models() == "course" else "validation") + " text; {value} of {kinds} kinds occur among the listed triples ({bound} were asked).", label="measurement", values={"kinds": len(d["kinds"]), "allowed": d["allowed"], "vocabulary": d["vocabulary"], "floor": cfg.floor}, holds=atleast(present, 5)),
        claim("trigrams.raised", "Put before its destination, a source raises the predicted output's centred logit by {true:.2f}; a source of like frequency moves it by {drawn:.2f}. The difference is {gain:.2f} (interval {low:.2f} to {high:.2f}), with {least} or more triples a head.",
              label="intervention", values={"true": whole["true"][0], "drawn": whole["random source"][0], "gain": whole["true − random source"][0], "low": whole["true − random source"][1], "high": whole["true − random source"][2], "least": min(m["n"])},
              holds=all_of(atleast(whole["true − random source"][1], 0.1), atleast(min(m["n"]), min(cfg.triples, 500)))),
        claim("trigrams.every_head", "That difference is above zero with its whole interval for {value} of {n} heads.", label="intervention", values={"n": n}, holds=atleast(sum(row[1] > 0 for row in m["true − random source"]), n - 2)),
        claim("trigrams.controls", "With the outputs shuffled over the triples the rise is {ov:.2f}; at another triple's destination it is {moved:.2f}, both below the true {true:.2f}.",
              label="intervention", values={"ov": whole["shuffled OV"][0], "moved": whole["shuffled destination"][0], "true": whole["true"][0]}, holds=all_of(atmost(abs(whole["shuffled OV"][0]) / max(whole["true"][0], 1e-9), 0.25), atmost(whole["shuffled destination"][2], whole["true"][1]))),
        claim("trigrams.own_head", "{value:.0%} of the rise is written by the head whose table named the triple.", label="intervention", holds=atleast(whole["own_head"], 0.5)),
        *(claim(f"trigrams.{u}", "In held-out text, {what}: {rate:.2%} after the source, {control:.2%} after a control source at the same destination in the same document. The difference is {gain:.2%} (interval {low:.2%} to {high:.2%}); it is above zero for {above} of {n} heads alone.",
                label="measurement", values={"what": "counted as distinct source → output pairs" if u == "pairs" else "counted as triples", "rate": t[u]["rates"][-1][0], "control": t[u]["rates"][-1][1], **dict(zip(("gain", "low", "high"), t[u]["true"][-1])), "above": above[u], "n": n}, holds=atleast(t[u]["true"][-1][1], 1e-6)) for u in names),
        claim("trigrams.shuffled", "With shuffled outputs the interval holds zero: pairs {p_low:.2%} to {p_high:.2%}, triples {t_low:.2%} to {t_high:.2%}; for single heads in {pairs} and {triples} of {n} cases.",
              label="measurement", values={"p_low": t["pairs"]["shuffled OV"][-1][1], "p_high": t["pairs"]["shuffled OV"][-1][2], "t_low": t["triples"]["shuffled OV"][-1][1], "t_high": t["triples"]["shuffled OV"][-1][2], **zero, "n": n},
              holds=all_of(*(f(t[u]["shuffled OV"][-1][i], 0) for u in names for i, f in ((1, atmost), (2, atleast))))),
        claim("trigrams.destination", "At other rows' destinations the difference is {pairs:.2%} for pairs and {triples:.2%} for triples, smaller in size than at the own ones ({own_pairs:.2%}, {own:.2%}).",
              label="measurement", values={u: t[u]["shuffled destination"][-1][0] for u in names} | {"own": t["triples"]["true"][-1][0], "own_pairs": t["pairs"]["true"][-1][0]}, holds=all_of(*(atmost(abs(t[u]["shuffled destination"][-1][0]), t[u]["true"][-1][0]) for u in names))),
        claim("trigrams.bugs", "The program found {value} bugs, {bound} were asked: every boost table has a determinant of at most {limit:g} of its scale, and the smallest odds ratio in the text is {odds:.0f}.",
              label="measurement", values={"value": len(b), "bound": 10, "limit": 1e-6, "odds": min((x["odds"] for x in b), default=0)}, holds=all_of(atleast(len(b), 10), bound(worst, 1e-6), atleast(min((x["odds"] for x in b), default=0), 10))),
        claim("trigrams.one_order", "In {value} of {target} bugs the source's message pushes the wrong way at one of the two destinations.", label="identity", holds=equal(int(order), len(b))),
        claim("trigrams.wrong_rises", "In the running model, putting the source there raises the *wrong* output's log probability in {value} of {n} destinations, by {mean:.2f} nats on average; the right one's by {good:.2f}.", label="intervention", values={"n": len(wrong), "mean": np.mean(wrong or [0]), "good": np.mean([w for x in b for w in (x["rise"][0][0], x["rise"][1][1])] or [0])}, holds=atleast(sum(w > 0 for w in wrong), len(wrong) // 2)),
        claim("trigrams.repaired", "With the source in place the model still prefers the right output in {value} of {n} destinations. Mean margin: direct path {direct:+.1f}, the buggy head {own:+.1f}, all other heads {others:+.1f} (logits).", label="measurement", values={"n": 2 * len(b), **prefers}, holds=atleast(right, len(b))),
        claim("trigrams.words_copied", "A frequent word put into a context raises its own logit by {own:.2f} and another word's by {other:.2f}; difference {low:.2f} to {high:.2f}.", label="intervention", values={"own": c["own"][0], "other": c["other"][0], "low": c["own_minus_other"][1], "high": c["own_minus_other"][2]}, holds=atleast(c["own_minus_other"][1], 0.05)),
        claim("trigrams.copiers_in_context", "With its copying heads writing their mean, the model loses {seen:.2f} nats ({s_low:.2f} to {s_high:.2f}) on tokens that stood earlier in the window, and {new:.2f} ({n_low:.2f} to {n_high:.2f}) on new ones: a gap of {gap:.2f}. For as many other heads, those with the fewest copying rules, the gap is {o_gap:.2f}: {verdict}.",
              label="intervention", values={"gap": gap, "o_gap": o_gap, "verdict": "the copying heads do more of it" if gap > o_gap else "this test does not single the copying heads out", **dict(zip(("seen", "s_low", "s_high"), loss["seen"])), **dict(zip(("new", "n_low", "n_high"), loss["new"]))}, holds=all_of(atleast(loss["seen"][1], 0), atleast(gap, 0.02))),
        claim("trigrams.looks_elsewhere", "With the source put in, the head still looks at some other token more, the start token included, in {value:.0%} of contexts.", label="measurement", holds=atleast(elsewhere, 0.1)),
        claim("trigrams.gap_matters", "The tables know no distance, but the rise depends on it: {most:.2f} at the best gap, {least:.2f} at the worst, a factor of {value:.1f}.", label="intervention", values={"most": max(gaps), "least": min(gaps)}, holds=atleast(max(gaps) / max(min(gaps), 0.01), 1.2)),
        claim("trigrams.position_share", label="measurement", **study.shares_claim(d)),
        claim("trigrams.survive", "Centred QK entries, centred OV entries and strengths keep under all four changes, to {limit:g}; the raw QK entry moves by {qk:.0%} under a constant per query, the raw OV entry by {ov:.0%} under `W_U + c 1ᵀ`.",
              label="identity", values={"limit": 1e-8, "qk": moves["constant per query"]["QK entry, raw"], "ov": moves["W_U + c 1ᵀ"]["OV entry, raw"]},
              holds=all_of(*(bound(row[q], 1e-8) for row in moves.values() for q in row if "centred" in q), atleast(moves["constant per query"]["QK entry, raw"], 0.01), atleast(moves["W_U + c 1ᵀ"]["OV entry, raw"], 0.01))),
        claim("trigrams.induction_head_list", "Of the {n} strongest triples in the token tables of induction head {head}, {value:.0%} are copying; by shuffling the outputs it would be {chance:.1%}.", label="measurement", values={"n": pair["n"], "head": pair["head"], "chance": pair["chance"]}, holds=atleast(pair["copying"], max(0.05, 5 * pair["chance"]))),
    ]


# fmt: on
small = {"triples": 48, "shuffles": 6, "bug_tokens": 1_500_000, "bugs": 12, "windows": 3}
cfg = Config(**sizes(quick=small | {"words": 96}, published={"floor": 10}))
COUNTS = dict.fromkeys(("allowed", "copying.copiers.*", "kinds.*", "table.*.with.*", "table.*.without.*", "bugs.*.counts.*"), "exact")  # fmt: skip
CLOSE = {"text.*": ("closed_form", 0.005), "model.*": ("closed_form", 0.05), "copying.*": ("closed_form", 0.05), "moves.*": ("closed_form", 0.01), "bugs.*": ("closed_form", 0.05)}  # fmt: skip
r = measured("04_skip_trigrams", compute, cfg, kinds={**COUNTS, **CLOSE})

# %% [markdown] tags=["core"]
# ## 7 · Do the instruments tell the truth? · core, 2 minutes
# An identity that fails means broken code, not a surprising model.

# %% tags=["core"]
show(r, "trigrams.planted", "trigrams.search_is_brute_force", "trigrams.survive")

# %% [markdown] tags=["core"]
# ## 8 · Read the rules · core, 5 minutes
# For every head the program took the strongest triples, at most two a source. A small program then sorted them by the look of their strings: first rule that fits, in the order of the table. It does not understand anything.
# **Predict**: which kind will be the largest?

# %% tags=["core"]
show(r, "trigrams.kinds")
gallery.kinds_by_head(r)

# %% [markdown] tags=["core"]
# The strongest of each kind, by rule: only triples whose source and destination meet at least five times in the held-out text, or there would be nothing to compare. *With*: how often the output follows the destination after the source. *Without*: how often it does otherwise. Log odds: the two compared, half a count added to each cell.

# %% tags=["core"]
print("triples that meet that often, by head:", *r["met"], "of", r.config["triples"], "each")
plots.table(kind_table(r), digits=1)

# %% [markdown] tags=["core"]
# ## 9 · In the running model · core, 6 minutes
# Now ask the model, not its tables. We take a real held-out context that ends in the destination, replace one earlier token by the source, and look at the predicted output. This is an **intervention**: we changed the text and ran everything again. Three controls: a source of like frequency in the same place; the same source before another triple's destination; the outputs shuffled over the triples.
# **Predict**: which control comes nearest to the true bar? Think of what a source does at *any* destination.

# %% tags=["core"]
show(r, "trigrams.raised", "trigrams.every_head", "trigrams.controls", "trigrams.own_head")
gallery.raised_by_head(r)

# %% [markdown] tags=["core"]
# ## 10 · In held-out text · core, 5 minutes
# Does the text agree? Nothing is run here, we only count. One question, two units. *Triples*: one destination each, so few places and wide intervals. *Pairs*: each source once, with the output that its OV row raises most, at the destinations that look for it most. A list of triples can repeat one loud pair many times; pairs cannot. Watch the shuffled destination: where it comes near the true one, the source alone carries the news.

# %% tags=["core"]
show(r, "trigrams.pairs", "trigrams.triples", "trigrams.shuffled", "trigrams.destination")
gallery.text_by_head(r)

# %% [markdown] tags=["core"]
# ## 11 · Bugs · core, 6 minutes
# The program of section 5, on our own model and on training text. A bug needs: all four boosts positive; a text whose order *turns round* (the first output is the commoner one after the first destination, the second after the second); an odds ratio of ten or more, so that this is no accident; and each right output at least twice as likely, in odds, with the source before (pooled over the training text: the naive comparison of section 4). The determinant is zero for *every* four tokens; that is algebra. The bug is the text's turning round. The boost tables are measured in the running model (values of all other places cut, in float64). Read a square (rows are destinations): after this source, the first destination calls for the first output and the second for the second. The head knows all four tokens and raises all four cells. It is not stupid: with one message it has no other choice.
# **Predict**: does the full model predict the wrong output? It has a direct path that knows the destination, and other heads.

# %% tags=["core"]
show(r, "trigrams.bugs", "trigrams.one_order", "trigrams.wrong_rises", "trigrams.repaired")
gallery.bug_squares(r)

# %% tags=["core"]
plots.table(bug_table(r))

# %% [markdown] tags=["written", "core"]
# <!-- written: 04.three_cures points=3 minutes=10 difficulty=2 -->
# **In your own words.** A one-layer head has learned *keep … in mind* and *keep … at bay*, so it must also push *keep … in bay*. Three cures are offered: a larger $d_{head}$, a longer training, a second head in the same layer. Which of them can help, and why? Then: the determinant of the boosts is zero for *every* four tokens. So what makes some of them a bug?

# %% [markdown] tags=["solution"]
# **Model answer.** *1 point*: a larger $d_{head}$ and more training cannot cure this head. From one source it sends one vector, whatever its rank and its weights are, and a destination only scales it by a weight that is never negative. So no destination can turn the order of two outputs round. (More training may teach another part, such as the direct path, to outvote the head. The head still pushes.) *1 point*: a second head can. It has a message and a pattern of its own (one head looks back from *in*, the other from *at*), and a sum of two tables of rank one may have rank two. *1 point*: the text makes it a bug. Its order turns round between the two destinations, by odds too large for an accident, while the head raises all four cells. *Half right*: "the determinant is zero" repeats the identity, which random heads fulfil as well. "A second layer" is a fair thought, but was not offered.

# %% [markdown] tags=["extension"]
# ## 12 · Copying is learning from context, of the simplest kind · extension, 10 minutes
# A copying rule says: *a token that stood here may come again*. Nobody taught the model this text. So a copying head already learns from context. We put a random frequent word into a real context and look at its own logit. Then we let the copying heads (both tests of chapter 02) write their mean instead, and look at the loss on next tokens that stood earlier in the window, and on new ones. **Predict** which loss rises more. The control: as many other heads, those with the fewest copying rules. (Seen tokens are also the frequent ones.)

# %% tags=["extension"]
show(r, "trigrams.words_copied", "trigrams.copiers_in_context")
gallery.copying_in_context(r)

# %% [markdown] tags=["extension"]
# ## 13 · Where the tables fail · extension, 12 minutes
# A table entry says: *with everything else equal*. Four things are not equal.
# **Rivals.** Softmax shares one unit of attention. A high score loses to a higher one.
# **Position.** Scores hold positions too (chapter 02). We split a score's variation over the keys into its four parts, token and position on either side; the shares of covariance add up to one.
# **Other heads.** They read the same source, and write too.
# **LayerNorm.** In published models the stream is divided by its size, so a boost depends on everything else. Ours have none; that is why the other three can be seen clean.

# %% tags=["extension"]
show(r, "trigrams.looks_elsewhere", "trigrams.gap_matters", "trigrams.position_share")
gallery.where_tables_fail(r)

# %% [markdown] tags=["core"]
# ## Does it survive? · core, 4 minutes
# Four changes keep every next-token probability: head coordinates R, stream coordinates G, $W_U+c\mathbf1^\top$, a constant for each query. **Predict** for each row which changes move it.

# %% tags=["core"]
plots.table(survival_table(r))

# %% [markdown] tags=["core"]
# A list sorted by raw entries depends on two constants that no probability sees. Only the centred one belongs to the model. The zero determinant survives too: it is a statement about one source and one head, and no change of coordinates adds a second message.
# ## What would change our mind, what we left out
# **Change our mind**: a shuffled OV that predicts held-out text as well as the true one; a bug pair whose head pushes the right way at both destinations (then it has two messages, and the algebra of chapter 02 is wrong); a rise in the running model that does not come through the named head.
# **Simplified**: strength is a product of two table entries, not a probability. We list frequent tokens only. "Held out" text shares authors and projects with training text. Kinds are a matter of spelling. A rise of the logit is not yet a better prediction.
# **Read on**: Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits* (skip-trigrams and their bugs); Mantel and Haenszel 1959 (comparing inside strata); Efron 1979 (bootstrap).
# ## The pair so far
# One layer has no pair: no head can tell another what it saw. What we learn here about the induction head is a *measurement* on its token tables alone: what it would copy if it looked. Which keys it really looks for, its tables cannot say; the first layer has written into them.

# %% tags=["core"]
show(r, "trigrams.induction_head_list")
