# %% [markdown]
# # 09 · Sparse autoencoders and Aunt Sally: what a graph hides
# Series: Part 7 · Reading: 80 minutes · CPU: 3 minutes
#
# Chapter 08 packed forty features into ten numbers. Can we get them back out? This chapter trains sparse autoencoders: first where the truth is known, then on a real model. Then it draws an attribution graph, and asks the graph why a head looks where it looks.
#
# **You will do**: cheat a loss and repair it, recover forty directions from ten dimensions, price a dictionary in loss, add up the edges of a node, and change a head's reason without changing what it reads. **You will learn**: what a sparse autoencoder promises and what it delivers; what an attribution graph shows, and which half of a circuit it cannot see.
# **You need**: chapters 05 to 08. Sections marked *core* take about 55 minutes to read, *extension* about 27; the exercises take another 55.
#
# **Notation.** Rows: `x` [n, d], `W_enc` [d, latents], `W_dec` [latents, d]. Papers write columns, so their encoder and decoder are ours transposed. A *latent* is a number that the autoencoder computes. A *feature* is what the data has. Whether a latent is a feature is the question.

# %%
from dataclasses import dataclass

import torch

from circuitbook import gallery, paths, plots
from circuitbook.attribution import study as graph_study
from circuitbook.aunt_sally import study as sally_study
from circuitbook.autoencoders import recovery, survive, toy_claims
from circuitbook.autoencoders import study as sae_study
from circuitbook.check import check
from circuitbook.claims import show
from circuitbook.gallery.sae09 import dashboard_rows
from circuitbook.results import measured

# %% [markdown] tags=["core"]
# ## 1 · One latent by hand · core, 6 minutes
# An autoencoder explains a vector as a sum of few directions:
# $$f=\mathrm{ReLU}(xW_{enc}+b_{enc}),\qquad \hat x=fW_{dec}+b_{dec}.$$
# The encoder asks how far $x$ points along each latent's direction. Below a threshold the latent stays off. The decoder adds up the directions of those that are on. The loss pulls two ways: a good copy, and few latents. Each latent that is on pays $\lambda$ for each unit.


# %% tags=["save", "core"]
def sae_forward(x, W_enc, b_enc, W_dec, b_dec):
    """f = ReLU(x W_enc + b_enc) and x̂ = f W_dec + b_dec: (latents [n, F], reconstruction [n, d])."""
    f = (x @ W_enc + b_enc).relu()
    return f, f @ W_dec + b_dec


def naive_loss(x, W_enc, b_enc, W_dec, b_dec, penalty):
    """|x - x̂|² + λ Σ_j f_j, a number for each row: the loss as one writes it first."""
    f, x_hat = sae_forward(x, W_enc, b_enc, W_dec, b_dec)
    return (x - x_hat).square().sum(-1) + penalty * f.sum(-1)


# %% [markdown] tags=["core"]
# **By hand, first.** One latent in two dimensions. Its direction is $(0.6, 0.8)$, to read and to write; its bias is $-0.1$, and $\lambda=0.5$. **Predict** latent, copy, error and price for $x=(0.3, 0.4)$, and for $x=(0.04,-0.03)$.

# %% tags=["core"]
one = torch.tensor([[0.6, 0.8]])
f, x_hat = sae_forward(torch.tensor([[0.3, 0.4], [0.04, -0.03]]), one.T, -0.1, one, 0.0)
print("latents", f[:, 0], "copies", x_hat)

# %% [markdown] tags=["core"]
# ### Cheat
# `naive_loss` has a hole. Find a dictionary with the very same copies and a smaller loss. (10 minutes)


# %% tags=["exercise", "core"]
# exercise: 09.cheat points=2 minutes=10 difficulty=1
def cheat(W_enc, b_enc, W_dec, times):
    """(W_enc, b_enc, W_dec) with the same copies, and every latent `times` times smaller.

    W_enc [d, F], b_enc [F], W_dec [F, d]; times > 0.  Change nothing in place.
    """
    # solution
    return W_enc / times, b_enc / times, W_dec * times


# %%
check("09.cheat", cheat)

# %% [markdown] tags=["core"]
# Nothing keeps training from going through this hole: latents shrink, the decoder grows, and the penalty fades. One cure is to hold every decoder row at length one. Another is in the loss itself. Write it. (10 minutes)


