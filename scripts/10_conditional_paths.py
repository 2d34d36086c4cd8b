# %% [markdown]
# # 10 · Conditional paths: what is left of the algebra when the network bends
# Series: after the series · Reading: 120 minutes · CPU: 3 minutes
#
# Hold the attention patterns, and a transformer without MLPs is a sum of paths. That was chapter 03. MLPs bend, gates multiply, routers choose. A recent essay proposes to keep the sum all the same: let every matrix depend on the input that it met. This chapter runs that proposal. It asks of each term whether it is a piece of the output, a slope, or a cause.
#
# **You will do**: split the write of a bent MLP exactly, fill a table by guess and then measure it, walk from one input to another and find the step at a border, take a gated channel's two reads apart.
# **You will learn**: why three honest numbers about one component differ, which words each of them carries, and what "frozen" leaves out.
# **You need**: chapters 03 (paths, freezing), 06 (cuts) and 07 (MLPs). Sections marked *core* take about 82 minutes to read, *extension* about 37; the exercises another 75.
#
# **Notation.** Rows: $M(x)=\phi(xW_{in}+b_{in})W_{out}+b_{out}$. A Jacobian is $J_{in,out}$, so a small change moves the output by $\delta x\,J$. Papers write columns. A gated MLP has $W_{gate}$, $W_{in}$, $W_{out}$; papers often call the second $W_U$ or "up".

# %%
from dataclasses import dataclass

import torch

from circuitbook import gallery, plots
from circuitbook.check import check
from circuitbook.claims import show
from circuitbook.conditional import attention_study, finite_study, methods_study, operator_study
from circuitbook.conditional.selective import study as study_two_reads
from circuitbook.gallery import gated10, tables10
from circuitbook.paths import sizes
from circuitbook.results import measured

# %% [markdown] tags=["core"]
# ## 1 · Three questions about one write · core, 6 minutes
# A head writes $w$ into the stream. An MLP reads $x$, and $w$ is a part of $x$. What has $w$ to do with what the MLP writes?
# - **Forward**: which terms *add up* to what came out? One of them belongs to $w$.
# - **Local**: if $w$ were a little longer, how would the output change?
# - **Causal**: if $w$ had not been there, what would have come out?
#
# Through a matrix these are one number. Through a bend they are three. Chapter 07 showed the smallest case: two parts $+1$ and $-1$ meet in a GELU and nothing comes out. **Predict** for the part $+1$: its forward share, its slope, and what happens without it. Write three numbers down. (Hint: $\mathrm{GELU}(z)=z\,\Phi(z)$ and $\Phi(0)=\frac12$.)

# %% tags=["core"]
gelu, zero, one = torch.nn.functional.gelu, torch.zeros(()), torch.ones(())
slope = torch.func.jvp(gelu, (zero,), (one,))[1]
print(f"share {torch.special.ndtr(zero) * one:.2f}   slope {slope:.2f}   effect {gelu(zero) - gelu(zero - 1):.2f}")  # fmt: skip

# %% [markdown] tags=["core"]
# The share is the slope here, as the gate is $\Phi(0)$ and the slope is $\Phi(0)$ too. Move the state away from zero and all three part. What is exact about the first, what is approximate about the second and what is conditional about the third is the subject of this chapter. The essay gives the algebra and labels it well; it has no measurements. It leaves three things open: whether terms that sum to an output tell anything about causes, whether trained gates *use* their two reads, and the norms.
# ## 2 · A matrix for this input · core, 6 minutes
# The bend acts on each neuron alone. So write $\phi(z)$ as a gain times $z$: $\phi(z)=\gamma(z)\,z$, for a $\phi$ with $\phi(0)=0$. For ReLU the gain is $1$ where $z>0$, else $0$. For GELU it is $\Phi(z)$. Then
# $$M(x)=xB(x)+(b_{in}\odot\gamma)W_{out}+b_{out},\qquad B(x)=W_{in}\,\mathrm{diag}(\gamma)\,W_{out}.$$
# $B(x)$ is the **forward operator** of this input. $M(x)$ has not become linear. It has chosen a matrix. Every part $x_c$ of $x$ gets the exact share $x_cB(x)$, and the biases keep a row of their own. (Give the stream one more coordinate that is always 1, and that row is a part of the matrix. Biases are then a path like others.) **At zero** $\phi(z)/z$ has no value. The gain $0$ would do there, and so would any other: $0\cdot z=0$. The essay takes $0$. Only the limit $\phi'(0)$, where there is one, makes the share continuous; for GELU it is one half. ReLU has none.


