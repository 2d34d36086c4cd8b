"""Chapter 06 with LayerNorm, biases and positions in the stream: sums, cuts, protocols."""

import pytest
import saved
import torch
from small_model import gen

from circuitbook import cut, fold, gauge, paths, probe, tokenizer, zoo
from circuitbook.claims import recheck
from circuitbook.config import Config
from circuitbook.induction import circuit, origin, public, ratio, repeats, trial
from circuitbook.model import Transformer

taught = pytest.importorskip("circuitbook.taught", reason="run tools/derive.py taught")
TIGHT = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = pytest.mark.parametrize("dtype", TIGHT)
WRITER, READER = (0, 1), (1, 2)
AT = "blocks.1."


def published_like(dtype=torch.float64, d_mlp=0, n_ctx=128, d_vocab=150, folded=True):
    """A random model of the published shape, small: nothing in it is zero."""
    cfg = Config(
        n_layers=2, d_model=32, n_heads=4, d_head=8, d_mlp=d_mlp, n_ctx=n_ctx, d_vocab=d_vocab,
        act="gelu" if d_mlp else "none", norm="layernorm", positions="standard",
        pos_kind="learned", attn_bias=True, unembed_bias=True,
    )  # fmt: skip
    model = Transformer(cfg, seed=1).double().requires_grad_(False)
    for name, p in model.named_parameters():
        kind, noise = name.rsplit(".", 1)[-1], torch.randn(p.shape, generator=gen(len(name)))
        p.mul_(2.5) if "W_" in kind else p.copy_(0.4 * noise + (1 if kind == "w" else 0))
    if folded:
        model = fold.fold_value_biases(fold.center_writing_weights(fold.fold_layer_norm(model)))
    return model.to(dtype).requires_grad_(False)


def batch_of(n=3, **more):
    shape = {"copies": 2, "block": 8, "gap": (3, 9)} | more
    return probe.repeated_batch(torch.arange(5, 140), n, generator=gen(2), **shape)


def far(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def norm(model, x, scale=None):
    x = x - x.mean(-1, keepdim=True)
    return x / (
        (x.square().mean(-1, keepdim=True) + model.cfg.eps).sqrt() if scale is None else scale
    )


def pattern(q, k):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)


def seen(model, tokens, change=None):
    """Every hook of one run, heads separate."""
    return cut.run(model, tokens, change, names=None)[1]


def reader_side(model, x, which, scale=None, bias=True):
    """n W + b of the reader, from its stream input x."""
    attn, h = model.blocks[1].attn, READER[1]
    return (
        norm(model, x, scale) @ getattr(attn, f"W_{which}")[h]
        + bias * getattr(attn, f"b_{which}")[h]
    )


# ---- cuts ----------------------------------------------------------------------------------------


@DTYPES
def test_the_key_cut_is_what_plain_matrices_say(dtype):
    model, tokens = published_like(dtype), batch_of().tokens
    c = seen(model, tokens)
    x, w = c[AT + "hook_resid_pre"], c["blocks.0.attn.hook_result"][:, :, WRITER[1]]
    name = AT + "attn.hook_pattern"
    got = seen(model, tokens, cut.cut_path(model, WRITER, READER, "k"))[name][:, READER[1]]
    q, k = reader_side(model, x, "Q"), reader_side(model, x - w, "K")
    assert far(pattern(q, k), got) < TIGHT[dtype]
    scale = c[AT + "ln1.hook_scale"][:, :, 0]
    mutants = {
        "scale not computed again": pattern(q, reader_side(model, x - w, "K", scale)),
        "no scale": pattern(q, reader_side(model, x - w, "K", 1.0)),
        "no query bias": pattern(reader_side(model, x, "Q", bias=False), k),
        "no position": pattern(q, reader_side(model, x - w - model.W_pos[: x.shape[1]], "K")),
        "no cut": pattern(q, reader_side(model, x, "K")),
    }
    for name, mutant in mutants.items():
        assert far(mutant, got) > 1e-3, name