# %% tags=["exercise", "core"]
# exercise: 09.honest_loss points=3 minutes=10 difficulty=2
def honest_loss(x, W_enc, b_enc, W_dec, b_dec, penalty):
    """Mean over rows of error + λ · price, blind to `cheat`; with unit decoder rows: naive_loss.

    x [n, d].  Returns a number.  Hint: what does a latent's part of the copy weigh?
    """
    # solution
    f = (x @ W_enc + b_enc).relu()
    error = (x - f @ W_dec - b_dec).square().sum(-1)
    return (error + penalty * f @ W_dec.norm(dim=1)).mean().item()


# %%
check("09.honest_loss", honest_loss)

# %% [markdown] tags=["core"]
# ## 2 · Forty directions from ten numbers · core, 5 minutes
# Chapter 08's toy gives what no real model gives: the truth. Its forty feature directions are known. So we train an autoencoder with forty latents on its hidden vectors alone, and compare. The setting is the series': $\lambda=0.3$, 15,000 steps of 4,096 vectors, the decoder's length in the penalty. The series does not say how it started. Our *plain* start draws encoder and decoder independently, all directions of length one. **How to compare?** By the best cosine. And mind the direction of the question. *From truth to learned*: is every feature found? *From learned to truth*: does every latent mean something? A dictionary can pass one and fail the other.


# %% tags=["save", "core"]
def best_match(truth, learned):
    """For each true direction the largest cosine with any learned one: max_j cos(t_i, l_j).

    truth [n, d], learned [k, d] -> [n]. Swap the two to ask the other way round.
    """
    unit = torch.nn.functional.normalize
    return (unit(truth) @ unit(learned).T).amax(1)


# %% tags=["core"]
truth, fooled = torch.eye(6), torch.eye(6)[:1].expand(6, 6)  # six latents, all on one feature
print("every latent means something:", best_match(fooled, truth).tolist())
print("five features are missing:   ", best_match(truth, fooled).tolist())

# %% [markdown] tags=["core"]
# ## 3 · How good is a dictionary of a real model? · core, 4 minutes
# On a real model nobody knows the features. So ask the model. Put the autoencoder's copy in the place of the MLP's 1,024 neurons, run on, and read the loss. *Loss recovered* puts it on a scale: zero ablation is 0, the whole model is 1. (10 minutes)


# %% tags=["exercise", "core"]
# exercise: 09.loss_recovered points=2 minutes=10 difficulty=2
def loss_recovered(full, zero, spliced):
    """(share of the lost loss that comes back, over all windows): zero ablation 0, the model itself 1.

    Each argument: loss of each window in nats, [windows].  In some windows the MLP does almost
    nothing: a mean of their own shares would be ruled by those.  Returns a number.
    """
    # solution
    return ((zero - spliced).mean() / (zero - full).mean()).item()


# %%
check("09.loss_recovered", loss_recovered)

# %% [markdown] tags=["core"]
# Our dictionary has 4,096 latents. It pays no $\lambda$: it keeps the $k$ largest latents of each position and sets the rest to zero (TopK). So nothing is shrunk, and the number of latents that are on, *L0*, is chosen instead of bargained for.


# %% tags=["save", "core"]
def top_k_code(pre, k):
    """ReLU(pre) with all but the k largest entries of each row at zero. [.., latents]"""
    kept, at = pre.relu().topk(k, dim=-1)
    return torch.zeros_like(pre).scatter(-1, at, kept)


# %% [markdown] tags=["core"]
# ## 4 · Edges that add up · core, 6 minutes
# Part three of this chapter draws a graph. Chapter 03 froze the attention patterns, and every path through heads became a product of matrices. An MLP bends. So replace it by a *transcoder*: an autoencoder that reads what the MLP reads and predicts what it writes. Hold two things, the patterns and *which latents are on*. Then a latent that is on equals its pre-activation, and that is linear in everything below. What the transcoder gets wrong stays in the graph as an *error node*. So nothing is approximated, and the edges into a node sum to its value, for any dictionary, a random one too. **A perfect sum is no evidence for the dictionary.** How much flows through error nodes is. An edge is found by one pass *back*. A node reads the stream along a vector $r$. One layer of heads below, it reads $r$ at its own position, and $\sum_h A^h_{ij}\,W^h_{OV}r^\top$ at every position $j$. Write it for one layer. (15 minutes)