# %% tags=["exercise", "core"]
# exercise: 10.realised_parts points=3 minutes=15 difficulty=2
def realised_parts(parts, W_in, b_in, W_out, b_out, kind):
    """Exact shares of what a ReLU or GELU MLP writes: one row for each part, a last one for biases.

    parts [n, d]: they sum to the state x.  W_in [d, m], b_in [m], W_out [m, d], b_out [d].
    kind: "relu" or "gelu".  Returns [n + 1, d].  Build no d by d matrix.
    """
    # solution
    z = parts.sum(0) @ W_in + b_in
    gate = (z > 0).to(z) if kind == "relu" else torch.special.ndtr(z)
    return torch.cat([(parts @ W_in * gate) @ W_out, ((b_in * gate) @ W_out + b_out)[None]])


# %%
check("10.realised_parts", realised_parts)

# %% [markdown] tags=["core"]
# ## 3 · Two matrices, one output · core, 5 minutes
# A gated MLP multiplies two reads: $y=(\mathrm{SiLU}(g)\odot u)W_{out}$ with $g=xW_{gate}$ and $u=xW_{in}$. Hold the gate, and the *content* $u$ is linear in $x$. But $\mathrm{SiLU}(g)=\sigma(g)\,g$. So hold $\sigma(g)\odot u$, and the *gate* is linear in $x$. **Predict**: both matrices give the same $y$. Do they give a head the same share?


# %% tags=["save", "core"]
def two_operators(x, W_gate, W_in, W_out):
    """W_in diag(SiLU(g)) W_out and W_gate diag(σ(g) ⊙ u) W_out: x times either is the output.

    x [d]; the gated MLP (SiLU(x W_gate) ⊙ x W_in) W_out without biases. Returns two [d, d].
    """
    g, u = x @ W_gate, x @ W_in
    return (W_in * (g * g.sigmoid())) @ W_out, (W_gate * (u * g.sigmoid())) @ W_out


# %% tags=["core"]
gen = torch.Generator().manual_seed(1)
a, b, *weights = (torch.randn(*s, generator=gen) for s in ((6,), (6,), (6, 12), (6, 12), (12, 6)))
for name, B in zip(("content", "gate"), two_operators(a + b, *weights), strict=True):
    print(f"{name:8} y {((a + b) @ B)[0]:5.2f}, from a {(a @ B)[0]:5.2f}, from b {(b @ B)[0]:5.2f}")

# %% [markdown] tags=["core"]
# One output, two splits, and every mixture of them is a third. In general $xB=y$ fixes one row of numbers, and a matrix has many: any $N$ with $xN=0$ may be added. "The share of this head is …" is a statement about a *choice of matrix*. Structure can recommend a choice. It cannot prove one. Section 13 counts how often the two disagree in sign in a trained model.
# ## 4 · One block, four routes · core, 5 minutes
# A block is attention, then an MLP that reads what attention has left. With patterns and gains held, multiply out: straight on, through the heads, through the MLP, through the heads *and then* the MLP. **The slip**: draw attention and MLP side by side, as some real models have them. Then the fourth route is gone, and the gains are taken at $x$ alone. **Predict**: is that a small error? Section 10 makes it.


# %% tags=["save", "core"]
def four_routes(x, A, W_OV, W_in, W_out, gate):
    """x, A x W_OV, x B and A x W_OV B: their sum leaves the block; B holds the gains of this input.

    x [pos, d], A [pos, pos], W_OV [d, d]; an MLP without biases that reads x + A x W_OV.
    """
    head = A @ x @ W_OV
    gains = gate((x + head) @ W_in)
    through = [(v @ W_in * gains) @ W_out for v in (x, head)]
    return {"straight": x, "head": head, "MLP": through[0], "head, then MLP": through[1]}


