"""The stream, the spine and the bases on models with LayerNorm, positions and biases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_model import TINY, gen, model_of, tokens_of

from circuitbook import bases, bigram, claims, cut, fold, gauge, paths, spine, stream
from circuitbook.published import cards
from circuitbook.vocabulary import BOS

DTYPES = [(torch.float32, 1e-5), (torch.float64, 1e-12)]
NAMES = 10
SHAPE = TINY.replace(
    d_model=32, n_heads=4, d_vocab=120, n_ctx=24, norm="layernorm", positions="standard",
    pos_kind="learned", attn_bias=True, unembed_bias=True,
)  # fmt: skip
KINDS = {
    "attention": SHAPE,
    "mlp": SHAPE.replace(act="gelu", d_mlp=48),
    "one layer": SHAPE.replace(n_layers=1, act="gelu", d_mlp=48),
}


def raw(config=SHAPE, dtype=torch.float64, seed=0):
    """A random model with every weight and bias of a published one, its gains near 1."""
    model = model_of(config, dtype, seed, scale=2.0)
    for name, p in model.named_parameters():
        if name.endswith(".w"):
            p.add_(1)
        elif "b_" in name:
            p.mul_(5)
    return model


def folded(config=SHAPE, dtype=torch.float64, seed=0):
    """The same, treated as `zoo.load` treats a published model; the folding is done in float64."""
    model = fold.fold_layer_norm(raw(config, torch.float64, seed))
    model = fold.fold_value_biases(fold.center_writing_weights(model))
    return fold.center_unembed(model).to(dtype)


def some_prompts():
    """Prompts of the spine's form over 120 words: names 20 ... 29, titles 5 and 6, twice."""
    names = torch.arange(20, 20 + NAMES)
    female = [i % 2 == 0 for i in range(NAMES)]
    title = torch.tensor([5 if f else 6 for f in female])
    same = torch.tensor([0, 7, 8]).expand(NAMES, 3)
    tokens = torch.cat([same, title[:, None], names[:, None], same + 3, title[:, None]], 1)
    return spine.Prompts(tokens, names, [f"name {i}" for i in range(NAMES)], female)


def gap(truth, other):
    return bases.relative_change(truth, other)


# ---- the stream is a sum, and so is a logit ------------------------------------------------------


@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
@pytest.mark.parametrize("make", [raw, folded])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_position_and_biases_are_parts_of_the_stream(config, make, dtype, limit):
    model, tokens = make(config, dtype), tokens_of(config)
    writes, last = stream.components(model, tokens)
    assert gap(last, sum(writes.values())) <= limit
    for part in ("position", "bias 0", "head 0.1"):
        assert gap(last, sum(w for n, w in writes.items() if n != part)) > 1e-2, part
    assert gap(last, sum(writes.values()) + model.W_pos[: tokens.shape[1]]) > 1e-2


@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
@pytest.mark.parametrize("make", [raw, folded])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_a_logit_is_a_sum_over_parts_at_the_frozen_scale(config, make, dtype, limit):
    model, prompts = make(config, dtype), some_prompts()
    found = spine.attribute(model, prompts)
    logits = model(prompts.tokens)[:, -1]
    right = logits.gather(-1, prompts.answer[:, None])[:, 0]
    centred = right - logits.mean(-1)
    assert gap(spine.answer_logit(model, prompts), centred) <= limit
    assert gap(centred, sum(found.centred.values())) <= limit
    for part in ("position", "bias 0", stream.UNEMBEDDING_BIAS):
        less = sum(x for n, x in found.centred.items() if n != part)
        assert gap(centred, less) > 1e-2, part
    for i in (0, 3):
        rivals = [j for j, f in enumerate(prompts.female) if f == prompts.female[i] and j != i]
        named = right[i] - logits[i, prompts.answer[rivals]].mean()
        assert gap(named, sum(x[i] for x in found.named.values())) <= limit
    writes = stream.components(model, prompts.tokens).writes  # the scale forgotten
    ways = spine.unembed_directions(model, prompts)[0]
    unscaled = sum((w[:, -1] * ways).sum(-1) for w in writes.values())
    assert gap(centred, unscaled + spine.name_biases(model, prompts)[0]) > 1e-2