# %% tags=["exercise", "core"]
# exercise: 09.edges_into points=4 minutes=15 difficulty=3
def edges_into(read, pattern, W_V, W_O, x):
    """Edge of every token into a reader after one attention layer, at the last position. [pos]

    read [d_model].  pattern [head, pos, key].  W_V [head, d_model, d_head], W_O [head, d_head,
    d_model].  x [pos, d_model]: the tokens' embeddings.  The edges sum to what the reader sees.
    """
    # solution
    back = torch.einsum("hk,hed,d->hke", pattern[:, -1], W_O, read)
    edges = torch.einsum("hke,hde,kd->k", back, W_V, x)
    edges[-1] += x[-1] @ read  # straight ahead, past the heads
    return edges


# %%
check("09.edges_into", edges_into)

# %% [markdown] tags=["core"]
# ## 5 · What was read, and why · core, 5 minutes
# *I always loved visiting Aunt Sally. Whenever I was feeling sad, Aunt* … The 2025 paper on circuit tracing shows this prompt to a small attention-only model, and says about its own graph: this misses the interesting story. The graph says that "Sally" was read and said. Why did the head look there? Two questions, two sums. The *read side*: hold $A$, and split the logit of the name by token and path (chapter 03). The *reason side*: take the score that makes $A$, at one query and one key, and split it by pairs of sources (chapter 05). Softmax does not see what is equal for all keys, so each term counts minus its mean over keys.


# %% tags=["save", "core"]
def reason_terms(query_parts, key_parts, W_Q, W_K):
    """Terms [a, b] of a score at one key: q_a · k_b / √d_head, minus the term's mean over keys.

    query_parts [source, d_model]; key_parts [source, pos, d_model], the wanted key last.
    """
    q, k = query_parts @ W_Q / W_Q.shape[1] ** 0.5, key_parts @ W_K
    return q @ (k[:, -1] - k.mean(1)).mT


# %% [markdown] tags=["core"]
# **A control that changes only the reason.** The *first* title stands before the name. Exchange it, and leave the rest: "Uncle Sally … Aunt". The name is still there to be read. Its token is the same. What is gone is the answer to "who stood after an Aunt?" **Predict**: what becomes of the attention to the name, with two layers and with one? Write the exchange. (10 minutes)


# %% tags=["exercise", "core"]
# exercise: 09.swap_first_title points=3 minutes=10 difficulty=1
def swap_first_title(tokens, aunt, uncle):
    """Exchange Aunt and Uncle at the first title only; the last token, a title too, stays.

    tokens [pos], ids.  aunt, uncle: ids.  The first title is the first place with one of the two.
    Returns a new tensor.
    """
    # solution
    out = tokens.clone()
    first = int(((tokens == aunt) | (tokens == uncle)).nonzero()[0])
    out[first] = aunt + uncle - tokens[first]
    return out


# %%
check("09.swap_first_title", swap_first_title)

# %% [markdown]
# ## 6 · The measurement
# All numbers below come from this cell. It trains the toys and their autoencoders anew; the dictionaries of the real models are bundled, and `make weights` trains them again. Toys: ten lanes, each a toy of its own with a start of its own, one stream of inputs for all. Text: held-out windows inside single documents, errors by document. Frozen, in the graph: patterns, and which latents are on.


# %%
@dataclass(frozen=True)
class Config:
    """What defines this chapter's experiment."""

    lanes: int = 10
    steps: int = 15_000
    mended_steps: int = 8_192
    windows: int = 192
    label_windows: int = 256
    frames: int = 8