# %% [markdown] tags=["core"]
# ## 5 · The Euler table · core, 5 minutes
# The shares sum to $M(x)$, apart from the biases' row. What do the *slopes* sum to? To $xJ$: the derivative along $x$ itself, of $F(tx)$ at $t=1$. If stretching $x$ by any $t>0$ multiplies $F$ by $t^k$, then $xJ=k\,F$. That is Euler's theorem on homogeneous functions. **Fill the table by guess**, before you compute anything. A number, or "none". Then write the instrument: one number must serve all rows, and "none" must be a possible answer.

# %% tags=["core"]
guess = {"ReLU, no biases": "?", "bilinear, no biases": "?", "LayerNorm": "?", "GELU, no biases": "?", "SwiGLU, no biases": "?", "ReLU with biases": "?"}  # fmt: skip


# %% tags=["exercise", "core"]
# exercise: 10.euler_table points=4 minutes=20 difficulty=2
def euler_table(maps, x):
    """For each map F the number k with x J = k F at every row of x, or None when there is none.

    maps: {name: function of rows}.  x [n, d], float64.  None: the best single k misses, at x, by
    more than one part in 100,000 of the largest entry of F.
    """
    # solution
    table = {}
    for name, f in maps.items():
        y, along = torch.func.jvp(f, (x,), (x,))
        k = (along * y).sum() / y.square().sum()
        table[name] = k.item() if (along - k * y).abs().max() <= 1e-5 * y.abs().max() else None
    return table


# %%
check("10.euler_table", euler_table)

# %% [markdown] tags=["core"]
# So slopes of a bilinear MLP without biases sum to *twice* its output, and slopes through a norm sum to nothing. Whoever ranks components by slope and reads the ranking as shares has no total to check against.
# ## 6 · From here to there · core, 6 minutes
# A slope is about a small step. For a whole step from $x_0$ to $x_1$ add the slopes up along the way:
# $$F(x_1)-F(x_0)=\int_0^1 (x_1-x_0)\,J\bigl(x_0+t(x_1-x_0)\bigr)\,dt.$$
# This is exact where $F$ is continuous along the way; a router that picks experts is not. It explains a *change*, from a baseline, along a path; choose another baseline and you get another answer. *Integrated gradients* is this sum, split over parts. *Attribution patching* takes one slope at one end and no more. *Activation patching* makes the change and runs the model.


# %% tags=["save", "core"]
def path_integral(f, x0, x1, steps):
    """∫₀¹ (x1 - x0) J_f(x0 + t (x1 - x0)) dt by midpoints; f(x1) - f(x0) where f is continuous."""
    total = 0
    for k in range(steps):
        here = x0 + (k + 0.5) / steps * (x1 - x0)
        total = total + torch.func.jvp(f, (here,), (x1 - x0,))[1]
    return total / steps


# %% [markdown] tags=["core"]
# From $0$ to $x$ the integral gives one more forward operator, $\bar J(x)=\int_0^1J(tx)\,dt$ with $x\bar J=F(x)-F(0)$: the **radial** one. The essay keeps it as the most general one. **Predict**: for an ordinary MLP without biases, is it a new matrix? For SwiGLU? For a bilinear MLP? (Take one neuron: $\int_0^1\phi'(tz)\,dt=(\phi(z)-\phi(0))/z$. You have met that.)
#
# **At a border** (extension, 4 minutes). A mixture of experts keeps the $k$ experts with the largest router logits. Between two inputs the set may change, and the output jumps. The integral of slopes cannot see a jump: it misses exactly the sum of all jumps on the way, and finer steps come no nearer. How tall is one?


# %% tags=["exercise", "extension"]
# exercise: 10.jump points=3 minutes=12 difficulty=2
def jump(logits, outputs, leaves, enters, k):
    """y just after a border of routing minus y just before; [d].

    logits [expert], at the border: `leaves` and `enters` have equal ones.  k are selected: before,
    `leaves` among them, after, `enters`.  y: the selected of outputs [expert, d], weighted by the
    softmax over the selected logits.
    """
    # solution
    order = [e for e in logits.argsort(descending=True).tolist() if e != enters]
    weight = (logits[leaves] - logits[order[:k]].logsumexp(0)).exp()
    return weight * (outputs[enters] - outputs[leaves])