def test_directions_are_for_the_stream_before_the_norm_or_after_it():
    model, prompts = raw(), some_prompts()
    last = stream.components(model, prompts.tokens).last[:, -1]
    normalized = model.stream(prompts.tokens)[:, -1]
    for before, after in zip(
        spine.name_directions(model, prompts), spine.unembed_directions(model, prompts)
    ):
        # The norm's own bias is the constant part; it belongs to the unembedding's bias.
        b = model.ln_final.b
        assert torch.allclose((last * before).sum(-1), ((normalized - b) * after).sum(-1))
        assert not torch.allclose((last * before).sum(-1), (last * after).sum(-1), atol=1e-2)


def test_without_a_norm_nothing_is_scaled_and_nothing_is_constant():
    model, prompts = model_of(SHAPE.replace(norm="none", unembed_bias=False)), some_prompts()
    assert spine.name_scale(model, prompts) is None is stream.unembedding_bias(model)
    assert not any(x.any() for x in spine.name_biases(model, prompts))
    for a, b in zip(
        spine.name_directions(model, prompts), spine.unembed_directions(model, prompts)
    ):
        assert torch.equal(a, b)


def test_the_final_scale_is_the_one_of_the_forward_pass():
    model, tokens = raw(), tokens_of(SHAPE)
    last = stream.components(model, tokens).last
    _, cache = cut.run(model, tokens, names=["ln_final.hook_scale"])
    scale = stream.final_scale(model, last)
    assert torch.allclose(scale, cache["ln_final.hook_scale"], rtol=1e-12)


# ---- losses and effects -------------------------------------------------------------------------


def test_losses_are_those_of_the_model_however_few_windows_at_once(monkeypatch):
    model, tokens = folded(KINDS["mlp"]), tokens_of(SHAPE, n=5)
    last = stream.components(model, tokens).last
    truth = model(tokens, return_type="loss_per_token").mean(-1)
    assert torch.allclose(stream.window_loss(model, tokens, last), truth)
    monkeypatch.setattr(stream, "LOGITS", 2 * 9 * SHAPE.d_vocab)
    assert torch.allclose(stream.window_loss(model, tokens, last), truth)
    head = (0, 1)
    ablation = cut.ablate_heads(model, tokens, [head], "mean")
    again = cut.run(model, tokens, ablation, return_type="loss_per_token")[0].mean(-1)
    assert torch.allclose(stream.rerun_loss(model, tokens, head, "mean"), again)


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_in_the_last_layer_direct_is_total_although_the_scale_moves(kind):
    model, tokens = folded(), tokens_of(SHAPE, n=4)
    effects = stream.head_effects(model, tokens, torch.tensor([0, 1, 1, 2]), kind)
    for i, head in enumerate(stream.heads_of(model)):
        rerun = stream.rerun_loss(model, tokens, head, kind)
        clean = stream.window_loss(model, tokens, stream.components(model, tokens).last)
        assert effects.total[i] == pytest.approx((rerun - clean).mean().item(), abs=1e-9)
        assert (abs(effects.total[i] - effects.direct[i]) < 1e-9) == (head[0] == 1)


def test_logits_of_the_last_position__those_of_the_whole_run():
    model, tokens = folded(), tokens_of(SHAPE)
    whole = model(tokens)
    with stream.last_logits_only(model):
        short = model(tokens)
    assert short.shape[1] == 1 and torch.allclose(short[:, 0], whole[:, -1])
    assert torch.equal(model(tokens), whole)  # and afterwards all are there again