# Not formatted: a line for each part.
# fmt: off
def compute(cfg):
    """All numbers of the chapter, from its config alone."""
    plan = recovery.Plan(cfg.lanes, cfg.steps, mended_steps=cfg.mended_steps)
    with paths.model_set("course"):  # dictionaries are trained for the course's own models
        toys, about_toys = toy_claims.study(plan, best_match, naive_loss)
        sae, about_sae = sae_study.study(windows=cfg.windows, judged=cfg.windows // 4)
        graph, about_graph = graph_study.study(windows=cfg.label_windows)
        moves, about_moves = survive.study()
    aunt, about_aunt = sally_study.study(cfg.frames)
    series = {"part7.sae_by_hand": toys["hand"], "part7.sae40": recovery.series_row(toys), **sally_study.series(aunt)}
    data = {"toys": toys, "sae": sae, "graph": graph, "aunt": aunt, "moves": moves, "series": series}
    return {"data": data, "claims": [*about_toys, *about_sae, *about_graph, *about_aunt, *about_moves]}


cfg = Config(**paths.sizes(quick={"lanes": 2, "steps": 240, "mended_steps": 240, "windows": 48, "label_windows": 32, "frames": 4}))
# A toy that starts elsewhere ends elsewhere; another processor is enough for that.
CHANCE = {f"toys.{key}.*": "stochastic" for key in ("toy", "plain", "mended", "blind", "rivals", "cheat", "shrinkage")}
CHANCE |= {"toys.features_on": "stochastic", "series.part7.sae40.*": "stochastic"}
CLOSE = {"moves.*": ("readout", 1e-2), "graph.*": ("readout", 1e-2, 1e-2), "aunt.*": ("readout", 1e-2, 1e-3), "sae.minds.counts.*": ("closed_form", 40), "sae.minds.*": ("closed_form", 0.05), "sae.*": ("readout", 2e-2, 1e-3)}
# fmt: on
r = measured("09_sparse_autoencoders", compute, cfg, kinds={**CHANCE, **CLOSE})

# %% [markdown] tags=["extension"]
# ## 7 · The price of a latent · extension, 5 minutes
# Your cheat, on a trained dictionary. **Predict** what is left of the naive loss when the decoder is a hundred times as long. On the right: how short single features come back. A latent pays $\lambda$ for each unit and earns twice the missing length; **predict** where it stops. An encoder has more to do: its thresholds must also keep out the echoes of other features (chapter 08).

# %% tags=["extension"]
show(r, "saes.by_hand", "saes.rescaling_law", "saes.half_the_penalty", "saes.shrinkage")
gallery.price_of_length(r)

# %% [markdown] tags=["core"]
# ## 8 · What was found · core, 5 minutes
# **Predict**: how many of forty? The published run found 32 above a cosine of 0.99, from one start. And what do simpler tools find in the same vectors? PCA gives ten directions, ICA ten that are *least Gaussian*, as sparse things are. Ten cannot hold forty. So there is a fair rival too: the centres of forty clusters. About a third of all inputs that are not zero hold one feature alone. **Predict** what clusters make of that. (Where many features are on at once, no vector shows one alone.)

# %% tags=["core"]
show(r, "saes.toys", "saes.plain_start", "saes.published_count", "saes.other_direction", "saes.price_of_few", "saes.ten_directions", "saes.clusters", "saes.shuffled_truth")  # fmt: skip
gallery.features_found(r)

# %% [markdown] tags=["core"]
# ## 9 · Why some are lost · core, 4 minutes
# There are forty latents for forty features. **Predict**: when a feature is lost, is there a latent too few? Does every lost feature share its latent with another, or can a latent of its own be wrong?

# %% tags=["core"]
show(r, "saes.shared_is_spare", "saes.where_they_are")
gallery.what_was_lost(r)

# %% [markdown] tags=["core"]
# A latent that serves two features stands between them, and some of its neighbours tilt. The latent that should help sits elsewhere. One that never fires has no gradient; one that hardly ever fires hardly ever hears of an error; one that repeats another is told to stay. So *carry* it. Spare latents show without knowing the truth. We re-point each to an input along which most error is left, and let it forget its past. The control re-points them as often, but blindly. **Predict**: does it matter where to? And is the plain runs' loss better or worse?

# %% tags=["core"]
show(r, "saes.mended_finds_all", "saes.blind_move", "saes.stuck_not_better")
gallery.latents_moved(r)

# %% [markdown] tags=["core"]
# ## 10 · A dictionary for a real MLP · core, 4 minutes
# `gelu-1l`: 1,024 neurons behind the GELU, 4,096 latents, trained on training text, read on held-out text. **Predict**: with 32 numbers a position in place of 1,024, how much of the MLP's worth is kept? And with the 32 strongest neurons? With 32 principal components? With 32 of 4,096 random directions, fitted greedily, or 32 of 4,096 activations taken from other text? All of these have the same L0. Zero is a strange place for neurons. So the mean ablation stands in the numbers too.

# %% tags=["core"]
show(r, "latents.formulas", "latents.recovered", "latents.explained", "latents.beats_equal_l0", "latents.eight_bits", "latents.penalty_curve")  # fmt: skip
gallery.dictionary_frontier(r)

# %% [markdown] tags=["extension"]
# **Latents against neurons** (4 minutes). Is a latent more single-minded than a neuron? One measure for both: the unit's strongest position in each window; the twelve strongest of these; the share of the most common word there. As many contexts for every unit. Its controls: latents with their positions drawn anew, random directions, and rare latents beside frequent ones. **Predict** the order of latents, neurons, random directions.

# %% tags=["extension"]
show(r, "latents.single_minded", "latents.rarity", "latents.shuffled", "latents.rotation")  # fmt: skip
gallery.single_minds(r)

# %% [markdown] tags=["extension"]
# ## 11 · Ten latents, and one steered · extension, 7 minutes
# The ten best are chosen by the measure, so they *must* look good. The ten random ones, from a seeded draw, are what a latent is like. The table says too what turns each on directly and where its strongest context stands.

# %% tags=["extension"]
gallery.best_latents(r)

# %% tags=["extension"]
gallery.random_latents(r)

# %% tags=["extension"]
plots.table(dashboard_rows(r, "best") + dashboard_rows(r, "random"))

# %% [markdown] tags=["extension"]
# **Steering**: add one latent's row at every position and run on. In one layer without a norm the logits then move by the same amounts everywhere, by algebra. Probabilities and loss do not. **Predict** the dose that doubles a word's probability, in units of the latent's own largest value. Controls: random directions and other latents of the same length.

# %% tags=["extension"]
show(r, "latents.steered", "latents.taken_away")
gallery.latent_steered(r)

# %% [markdown] tags=["core"]
# ## 12 · A graph of one prompt · core, 4 minutes
# Two transcoders for `gelu-2l`, one for each MLP. Left to right: the tokens of a prompt. Bottom to top: embeddings, latents of the first MLP, of the second, the answer. Width says how strong an edge is, on one scale for edges into the answer and on another for edges into latents, which are far smaller. The graph is pruned to what carries most *influence*: shares of what enters each node, followed to the answer through all paths. **Predict**: what share of the influence ends at error nodes?

# %% tags=["core"]
show(r, "graph.edges_sum", "graph.leaves_sum", "graph.errors_share", "graph.pruned")
gallery.graph_of_god(r)

# %% [markdown] tags=["extension"]
# **A graph is a prediction** (4 minutes). Switch an edge off, and its node should move by the edge. With everything held that is algebra. Run the model again, and patterns and latents answer too. **Predict** which of the two comes nearer to the graph's word, and by how much the other misses. One part of the second prediction is no test: a latent at the last position writes into the logit itself, at every level alike. It is taken off both sides.

# %% tags=["extension"]
show(r, "graph.edge_moves_its_node", "graph.edges_rerun", "graph.prediction_holds", "graph.prediction_by_level", "graph.replay")  # fmt: skip
gallery.graph_predictions(r)

# %% [markdown] tags=["extension"]
# ## 13 · A hidden step, and what else is drawn today · extension, 7 minutes
# The 2025 paper follows "Dallas" to "Texas" to "Austin" and turns the middle down. We found no such thing in two layers. Ours is smaller: a first-layer latent that writes towards the answer itself, and also turns second-layer latents on. **Predict** what happens when it is turned down, at each level of freezing. Two controls stand beside it: the second MLP's write restored, and random writes as long taken away.

# %% tags=["extension"]
show(r, "graph.hidden_step")
gallery.hidden_step(r)

# %% tags=["extension"]
gallery.graph_leaves(r)

# %% [markdown] tags=["extension"]
# **Words you will meet.** *Cross-layer transcoder*: a latent reads one layer and writes into all later ones; a feature that is carried through many layers is then one node, not one for each layer. *Feature splitting*: a wider dictionary breaks one latent into several narrow ones, so a count of features is a count at one width. *Sparse mixtures of linear transforms*: the MLP is replaced by a few linear maps that are on, so the *function* is sparse, and not the output alone. *QK attributions* (July 2025): a head's score is bilinear in the features of query and key, so list the pairs that make it. That is our reason side, with latents in place of heads.

# %% [markdown] tags=["core"]
# ## 14 · Aunt Sally: what was read · core, 4 minutes
# One prompt first, as in the series, then all of its kind: every name in eight sentences. **Predict**: can the read side tell one layer from two? The picture follows the logit of the name minus the mean of the other names of its sex: what makes it *this* name.

# %% tags=["core"]
show(r, "aunt.one_prompt", "aunt.two_against_one", "aunt.read_sums", "aunt.graphs_look_alike")
gallery.read_sides(r)

# %% tags=["extension"]
gallery.graph_of_sally(r)

# %% [markdown] tags=["core"]
# ## 15 · Aunt Sally: why · core, 6 minutes
# Now the score of the head at (last title, name). **Predict** for each model: which pair of sources carries it? The token "Aunt" may simply like names. Or the key may hold something that its own token cannot know.

# %% tags=["core"]
show(r, "aunt.reason_sums", "aunt.reason_through_the_key", "aunt.reason_is_the_title", "aunt.one_layer_score", "aunt.one_layer_another_reason")  # fmt: skip
gallery.reason_sides(r)

# %% [markdown] tags=["core"]
# **The title exchanged.** The token part of what the head would copy is the same, bit for bit. The whole value is not: first-layer writes at the name may change as well. So a second experiment moves *one write into one input*: what the previous-token head wrote in the key, and nothing else. Exchange both titles, and the attention returns. **Predict**: does the probability return with it? Careful, the question is now "Uncle".

# %% tags=["core"]
show(r, "aunt.uncle_control", "aunt.only_the_key", "aunt.both_titles")
gallery.title_controls(r)

# %% [markdown] tags=["core"]
# **The knife, and what the graph says about it.** Cut the previous-token head out of the key. Controls: out of the query, out of the value, other heads out of the key, the write turned at random. Then ask the frozen graph. **Predict** how many of its edges change. That it does not move is no finding: whoever holds a pattern never asks a key. The finding is the run beside it.

# %% tags=["core"]
show(r, "aunt.key_cut", "graph.blind_to_keys", "graph.keys_run_again", "aunt.graph_is_blind", "aunt.cut_run_again")  # fmt: skip
gallery.reason_cuts(r)

# %% [markdown] tags=["written", "core"]
# <!-- written: 09.perfect_sum points=3 minutes=10 difficulty=2 -->
# **In your own words.** A paper shows the graph of one prompt. *The edges into every node sum to its value, to the last digit. So the dictionary is faithful. And no edge leaves the first title. So the first title does not matter.* What does the perfect sum prove? Which two numbers would speak about the dictionary? And where may the first title be at work all the same, and how would you find out?

# %% [markdown] tags=["solution"]
# **Model answer.** *1 point*: nothing about the dictionary. Error nodes hold whatever it misses, so the sum is right for every dictionary, a random one too. *1 point*, for two of these: the share of influence that ends at error nodes; the loss recovered with the copy in place, beside an untrained dictionary with as many latents on; how well an edge foretells what happens when it is switched off and the model runs again. *1 point*: the patterns are held, so the graph shows what is read and not why a head looks there. The title may be at work in the *key* at the name. Exchange the title and leave the name, or exchange one head's write in that key alone, and compute the pattern again. *Half right*: "take more latents": the missing part is not in the MLP. "Remove the name": that changes what is read as well.

# %% [markdown] tags=["core"]
# ## Does it survive? · core, 3 minutes
# Head coordinates R, stream coordinates G (the transcoders are carried along), $W_U+c\mathbf1^\top$, a constant added to all scores of a query. **Predict** each row. Two of them say that a dictionary's own lengths belong to its coordinates: trained in others, it would have paid other prices.

# %% tags=["core"]
show(r, "saes.survival", "latents.survival")
gallery.dictionary_survives(r)

# %% tags=["extension"]
gallery.latents_survive(r)

# %% [markdown] tags=["core"]
# ## What would change our mind, what we left out
# **Change our mind**: plain runs with *lower* loss where features are lost; an untrained dictionary, of activations from other text, that recovers as much loss with as few latents; a head whose attention to the name survives when only the write in its key is exchanged. **Simplified**: features of the toys are independent and of one kind; real ones need not be directions at all. One width, one seed for each bundled dictionary. A latent with clean contexts may still not be what the model computes with. Two layers, no LayerNorm. Graphs of single prompts, chosen by hand. Zero is a strange place for an MLP's neurons. **Read on**: Bricken et al. 2023, *Towards Monosemanticity*; Templeton et al. 2024, *Scaling Monosemanticity*; Gao et al. 2024 (TopK, arXiv 2406.04093); Dunefsky et al. 2024 (transcoders, arXiv 2406.11944); Ameisen et al. 2025, *Circuit Tracing*, and its July 2025 update on attention; Lindsey et al. 2025, *On the Biology of a Large Language Model*.
# ## The pair so far
# That the name is read through the pair's second head is an *identity* in the frozen graph. That it is read *because* the first head marked it with the title is an *intervention*, and no frozen graph can say it.

# %% tags=["core"]
show(r, "aunt.reason_through_the_key", "aunt.key_cut")