# %%
check("10.jump", jump)

# %% [markdown] tags=["core"]
# ## 7 · Two reads of one channel · core, 4 minutes
# Chapter 05 told Q-, K- and V-composition apart by which of a head's inputs reads an earlier write. A gated channel has two inputs. An earlier write may change *what* passes (content) or *how far the gate opens* (gate):
# $$\delta y=\bigl[\mathrm{SiLU}(g)\odot\delta u\;+\;u\odot\mathrm{SiLU}'(g)\odot\delta g\bigr]W_{out}.$$
# That there are two terms is an *identity*. That trained models use them for different things is a *conjecture*; section 17 tests a piece of it: whether they use both, and which more. First write the two. Careful: in the first term SiLU stands with its value, in the second with its slope.


# %% tags=["exercise", "core"]
# exercise: 10.gate_and_content points=3 minutes=12 difficulty=2
def gate_and_content(w, x, W_gate, b_gate, W_in, b_in, W_out):
    """First-order change of a SwiGLU MLP when small writes w enter: (through content, through gate).

    w [n, d]: n writes, each alone.  x [d]: the state.  W_gate, W_in [d, m], b_gate, b_in [m],
    W_out [m, d].  Returns two [n, d]."""
    # solution
    g, u = x @ W_gate + b_gate, x @ W_in + b_in
    s = g.sigmoid()
    return (w @ W_in * (g * s)) @ W_out, (w @ W_gate * (u * s * (1 + g * (1 - s)))) @ W_out


# %%
check("10.gate_and_content", gate_and_content)

# %% [markdown] tags=["extension"]
# ## 8 · A router's two reads · extension, 4 minutes
# A mixture of experts reads the stream twice as well. The *experts* compute with it. The *router* weighs them by it. So an earlier write changes what the selected experts do, or how much each counts. With weights renormalised over the selected set $S$, $\pi_e=e^{\ell_e}/\sum_{f\in S}e^{\ell_f}$, they always sum to one. **Predict** two things: what does the router's route make of something that all selected experts write alike? And what is left of it for $k=1$? (Section 18 answers.)


# %% tags=["exercise", "extension"]
# exercise: 10.router_part points=4 minutes=15 difficulty=3
def router_part(w, logits, W_router, neurons, W_out, b_out, k):
    """First-order change of a mixture when a small write w enters through the router alone; [d].

    logits [expert], W_router [d, expert].  Expert e writes neurons[e] W_out[e] + b_out[e]:
    neurons [expert, m], W_out [expert, m, d], b_out [expert, d].  Weights: softmax over the k
    largest logits.  The selected set stays."""
    # solution
    outputs = torch.einsum("em,emd->ed", neurons, W_out) + b_out
    chosen = logits.topk(k).indices
    weight, moved = logits[chosen].softmax(0), (w @ W_router)[chosen]
    return (weight * (moved - weight @ moved)) @ outputs[chosen]


# %%
check("10.router_part", router_part)

# %% [markdown]
# ## 9 · The measurement
# All numbers below come from this cell. Text: positions drawn by seed in held-out windows, each inside one document; errors and intervals by document. Prompts: the name batch of the earlier chapters, and random words with a repeat; errors over prompts. "Logit" is the next token's, centred over the vocabulary. "Held" always says what: *patterns*, *norm scales*, *MLP gains*, *expert set*, *expert weights*. A cut is to zero unless a sentence says otherwise. Limits of identities, of orders of convergence and of two standard errors were set before any number was seen. Limits that say *how much* (how far a held pass is off, how often signs differ, how early a slope saturates, what a word explains) were set after a first look. They say that a finding is there, not that it was foretold.


# %%
@dataclass(frozen=True)
class Config:
    """What defines this chapter's experiment."""

    windows: int = 40
    few: int = 8
    prompts: int = 24
    steps: int = 8
    cut_windows: int = 110