# ---- changes of basis ---------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.float64, 1e-11)])
def test_the_stream_may_turn_about_the_all_ones_direction_and_shear_along_it(dtype, limit):
    model, tokens = folded(KINDS["mlp"], dtype), tokens_of(SHAPE)
    moves = bases.logit_moves(model, tokens, gen(1))
    assert max(moves.rotated, moves.stretched) <= limit
    assert min(moves.hidden, moves.positions_left) > 1e-2
    logits, d = model(tokens), SHAPE.d_model
    for G in (bases.rotation(d, gen()), gauge.invertible(d, d, generator=gen())):
        with pytest.raises(ValueError, match="LayerNorm"):
            gauge.change_stream(model, G)
        anyway = gauge.change_stream(model, G, free=False)
        assert (anyway(tokens) - logits).abs().max() > 1e-2


def test_head_biases_turn_with_their_heads():
    model, tokens = raw(KINDS["mlp"]), tokens_of(SHAPE)
    R = gauge.invertible(8, 8, generator=gen(2))
    turned = bases.change_heads(model, R)
    assert torch.allclose(turned(tokens), model(tokens), atol=1e-10)
    for name in ("b_Q", "b_K", "b_V"):  # mutant: one left behind
        old = torch.stack([getattr(b.attn, name) for b in model.blocks])
        wrong = gauge.with_weights(turned, **{name: old})
        # b_K adds a constant per query, which no softmax sees: logits stay, and scores move.
        assert ((wrong(tokens) - model(tokens)).abs().max() > 1e-2) == (name != "b_K"), name
        scores = [
            cut.run(m, tokens, names=["blocks.0.attn.hook_attn_scores"])[1].popitem()[1].tril()
            for m in (model, wrong)
        ]
        assert ((scores[0] - scores[1]).abs().max() > 1e-2) == (name != "b_V"), name


def test_what_survives_with_layernorm_is_what_survives_without(monkeypatch):
    model, prompts = folded(), some_prompts()

    def six(model, change):
        numbers, last = spine.pair_numbers(model, prompts, ((0, 1), (1, 0)), change)
        return *numbers, last.pow(4).mean(-1) / last.square().mean(-1).square()

    numbers = six(model, cut.Cut())  # contributions are read at the frozen final scale
    found = spine.attribute(model, prompts).centred["head 1.0"]
    assert torch.allclose(numbers[1], found)
    assert torch.allclose(numbers[2], numbers[1])  # and raw is centred as long as W_U is
    plain = {
        "head coordinates R": (1, 1, 1, 1, 1, 1),
        "stream, orthogonal G": (1, 1, 1, 1, 1, 0),
        "stream, invertible G": (1, 1, 1, 0, 0, 0),
        "W_U + c 1ᵀ": (1, 1, 0, 1, 1, 1),
        "constant per query": (1, 1, 1, 1, 1, 1),
    }
    found = {n: tuple(row) for n, row in bases.survival(model, six, gen()).items()}
    assert found == plain  # as without a norm: a shear moves what a stretch would

    def only_turned(model, generator, condition=10.0):
        return gauge.free_turn(model.cfg.d_model, generator)

    monkeypatch.setattr(bases, "free_change", only_turned)  # mutant: a turn for the whole group
    found = {n: tuple(row) for n, row in bases.survival(model, six, gen()).items()}
    assert found["stream, invertible G"] == plain["stream, orthogonal G"]


def test_the_largest_part_left_out_is_missed_whatever_the_weights(monkeypatch):
    model, prompts, tokens = folded(), some_prompts(), tokens_of(SHAPE)
    monkeypatch.setattr(spine, "name_prompts", lambda: prompts)

    def errors(m):
        return spine.study(m, ((0, 1), (1, 0)), tokens, torch.arange(len(tokens)), gen())[1]

    still = gauge.with_weights(model, W_pos=1e-6 * model.W_pos)  # no position to speak of
    for m in (model, still):
        words, wrong, least = errors(m)["slip"]
        assert "largest" in words and wrong >= least > 0.01 > 1e3 * errors(m)["sum"]


# ---- the spine with another tokenizer ------------------------------------------------------------


