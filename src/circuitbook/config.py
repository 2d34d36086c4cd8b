"""One frozen dataclass says everything that defines a transformer of this course.

No torch is imported here, so figures, tables and the build tools can read a model card without it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

ACTS = ("none", "relu", "gelu", "gelu_new", "bilinear", "swiglu")
GATED = ("bilinear", "swiglu")
NORMS = ("none", "layernorm", "layernorm_pre")
POSITIONS = ("shortformer", "standard")
POS_KINDS = ("sinusoidal", "learned")


@dataclass(frozen=True)
class Config:
    """The function family of a model; two equal configs have parameters of equal names and shapes.

    Sizes are counts. `d_mlp=0` with `act="none"` is an attention-only model; `n_layers=0` leaves
    only embedding and unembedding. A wrong combination raises ValueError naming the fields.
    """

    n_layers: int
    d_model: int = 256
    n_heads: int = 8
    d_head: int = 32
    d_mlp: int = 0  # hidden units of the MLP (of one expert, when n_experts > 0)
    n_ctx: int = 512  # the longest prompt, <|bos|> included
    d_vocab: int = 4096
    act: str = "none"  # one of ACTS; gelu is the exact erf form, gelu_new GPT-2's tanh form
    n_experts: int = 0  # 0: one dense MLP; else a mixture of this many MLPs of the same `act`
    top_k: int = 0  # experts used per token; 1 keeps the plain softmax weight, 2+ renormalises
    norm: str = "none"  # layernorm_pre: centre and rescale only, what is left after folding w and b
    eps: float = 1e-5  # added to the variance inside LayerNorm
    positions: str = "shortformer"  # into queries and keys only, or "standard": into the stream
    pos_kind: str = "sinusoidal"  # a fixed buffer; "learned": a parameter
    pos_base: float = 200.0  # sinusoidal only: wavelengths run from 2 pi to about 2 pi * base
    pos_amplitude: float = 1.0  # sinusoidal only
    attn_bias: bool = False  # b_Q, b_K, b_V, b_O
    mlp_bias: bool = True  # b_in, b_out, and b_gate of the gated kinds
    unembed_bias: bool = False  # b_U

    def __post_init__(self) -> None:
        self._check_types()
        sizes = ("d_model", "n_heads", "d_head", "n_ctx", "d_vocab")
        for name in sizes:
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, got {self._at(name)}")
        for name in ("n_layers", "d_mlp", "n_experts", "top_k"):
            _require(getattr(self, name) >= 0, f"{name} must not be negative, got {self._at(name)}")
        for name, allowed in (
            ("act", ACTS),
            ("norm", NORMS),
            ("positions", POSITIONS),
            ("pos_kind", POS_KINDS),
        ):
            value = getattr(self, name)
            _require(value in allowed, f"{name} must be one of {', '.join(allowed)}; got {value!r}")
        _require(
            (self.d_mlp > 0) == (self.act != "none"),
            f"d_mlp={self.d_mlp} does not fit act={self.act!r}: "
            "an MLP needs both d_mlp > 0 and an act, an attention-only model has neither",
        )
        _require(
            self.n_experts == 0 or self.d_mlp > 0,
            f"n_experts={self.n_experts} needs experts to mix: set d_mlp and act",
        )
        _require(
            (self.n_experts == 0 and self.top_k == 0) or 1 <= self.top_k <= self.n_experts,
            f"top_k={self.top_k} must lie between 1 and n_experts={self.n_experts} "
            "(both are 0 without a mixture of experts)",
        )
        _require(self.eps > 0, f"eps must be positive, got {self.eps}")
        if self.pos_kind == "sinusoidal":
            _require(
                self.d_model % 2 == 0,
                f"sinusoidal positions pair sine with cosine: d_model={self.d_model} must be even",
            )
            _require(self.pos_base > 1, f"pos_base must be above 1, got {self.pos_base}")

    def _check_types(self) -> None:
        # A JSON round trip or a typo can bring "2" or 2.0 for 2; refuse before shapes go wrong.
        wanted = {"int": int, "float": (int, float), "str": str, "bool": bool}
        for field in fields(self):
            value = getattr(self, field.name)
            ok = isinstance(value, wanted[str(field.type)])
            if field.type != "bool" and isinstance(value, bool):
                ok = False
            _require(ok, f"{field.name} must be {field.type}, got {value!r}")

    def _at(self, name: str) -> str:
        return repr(getattr(self, name))

    @property
    def attn_only(self) -> bool:
        """True when blocks hold attention and nothing else."""
        return self.d_mlp == 0

    @property
    def gated(self) -> bool:
        """True when the MLP multiplies a gate with a linear branch (bilinear, swiglu)."""
        return self.act in GATED

    def replace(self, **changes: Any) -> Config:
        """The same config with some fields changed, validated again."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """A plain dict, ready for JSON; `Config.from_dict` is its inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Config:
        """The inverse of `to_dict`; unknown or missing keys raise ValueError and are listed."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(data) - known)
        _require(not unknown, f"unknown config keys {unknown}; known keys: {sorted(known)}")
        _require("n_layers" in data, f"the config has no n_layers; it has {sorted(data)}")
        return cls(**data)


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)