@DTYPES
@pytest.mark.parametrize("direct", [True, False])
def test_an_edge_through_an_mlp_with_its_own_scale(dtype, direct):
    model, tokens = published_like(dtype, d_mlp=64), batch_of().tokens
    c, block = seen(model, tokens), model.blocks[0]
    x, w = c[AT + "hook_resid_pre"], c["blocks.0.attn.hook_result"][:, :, WRITER[1]]
    m, s = c["blocks.0.hook_resid_mid"], c["blocks.0.ln2.hook_scale"]

    def mlp(y, scale=None):
        return block.mlp(norm(model, y, scale))

    change = circuit.through_mlp(model, WRITER, READER, "k", direct=direct, mediated=True)
    got = seen(model, tokens, change)[AT + "attn.hook_pattern"][:, READER[1]]
    q, left = reader_side(model, x, "Q"), x - w if direct else x
    for answer, right in (
        (mlp(m) - mlp(m - w), True),
        (mlp(m) - mlp(m - w, s), False),  # mutant: the MLP's scale held
        (mlp(w), False),  # mutant: the write alone, without the rest of the stream
        (torch.zeros_like(w), False),  # mutant: no part through the MLP
    ):
        error = far(pattern(q, reader_side(model, left - answer, "K")), got)
        assert (error < TIGHT[dtype]) if right else (error > 1e-3)


@DTYPES
@pytest.mark.parametrize("d_mlp", [0, 64])
def test_the_value_cut_moves_no_pattern_and_does_move_logits(dtype, d_mlp):
    model, tokens = published_like(dtype, d_mlp), batch_of().tokens
    cuts = {i: cut.cut_path(model, WRITER, READER, i) for i in "qkv"}
    assert circuit.pattern_movement(model, tokens, cuts["v"], READER) == 0
    for i in "qk":  # mutant: another input
        assert circuit.pattern_movement(model, tokens, cuts[i], READER) > 1e-3
    assert cut.logit_change(model, tokens, cuts["v"]).abs().max() > 1e-3


# ---- the virtual table inside the real score -----------------------------------------------------


@DTYPES
def test_the_virtual_table_is_a_term_of_the_real_score(dtype):
    """q . k = sum over parts of both sides; one term is T[token t, token i] over three scales."""
    model, tokens = published_like(dtype), batch_of(1).tokens
    c, (attn0, attn1), h = seen(model, tokens), [b.attn for b in model.blocks], READER[1]
    n, d = tokens.shape[1], model.cfg.d_model
    E, P = model.W_E[tokens[0]], model.W_pos[:n]
    s1, s = (c[f"blocks.{layer}.ln1.hook_scale"][0, :, 0] for layer in (0, 1))  # [pos, 1]
    A1 = c["blocks.0.attn.hook_pattern"][0]

    def moved(x, head):  # what the head carries of this part of the stream
        centred = x - x.mean(-1, keepdim=True)
        return A1[head] @ (centred / s1) @ attn0.W_V[head] @ attn0.W_O[head]

    heads = range(model.cfg.n_heads)
    stream = {"token": E, "position": P, "bias": attn0.b_O.expand(n, d)}
    stream |= {f"token through 0.{j}": moved(E, j) for j in heads}
    stream |= {f"position through 0.{j}": moved(P, j) for j in heads}

    def side(which):
        W, b = getattr(attn1, f"W_{which}")[h], getattr(attn1, f"b_{which}")[h]
        parts = {k: (x - x.mean(-1, keepdim=True)) / s @ W for k, x in stream.items()}
        return parts | {"own bias": b.expand(n, -1)}

    queries, keys, root = side("Q"), side("K"), model.cfg.d_head**0.5
    terms = {(a, b): q @ k.mT / root for a, q in queries.items() for b, k in keys.items()}
    score = c[AT + "attn.hook_attn_scores"][0, h]
    allowed = score > -torch.inf
    total = sum(terms.values())
    assert far(total[allowed], score[allowed]) < 10 * TIGHT[dtype]
    A, B = taught.virtual_qk(
        model.W_E, attn0.W_V[WRITER[1]], attn0.W_O[WRITER[1]], attn1.W_Q[h], attn1.W_K[h]
    )
    off = (model.W_E @ attn0.W_V[WRITER[1]] @ attn0.W_O[WRITER[1]] @ attn1.W_K[h]).mean(0)
    B = B + off[:, None]  # the table's rows are centred over the vocabulary
    table = (A @ B)[tokens[0]][:, tokens[0]]  # [query, token before the key]
    virtual = (table / s / s1.mT) @ A1[WRITER[1]].mT / s.mT
    term = terms["token", f"token through 0.{WRITER[1]}"]
    assert far(virtual, term) < 10 * TIGHT[dtype]
    for name, mutant in {
        "no scales": table @ A1[WRITER[1]].mT,
        "the query's scale alone": (table / s) @ A1[WRITER[1]].mT,
        "transposed": (table.mT / s / s1.mT) @ A1[WRITER[1]].mT / s.mT,
    }.items():
        assert far(mutant, term) > 1e-2, name
    for side_of, part in ((0, "own bias"), (0, "position"), (1, "bias"), (1, "own bias")):
        without = sum(t for key, t in terms.items() if key[side_of] != part)
        assert far(without[allowed], score[allowed]) > 1e-3, part