class Words:
    """A tokenizer of whole words; what it does not know becomes single letters."""

    bos = 3

    def __init__(self, known):
        self.known = known

    def encode(self, text, *, bos=True):
        ids = [self.bos] if bos else []
        for word in text.replace(".", " .").replace(",", " ,").split():
            known = word in self.known
            ids += [100 + self.known.index(word)] if known else [10 + len(c) for c in word]
        return ids

    def token(self, string):
        (one,) = self.encode(string, bos=False)
        return one

    def decode(self, ids):
        return " ".join(self.known[i - 100] if i >= 100 else f"#{i}" for i in ids)


PLAIN = "I always loved visiting . Whenever was feeling sad ,".split()


def test_prompts_hold_the_names_that_are_one_token(monkeypatch):
    known = [*PLAIN, "Aunt", "Uncle", "Mary", "Sally", "John", "Frank"]
    monkeypatch.setattr(spine.tokenizer, "load", lambda: Words(known))
    prompts = spine.name_prompts()
    assert prompts.names == ["Mary", "Sally", "John", "Frank"]
    assert prompts.female == [True, True, False, False]
    assert prompts.tokens.shape == (4, 15) and (prompts.tokens[:, 0] == 3).all()
    assert ((prompts.tokens == prompts.answer[:, None]).sum(1) == 1).all()


@pytest.mark.parametrize("lost", ["Uncle", "John"])
def test_a_title_in_pieces_or_a_name_without_a_rival_gives_no_prompts(monkeypatch, lost):
    known = [*PLAIN, "Aunt", "Uncle", "Mary", "Sally", "John", "Frank"]
    known.remove(lost)
    monkeypatch.setattr(spine.tokenizer, "load", lambda: Words(known))
    prompts = spine.name_prompts()
    assert prompts.names == ["Mary", "Sally"]
    model = folded(SHAPE.replace(d_vocab=200))
    assert all(x.isfinite().all() for x in spine.attribute(model, prompts).named.values())
    monkeypatch.setattr(spine.tokenizer, "load", lambda: Words(PLAIN))
    with pytest.raises(ValueError, match="names"):
        spine.name_prompts()


def test_the_pair_is_found_by_its_patterns(monkeypatch):
    """Biases that hold a planted pattern: head 0.2 looks one back, head 1.3 matches prefixes."""
    model = folded(SHAPE.replace(n_ctx=900, d_vocab=330))
    words = torch.arange(30, 330)
    monkeypatch.setattr(spine.Bench, "frequent", staticmethod(lambda n=500: words))
    batch = spine.probe.repeated_batch(words, 4, generator=gen())
    wanted = {"previous": (0, 2), "induction": (1, 3)}
    patterns = {
        head: spine.probe.synthetic_pattern(kind, batch.tokens)[:, 0].double()
        for kind, head in wanted.items()
    }
    change = cut.replace_patterns(model, patterns)
    with model.hooks(fwd_hooks=list(change.hooks)):
        assert spine.heads_pair(model, 4) == ((0, 2), (1, 3))


# ---- the direct path, the model sets ------------------------------------------------------------


def test_the_direct_path_is_the_model_without_heads_and_positions(monkeypatch):
    model = folded(SHAPE.replace(d_vocab=120))
    words = Words([f"w{i}" for i in range(20)])
    monkeypatch.setattr(bigram.tokenizer, "load", lambda: words)
    found = bigram.direct_path(model, ["w3", "w7", "unknown"])
    assert [row[0] for row in found] == ["w3", "w7"]  # the third is no single token
    bare = gauge.with_weights(
        model, W_O=torch.zeros_like(model.W_O), W_pos=torch.zeros_like(model.W_pos),
        b_O=torch.zeros(2, SHAPE.d_model),
    )  # fmt: skip
    for (_, best, p), token in zip(found, (103, 107)):
        row = bare(torch.tensor([[token]]))[0, 0].softmax(-1)
        assert p == pytest.approx(row.max().item())
        assert best == words.decode([int(row.argmax())])
    with torch.no_grad():
        bare.unembed.b_U.zero_()
    assert bare(torch.tensor([[103]]))[0, 0].softmax(-1).max().item() != pytest.approx(found[0][2])


