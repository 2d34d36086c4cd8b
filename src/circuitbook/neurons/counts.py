"""How many parameters a model has, and where: from its configuration alone, without weights.

Counted by hand from the shapes, so that nothing is downloaded and nothing is built. One block of
width d has, with h heads of size k and m hidden units (biases in brackets):

    attention   4 d h k      (+ 3 h k + d)
    MLP         2 d m        (+ m + d)           two matrices
    gated MLP   3 d m        (+ 2 m + d)         a gate besides them
    mixture     e MLPs, and a router d e         k of the e experts are used for each token
"""

from __future__ import annotations

from typing import NamedTuple

from circuitbook.config import Config


class Counts(NamedTuple):
    """Numbers of parameters. `mlp_active`: those of the MLPs that one token meets."""

    attention: int
    mlp: int
    mlp_active: int
    embedding: int  # W_E, W_U, and W_pos and b_U where they are trained
    norm: int

    @property
    def total(self) -> int:
        """All trained parameters."""
        return self.attention + self.mlp + self.embedding + self.norm

    def mlp_share(self, *, active: bool = False, embedded: bool = False) -> float:
        """The MLPs' share of attention + MLP; with `embedded`, of everything.

        active: only the experts that one token uses.
        """
        mlp = self.mlp_active if active else self.mlp
        rest = self.embedding + self.norm if embedded else 0
        return mlp / max(1, self.attention + mlp + rest)


def _mlp(cfg: Config) -> int:
    """One MLP, or one expert."""
    d, m = cfg.d_model, cfg.d_mlp
    matrices = 3 if cfg.gated else 2
    biases = d + m * (matrices - 1) if cfg.mlp_bias else 0
    return matrices * d * m + biases


def count(cfg: Config, *, tied: bool = False) -> Counts:
    """The parameters of a configuration, to the digit.

    tied: W_U is W_E's transpose and counted once, as in GPT-2.
    """
    d, inner = cfg.d_model, cfg.n_heads * cfg.d_head
    attention = 4 * d * inner + (3 * inner + d if cfg.attn_bias else 0)
    mlp = active = 0
    if not cfg.attn_only:
        one = _mlp(cfg)
        router = d * cfg.n_experts
        mlp = one * cfg.n_experts + router if cfg.n_experts else one
        active = one * cfg.top_k + router if cfg.n_experts else one
    embedding = d * cfg.d_vocab * (1 if tied else 2)
    if cfg.pos_kind == "learned":
        embedding += d * cfg.n_ctx
    if cfg.unembed_bias:
        embedding += cfg.d_vocab
    norms = (1 if cfg.attn_only else 2) * cfg.n_layers + 1
    norm = 2 * d * norms if cfg.norm == "layernorm" else 0
    return Counts(attention * cfg.n_layers, mlp * cfg.n_layers, active * cfg.n_layers, embedding,
                  norm)  # fmt: skip


def _published(n_layers: int, d_mlp: int = 0, act: str = "gelu", **more: int) -> Config:
    """The family of the series: LayerNorm, learned positions in the stream, biases everywhere."""
    sizes = {"d_model": 512, "n_heads": 8, "d_head": 64, "n_ctx": 1024, "d_vocab": 48262} | more
    return Config(
        n_layers=n_layers, d_mlp=d_mlp, act=act if d_mlp else "none", norm="layernorm",
        positions="standard", pos_kind="learned", attn_bias=True, **sizes,
    )  # fmt: skip


# The five models of Part 7. GPT-2 is the one whose GELU is the tanh form.
PUBLISHED: dict[str, Config] = {
    "attn-only-1l": _published(1),
    "attn-only-2l": _published(2),
    "gelu-1l": _published(1, 2048),
    "gelu-2l": _published(2, 2048),
    "gpt2": _published(
        12, 3072, "gelu_new", d_model=768, n_heads=12, d_head=64, d_vocab=50257
    ),
}  # fmt: skip

# Attention and MLP parameters as Part 7 prints them.
PRINTED: dict[str, tuple[int, int]] = {
    "attn-only-1l": (1_050_624, 0),
    "attn-only-2l": (2_101_248, 0),
    "gelu-1l": (1_050_624, 2_099_712),
    "gelu-2l": (2_101_248, 4_199_424),
    "gpt2": (28_348_416, 56_669_184),
}


def shapes(d: int = 768) -> dict[str, Counts]:
    """One layer of width d in six shapes, without biases: where "two thirds" holds and ends.

    Embeddings are those of GPT-2's vocabulary, tied; they are one layer's worth of company only.
    """
    plain = Config(
        n_layers=1, d_model=d, n_heads=d // 64, d_head=64, d_mlp=4 * d, act="gelu",
        mlp_bias=False, d_vocab=50257,
    )  # fmt: skip
    kinds = {
        "GELU, 4 d": plain,
        "GELU, 4 d, with biases": plain.replace(mlp_bias=True, attn_bias=True),
        "GELU, 2 d": plain.replace(d_mlp=2 * d),
        "SwiGLU, 4 d": plain.replace(act="swiglu"),
        "SwiGLU, 8/3 d": plain.replace(act="swiglu", d_mlp=8 * d // 3),
        "8 experts of 4 d, 2 used": plain.replace(n_experts=8, top_k=2),
    }
    return {name: count(cfg, tied=True) for name, cfg in kinds.items()}


def table() -> dict[str, dict[str, float]]:
    """name -> the counts and shares of the published and of the course's models, and of shapes."""
    from circuitbook import recipes, zoo

    rows: dict[str, Counts] = {}
    for name, cfg in PUBLISHED.items():
        rows[f"{name}, published"] = count(cfg, tied=name == "gpt2")
    for role in zoo.MAIN_ROLES:
        rows[f"{role}, course"] = count(recipes.recipe(role).config)
    rows |= {f"one layer: {name}": counts for name, counts in shapes().items()}
    return {name: _row(counts) for name, counts in rows.items()}


def _row(c: Counts) -> dict[str, float]:
    return {
        "attention": c.attention,
        "mlp": c.mlp,
        "share": c.mlp_share(),
        "share, active": c.mlp_share(active=True),
        "share of all": c.mlp_share(embedded=True),
    }


def series() -> dict[str, float | int]:
    """part7.params.<model>.<what> -> our value, for the comparison page."""
    out: dict[str, float | int] = {}
    for name, cfg in PUBLISHED.items():
        c = count(cfg)
        at = f"part7.params.{name}"
        out |= {
            f"{at}.attention": c.attention,
            f"{at}.mlp": c.mlp,
            f"{at}.mlp_share": c.mlp_share(),
        }
    return out


def tensors_differ(roles: tuple[str, ...]) -> int:
    """For how many models of today's set the count differs from the sizes of the real tensors.

    Published models are counted from their own config.json, as trained: norms not folded.
    """
    from circuitbook import paths, recipes, zoo

    wrong = 0
    for role in roles:
        if paths.models() == "published":
            from circuitbook.published import models

            model = models.raw(role)
            cfg = model.cfg
        else:
            model, cfg = zoo.load(role, device="cpu"), recipes.recipe(role).config
        sizes = {n: p.numel() for n, p in model.named_parameters()}
        c = count(cfg)
        attention, mlp = (
            sum(s for n, s in sizes.items() if f".{w}." in n) for w in ("attn", "mlp")
        )
        wrong += (attention, mlp, sum(sizes.values())) != (c.attention, c.mlp, c.total)
    return wrong