def compute(cfg):
    """All numbers of the chapter, from its config alone."""
    operators, a = operator_study.study(cfg.windows)
    finite, b = finite_study.study(path_integral, pairs=cfg.few, prompts=cfg.few)
    methods, c = methods_study.study(prompts=cfg.prompts, steps=cfg.steps)
    attention, d = attention_study.study(windows=cfg.few)
    two_reads = study_two_reads(windows=cfg.cut_windows)
    claims = [*a, *b, *c, *d, *two_reads.pop("claims")]
    data = {"operators": operators, "finite": finite, "methods": methods, "attnjac": attention}
    return {"data": data | two_reads, "claims": claims}


cfg = Config(**sizes(quick={"windows": 6, "few": 2, "prompts": 4, "steps": 2, "cut_windows": 24}, published={"windows": 16, "few": 4, "prompts": 10}))  # fmt: skip
KINDS = {"*": ("readout", 1e-2, 1e-3), "*.seconds.*": "stochastic", "*.agreement.*": ("closed_form", 0.05), "*.integrated_better.*": ("closed_form", 0.05)}  # fmt: skip
r = measured("10_conditional_paths", compute, cfg, kinds=KINDS)

# %% [markdown] tags=["core"]
# ## 10 · A whole pass, multiplied out · core, 6 minutes
# `gelu-2l` has two blocks of eight heads and one MLP. Each block offers $(1+8)(1+1)$ ways, so there are 324 routes from the embedding to the logits. Each is an exact summand of this pass. **Predict**: how much of the right token's logit comes through no MLP at all? And add up the *sizes* of all routes: how many times the logit is that?

# %% tags=["core"]
show(r, "routes.operator_gives_the_block", "routes.jacobian_is_the_derivative", "routes.gain_at_zero_is_a_choice", "routes.sum_to_the_logits", "routes.parallel_is_another_model", "routes.without_mlp", "routes.they_cancel")  # fmt: skip
gallery.route_groups(r)

# %% [markdown] tags=["core"]
# The sum is an *identity*: it would hold in an untrained model too. The claim is only as good as the slip that breaks it, so the slip stands beside it. That terms cancel is no finding by itself: how much depends on how finely the sum is cut, and random signs cancel too. It is a warning all the same. If many large terms make a small sum, then a single term says little about what would happen without it. Nor does a small total for the MLPs mean that they do little: look at their bias rows.
# ## 11 · A summand is not a part that you can unplug · core, 6 minutes
# Take away all routes through one first-layer head, on paper. That is what happens when its write is removed while patterns *and* MLP gains are held. Now take the write away and hold less and less: patterns only, nothing. The last is the model. **Predict**: which answers rank the heads as the model does? (Hollow marks hold slopes in place of gains: first order.)

# %% tags=["core"]
show(r, "shares.held_pass_is_its_routes", "shares.held_gains_mislead", "shares.mixture_levels", "shares.norm_scales_matter")  # fmt: skip
gallery.frozen_levels(r)

# %% [markdown] tags=["core"]
# "Frozen" has four meanings, and a sentence that does not name its level says little. With gains held, the counterfactual is another network than the trained one: its neurons pass what they would have shut out. The essay says that an exact summand need not be an independent mechanism. Here is how far from one it can be.
# ## 12 · The Euler table, measured · core, 3 minutes
# Your guesses stand beside the best single ratio of $xJ$ to $F$, and beside what it leaves over as a share of $F$. Trained blocks have biases, and a bias is no part of $x$: the last column is what the shares of *this* operator leave to the biases' row (of SwiGLU: the content operator). Section 3 applies here too: another exact operator leaves another row.

# %% tags=["core"]
show(r, "shares.euler_degrees", "shares.gelu_has_no_degree", "shares.a_bias_row_is_left")
plots.table(tables10.guess_rows(r, guess))

# %% [markdown] tags=["core"]
# ## 13 · Share, slope, effect · core, 8 minutes
# The three questions of section 1, for the same parts at the same positions: the token itself and every head, through one MLP. The effect is an intervention: this MLP reads $x-w$ in place of $x$, it alone is computed again, and the stream keeps $w$. Each picture says, in mean logits, what the MLP writes and what the parts add up to; biases are no part. **Predict**: does share or slope foretell the effect better? In which model are they the same? How often has a share the wrong *sign*?

