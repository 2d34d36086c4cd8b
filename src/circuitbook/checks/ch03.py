"""The laws that answers of chapter 03 must obey."""

import torch

from circuitbook import cut, heads
from circuitbook.check import checker, draw, near, torch_generator, untouched
from circuitbook.checks.draws import pick, shuffled
from circuitbook.config import Config
from circuitbook.model import Transformer


def pattern(n, seed):
    """A random causal pattern: rows sum to one."""
    A = draw(n, n, seed=seed).exp().tril()
    return A / A.sum(-1, keepdim=True)


@checker("03.one_big_matrix")
def one_big_matrix(fn):
    A, W, X = pattern(4, 1), draw(3, 3, seed=2), draw(4, 3, seed=3)
    Y, eye4, eye3 = A @ X @ W, torch.eye(4).double(), torch.eye(3).double()

    yield (
        "it acts on all positions and features at once",
        lambda: all(tuple(fn(A, W, by).shape) == (12, 12) for by in ("rows", "columns")),
    )
    yield (
        "row after row, it does what the head does",
        lambda: near(fn(A, W, "rows") @ X.reshape(-1), Y.reshape(-1), 1e-9),
        "(A ⊗ W) X is A X Wᵀ, and our W_OV stands on the right without a transpose.",
    )
    yield (
        "column after column, it does what the head does",
        lambda: near(fn(A, W, "columns") @ X.T.reshape(-1), Y.T.reshape(-1), 1e-9),
        "When columns are listed one after the other, which factor is the outer one?",
    )
    yield (
        "a head that stays in place mixes features only",
        lambda: near(fn(eye4, W, "rows"), torch.block_diag(W.T, W.T, W.T, W.T), 1e-9),
    )
    yield (
        "a head that copies features mixes positions only",
        lambda: near(fn(A, eye3, "columns"), torch.block_diag(A, A, A), 1e-9),
    )


@checker("03.count_paths")
def count_paths(fn):
    few, many, other = pick(4, 2, 6, seed=0), pick(6, 5, 9, seed=1), pick(8, 4, 12, seed=2)
    yield "the direct path is one path", lambda: all(fn(L, 5, 0) == 1 for L in (0, 1, 2, 7))
    yield "one layer of 3 heads has three paths of order 1", lambda: fn(1, 3, 1) == 3
    yield (
        "all orders together: (1 + heads) to the power of layers",
        lambda: all(
            sum(fn(L, H, k) for k in range(L + 1)) == (1 + H) ** L
            for L in range(5)
            for H in (1, few)
        ),
        "Choose the layers in which a head is passed, then a head in each of them.",
    )
    yield (
        "no path passes more heads than there are layers",
        lambda: fn(2, other, 3) == 0 and fn(0, other, 1) == 0,
        "Heads of one layer cannot follow each other.",
    )
    yield (
        "one layer more: either it is passed by, or through one of its heads",
        lambda: all(
            fn(L + 1, many, k) == fn(L, many, k) + many * fn(L, many, k - 1)
            for L in (2, 3)
            for k in (1, 2)
        ),
    )


@checker("03.virtual_head")
def virtual_head(fn):
    A1, A2, X = pattern(5, 1), pattern(5, 2), draw(5, 7, seed=3)
    V1, O1 = draw(7, 2, seed=4), draw(2, 7, seed=5)
    V2, O2 = draw(7, 2, seed=6), draw(2, 7, seed=7)
    args = (A1, A2, X, V1, O1, V2, O2)
    # Two heads that look one token back, over one-hot tokens, write what stood two back.
    back = torch.eye(4).double().roll(1, 0).tril()
    one, eye = torch.eye(4).double(), torch.eye(4).double()
    again = torch.zeros(4, 4).double()
    again[:3, 1:] = torch.eye(3)  # writes the token after the one it read

    yield "one row for each position", lambda: tuple(fn(*args).shape) == (5, 7)
    yield (
        "one back, then one back, is two back",
        lambda: near(fn(back, back, one, eye, eye, eye, eye), back @ back, 1e-9),
    )
    yield (
        "first head 1 changes the features, then head 2 does",
        lambda: near(
            fn(eye, eye, one, again, eye, eye, torch.diag(torch.arange(4.0).double())),
            again @ torch.diag(torch.arange(4.0).double()),
            1e-9,
        ),
        "Rows: the earlier map stands on the left, next to X.",
    )
    yield (
        "it is what head 2 makes of head 1's write",
        lambda: near(fn(*args), A2 @ (A1 @ X @ (V1 @ O1)) @ (V2 @ O2), 1e-9),
        "The later pattern stands on the left, the later map on the right.",
    )
    yield (
        "it is linear in X, and in each map",
        lambda: near(fn(A1, A2, 3 * X, V1, O1, V2, -O2), -3 * fn(*args), 1e-9),
    )
    yield (
        "other head coordinates, the same virtual head",
        lambda: near(fn(A1, A2, X, 4 * V1, O1 / 4, V2, O2), fn(*args), 1e-9),
    )


