"""One block: the heads read the stream and write to it, then the MLP does."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from circuitbook.attention import Attention
from circuitbook.config import Config
from circuitbook.layers import make_norm, plus
from circuitbook.mlp import make_mlp


class Block(nn.Module):
    """resid_mid = resid_pre + Attn(resid_pre); resid_post = resid_mid + MLP(resid_mid)."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.n_heads = cfg.n_heads
        self.attn_only = cfg.attn_only
        self.use_split_qkv_input = False
        self.use_hook_mlp_in = False
        self.ln1 = make_norm(cfg)
        self.attn = Attention(cfg)
        self.hook_resid_pre = HookPoint()
        self.hook_q_input, self.hook_k_input = HookPoint(), HookPoint()
        self.hook_v_input = HookPoint()
        self.hook_attn_out = HookPoint()
        if not self.attn_only:
            self.ln2 = make_norm(cfg)
            self.mlp = make_mlp(cfg)
            self.hook_resid_mid = HookPoint()
            self.hook_mlp_in = HookPoint()
            self.hook_mlp_out = HookPoint()
        self.hook_resid_post = HookPoint()

    def forward(
        self,
        resid_pre: Float[Tensor, "batch pos d_model"],
        qk_position: Float[Tensor, "batch pos d_model"] | None,
    ) -> Float[Tensor, "batch pos d_model"]:
        resid_pre = self.hook_resid_pre(resid_pre)  # [batch, pos, d_model]
        if self.use_split_qkv_input:
            copies = [resid_pre[:, :, None].repeat(1, 1, self.n_heads, 1) for _ in "qkv"]
            q_input = self.ln1(self.hook_q_input(copies[0]))  # [batch, pos, head, d_model]
            k_input = self.ln1(self.hook_k_input(copies[1]))  # [batch, pos, head, d_model]
            v_input = self.ln1(self.hook_v_input(copies[2]))  # [batch, pos, head, d_model]
            if qk_position is not None:
                qk_position = qk_position[:, :, None]  # [batch, pos, 1, d_model]
        else:
            q_input = k_input = v_input = self.ln1(resid_pre)  # [batch, pos, d_model]
        attn_out = self.attn(plus(q_input, qk_position), plus(k_input, qk_position), v_input)
        attn_out = self.hook_attn_out(attn_out)  # [batch, pos, d_model]
        if self.attn_only:
            return self.hook_resid_post(resid_pre + attn_out)  # [batch, pos, d_model]
        resid_mid = self.hook_resid_mid(resid_pre + attn_out)  # [batch, pos, d_model]
        mlp_in = self.hook_mlp_in(resid_mid.clone()) if self.use_hook_mlp_in else resid_mid
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(mlp_in)))  # [batch, pos, d_model]
        return self.hook_resid_post(resid_mid + mlp_out)  # [batch, pos, d_model]
