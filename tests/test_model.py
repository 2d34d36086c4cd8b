"""The model against a second derivation by hand, its laws, and its errors."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from model_reference import MUTANTS, assert_close, by_hand, random_model, random_tokens

import circuitbook.model
from circuitbook.config import Config
from circuitbook.layers import sinusoid
from circuitbook.model import Transformer

TINY = Config(n_layers=2, d_model=16, n_heads=3, d_head=4, n_ctx=12, d_vocab=29)
MLP = {"d_mlp": 20}
FULL = {"attn_bias": True, "unembed_bias": True}
CLASSIC = {"norm": "layernorm", "positions": "standard", "pos_kind": "learned", **FULL}

CONFIGS = {
    "attn-only": TINY,
    "zero layers": TINY.replace(n_layers=0),
    "one layer": TINY.replace(n_layers=1),
    "learned shortformer": TINY.replace(pos_kind="learned"),
    "sinusoidal in the stream": TINY.replace(positions="standard"),
    "biases": TINY.replace(**FULL),
    "relu": TINY.replace(act="relu", **MLP),
    "gelu": TINY.replace(act="gelu", **MLP),
    "gelu without biases": TINY.replace(act="gelu", mlp_bias=False, **MLP),
    "gpt2 kind": TINY.replace(act="gelu_new", **MLP, **CLASSIC),
    "gelu, layernorm, shortformer": TINY.replace(act="gelu", norm="layernorm", **MLP),
    "layernorm_pre": TINY.replace(act="gelu", norm="layernorm_pre", **MLP, **FULL),
    "bilinear": TINY.replace(act="bilinear", **MLP),
    "swiglu": TINY.replace(act="swiglu", **MLP),
    "moe switch": TINY.replace(act="gelu", n_experts=4, top_k=1, **MLP),
    "moe top 2": TINY.replace(act="relu", n_experts=4, top_k=2, **MLP),
    "moe swiglu top 3 of 5": TINY.replace(act="swiglu", n_experts=5, top_k=3, **MLP),
    "moe, layernorm, no biases": TINY.replace(
        act="bilinear", n_experts=3, top_k=3, norm="layernorm", mlp_bias=False, **MLP
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_the_derivation_by_hand(name: str) -> None:
    model = random_model(CONFIGS[name], seed=1)
    tokens = random_tokens(model.cfg)
    want = by_hand(model, tokens)
    # Relative to the largest logit: the random stream of a gated MLP grows to the thousands.
    size = max(1.0, want.abs().max().item())
    assert_close(model(tokens).double() / size, want / size, 1e-5, "float32 logits")
    model = model.to(torch.float64)
    assert_close(model(tokens) / size, want / size, 1e-12, "float64 logits")


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("name", ["attn-only", "gpt2 kind"])
def test_the_classical_mistakes_are_caught(name: str, mutant: str) -> None:
    model = random_model(CONFIGS[name], seed=1).double()
    tokens = random_tokens(model.cfg)
    assert_close(model(tokens), by_hand(model, tokens), 1e-12)
    with pytest.raises(AssertionError, match="largest difference"):
        assert_close(model(tokens), by_hand(model, tokens, mutant), 1e-2)


def test_every_length_up_to_n_ctx_and_no_later_token_matters() -> None:
    model = random_model(TINY).double()
    tokens = random_tokens(TINY, batch=3, length=TINY.n_ctx)
    whole = model(tokens)
    for length in range(1, TINY.n_ctx + 1):
        part = model(tokens[:, :length])
        assert_close(part, whole[:, :length], 1e-12, f"the first {length} positions")


def test_the_same_seed_gives_the_same_bits_and_the_global_generator_is_left_alone() -> None:
    cfg = CONFIGS["gpt2 kind"]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = Transformer(cfg, seed=3).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    for other in (
        Transformer(cfg, seed=3),
        Transformer(cfg, torch.Generator().manual_seed(3)),
    ):
        assert all(torch.equal(v, first[k]) for k, v in other.state_dict().items())
    assert not torch.equal(Transformer(cfg, seed=4).W_E, first["embed.W_E"])


def test_initial_spread_is_the_documented_one() -> None:
    cfg = Config(n_layers=2, d_mlp=512, act="gelu", attn_bias=True)
    model = Transformer(cfg, seed=0)
    s = 0.8 / math.sqrt(cfg.d_model)
    assert model.W_E.std().item() == pytest.approx(s, rel=0.01)
    assert model.W_Q.std().item() == pytest.approx(s, rel=0.02)
    assert model.W_O.std().item() == pytest.approx(s / 2, rel=0.02)
    assert model.blocks[0].mlp.W_out.std().item() == pytest.approx(s / 2, rel=0.02)
    assert model.blocks[0].attn.b_Q.abs().max() == 0
    assert all(p.abs().max() == 0 for n, p in Transformer(TINY, seed=None).named_parameters())


def test_the_position_table_is_exact_in_float64_and_an_edited_one_is_kept() -> None:
    model = Transformer(TINY)
    want = torch.tensor(
        [[math.sin(3.0), math.cos(3.0), math.sin(3 * 200 ** (-2 / 16))]], dtype=torch.float64
    )
    assert_close(sinusoid(TINY)[3:4, :3], want, 1e-15)
    assert model.W_pos.dtype == torch.float32
    assert torch.equal(copy.deepcopy(model).double().W_pos, sinusoid(TINY))
    assert torch.equal(model.half().float().W_pos, sinusoid(TINY).float())  # no way back is lost
    assert "pos_embed.W_pos" not in model.state_dict()
    model.pos_embed.W_pos = -model.pos_embed.W_pos
    assert torch.equal(model.double().W_pos, -sinusoid(TINY).float().double())


def test_loss_k_is_that_of_the_k_th_token_after_bos() -> None:
    model = random_model(TINY).double()
    tokens = random_tokens(TINY)
    log_probs = model(tokens).log_softmax(-1)
    losses = model(tokens, return_type="loss_per_token")
    assert losses.shape == (2, 8)
    for k in range(1, 9):  # the k-th token is tokens[:, k]; it is predicted at position k - 1
        for row in range(2):
            want = -log_probs[row, k - 1, tokens[row, k]]
            assert losses[row, k - 1].item() == pytest.approx(want.item(), abs=1e-12)
    assert model(tokens, return_type="loss").item() == pytest.approx(losses.mean().item())
    with pytest.raises(ValueError, match=r"next token.*\[2, 1\]"):
        model(tokens[:, :1], return_type="loss")
    with pytest.raises(ValueError, match="'both'"):
        model(tokens, return_type="both")


@pytest.mark.parametrize(
    ("tokens", "error", "words"),
    [
        (torch.zeros(2, 3), TypeError, r"float32 \[2, 3\].*\.long\(\)"),
        (torch.zeros(3, dtype=torch.long), ValueError, r"shape \[3\].*tokens\[None\]"),
        (torch.zeros(1, 0, dtype=torch.long), ValueError, "0 positions"),
        (torch.zeros(1, 13, dtype=torch.long), ValueError, r"\[1, 13\] hold 13.*n_ctx = 12"),
        (torch.tensor([[1, 29]]), ValueError, r"token id 29 in tokens \[1, 2\].*0 to 28"),
        (torch.tensor([[-1, 2]]), ValueError, "token id -1"),
    ],
)
def test_wrong_tokens_are_refused_in_words(tokens, error, words: str) -> None:
    with pytest.raises(error, match=words):
        Transformer(TINY)(tokens)


def test_weights_stack_over_layers_and_factor() -> None:
    model = random_model(TINY).double()
    assert model.W_Q.shape == (2, 3, 16, 4)
    assert model.W_O.shape == (2, 3, 4, 16)
    assert model.W_pos.shape == (12, 16)
    assert model.W_U.shape == (16, 29)
    head = model.blocks[1].attn
    assert_close(model.OV[1, 2].AB, head.W_V[2] @ head.W_O[2], 1e-12, "OV")
    assert_close(model.QK[1, 2].AB, head.W_Q[2] @ head.W_K[2].T, 1e-12, "QK")
    nothing = Transformer(TINY.replace(n_layers=0))
    assert nothing.W_Q.shape == (0, 3, 16, 4) and nothing.OV.shape == (0, 3, 16, 16)


def test_the_convention_card() -> None:
    model = random_model(TINY.replace(n_layers=1)).double()
    _, cache = model.run_with_cache(random_tokens(TINY, batch=1))
    A = cache["blocks.0.attn.hook_pattern"][0]  # [head, pos, key]
    X = cache["blocks.0.hook_resid_pre"][0]  # [pos, d_model]
    W_OV = model.OV[0].AB  # [head, d_model, d_model]
    heads = A @ X @ W_OV  # [head, pos, d_model]
    assert_close(heads.sum(0), cache["blocks.0.hook_attn_out"][0], 1e-12, "head = A X W_OV")
    # The papers' (A kron W) x, with their W_OV the transpose of ours, and row-major flattening.
    columns = torch.kron(A[0].contiguous(), W_OV[0].T.contiguous()) @ X.reshape(-1)
    assert_close(columns, heads[0].reshape(-1), 1e-12, "(A kron W) x = A X W^T")
    stream_and_position = X + model.W_pos[:9]
    scores = stream_and_position @ model.QK[0, 1].AB @ stream_and_position.T / 2  # sqrt(d_head)
    lower = torch.ones(9, 9, dtype=torch.bool).tril()
    got = cache["blocks.0.attn.hook_attn_scores"][0, 1]
    assert_close(got[lower], scores[lower], 1e-12, "score = (x + p) W_QK (x + p)^T / sqrt(d_head)")


def test_gradients_reach_every_parameter() -> None:
    for name, cfg in CONFIGS.items():
        model = random_model(cfg)
        model(random_tokens(cfg), return_type="loss").backward()
        for key, p in model.named_parameters():
            if cfg.n_layers or "pos" not in key:
                assert p.grad is not None and p.grad.isfinite().all(), (name, key)


def published_state(cfg: Config) -> dict[str, torch.Tensor]:
    """A state dict as the published attention-only files hold it: buffers and all biases."""
    state = {k: v.detach().clone() for k, v in random_model(cfg).state_dict().items()}
    for i in range(cfg.n_layers):
        state[f"blocks.{i}.attn.mask"] = torch.ones(12, 12, dtype=torch.bool).tril()
        state[f"blocks.{i}.attn.IGNORE"] = torch.tensor(-1e5)
    return state


def test_published_files_load_and_misfits_are_listed() -> None:
    cfg = TINY.replace(**CLASSIC)
    state = published_state(cfg)
    wanted = {"embed.W_E", "pos_embed.W_pos", "ln_final.w", "ln_final.b", "unembed.W_U"}
    wanted |= {"unembed.b_U", "blocks.1.ln1.w", "blocks.1.ln1.b", "blocks.1.attn.IGNORE"}
    wanted |= {f"blocks.1.attn.{w}_{x}" for w in "Wb" for x in "QKVO"}
    assert wanted <= state.keys()
    model = Transformer.from_state_dict(cfg, state)
    assert torch.equal(model.W_E, state["embed.W_E"])
    double = Transformer.from_state_dict(cfg, {k: v.double() for k, v in state.items()})
    assert double.W_Q.dtype == torch.float64
    model.load_state_dict(Transformer(cfg).state_dict(), strict=True)

    state["blocks.0.attn.rotary"] = state.pop("blocks.0.attn.W_Q")
    state["unembed.W_U"] = state["unembed.W_U"].T
    with pytest.raises(ValueError) as caught:
        Transformer.from_state_dict(cfg, state)
    for words in ("missing: blocks.0.attn.W_Q", "unexpected: blocks.0.attn.rotary", "(29, 16)"):
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="unexpected: .*pos_embed.W_pos"):
        Transformer.from_state_dict(cfg.replace(pos_kind="sinusoidal"), published_state(cfg))
    with pytest.raises(ValueError, match="missing: .*embed.W_E"):
        Transformer.from_state_dict(cfg, {})


def test_gpt2_has_its_parameters() -> None:
    with torch.device("meta"):  # shapes without memory
        model = Transformer(
            Config(
                n_layers=12,
                d_model=768,
                n_heads=12,
                d_head=64,
                d_mlp=3072,
                n_ctx=1024,
                d_vocab=50257,
                act="gelu_new",
                **CLASSIC,
            ),
            seed=None,
        )
    # 124,439,808 with tied embeddings, and our own copy of W_U and its bias.
    assert sum(p.numel() for p in model.parameters()) == 124_439_808 + 50257 * 768 + 50257


def test_the_glossary_names_every_hook() -> None:
    text = circuitbook.model.__doc__
    for cfg in CONFIGS.values():
        for name in Transformer(cfg).hook_dict:
            last = name.rsplit(".", 1)[-1]
            short = "_" + last.rsplit("_", 1)[-1]  # "hook_q, _k, _v"
            assert last in text or short in text, name