def small_model(silent=None):
    """A two-layer random model whose heads matter, float64; `silent` names a head that is mute."""
    cfg = Config(2, d_model=20, n_heads=2, d_head=5, n_ctx=16, d_vocab=30)
    model = Transformer(cfg, seed=torch_generator(3).initial_seed()).double().requires_grad_(False)
    for name, p in model.named_parameters():
        p.mul_(3.0 if "W_" in name else 1.0)
    if silent is not None:
        model.blocks[silent[0]].attn.W_O[silent[1]] = 0
    return model


def with_and_without(model, tokens, writer, reader):
    """Logits of the model, and those when the reader's values lack the writer's write: by hand."""
    x = model.W_E[tokens]
    place = x + model.W_pos[: tokens.shape[1]]
    writes = []
    for h in range(model.cfg.n_heads):
        scores = place @ model.W_Q[0, h] @ (place @ model.W_K[0, h]).mT / model.cfg.d_head**0.5
        writes.append(heads.causal_pattern(scores) @ x @ model.W_V[0, h] @ model.W_O[0, h])
    middle = x + sum(writes)
    place, total, less = middle + model.W_pos[: tokens.shape[1]], middle, middle
    for h in range(model.cfg.n_heads):
        scores = place @ model.W_Q[1, h] @ (place @ model.W_K[1, h]).mT / model.cfg.d_head**0.5
        A, OV = heads.causal_pattern(scores), model.W_V[1, h] @ model.W_O[1, h]
        values = middle - writes[writer[1]] if h == reader[1] else middle
        total, less = total + A @ middle @ OV, less + A @ values @ OV
    return total @ model.W_U, less @ model.W_U


@checker("03.term_and_cut")
def term_and_cut(fn):
    model = small_model()
    names = torch.tensor([0, *shuffled(range(1, 30), seed=4)])  # BOS stays what it is
    tokens = names[torch.tensor([[0, 7, 3, 9, 7, 3, 21, 4], [0, 1, 1, 2, 8, 2, 5, 5]])]

    def both(writer, reader, of=model):
        with torch.no_grad():
            term, change = fn(of, tokens, writer, reader)
        return [torch.as_tensor(x).detach() for x in (term, change)]

    pairs = [((0, g), (1, h)) for g in range(2) for h in range(2)]
    yield (
        "both answers are logits: [batch, pos, d_vocab]",
        lambda: all(tuple(x.shape) == (2, 8, 30) for x in both(*pairs[0])),
    )
    yield (
        "the cut does what a careful run by hand does",
        lambda: all(
            near(both(*p)[1], (lambda a, b: b - a)(*with_and_without(model, tokens, *p)), 1e-8)
            for p in pairs
        ),
        'cut.cut_path(model, writer, reader, "v") removes one edge; cut.logit_change gives '
        "logits with the cut minus logits without it.",
    )
    yield (
        "for every pair the term is minus the change",
        lambda: all(near(both(*p)[0], -both(*p)[1], 1e-8) for p in pairs),
        "A cut takes the term away. In rows the term is A2 A1 X W_OV1 W_OV2 W_U.",
    )
    yield (
        "neither is zero",
        lambda: all(float(x.abs().max()) > 1e-3 for p in pairs for x in both(*p)),
    )
    yield (
        "from a head that writes nothing, both are",
        lambda: all(near(x, 0 * x, 1e-10) for x in both((0, 1), (1, 0), small_model((0, 1)))),
    )
    yield (
        "the model is left as it was found",
        untouched(
            fn,
            lambda: (
                both(*pairs[1]) is not None
                and cut.run(model, tokens)[0].equal(cut.run(small_model(), tokens)[0])
            ),
        ),
    )


@checker("03.pattern_from_parts")
def pattern_from_parts(fn):
    parts = [draw(6, 8, seed=s) for s in (1, 2, 3)]
    W_Q, W_K = draw(8, 4, seed=4), draw(8, 4, seed=5)
    whole = sum(parts)
    want = heads.causal_pattern(whole @ W_Q @ (whole @ W_K).mT / 2)

    yield (
        "rows sum to one",
        lambda: near(fn(parts, W_Q, W_K).sum(-1), torch.ones(6, dtype=torch.float64), 1e-9),
    )
    yield (
        "no query sees a later key",
        lambda: near(fn(parts, W_Q, W_K).triu(1), torch.zeros(6, 6, dtype=torch.float64), 1e-12),
        "Later keys get the score minus infinity, before the softmax.",
    )
    yield (
        "one part alone is the whole stream",
        lambda: near(fn([whole], W_Q, W_K), want, 1e-9),
        "Divide by the root of d_head, the number of columns of W_Q.",
    )
    yield (
        "three parts give what their sum gives",
        lambda: near(fn(parts, W_Q, W_K), want, 1e-9),
        "Every part on the query side meets every part on the key side, itself too.",
    )
    yield (
        "a part of zeros changes nothing",
        lambda: near(fn([*parts, 0 * whole], W_Q, W_K), fn(parts, W_Q, W_K), 1e-9),
    )
    yield (
        "queries and keys are not exchanged",
        lambda: not near(fn(parts, W_K, W_Q), fn(parts, W_Q, W_K), 1e-3),
    )
