"""A transformer written a second time, with loops and plain matrix products, to test the first.

Nothing here comes from circuitbook except the config. One prompt, one head, one expert at a time;
float64 throughout. `mutant` plants one of the classical mistakes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from circuitbook.config import Config
from circuitbook.model import Transformer

MUTANTS = ("no_scale", "W_O_transposed", "no_mask", "position_shifted")


def random_model(cfg: Config, seed: int = 0, scale: float = 0.3) -> Transformer:
    """A float32 model in which no weight is special: no zero bias, no gain of 1."""
    model = Transformer(cfg, seed=seed)
    draw = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in model.parameters():
            p += scale * torch.randn(p.shape, generator=draw)
    return model


def random_tokens(cfg: Config, batch: int = 2, length: int = 9, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, cfg.d_vocab, (batch, length), generator=draw)


def assert_close(got: Tensor, want: Tensor, tol: float, what: str = "tensors") -> None:
    """Fails when shapes differ, when anything is not a number, or when a number is off by tol."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)} is not {tuple(want.shape)}"
    assert not got.isnan().any(), f"{what}: NaN"
    error = (got - want).abs().nan_to_num(0.0).max().item()  # inf - inf: both masked
    assert torch.equal(got.isinf(), want.isinf()), f"{what}: masked at different places"
    assert error <= tol, f"{what}: largest difference {error:.3g} exceeds {tol:.3g}"


def act(name: str, z: Tensor) -> Tensor:
    if name == "relu":
        return z * (z > 0)
    if name == "gelu":
        return 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))
    if name == "gelu_new":
        return 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    if name == "swiglu":
        return z / (1 + torch.exp(-z))
    return z  # bilinear


def positions(cfg: Config, w: dict[str, Tensor]) -> Tensor:
    if cfg.pos_kind == "learned":
        return w["pos_embed.W_pos"]
    table = torch.zeros(cfg.n_ctx, cfg.d_model, dtype=torch.float64)
    for t in range(cfg.n_ctx):
        for i in range(cfg.d_model // 2):
            angle = t / cfg.pos_base ** (2 * i / cfg.d_model)
            table[t, 2 * i] = cfg.pos_amplitude * math.sin(angle)
            table[t, 2 * i + 1] = cfg.pos_amplitude * math.cos(angle)
    return table


def norm(cfg: Config, w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    if cfg.norm == "none":
        return x
    mean = x.mean(1, keepdim=True)
    n = (x - mean) / torch.sqrt(((x - mean) ** 2).mean(1, keepdim=True) + cfg.eps)
    return n if cfg.norm == "layernorm_pre" else n * w[name + ".w"] + w[name + ".b"]


def one_mlp(cfg: Config, w: dict[str, Tensor], m: str, x: Tensor, e: int | None = None) -> Tensor:
    def get(name: str) -> Tensor | float:
        value = w.get(m + name, torch.zeros(1, dtype=torch.float64))
        return value if e is None or m + name not in w else value[e]

    up = x @ get("W_in") + get("b_in")
    hidden = act(cfg.act, x @ get("W_gate") + get("b_gate")) * up if cfg.gated else act(cfg.act, up)
    return hidden @ get("W_out") + get("b_out")


def mlp(cfg: Config, w: dict[str, Tensor], m: str, x: Tensor) -> Tensor:
    if not cfg.n_experts:
        return one_mlp(cfg, w, m, x)
    rows = []
    for row in x:  # one token at a time
        logits = (row @ w[m + "W_router"]).tolist()
        best = sorted(range(cfg.n_experts), key=lambda e: -logits[e])[: cfg.top_k]
        over = range(cfg.n_experts) if cfg.top_k == 1 else best
        total = sum(math.exp(logits[e]) for e in over)
        rows.append(sum(math.exp(logits[e]) / total * one_mlp(cfg, w, m, row, e) for e in best))
    return torch.stack(rows)


def attention(cfg: Config, w: dict[str, Tensor], a: str, qk: Tensor, n: Tensor, mutant: str):
    zero, zs = torch.zeros(cfg.n_heads, cfg.d_head, dtype=torch.float64), []
    for h in range(cfg.n_heads):
        q = qk @ w[a + "W_Q"][h] + w.get(a + "b_Q", zero)[h]
        k = qk @ w[a + "W_K"][h] + w.get(a + "b_K", zero)[h]
        v = n @ w[a + "W_V"][h] + w.get(a + "b_V", zero)[h]
        z = torch.zeros_like(v)
        for i in range(len(q)):  # one query at a time
            last = len(q) if mutant == "no_mask" else i + 1
            s = k[:last] @ q[i] / (1 if mutant == "no_scale" else math.sqrt(cfg.d_head))
            weight = torch.exp(s - s.max())
            z[i] = (weight / weight.sum()) @ v[:last]
        zs.append(z)
    if mutant == "W_O_transposed":  # z flattened as (d_head, head) against W_O as (head, d_head)
        out = torch.stack(zs, 2).flatten(1) @ w[a + "W_O"].flatten(0, 1)
    else:
        out = sum(z @ w[a + "W_O"][h] for h, z in enumerate(zs))
    return out + w.get(a + "b_O", torch.zeros(cfg.d_model, dtype=torch.float64))


def by_hand(model: Transformer, tokens: Tensor, mutant: str = "") -> Tensor:
    """Logits [batch, pos, d_vocab] in float64, from the weights alone."""
    cfg = model.cfg
    w = {k: v.detach().double() for k, v in model.state_dict().items()}
    start = 1 if mutant == "position_shifted" else 0
    out = []
    for prompt in tokens:
        p = positions(cfg, w)[start : start + len(prompt)]
        x = w["embed.W_E"][prompt] + (p if cfg.positions == "standard" else 0)
        for i in range(cfg.n_layers):
            b = f"blocks.{i}."
            n = norm(cfg, w, b + "ln1", x)
            qk = n + (p if cfg.positions == "shortformer" else 0)
            x = x + attention(cfg, w, b + "attn.", qk, n, mutant)
            if cfg.d_mlp:
                x = x + mlp(cfg, w, b + "mlp.", norm(cfg, w, b + "ln2", x))
        out.append(norm(cfg, w, "ln_final", x) @ w["unembed.W_U"])
    return torch.stack(out) + w.get("unembed.b_U", torch.zeros(1, dtype=torch.float64))