# %% tags=["core"]
show(r, "shares.forward_adds_up", "shares.removal_is_direct_plus_effect", "shares.jacobian_is_nearer_than_forward", "shares.signs_differ", "shares.curve_is_one_reason", "shares.two_operators_two_answers", "shares.relu_forward_is_jacobian", "shares.relu_is_no_cure")  # fmt: skip
gallery.shares_against_effect(r)

# %% [markdown] tags=["core"]
# One reason is in the curve. A GELU with $z$ below about $-0.75$ *falls* as $z$ grows, while its gain $\Phi(z)$ is still positive. There a share says "up" where a small push goes down. That can be tested: exchange gain for slope in these neurons alone, and see how much of the slope's lead comes back (a line above). A second reason no slope can mend: a removal is no small step. In `relu-1l` share and slope are one number, and still neurons cross zero. The table shows places where share and effect contradict each other most. They were found by program, so they are the worst, not typical.

# %% tags=["core"]
plots.table(tables10.case_rows(r))

# %% [markdown] tags=["written", "core"]
# <!-- written: 10.three_numbers points=3 minutes=10 difficulty=3 -->
# **In your own words.** For one head and one MLP at one place a report prints a share of $+0.4$, a slope of $-0.1$ and an effect of removal of $+0.2$. *They differ, so at most one is right.* Write for each number the sentence that it carries, with what is held. Can share and slope differ in sign in a single GELU neuron? And which of the three may be added up over all parts?

# %% [markdown] tags=["solution"]
# **Model answer.** *1 point*: share: with the gains of this pass held, this is a summand of what the MLP wrote, for *this* choice of matrix. Slope: so the output moves, per unit, when this write gets a little longer. Effect: this is lost when the MLP reads $x-w$ and nothing else changes. All three can be right at once. *1 point*: yes. Left of about $-0.75$ a GELU falls as $z$ grows, and its gain $\Phi(z)$ is positive all the same. *1 point*: shares add up to the write, apart from the biases' row. Slopes add up to $xJ$, which is the write for special maps only. Effects need not add up to anything. *Half right*: "the effect is the true one": true as an answer to one question, and silent about what stood in and what was computed again. "They differ because the MLP is not linear": yes, and which number says what?

# %% [markdown] tags=["extension"]
# ## 14 · What held patterns hide · extension, 6 minutes
# A held pattern lets a change through in one way, by the values. But a head has two more, as scores move:
# $$dy_i=\sum_jA_{ij}\,dx_jW_{OV}\;+\;\sum_j\bigl(dA^{q}_{ij}+dA^{k}_{ij}\bigr)\,x_jW_{OV},\qquad dA_{ij}=A_{ij}\Bigl(ds_{ij}-\sum_mA_{im}\,ds_{im}\Bigr).$$
# The first is the *value* route; $ds$ has a part where the query moves and one where the key moves. The subtracted mean keeps every row at one. **Predict** for our pair, previous-token head into induction head, on repeats: which route is largest? Chapter 06 cut these edges. Does the slope agree with the cut, in size as well?

# %% tags=["extension"]
show(r, "attnjac.identity", "attnjac.frozen_misses", "attnjac.pair_key_two_layers", "attnjac.pair_cut_two_layers", "attnjac.pair_key_with_mlps", "attnjac.pair_cut_with_mlps", "attnjac.value_is_linear_two_layers", "attnjac.value_is_linear_with_mlps")  # fmt: skip
gallery.attention_routes(r)

# %% [markdown] tags=["extension"]
# ## 15 · How fine must the steps be? · extension, 6 minutes
# Each doubling of the steps should quarter a midpoint rule's error, if the map is smooth. ReLU has kinks, and a router jumps. **Predict** how fast each line falls, and which of them stops, and where. Then the radial matrix: is it new? You predicted it in section 6. Biases have two answers: they stay while $x$ shrinks, or they are a row of the matrix and $(x,1)$ shrinks as a whole.