# ---- what survives -------------------------------------------------------------------------------


def test_four_changes_keep_the_function_and_their_mutants_do_not():
    model, batch = published_like(), batch_of(2)
    clean = model(batch.tokens).softmax(-1)
    changes = circuit.four_changes(model, taught.change_head_coordinates)
    for name, (new, shift) in changes.items():
        with circuit.under(new, shift or cut.Cut()):
            assert far(new(batch.tokens).softmax(-1), clean) < 1e-10, name
    moves = circuit.survival(model, batch, (WRITER, READER), taught.change_head_coordinates)
    for change, row in moves.items():
        assert max(row[q] for q in origin.SAFE) < 1e-9, change
    assert moves["stream coordinates G"]["K-composition score"] > 0.1  # a shear is free
    assert moves["constant per query"]["raw score at the match"] > 0.01
    assert moves["head coordinates R"]["size of what it moves"] < 1e-9
    turned = changes["head coordinates R"][0]
    stay = {
        f"b_{x}": torch.stack([b.attn.get_parameter(f"b_{x}") for b in model.blocks]) for x in "QK"
    }
    mutant = gauge.with_weights(turned, **stay)  # biases left in the old coordinates
    assert far(mutant(batch.tokens).softmax(-1), clean) > 1e-2
    G = gauge.invertible(32, 32, condition=1.0, generator=gen())  # a rotation, but not about 1
    with pytest.raises(ValueError, match="LayerNorm"):
        gauge.change_stream(model, G)
    mutant = gauge.change_stream(model, G, free=False)
    assert far(mutant(batch.tokens).softmax(-1), clean) > 1e-2


# ---- readings of a model -------------------------------------------------------------------------


@DTYPES
def test_losses_at_repeats_and_in_context_are_those_of_the_model(dtype):
    model, batch = published_like(dtype, n_ctx=600), batch_of()
    loss = model(batch.tokens, return_type="loss_per_token")
    got, where = circuit.readout(model, batch, part=2), circuit.copy_positions(batch)
    rows = torch.arange(len(loss))[:, None, None]
    assert far(got.loss, loss[rows, where[..., 1:] - 1]) < TIGHT[dtype]
    assert far(got.loss, loss[rows, where[..., 1:] - 2]) > 1e-2  # mutant: off by one
    windows = torch.randint(5, 150, (2, 512), generator=gen(4))
    wanted = probe.in_context_scores(model(windows, return_type="loss_per_token"))
    assert (circuit.in_context(model, windows) - wanted).abs().max() < 10 * TIGHT[dtype]
    flat = fold.center_unembed(model).requires_grad_(False)
    flat.unembed.b_U.zero_()  # mutant: no unembedding bias
    assert (circuit.in_context(flat, windows) - wanted).abs().max() > 1e-3


def test_folding_changes_no_reading():
    raw, batch = published_like(folded=False), batch_of()
    one, two = (circuit.readout(m, batch) for m in (raw, published_like()))
    assert far(one.prefix, two.prefix) < 1e-10 and far(one.loss, two.loss) < 1e-10


