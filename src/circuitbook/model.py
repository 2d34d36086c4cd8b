"""The transformer of the course: TransformerLens' names and shapes, and nothing hidden.

CONVENTION CARD. Activations are rows, so a matrix stands on the right: y = x W. The papers write
columns, y = W x. One table settles what that transposes (d = d_model, d_h = d_head):

    object                the papers (columns)       here (rows)               relation
    W_Q, W_K, W_V         d_h x d                    d x d_h                   transposed
    W_O                   d x d_h                    d_h x d                   transposed
    W_QK                  W_Q^T W_K                  W_Q W_K^T                 the same matrix
    W_OV                  W_O W_V                    W_V W_O                   transposed
    a head                (A kron W_OV) x            A X W_OV                  one map, spelt twice
    virtual head          A2 A1, W_OV2 W_OV1         A2 A1, W_OV1 W_OV2        features flip,
                                                                               positions do not
    OV circuit            W_U W_OV W_E  (out x in)   W_E W_OV W_U  (in x out)  transposed
    QK circuit            W_E^T W_QK W_E             W_E W_QK W_E^T            same: query x key
    Q-, K-composition     W_QK^T W_OV, W_QK W_OV     W_OV W_QK, W_OV W_QK^T    same norms
    V-composition         W_OV2 W_OV1                W_OV1 W_OV2               same norm
    Jacobian              J[out, in], dy = J dx      J[in, out], dy = dx J     transposed

(In W_OV W_QK the left factor belongs to the earlier head, the right one to the later.)
(A kron W) x with x = X.reshape(-1) needs row-major flattening, which is torch's; it equals A X W^T.

POSITIONS. "shortformer": W_pos is added to the inputs of queries and keys only, the same matrix in
every layer, after the norm if there is one. Stream, values, MLP inputs and logits hold no position.
"standard": W_pos is added to the stream once, at the bottom.

SHAPE GLOSSARY: every hook, in the order of the forward pass.

    hook_embed                        [batch, pos, d_model]        W_E[token]
    hook_pos_embed                    [batch, pos, d_model]        W_pos[position]
    blocks.l.hook_resid_pre           [batch, pos, d_model]        the stream entering block l
    blocks.l.hook_q_input  *          [batch, pos, head, d_model]  the stream, one copy per head
    blocks.l.hook_k_input  *          [batch, pos, head, d_model]      (before norm and position,
    blocks.l.hook_v_input  *          [batch, pos, head, d_model]       as in TransformerLens)
    blocks.l.ln1.hook_scale           [batch, pos, 1]              sqrt(variance + eps)
    blocks.l.ln1.hook_normalized      [batch, pos, d_model]        n, before the gain w and bias b
                                                                   (with * : a head axis in both,
                                                                    and they run for q, k and v)
    blocks.l.attn.hook_q, _k, _v      [batch, pos, head, d_head]
    blocks.l.attn.hook_attn_scores    [batch, head, pos, key]      -inf where key > pos
    blocks.l.attn.hook_pattern        [batch, head, pos, key]      rows sum to 1
    blocks.l.attn.hook_z              [batch, pos, head, d_head]   A V, before W_O
    blocks.l.attn.hook_result  **     [batch, pos, head, d_model]  what each head writes
    blocks.l.hook_attn_out            [batch, pos, d_model]        sum of the heads, plus b_O
    blocks.l.hook_resid_mid           [batch, pos, d_model]        read by the MLP and by the skip
    blocks.l.hook_mlp_in  ***         [batch, pos, d_model]        read by the MLP only
    blocks.l.ln2.hook_scale, _normalized                           as ln1
    blocks.l.mlp.hook_pre             [batch, pos, d_mlp]          the gate, in a gated MLP
    blocks.l.mlp.hook_pre_linear      [batch, pos, d_mlp]          gated MLPs only
    blocks.l.mlp.hook_post            [batch, pos, d_mlp]          neurons
    blocks.l.hook_mlp_out             [batch, pos, d_model]
    blocks.l.hook_resid_post          [batch, pos, d_model]        the stream leaving block l
    ln_final.hook_scale, _normalized                               as ln1

A mixture of experts has mlp.hook_router_logits and mlp.hook_expert_weights [batch, pos, expert],
an expert axis after pos in hook_pre, hook_pre_linear and hook_post, and mlp.hook_expert_out
[batch, pos, expert, d_model]. Attention-only blocks have no resid_mid, mlp_in and mlp_out; models
without norm have no ln hooks. Three kinds cost memory and are off until asked for:
* model.set_use_split_qkv_input(True)   ** model.set_use_attn_result(True)
*** model.set_use_hook_mlp_in(True).
A hook returns a new tensor to change what follows, or None to only look.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import FactoredMatrix, HookedRootModule
from transformer_lens.hook_points import HookPoint

from circuitbook.block import Block
from circuitbook.config import Config
from circuitbook.layers import Embed, PosEmbed, Unembed, make_norm


class Transformer(HookedRootModule):
    """logits = Unembed(Norm(Embed(tokens) + sum of what every block writes)).

    `Transformer(cfg, seed=0)` draws its weights from a generator of its own: the global one is
    neither read nor moved, and the same seed gives the same bits. Pass `generator` to draw from
    yours, or `seed=None` for zero weights (a loader fills them). `run_with_cache` and
    `run_with_hooks` come from TransformerLens; the cache is a plain dict from hook name to tensor.

    `processing` names what has been done to the weights since training ("center_unembed", ...);
    circuitbook.fold keeps it up to date.
    """

    def __init__(
        self,
        cfg: Config,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = 0,
    ):
        super().__init__()
        self.cfg = cfg
        self.processing: frozenset[str] = frozenset()
        self.use_attn_result = False
        self.use_split_qkv_input = False
        self.use_hook_mlp_in = False
        self.embed = Embed(cfg)
        self.hook_embed = HookPoint()
        self.pos_embed = PosEmbed(cfg)
        self.hook_pos_embed = HookPoint()
        self.blocks = nn.ModuleList([Block(cfg) for _ in range(cfg.n_layers)])
        self.ln_final = make_norm(cfg)
        self.unembed = Unembed(cfg)
        if generator is None and seed is not None:
            generator = torch.Generator().manual_seed(seed)
        self.init_weights(generator)
        self.setup()  # TransformerLens: tells every HookPoint its name

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None) -> None:
        """Matrices are N(0, s^2) with s = 0.8 / sqrt(d_model), biases 0, LayerNorm gains 1.

        s is TransformerLens' choice and GPT-2's 0.02 within a factor of 1.5 at GPT-2's width. The
        matrices that write to the stream (W_O, W_out) are divided by sqrt(2 n_layers), as in
        GPT-2, so that the stream does not grow with depth. Numbers are drawn in float32 on the
        generator's device and then cast: a float64 model starts from the same values.
        """
        s = 0.8 / math.sqrt(self.cfg.d_model)
        for name, p in self.named_parameters():
            kind = name.rsplit(".", 1)[-1]
            if kind == "w":
                p.fill_(1.0)
            elif kind.startswith("b") or generator is None:
                p.zero_()
            else:
                depth = math.sqrt(2 * self.cfg.n_layers) if kind in ("W_O", "W_out") else 1.0
                draw = torch.randn(p.shape, generator=generator, device=generator.device)
                p.copy_(draw * (s / depth))

    # ---- the forward pass -------------------------------------------------------------------

    def stream(self, tokens: Tensor) -> Float[Tensor, "batch pos d_model"]:
        """What the unembedding reads: the last resid_post, after the final norm if there is one."""
        self._check_tokens(tokens)
        embed = self.hook_embed(self.embed(tokens))  # [batch, pos, d_model]
        position = self.hook_pos_embed(self.pos_embed(tokens))  # [batch, pos, d_model]
        if self.cfg.positions == "standard":
            resid, qk_position = embed + position, None
        else:
            resid, qk_position = embed, position
        for block in self.blocks:
            resid = block(resid, qk_position)  # [batch, pos, d_model]
        return self.ln_final(resid)

    def forward(self, tokens: Tensor, return_type: str = "logits") -> Float[Tensor, ...]:
        """Next-token logits, or the loss of predicting each token from those before it.

        tokens: int64 [batch, pos], <|bos|> first. return_type:
        "logits"          [batch, pos, d_vocab]; logits[:, t] predict token t + 1
        "loss_per_token"  [batch, pos - 1] in nats; entry k - 1 is loss_k, that of the k-th token
                          after <|bos|>, so it comes from logits[:, k - 1]
        "loss"            its mean, one number
        """
        if return_type not in ("logits", "loss", "loss_per_token"):
            raise ValueError(
                f"return_type must be 'logits', 'loss' or 'loss_per_token', got {return_type!r}"
            )
        logits = self.unembed(self.stream(tokens))  # [batch, pos, d_vocab]
        if return_type == "logits":
            return logits
        if tokens.shape[1] < 2:
            raise ValueError(f"a loss needs a next token, and tokens are {list(tokens.shape)}")
        log_probs = logits[:, :-1].log_softmax(-1)  # [batch, pos - 1, d_vocab]
        losses = -log_probs.gather(-1, tokens[:, 1:, None].long())[..., 0]  # [batch, pos - 1]
        return losses if return_type == "loss_per_token" else losses.mean()

    def _check_tokens(self, tokens: Tensor) -> None:
        # By hand rather than by annotation: these are the errors a student meets first.
        shape = list(tokens.shape)
        if tokens.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"tokens must be int64 ids, got {tokens.dtype} {shape}: use .long()")
        if tokens.ndim != 2:
            raise ValueError(
                f"tokens must be [batch, pos], got shape {shape}: for one prompt use tokens[None]"
            )
        if not 1 <= shape[1] <= self.cfg.n_ctx:
            raise ValueError(
                f"tokens {shape} hold {shape[1]} positions; this model reads 1 to "
                f"n_ctx = {self.cfg.n_ctx}: cut the prompt with tokens[:, :{self.cfg.n_ctx}]"
            )
        low, high = (int(end) for end in tokens.aminmax()) if shape[0] else (0, 0)
        if low < 0 or high >= self.cfg.d_vocab:
            bad = low if low < 0 else high
            raise ValueError(
                f"token id {bad} in tokens {shape} is outside the vocabulary: ids run from 0 to "
                f"{self.cfg.d_vocab - 1}. Was the text encoded with another model's tokenizer?"
            )

    # ---- loading ----------------------------------------------------------------------------

    @classmethod
    def from_state_dict(cls, cfg: Config, state_dict: Mapping[str, Tensor]) -> Transformer:
        """A model with exactly these weights; every parameter must be there, nothing may be left.

        Attention's constant buffers in published files (`mask`, `IGNORE`) are dropped. Missing,
        unexpected and misshapen entries raise ValueError and are listed. The dtype is W_E's.
        """
        buffers = (".attn.mask", ".attn.IGNORE")
        given = {k: v for k, v in state_dict.items() if not k.endswith(buffers)}
        model = cls(cfg, seed=None)
        wanted = {k: tuple(v.shape) for k, v in model.state_dict().items()}
        problems = {
            "missing": sorted(wanted.keys() - given.keys()),
            "unexpected": sorted(given.keys() - wanted.keys()),
            "wrong shape": [
                f"{k} {tuple(given[k].shape)}, config says {shape}"
                for k, shape in wanted.items()
                if k in given and tuple(given[k].shape) != shape
            ],
        }
        if any(problems.values()):
            lines = [f"{what}: {', '.join(names)}" for what, names in problems.items() if names]
            raise ValueError("the weights do not fit the config.\n" + "\n".join(lines))
        model = model.to(given["embed.W_E"].dtype)
        model.load_state_dict(given)
        return model

    # ---- hooks that are off until asked for -------------------------------------------------

    def set_use_attn_result(self, on: bool) -> None:
        """Run attn.hook_result, what each head writes: n_heads times the memory of attn_out."""
        self.use_attn_result = on
        for block in self.blocks:
            block.attn.use_attn_result = on

    def set_use_split_qkv_input(self, on: bool) -> None:
        """Run hook_q_input, hook_k_input, hook_v_input: a copy of the stream for each head."""
        self.use_split_qkv_input = on
        for block in self.blocks:
            block.use_split_qkv_input = on

    def set_use_hook_mlp_in(self, on: bool) -> None:
        """Run hook_mlp_in, the stream as the MLP alone reads it; edits leave the skip as it was."""
        self.use_hook_mlp_in = on
        for block in self.blocks:
            block.use_hook_mlp_in = on

    def _silent(self, name: str) -> str | None:
        # The call that would make this hook run; None when it runs already.
        last = name.rsplit(".", 1)[-1]
        if last == "hook_result" and not self.use_attn_result:
            return "model.set_use_attn_result(True)"
        if last in ("hook_q_input", "hook_k_input", "hook_v_input"):
            return None if self.use_split_qkv_input else "model.set_use_split_qkv_input(True)"
        if last == "hook_mlp_in" and not self.use_hook_mlp_in:
            return "model.set_use_hook_mlp_in(True)"
        return None

    def _must_run(self, name: str) -> None:
        # A hook on a point that never runs would do nothing and say nothing.
        if name not in self.hook_dict:
            near = difflib.get_close_matches(name, self.hook_dict, n=3, cutoff=0.5)
            raise KeyError(f"no hook is named {name!r}; near it: {near or list(self.hook_dict)}")
        if call := self._silent(name):
            raise ValueError(f"{name} does not run now, so a hook there does nothing: {call} first")

    def _enable_hook(self, name: Any, hook: Any, dir: Any) -> None:
        names = [name] if isinstance(name, str) else [n for n in self.hook_dict if name(n)]
        if not names:
            raise KeyError(f"the name filter matches none of the hooks {list(self.hook_dict)}")
        if all(n in self.hook_dict and self._silent(n) for n in names) or isinstance(name, str):
            self._must_run(names[0])
        super()._enable_hook(name, hook, dir)

    def check_hooks_to_add(
        self, hook_point: HookPoint, hook_point_name: str, hook: Any, **_: Any
    ) -> None:
        """Refuse a lasting hook (`add_hook`) on a point that does not run."""
        self._must_run(hook_point_name)

    def get_caching_hooks(self, names_filter: Any = None, *args: Any, **kwargs: Any) -> Any:
        """TransformerLens' caching hooks, on points that run; a name that does not is refused."""
        if isinstance(names_filter, str):
            names_filter = [names_filter]
        if isinstance(names_filter, (list, tuple, set)):
            for name in names_filter:
                self._must_run(name)
            wanted = set(names_filter).__contains__
        else:
            wanted = names_filter or (lambda name: True)
        return super().get_caching_hooks(
            lambda name: wanted(name) and self._silent(name) is None, *args, **kwargs
        )

    # ---- weights, stacked over layers -------------------------------------------------------

    def _stacked(self, name: str) -> Tensor:
        c = self.cfg
        shape = (c.d_head, c.d_model) if name == "W_O" else (c.d_model, c.d_head)
        none = self.W_E.new_empty(0, c.n_heads, *shape)  # so that 0 layers have 0 heads
        return torch.stack([getattr(b.attn, name) for b in self.blocks]) if self.blocks else none

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """Token embedding."""
        return self.embed.W_E

    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"]:
        """Position embedding."""
        return self.pos_embed.W_pos

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """Unembedding."""
        return self.unembed.W_U

    @property
    def W_Q(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Query matrices of all heads."""
        return self._stacked("W_Q")

    @property
    def W_K(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Key matrices of all heads."""
        return self._stacked("W_K")

    @property
    def W_V(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Value matrices of all heads."""
        return self._stacked("W_V")

    @property
    def W_O(self) -> Float[Tensor, "layer head d_head d_model"]:
        """Output matrices of all heads."""
        return self._stacked("W_O")

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q W_K^T of all heads, [layer, head, d_model, d_model], kept as its two factors."""
        return FactoredMatrix(self.W_Q, self.W_K.transpose(-2, -1))

    @property
    def OV(self) -> FactoredMatrix:
        """W_V W_O of all heads, [layer, head, d_model, d_model], kept as its two factors."""
        return FactoredMatrix(self.W_V, self.W_O)