def test_only_published_models_have_a_row_of_the_series(monkeypatch):
    assert bigram.series() == {}
    with paths.model_set("published"):
        monkeypatch.setattr(bigram.zoo, "load", lambda role: role)
        monkeypatch.setattr(bigram, "direct_path", lambda model, words: [model, len(words)])
        series = bigram.series()["series"]
        assert series == {"heads.attn-only-1l.bigrams": ["attn-only-1l", 8]}
        assert spine.family() == ("attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l")
    assert spine.family()[0] == "attn-only-0l" and len(spine.family()) == 5


def test_depth_is_the_courses_and_says_so(monkeypatch):
    """Published losses hold no zero-layer model: the course's are, and the claim says so."""
    level = {"attn-only-0l": 5.0, "attn-only-1l": 4.0, "attn-only-2l": 3.5}
    monkeypatch.setattr(spine.zoo, "load", lambda role, device: role)
    monkeypatch.setattr(spine, "windows", lambda n, seed: (torch.zeros(n, 9), torch.arange(n) // 2))
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 8))) / 100
    doc = torch.tensor([0, 0, 1, 1, 2, 2])
    today = dict.fromkeys(("attn-only-1l", "attn-only-2l"), noise + 9)
    monkeypatch.setenv("MODELS", "published")
    with paths.model_set("course"):
        made = spine.depth_claim(today, doc, lambda role, text: noise + level[role], 0)
    assert made["models"] == "course" and "course models" in claims.line(made)
    assert made["values"]["first"] == pytest.approx(1) and made["values"]["second"] == 0.5
    assert set(spine.falls(today, doc)) == {"loss_1l_2l"}
    monkeypatch.setenv("MODELS", "course")
    everything = {role: noise + x for role, x in level.items()}
    made = spine.depth_claim(everything, doc, lambda *_: 1 / 0, 0)  # nothing is measured again
    assert "models" not in made and made["holds"]


def test_the_begin_of_sequence_token_is_not_assumed_to_be_zero():
    assert BOS == "<|bos|>" and Words([]).bos != 0
    prompts = some_prompts()
    other = prompts._replace(
        tokens=torch.cat([prompts.tokens[:, :1] + 3, prompts.tokens[:, 1:]], 1)
    )
    model = folded()
    found = spine.attribute(model, other)
    assert gap(spine.answer_logit(model, other), sum(found.centred.values())) <= 1e-12


def test_a_card_says_what_the_files_say(monkeypatch, tmp_path):
    (tmp_path / "model_final.pth").write_bytes(b"seventeen bytes !")
    config = KINDS["one layer"]
    monkeypatch.setattr(cards.models, "raw", lambda role: raw(config))
    monkeypatch.setattr(cards.fetch, "folder", lambda pin: tmp_path)
    monkeypatch.setattr(cards.fetch, "commit", lambda pin: "0123456789abcdef" + pin.name)
    with paths.model_set("published"):
        made = spine.cards()
    assert set(made) == set(spine.family()[1:])
    card = made["gelu-1l"]
    d, h, e, m, v = 32, 4, 8, 48, 120
    attention = 4 * h * d * e + 3 * h * e + d
    mlp, norms = 2 * d * m + m + d, 3 * 2 * d
    assert card["parameters"] == 2 * v * d + v + 24 * d + attention + mlp + norms
    assert (card["layers"], card["width"], card["heads"], card["neurons"]) == (1, d, h, m)
    assert card["file (bytes)"] == 17 and card["revision"] == "0123456789ab"
    assert "training tokens" not in card  # the files do not say


def test_training_curves_are_the_courses_whatever_the_models(monkeypatch):
    monkeypatch.setattr(spine.zoo, "thin_curves", lambda role: {"of": paths.models()})
    with paths.model_set("published"):
        assert spine.curves() == dict.fromkeys(spine.zoo.MAIN_ROLES, {"of": "course"})
