"""The cheap training pass is the same function, and has the same gradient, as the plain model."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from circuitbook import fast
from circuitbook.config import Config
from circuitbook.model import Transformer
from circuitbook.recipes import Recipe

SHAPES = {
    "0l": {"n_layers": 0},
    "1l": {"n_layers": 1},
    "2l": {"n_layers": 2},
    "gelu": {"n_layers": 2, "d_mlp": 40, "act": "gelu"},
    "relu, no bias": {"n_layers": 1, "d_mlp": 40, "act": "relu", "mlp_bias": False},
    "swiglu": {"n_layers": 1, "d_mlp": 40, "act": "swiglu"},
    "mixture": {"n_layers": 1, "d_mlp": 24, "act": "gelu", "n_experts": 5, "top_k": 2},
    "mixture, no bias": {
        "n_layers": 1,
        "d_mlp": 32,
        "act": "relu",
        "n_experts": 4,
        "top_k": 3,
        "mlp_bias": False,
    },
}


def config(**more):
    small = {"d_model": 32, "n_heads": 4, "d_head": 8, "n_ctx": 300, "d_vocab": 50}
    return Config(**{**small, **more})


def case(cfg, *, batch=2, length=200, seed=0, dtype=torch.float32, std=0.15):
    """(params with gradients, tokens with one more at the end, W_pos)."""
    generator = torch.Generator().manual_seed(seed)
    params = {
        name: (torch.randn(shape, generator=generator) * std).to(dtype).requires_grad_()
        for name, shape in fast.shapes(cfg).items()
    }
    tokens = torch.randint(cfg.d_vocab, (batch, length + 1), generator=generator)
    return params, tokens, fast.sinusoid(cfg).to(dtype)


def plain_loss(cfg, params, tokens):
    """(loss with a graph, the model): circuitbook.model on the same weights."""
    model = Transformer.from_state_dict(cfg, {n: p.detach().clone() for n, p in params.items()})
    return model(tokens, return_type="loss"), model


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
def test_loss_stream_and_gradient_equal_the_plain_model(shape, dtype, bound):
    cfg = config(**SHAPES[shape])
    params, tokens, w_pos = case(cfg, dtype=dtype)
    loss = fast.loss(cfg, params, tokens[:, :-1], tokens[:, 1:], w_pos, dtype)
    loss.backward()
    wanted, model = plain_loss(cfg, params, tokens)
    wanted.backward()
    assert abs(loss.item() - wanted.item()) < bound
    stream = fast.hidden_stream(cfg, params, tokens, w_pos, dtype)
    torch.testing.assert_close(stream, model.stream(tokens), atol=10 * bound, rtol=0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(params[name].grad, parameter.grad, atol=bound, rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_is_within_its_noise(shape):
    cfg = config(**SHAPES[shape])
    params, tokens, w_pos = case(cfg)
    losses, gradients = [], []
    for dtype in (torch.float32, torch.bfloat16):
        loss = fast.loss(cfg, params, tokens[:, :-1], tokens[:, 1:], w_pos, dtype)
        gradients.append(torch.autograd.grad(loss, list(params.values())))
        losses.append(loss.item())
    assert abs(losses[0] - losses[1]) < 0.01
    for exact, rough in zip(*gradients, strict=True):
        assert rough.dtype == torch.float32
        assert F.cosine_similarity(exact.flatten(), rough.flatten(), dim=0) > 0.995
        assert (exact - rough).norm() < 0.1 * exact.norm()


def test_loss_convention():
    """Position t of the targets is predicted from tokens 0..t: loss_k comes from logits[k-1]."""
    cfg = config(n_layers=2)
    params, tokens, w_pos = case(cfg, batch=1, length=6)
    logits = fast.hidden_stream(cfg, params, tokens, w_pos, torch.float32) @ params["unembed.W_U"]
    by_hand = [-logits[0, k - 1].log_softmax(-1)[tokens[0, k]].item() for k in range(1, 7)]
    loss = fast.loss(cfg, params, tokens[:, :-1], tokens[:, 1:], w_pos, torch.float32)
    assert loss.item() == pytest.approx(sum(by_hand) / 6, abs=1e-5)


@pytest.mark.parametrize(
    ("mutant", "least"),
    [("mask", 1e-3), ("scale", 1e-3), ("target", 1e-3), ("position", 1e-4)],
)
def test_mutants_are_seen(mutant, least, monkeypatch):
    """What the equality test above must notice: each mistake moves the loss by over ten bounds."""
    cfg = config(n_layers=2)
    for length in (40, 200):
        params, tokens, w_pos = case(cfg, length=length, std=0.3)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        wanted, _ = plain_loss(cfg, params, tokens)
        with monkeypatch.context() as patch:
            if mutant == "mask":
                patch.setattr(torch.Tensor, "masked_fill_", lambda self, *_: self)
            elif mutant == "scale":
                patch.setattr(fast.math, "sqrt", lambda _: 1.0)
            elif mutant == "target":
                targets = inputs
            else:
                w_pos = w_pos.roll(1, 0)
                w_pos[0] = 0
            loss = fast.loss(cfg, params, inputs, targets, w_pos, torch.float32)
        assert abs(loss.item() - wanted.item()) > least


def test_the_bench_compares_with_the_same_model():
    """bench/train.py's plain loop is the plain model's loss, written without hooks."""
    path = Path(__file__).parent.parent / "bench" / "train.py"
    spec = importlib.util.spec_from_file_location("bench_train", path)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    cfg = config(**SHAPES["gelu"])
    params, tokens, w_pos = case(cfg, length=cfg.n_ctx - 1)
    batch = tokens[:, :-1], tokens[:, 1:]
    loss = bench.plain_loss(Recipe(cfg), params, w_pos[: cfg.n_ctx - 1], batch)
    assert abs(loss.item() - plain_loss(cfg, params, tokens)[0].item()) < 1e-5


# ---- attention


def attention(q, k, v):
    """The same by the textbook, q without its factor."""
    hidden = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    scores = (q @ k.mT).masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v


def qkv(n, width=4, batch=2, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, n, width)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for _ in "qkv"]


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 300])
def test_attention_equals_the_textbook(n):
    q, k, v = qkv(n)
    z, wanted = fast.CausalAttention.apply(q, k, v), attention(q, k, v)
    torch.testing.assert_close(z, wanted, atol=1e-12, rtol=0)
    weight = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=z.dtype)
    ours = torch.autograd.grad((z * weight).sum(), (q, k, v))
    theirs = torch.autograd.grad((wanted * weight).sum(), (q, k, v))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)  # one sum of it is in float32


@pytest.mark.parametrize("block", [3, 128])
def test_attention_gradcheck(block, monkeypatch):
    monkeypatch.setattr(fast, "QUERY_BLOCK", block)
    assert torch.autograd.gradcheck(fast.CausalAttention.apply, qkv(7, width=3), atol=1e-5)


def test_second_derivatives_are_refused_not_wrong():
    q, k, v = qkv(5)
    z = fast.CausalAttention.apply(q, k, v)
    (first,) = torch.autograd.grad(z.pow(2).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_no_position_sees_a_later_one():
    q, k, v = qkv(150)
    z = fast.CausalAttention.apply(q, k, v)
    for t in (0, 60, 127, 128, 148):
        (dv,) = torch.autograd.grad(z[:, t].sum(), v, retain_graph=True)
        assert (dv[:, t + 1 :] == 0).all() and (dv[:, : t + 1] != 0).any(-1).all()


# ---- the loss over the vocabulary


@pytest.mark.parametrize("rows", [1, 1023, 1024, 2500])
def test_chunked_loss_equals_cross_entropy(rows):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 8, generator=generator).requires_grad_()
    w = torch.randn(8, 30, generator=generator).requires_grad_()
    targets = torch.randint(30, (rows,), generator=generator)
    loss, wanted = fast.ChunkedLoss.apply(x, w, targets), F.cross_entropy(x @ w, targets)
    assert abs(loss.item() - wanted.item()) < 1e-5
    for ours, theirs in zip(
        torch.autograd.grad(3 * loss, (x, w)), torch.autograd.grad(3 * wanted, (x, w)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def test_chunk_size_does_not_matter(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(50, 8, generator=generator), torch.randn(8, 30, generator=generator)
    targets = torch.randint(30, (50,), generator=generator)
    found = []
    for size in (1, 7, 1000):
        monkeypatch.setattr(fast, "ROW_CHUNK", size)
        found.append(fast.ChunkedLoss.apply(x, w, targets).item())
    assert max(found) - min(found) < 1e-6


def test_a_hopeless_guess_has_a_finite_loss():
    """Probability 0 in this arithmetic counts as 2^-149, and the gradient is that of softmax."""
    x = torch.tensor([[300.0]]).requires_grad_()
    loss = fast.ChunkedLoss.apply(x, torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(149 * math.log(2)) and x.grad.item() == 1.0


def test_chunked_loss_forgets_what_it_saw():
    """A second loss leaves the first one's gradient alone."""
    x = torch.eye(4).requires_grad_()
    w = torch.eye(4)
    first = fast.ChunkedLoss.apply(x, w, torch.arange(4))
    fast.ChunkedLoss.apply(x, w, torch.zeros(4, dtype=torch.int64))
    first.backward()
    assert (x.grad.diagonal() < 0).all()