def test_a_pair_without_effect_is_measured_as_nothing():
    model, batch = published_like(), batch_of()
    model.blocks[0].attn.W_O.zero_()
    found = circuit.edge_effects(model, batch, READER, [WRITER])
    assert max(abs(x) for x in found["rise"][0] + found["prefix_lost"][0]) < 1e-12
    sizes = repeats.key_query_value(model, batch, (WRITER, READER))
    assert sizes["pattern_moved"] == 0 and sizes["key_more"][0][1] < 1e-12
    words = torch.arange(5, 40)
    tables = repeats.virtual_tables(model, words, taught.virtual_qk)
    assert tables["eigen"].max() == 0 and tables["on_top"].max() == 0  # ties count against
    clean = circuit.readout(model, batch)
    assert circuit.induction_heads(clean, 2, floor=2.0) == [2]
    assert circuit.induction_heads(clean, 2, floor=0.0) == [0, 1, 2, 3]


# ---- the model set -------------------------------------------------------------------------------


def test_repeats_open_with_the_start_token_of_the_model_set(monkeypatch):
    class Other:
        bos = 77

    monkeypatch.setattr(tokenizer, "load", Other)
    words = torch.arange(100, 140)

    def first():
        batches = (
            probe.repeated_batch(words, 2, copies=2, block=4, gap=(1, 3)),
            probe.published_batch("2x50", words, 2),
        )
        return {int(t) for b in batches for t in b.tokens[:, 0]}

    assert first() == {0}
    monkeypatch.setenv("MODELS", "published")
    assert first() == {77}
    with pytest.raises(ValueError, match="begin-of-sequence"):
        probe.repeated_batch(torch.arange(60, 100), 2, copies=2, block=4, gap=(1, 3))
    with paths.model_set("course"):
        assert first() == {0}


def test_only_the_models_of_the_set_are_loaded(monkeypatch):
    loaded = published_like()
    monkeypatch.setattr(zoo, "load", lambda role: loaded)
    roles = ("attn-only-2l", "attn-only-2l-again", "gelu-2l", "attn-only-1l")
    assert list(repeats.at_hand(roles)) == list(roles)
    monkeypatch.setenv("MODELS", "published")
    assert list(repeats.at_hand(roles)) == ["attn-only-2l", "gelu-2l", "attn-only-1l"]


def test_claims_say_whose_models_they_are_about(monkeypatch):
    d = saved.rechecked("06_induction", 25)[0]
    assert not any("models" in c for c in trial.claims(d))
    monkeypatch.setenv("MODELS", "published")
    found = {c["id"]: c for c in trial.claims(d)}
    own = {id for id, c in found.items() if c.get("models") == "course"}
    words = ("phase_change", "order", "two_seeds", "bump", "turn", "by_hand", "smeared", "pointer")
    assert own == {f"induction.{w}" for w in words}
    survives = found["induction.survives"]
    assert survives["holds"] and "LayerNorm sees neither" in survives["text"]
    d["moves"]["stream coordinates G"]["K-composition score"] = 0.0  # as if only turns were free
    assert not {c["id"]: c for c in trial.claims(d)}["induction.survives"]["holds"]
    assert all(recheck(c) == "" for c in found.values())


def test_claims_survive_a_pair_without_effect():
    d = saved.rechecked("06_induction", 25)[0]
    for me in d["sizes"].values():
        me["key_more"], me["rise"] = [[0.0, 0.0]] * 2, dict.fromkeys(me["rise"], 0.0)
    for row in d["whole"].values():
        row["rise"] = row["rise_se"] = 0.0
    d["icl"]["difference"] = {k: [0.0, 0.0] for k in d["icl"]["difference"]}
    d["previous"] = [0.5] * len(d["previous"])  # no head is "no previous-token head"
    found = {c["id"]: c for c in trial.claims(d)}
    assert not found["induction.icl_beats_random"]["holds"] and ratio(1.0, 0.0) == 0
    other = found["induction.other_keys"]
    assert other["values"]["n"] == 0 and other["values"]["head"] == "none"


# ---- public protocols ----------------------------------------------------------------------------