# %% tags=["extension"]
show(r, "finite.order_smooth", "finite.order_kinks", "finite.jumps_are_the_gap", "finite.floor", "finite.whole_model", "finite.whole_experts", "finite.radial_is_forward", "finite.radial_is_not", "finite.radial_output")  # fmt: skip
gallery.convergence(r)

# %% [markdown] tags=["core"]
# ## 16 · Four methods, the same prompts · core, 8 minutes
# Two tasks. *Name exchanged*: the other run has another name in the same sentence, so what is copied changes and where heads look does not. *Match broken*: the earlier copy of the last word is replaced, so what changes is where a head looks. One metric, the right logit minus a wrong one. For each component: one slope (attribution patching), slopes along the way (integrated gradients), its write exchanged and the model run again (activation patching), its write exchanged on the direct edge to the logits only (path patching). **Predict**: in which task does one slope go wrong? Which method is cheapest, and by how much?

# %% tags=["core"]
show(r, "methods.integrated_complete", "methods.content_is_linear", "methods.first_order_saturates", "methods.integrated_is_nearer", "methods.ranks_hide_it")  # fmt: skip
gallery.four_methods(r)

# %% [markdown] tags=["core"]
# The passes are counted by hooks while each method runs. A slope costs the same for one component as for all of them; a patched run is needed for each. For one write *alone*, integrated gradients are activation patching: that is section 6's identity. They differ because here all writes move together. And what does an error look like? Below, one head's write is moved by degrees from the one run's to the other's. A softmax that gives a key almost nothing has almost no slope there, whatever waits behind it.

# %% tags=["core"]
show(r, "methods.worst_case")
gallery.first_order_fails(r)

# %% [markdown] tags=["core"]
# ## 17 · Which read is used? · core, 8 minutes
# `swiglu-1l` learned from the same text. All that the heads write reaches the gate and the content of every channel. We take it out of *one* read: $g$ from $x-w$ and $u$ from $x$, or the other way about. The stream keeps $w$. "Used more" needs a meaning, and we ask for several: which cut costs more loss, which moves the prediction further (KL), which first-order write is longer. The last one has a catch: it is the length of a small step in the stream, and knows nothing of what the logits do with it, nor of the way a gate closes for good. Controls: a random direction, or another window's write, as long *in that read*, is taken off while $w$ stays. Should these cost as much, then the price of a cut does not show that a route carries *meaning*; it may only show that a gate dislikes being shaken. **Predict** which read earlier heads use more, and whether the measures agree.

# %% tags=["core"]
show(r, "gated.routes", "gated.same_block", "gated.both_reads", "gated.more_than_any", "gated.gate_used_more", "gated.measures_agree", "gated.not_additive")  # fmt: skip
gallery.gate_or_content(r)

# %% tags=["core"]
plots.table(gated10.measure_rows(r))

# %% [markdown] tags=["extension"]
# **What weights promise and what text makes of it** (extension, 4 minutes). Chapter 05's score compares what a head writes with what a channel reads. The realised number multiplies by how far the gate is open here, or by how much content waits behind it. **Predict**: do weights foretell which channels a head reaches? How open a channel is foretells something for *any* write, as it is a factor of the realised number; so random writes stand beside. Do heads reach fewer channels than these?

# %% tags=["extension"]
show(r, "gated.weight_scores", "gated.weights_foretell", "gated.few_channels")
gallery.gate_composition(r)

# %% [markdown] tags=["extension"]
# ## 18 · Inside a mixture · extension, 9 minutes
# `moe-1l`: eight experts, two for each token. **Predict** three things. Is the load even? Does the current word alone fix its two experts? If all heads' writes are taken from the *router* only, or from the *experts* only, which costs more? (First the answers of section 8. With $k=1$ a renormalised weight is always one: that is why models that select one expert do not renormalise. Their router could not learn.)

# %% tags=["extension"]
show(r, "experts.routes", "experts.shared_cancels", "experts.load", "experts.words", "experts.logits_add_up", "experts.token_decides", "experts.heads_move_sets", "experts.foretold")  # fmt: skip
gallery.expert_words(r)

# %% tags=["extension"]
gallery.who_routes(r)