# ---- a mixture's balance


def test_unevenness_of_known_routings():
    """1 when every expert is used alike, n_experts when one takes all; its gradient evens out."""
    even = torch.eye(4).repeat(3, 1)
    assert fast.uneven(0 * even, even.bool()).item() == pytest.approx(1.0)
    one = torch.zeros(12, 4, dtype=torch.bool)
    one[:, 2] = True
    sure = torch.where(one, 50.0, 0.0).requires_grad_()
    assert fast.uneven(sure, one).item() == pytest.approx(4.0)
    two = one.clone()
    two[:, 0] = True
    assert fast.uneven(torch.zeros(12, 4), two).item() == pytest.approx(1.0)
    flat = torch.zeros(12, 4).requires_grad_()
    fast.uneven(flat, two).backward()
    assert (flat.grad[:, [0, 2]] > 0).all() and (flat.grad[:, [1, 3]] < 0).all()


def test_a_mixture_says_its_unevenness_once_a_layer():
    cfg = config(**SHAPES["mixture"])
    params, tokens, w_pos = case(cfg)
    found = []
    fast.loss(cfg, params, tokens[:, :-1], tokens[:, 1:], w_pos, torch.float32, found)
    assert len(found) == 1 and all(1 <= u.item() < 5 for u in found)
    plain_params, _, _ = case(config(n_layers=2))
    none = []
    fast.loss(
        config(n_layers=2), plain_params, tokens[:, :-1], tokens[:, 1:], w_pos, torch.float32, none
    )
    assert none == []


