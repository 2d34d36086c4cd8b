"""The instruments that take the stream apart, change its basis, and follow the course's spine."""

import pytest
import torch
from small_model import TINY, gen, model_of, tokens_of

from circuitbook import bases, cut, gauge, spine, stream

# ---- parts --------------------------------------------------------------------------------------


def test_a_layer_reads_the_sum_of_what_lies_below():
    config = TINY.replace(act="gelu", d_mlp=32)
    model, tokens = model_of(config), tokens_of(config)
    parts = stream.components(model, tokens)
    _, cache = cut.run(model, tokens, names=["blocks.1.hook_resid_pre"])
    assert torch.allclose(parts.below(1), cache["blocks.1.hook_resid_pre"])
    assert torch.equal(parts.below(0), parts.writes["embedding"])


def test_a_write_that_undoes_the_embedding_has_overlap_minus_one():
    x = torch.randn(2, 3, 4, generator=gen())
    parts = stream.Parts({"embedding": x, "head 0.0": -0.5 * x, "head 0.1": x}, 1.5 * x)
    assert torch.allclose(parts.overlap("head 0.0"), torch.tensor(-1.0))
    assert torch.allclose(parts.overlap("head 0.1"), torch.tensor(1.0))


# ---- direct and total effect ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_effects_agree_with_plain_runs(kind):
    model, tokens, doc = model_of(), tokens_of(n=4), torch.tensor([0, 1, 1, 2])
    effects = stream.head_effects(model, tokens, doc, kind)
    clean = model(tokens, return_type="loss_per_token").mean(-1)
    for i, head in enumerate(stream.heads_of(model)):
        ablation = cut.ablate_heads(model, tokens, [head], kind)
        loss = cut.run(model, tokens, ablation, return_type="loss_per_token")[0].mean(-1)
        assert effects.total[i] == pytest.approx((loss - clean).mean().item(), abs=1e-9)
        same = abs(effects.total[i] - effects.direct[i]) < 1e-9
        assert same == (head[0] == 1)  # nobody reads after the last layer
    with pytest.raises(ValueError, match="zero"):
        stream.head_effects(model, tokens, doc, "resample")


# ---- bases --------------------------------------------------------------------------------------


def test_heads_may_change_their_own_coordinates():
    model, tokens = model_of(), tokens_of()
    R = gauge.invertible(8, 8, generator=gen(2))
    assert torch.allclose(bases.change_heads(model, R)(tokens), model(tokens), atol=1e-10)
    swapped = gauge.with_weights(bases.change_heads(model, R), W_K=model.W_K @ R)
    assert (swapped(tokens) - model(tokens)).abs().max() > 1e-2


def test_what_a_change_of_basis_refuses():
    with pytest.raises(ValueError, match="LayerNorm"):
        gauge.change_stream(model_of(TINY.replace(norm="layernorm")), torch.eye(16).double())
    with pytest.raises(ValueError, match="plain MLP"):
        bases.change_hidden(model_of(), torch.eye(4))


def test_permuting_neurons_is_allowed():
    config = TINY.replace(act="gelu", d_mlp=32)
    model, tokens = model_of(config), tokens_of(config)
    P = torch.eye(32)[torch.randperm(32, generator=gen())].double()
    assert torch.allclose(bases.change_hidden(model, P)(tokens), model(tokens), atol=1e-10)


def test_random_rotations_are_orthogonal_and_uniform():
    Q = bases.rotation(6, gen())
    assert torch.allclose(Q @ Q.T, torch.eye(6).double())
    draws = torch.stack([bases.rotation(3, gen(i)) for i in range(600)])
    assert draws.mean(0).abs().max() < 0.1  # without the signs the first entries are negative


# ---- the spine, the box --------------------------------------------------------------------------


def test_the_prompts_hold_one_answer_each_at_one_place():
    prompts = spine.name_prompts()
    assert len(set(prompts.answer.tolist())) == len(prompts.names) == len(prompts.tokens) >= 40
    assert (prompts.tokens[:, 0] == 0).all() and prompts.tokens.shape[1] > 15
    where = prompts.tokens == prompts.answer[:, None]
    assert (where.sum(1) == 1).all() and len(where.nonzero()[:, 1].unique()) == 1
    at = int(where.nonzero()[0, 1])
    assert torch.equal(prompts.tokens[:, -1], prompts.tokens[:, at - 1])  # the title, twice


@pytest.fixture(scope="module")
def small():
    """A small random model with the course's vocabulary."""
    return model_of(TINY.replace(d_vocab=4096, n_ctx=128))


def test_attribution_sums_to_the_logit_and_the_last_layer_is_direct(small):
    prompts = spine.name_prompts()
    found = spine.attribute(small, prompts)
    assert torch.allclose(sum(found.centred.values()), spine.answer_logit(small, prompts))
    for h in range(2):
        assert torch.allclose(found.fall[f"head 1.{h}"], found.centred[f"head 1.{h}"])
        assert not torch.allclose(found.fall[f"head 0.{h}"], found.centred[f"head 0.{h}"])
    mary, rivals = 0, [i for i, f in enumerate(prompts.female) if f and i]
    logits = small(prompts.tokens)[mary, -1]
    named = logits[prompts.answer[mary]] - logits[prompts.answer[rivals]].mean()
    assert torch.allclose(sum(x[mary] for x in found.named.values()), named)