# %% [markdown] tags=["extension"]
# Now the knife. A slope holds the selected set, a cut does not. So what reaches the router only *through* the set is invisible to every first-order method; each head is cut from the router with the set free, and once more with the set held (a comparison made after a first look). Then other routings: experts chosen otherwise, set and weights taken apart, the runner-up in place of the last one chosen. And one more thing: what an expert layer does at one position depends on nothing elsewhere, until a capacity limit lets a full expert drop late comers.

# %% tags=["extension"]
show(r, "experts.both_reads", "experts.more_than_any", "experts.content_used_more", "experts.first_order_is_blind", "experts.routing_matters", "experts.set_not_weights", "experts.last_choice_matters", "experts.jump", "experts.margin_is_worth", "experts.local")  # fmt: skip
gallery.router_or_experts(r)

# %% tags=["extension"]
gallery.routed_otherwise(r)

# %% [markdown] tags=["extension"]
# ## 19 · Selection and content · extension, 4 minutes
# Attention, gate, router: one read chooses, another is carried. The essay draws this table and warns not to force it. Here it is with numbers. What is chosen differs: places, channels, whole experts. So does the arithmetic of the weights, and only attention moves anything between positions.

# %% tags=["extension"]
show(r, "selection.same_knife", "selection.not_forced")
plots.table(gated10.likeness_rows(r))

# %% [markdown] tags=["core"]
# ## Does it survive? · core, 3 minutes
# Head coordinates R, stream coordinates G, $W_U+c\mathbf1^\top$, another order of the neurons: all keep every probability. **Predict** each row. What about a *rotation* of the neurons?

# %% tags=["core"]
show(r, "shares.survive", "shares.operator_is_coordinates", "shares.hidden_rotation_is_another_model")  # fmt: skip
gallery.conditional_survives(r)

# %% [markdown] tags=["core"]
# ## What would change our mind, what we left out
# - **What the essay left open, and what we found.** Do exact summands tell about causes? In `gelu-2l` a held pass does not even rank first-layer heads as the model does (*intervention*). Is share or slope nearer to a removal? In `gelu-1l` the slope, says section 13; neither is the removal. Do trained gates use both reads? Each cut costs, but so does any shake as long. Whether the own write's cut costs more, and which read is used *more*, was *conjecture*; the lines of section 17 say what became of it. Norms: here with random weights only.
# - **Change our mind**: a trained model where the held pass ranks heads as the re-run does; forward shares with the effect's signs; a natural way to choose among exact operators that also foretells interventions; in larger models, gate cuts and content cuts that hurt *different* tasks.
# - **Simplified**: one or two layers and no norms in the trained models; a LayerNorm model appears with random weights only. One seed for each kind of MLP. Removal to zero leaves the text's distribution; mean and resample stand beside it for the cuts. Losses of cuts are means over text; a route may matter for one kind of token and not on average. No noise and no capacity in our router.
# - **Read on**: Elhage et al. 2021, *A Mathematical Framework*; Geva et al. 2021, *Key-Value Memories*; Sundararajan et al. 2017 (integrated gradients, arXiv 1703.01365); Syed et al. 2023 (attribution patching, 2310.10348); Goldowsky-Dill et al. 2023 (path patching, 2304.05969); Sharkey 2023 (bilinear layers, 2305.03452); Shazeer et al. 2017 (mixtures, 1701.06538); Fedus et al. 2021 (one expert, 2101.03961); Chen et al. 2026 (one decomposition for heads and MLPs, 2605.23393).
# ## The pair so far
# In `gelu-2l` an MLP stands between the two heads. What the induction head copies to the answer passes it by, in the realised pass: an exact sum, and a *measurement*. That it looks there because of what the first head wrote in its key is an *intervention*. In its keys alone, with MLPs held, the write restores more than when it may take every way. Let MLP 0 answer it in these keys, and less comes through (an *intervention*, the last line): here its answer works against the match. A slope finds the same route, but not its size: that depends on the end at which you take it.

# %% tags=["core"]
show(r, "routes.reader_copies_past_the_mlp", "methods.pair_by_paths_two_layers", "methods.pair_by_paths_with_mlps", "methods.mlp_works_against_the_match")  # fmt: skip
gallery.pair_through_the_mlp(r)