def test_public_behaviour_by_plain_loops():
    model = published_like(d_vocab=150)
    block = torch.randint(5, 150, (3, 50), generator=gen(5))
    tokens = torch.cat([torch.zeros(3, 1, dtype=torch.long), block, block], 1)
    previous, stripe, right = public.behaviour(model, tokens, part=2)
    logits, cache = model.run_with_cache(tokens)
    for layer in (0, 1):
        A = cache[f"blocks.{layer}.attn.hook_pattern"]
        by_hand = torch.stack([A[:, :, t, t - 1] for t in range(1, 101)]).mean((0, 1))
        assert far(previous[layer], by_hand) < 1e-12
        by_hand = torch.stack([A[:, :, t, t - 49] for t in range(51, 101)]).mean((0, 1))
        assert far(stripe[layer], by_hand) < 1e-12
        off = torch.stack([A[:, :, t, t - 50] for t in range(51, 101)]).mean((0, 1))
        assert far(stripe[layer], off) > 1e-3  # mutant: the copy itself
    top = logits[:, :-1].argmax(-1) == tokens[:, 1:]
    assert right == top[:, 50:].double().mean().item()


def test_public_share_right_reads_the_prediction_before_the_token():
    copier = published_like()  # made to predict the current token again
    for block in copier.blocks:
        block.attn.W_O.zero_(), block.attn.b_O.zero_()
    copier.pos_embed.W_pos.zero_(), copier.unembed.b_U.zero_()
    copier.unembed.W_U.copy_(norm(copier, copier.W_E).mT)
    block = torch.randint(5, 150, (3, 25), generator=gen(5)).repeat_interleave(2, 1)
    tokens = torch.cat([torch.zeros(3, 1, dtype=torch.long), block, block], 1)
    share = (tokens[:, 50:100] == tokens[:, 51:]).double().mean().item()
    assert 0.4 < share < 0.6
    assert public.behaviour(copier, tokens)[2] == pytest.approx(share)  # one place late it is 1


def test_public_draws_are_those_of_the_source():
    one, two = (public.draws(f"attn-only-{n}l", 48262) for n in (1, 2))
    assert one.repeats.shape == (20, 101) and torch.equal(one.repeats[:, 1:51], one.repeats[:, 51:])
    assert not torch.equal(one.repeats, two.repeats) and not torch.equal(one.ov, two.ov)
    assert two.repeats[:, 1:].min() >= 1000 and two.repeats.max() < 20_000 <= two.ov.max()
    # The printed block of the table has equal columns 2 and 16: one id was drawn twice.
    assert two.table[2] == two.table[16] and len(two.table) == 300
    small = public.draws("attn-only-2l", 300)
    assert max(x.max() for x in small) < 300
    with pytest.raises(KeyError):
        public.draws("gelu-2l", 48262)


def test_public_diagonal_is_the_dense_table():
    model, ids = published_like(), torch.randint(0, 150, (40,), generator=gen(6))
    got = public.diagonal_shares(model, ids, 2, taught.virtual_qk)
    E, own = model.W_E[ids], torch.arange(40)
    for h, share in enumerate(got):
        OV = model.W_V[0, h] @ model.W_O[0, h]
        table = E @ model.W_Q[1, 2] @ model.W_K[1, 2].mT @ OV.mT @ E.mT
        assert share == (table.argmax(1) == own).double().mean().item()


def test_series_rows_only_with_the_published_models(monkeypatch):
    model = published_like()
    assert public.series("attn-only-2l", model, taught.virtual_qk) == {}
    monkeypatch.setenv("MODELS", "published")
    monkeypatch.setattr(probe, "start_token", lambda: 0)
    rows = public.series("attn-only-2l", model, taught.virtual_qk)["series"]
    diagonal = rows["heads.attn-only-2l.virtual_qk_diag"]
    stripe = rows["heads.attn-only-2l.induction_L1"]
    assert diagonal.pop("our_head") == f"1.{int(stripe.argmax())}"
    assert list(diagonal) == [f"0.{h}" for h in range(4)]
    assert len(rows["heads.attn-only-2l.prev_token_L0"]) == 4
    assert 0 <= rows["heads.attn-only-2l.repeat_top1"] <= 1
