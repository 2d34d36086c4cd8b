"""What LayerNorm cannot see: turns about the all-ones direction and shears along it. Nothing else.

And what a constant in the unembedding can do to a score that does not centre it.
"""

import pytest
import torch
from published_toy import gap, gen, published, tokens_of

from circuitbook import bases, fold, gauge, heads
from circuitbook.config import Config
from circuitbook.model import Transformer


def test_turns_about_the_ones_and_shears_along_them_are_free_and_others_are_not():
    model, tokens = published(), tokens_of()
    d = model.cfg.d_model
    eye, ones = torch.eye(d).double(), torch.ones(d)
    turn, v = gauge.free_turn(d, gen(5)), torch.randn(d, generator=gen(7))
    torch.testing.assert_close(turn.sum(0), ones.double())
    torch.testing.assert_close(turn @ turn.T, eye)
    shear, stretch = gauge.shear(v), eye + 9 / d
    # Readers that are not centred and writers that are not: a shear is free there too.
    raw = gauge.with_weights(model, W_Q=model.W_Q + 0.3, W_E=model.W_E + 0.5)
    G = gauge.free_change(model, gen(5))
    for free in (turn, shear, stretch, turn @ shear, shear @ turn, turn @ shear @ stretch, G):
        assert gauge.is_free(model, free)
        for m in (model, raw):
            assert gap(gauge.change_stream(m, free)(tokens), m(tokens)) <= 1e-11
    any_turn, across = gauge.invertible(d, d, condition=1.0, generator=gen(6)), eye[0] - 1 / d
    seen = eye + torch.outer(ones.double(), across)  # what stands along 1 comes into sight
    general = gauge.invertible(d, d, generator=gen(6))
    for other in (any_turn, general, seen, 2 * eye, eye + torch.outer(across, across)):
        assert not gauge.is_free(model, other)
        with pytest.raises(ValueError, match="LayerNorm"):
            gauge.change_stream(model, other)
        assert gap(gauge.change_stream(raw, other, free=False)(tokens), raw(tokens)) > 1e-2
    size = torch.linalg.matrix_norm
    moved = gauge.change_stream(model, shear)
    assert (size(moved.OV.AB) / size(model.OV.AB)).min() > 1.5
    ranks = [gauge.effective_rank(torch.linalg.svdvals(m.OV.AB)) for m in (model, moved)]
    assert (ranks[0] - ranks[1]).min() > 1
    back = fold.center_writing_weights(moved)  # the convention that undoes a shear
    torch.testing.assert_close(back.W_O, model.W_O)
    with pytest.raises(ValueError, match="LayerNorm"):
        gauge.change_stream(Transformer(model.cfg.replace(norm="layernorm")), G)


def test_the_free_rotation_is_orthogonal_uniform_and_fixes_the_all_ones_vector():
    model = published()
    d = model.cfg.d_model
    draws = torch.stack([bases.free_rotation(model, gen(i)) for i in range(400)])
    one = torch.ones(d).double()
    for G in draws[:3]:
        assert torch.allclose(G @ G.T, torch.eye(d).double()) and torch.allclose(one @ G, one)
    assert (draws.mean(0) - 1 / d).abs().max() < 0.05  # nothing else stays
    plain = Transformer(Config(1, 16, 2, 8, n_ctx=8, d_vocab=20))
    assert torch.equal(bases.free_rotation(plain, gen()), bases.rotation(16, gen()))


def test_a_constant_against_a_head_turns_its_raw_score_round_at_any_size():
    model = published()
    for size in (1e-3, 1.0, 1e3):
        m = gauge.with_weights(model, W_U=size * model.W_U)
        assert min(heads.constant_against(m, place) for place in range(3)) > 0.5
    silent = gauge.with_weights(model, W_O=torch.zeros_like(model.W_O))
    assert heads.constant_against(silent, 0) == 0