# ---- starting weights and refusals


def test_sinusoid_is_the_models_own():
    cfg = config(n_layers=1, pos_base=200.0, pos_amplitude=0.5)
    table = fast.sinusoid(cfg)
    assert table[3, 4].item() == pytest.approx(0.5 * math.sin(3 * 200 ** (-4 / 32)))
    assert table[3, 5].item() == pytest.approx(0.5 * math.cos(3 * 200 ** (-4 / 32)))
    torch.testing.assert_close(table.float(), Transformer(cfg).W_pos)


def test_init_is_seeded_flat_and_alone():
    cfg = config(n_layers=2, d_mlp=40, act="gelu")
    state = torch.get_rng_state()
    a, b, c = (fast.init(cfg, seed) for seed in (0, 0, 1))
    assert (torch.get_rng_state() == state).all(), "the global generator is not touched"
    assert all((a[n] == b[n]).all() for n in a) and not (a["embed.W_E"] == c["embed.W_E"]).all()
    zero = {n for n in a if not a[n].any()}
    assert {n.rsplit(".", 1)[1] for n in zero} == {"W_O", "W_out", "W_U", "b_in", "b_out"}
    tokens = torch.randint(cfg.d_vocab, (2, 20), generator=torch.Generator().manual_seed(0))
    loss = fast.loss(cfg, a, tokens, tokens, fast.sinusoid(cfg).float(), torch.float32)
    assert loss.item() == pytest.approx(math.log(cfg.d_vocab), abs=1e-5)
    assert a["blocks.0.attn.W_Q"].std().item() == pytest.approx(32**-0.5, rel=0.1)
    assert a["embed.W_E"].std().item() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(
    "more",
    [
        {"norm": "layernorm"},
        {"attn_bias": True},
        {"unembed_bias": True},
        {"positions": "standard"},
        {"pos_kind": "learned"},
        {"d_mlp": 40, "act": "gelu_new"},
        {"d_mlp": 40, "act": "bilinear"},
        {"d_mlp": 40, "act": "gelu", "n_experts": 2, "top_k": 1},
        {"d_mlp": 40, "act": "swiglu", "n_experts": 4, "top_k": 2},
    ],
)
def test_other_families_are_refused(more):
    with pytest.raises(ValueError, match="course family only"):
        fast.shapes(config(n_layers=1, **more))
