"""Name prompts from both sides: sums that must be exact, heads with known reasons, and mutants."""

from dataclasses import replace

import pytest
import torch
from small_model import gen, model_of, tokens_of

from circuitbook import cut, gauge
from circuitbook.aunt_sally import control, prompts, read_side, reason
from circuitbook.aunt_sally.forward import attend, forward, reader
from circuitbook.composition import bilinear
from circuitbook.config import Config

SMALL = Config(2, d_model=24, n_heads=3, d_head=6, n_ctx=40, d_vocab=70)
ONE = replace(SMALL, n_layers=1)
MLP = replace(SMALL, d_mlp=20, act="gelu")
TRAINED = ("attn-only-1l", "attn-only-2l", "gelu-2l")
KEY = 4
CASES = [
    pytest.param((kind, dtype), id=f"{kind} {dtype}")
    for kind in ("two", "one", "mlp")
    for dtype in ("float32", "float64")
] + [
    pytest.param((role, dtype), id=f"{role} {dtype}", marks=pytest.mark.weights)
    for role in TRAINED
    for dtype in ("float32", "float64")
]


def given(kind, name):
    """(model, tokens [n, pos], limit of relative rounding)."""
    dtype = getattr(torch, name)
    limit = 1e-11 if name == "float64" else 1e-4
    toys = {"two": SMALL, "one": ONE, "mlp": MLP}
    if kind in toys:
        model = model_of(toys[kind], dtype, seed=2, scale=2.0)
        return model, tokens_of(model.cfg, n=4, length=12), limit
    from circuitbook import zoo

    model = zoo.load(kind, dtype=dtype, device="cpu")
    return model, prompts.frames(prompts.FRAMES[:1])[0].tokens[:6], limit


@pytest.fixture(params=CASES)
def case(request):
    """Every model."""
    return given(*request.param)


@pytest.fixture(params=[c for c in CASES if c.values[0][0] not in ("one", "attn-only-1l")])
def deep_case(request):
    """Every model with two layers: only these have an edge between heads."""
    return given(*request.param)


def toy(config=SMALL, n=4, length=12):
    model = model_of(config, seed=2, scale=2.0)
    tokens = tokens_of(config, n=n, length=length)
    return model, tokens, forward(model, tokens)


def test_the_prompts_are_what_they_say():
    frames = prompts.frames()
    aunt, uncle = prompts.title_ids()
    assert sum(len(f.tokens) for f in frames) >= 200 and len({f.name for f in frames}) >= 4
    assert len({f.last - f.name for f in frames}) >= 3  # how much comes between varies
    for f in frames:
        assert (f.tokens[:, 0] == 0).all() and (f.tokens[:, 1:] != 0).all()
        assert (f.tokens[:, f.name] == f.answer).all() and f.first == f.name - 1
        want = torch.tensor([aunt if female else uncle for female in f.female])
        for place in (f.first, -1):
            assert torch.equal(f.tokens[:, place], want)
        titles = (f.tokens == aunt) | (f.tokens == uncle)
        assert (titles.sum(1) == 2).all() and f.last == f.tokens.shape[1] - 1
        assert ((f.tokens == f.answer[:, None]).sum(1) == 1).all()  # the name stands there once
    others = prompts.rivals(frames[0])
    assert others.shape[1] == len(others) // 2 - 1
    assert not (others == frames[0].answer[:, None]).any()
    assert frames[0].tokens[prompts.row_of("Sally"), 8] == frames[0].answer[prompts.row_of("Sally")]


def test_a_swap_changes_the_titles_it_names_and_nothing_else():
    frame = prompts.frames(prompts.FRAMES[1:2])[0]
    want = {"none": [], "first": [frame.first], "last": [frame.last],
            "both": [frame.first, frame.last]}  # fmt: skip
    for which, places in want.items():
        new = prompts.swapped(frame, which)
        changed = (new != frame.tokens).any(0).nonzero()[:, 0].tolist()
        assert changed == places
        assert all((new[:, p] != frame.tokens[:, p]).all() for p in places)
        again = prompts.swapped(frame._replace(tokens=new), which)
        assert torch.equal(again, frame.tokens)
    with pytest.raises(ValueError, match="which title"):
        prompts.swapped(frame, "middle")
    for wrong in ("{title} {name} came, and {title}", "Here came {name}, my {title}. So {title}"):
        with pytest.raises(ValueError):
            prompts.frames((wrong,))


def test_one_head_again_is_the_whole_model_again(case):
    model, tokens, limit = case
    seen = forward(model, tokens)
    assert (seen.last - model.stream(tokens)[:, -1]).abs().max() <= limit * seen.last.abs().max()
    for head in range(min(3, model.cfg.n_heads)):
        A, last = attend(model, reader(model, seen, head))
        assert (A - seen.patterns[-1][:, head, -1]).abs().max() <= limit
        assert (last - seen.last).abs().max() <= limit * seen.last.abs().max()
    stream = model.W_E[tokens] + seen.writes.sum(1)
    assert (stream - seen.stream).abs().max() <= limit * seen.stream.abs().max()


def test_edge_cuts_are_runs_under_cut_path(deep_case):
    model, tokens, limit = deep_case
    pair = (0, 1), (1, 2)
    seen = forward(model, tokens)
    found = control.edge_cuts(model, seen, pair)
    turned = {f"turned.{i}" for i in range(control.TURNS)}
    assert set(found) == {"none", "key", "query", "value", *turned} | {
        f"0.{g}" for g in range(model.cfg.n_heads) if g != 1
    }
    edges = {"key": (1, "k"), "query": (1, "q"), "value": (1, "v"), "0.0": (0, "k")}
    for name, (g, into) in edges.items():
        slow = forward(model, tokens, cut.cut_path(model, (0, g), pair[1], into))
        A, last = found[name]
        assert (A - slow.patterns[1][:, 2, -1]).abs().max() <= limit
        assert (last - slow.last).abs().max() <= limit * seen.last.abs().max()
    if model.cfg.n_ctx == SMALL.n_ctx:  # random weights: every cut matters, so slips would show
        moved = {n: (x[1] - seen.last).abs().max().item() for n, x in found.items()}
        assert moved.pop("none") <= limit * 10 and min(moved.values()) > 1e-3
        assert len({round(x, 6) for x in moved.values()}) == len(moved)
    assert torch.allclose(found["value"][0], found["none"][0], atol=limit)


def test_the_patch_moves_one_edge_and_nothing_else(deep_case):
    model, tokens, limit = deep_case
    pair, other = ((0, 1), (1, 2)), tokens.clone()
    other[:, 3] = other[:, 3].roll(1)
    seen, there = forward(model, tokens, cut.Cut()), forward(model, other, cut.Cut())
    change = control.other_reason(pair, there.writes[:, 1])
    slow = forward(model, tokens, change)
    A, last = control.patched(model, seen, there, pair)
    assert (A - slow.patterns[1][:, 2, -1]).abs().max() <= limit
    assert (last - slow.last).abs().max() <= limit * seen.last.abs().max()
    rest = [h for h in range(model.cfg.n_heads) if h != 2]
    assert torch.equal(slow.patterns[1][:, rest], seen.patterns[1][:, rest])
    assert torch.equal(slow.writes, seen.writes) and torch.equal(slow.stream, seen.stream)
    same = control.patched(model, seen, seen, pair)
    assert (same[1] - seen.last).abs().max() <= limit * seen.last.abs().max()


def test_odds_by_hand():
    model, tokens, seen = toy()
    frame = prompts.Frame(tokens, tokens[:, 3], 2, 3, [True, False, True, False])
    found = control.odds(model, frame, seen.last)
    logits = model(tokens)[:, -1]
    p = logits.softmax(-1)
    for i in range(4):
        rival = frame.answer[(i + 2) % 4]
        assert found.probability[i].item() == pytest.approx(p[i, frame.answer[i]].item())
        assert found.rank[i] == 1 + (logits[i] > logits[i, frame.answer[i]]).sum()
        lead = logits[i, frame.answer[i]] - logits[i, rival]
        assert found.named[i].item() == pytest.approx(lead.item(), abs=1e-9)
        strangers = frame.answer[[(i + 1) % 4, (i + 3) % 4]]
        assert found.other[i].item() == pytest.approx(p[i, strangers].sum().item())


def test_what_a_head_copies_of_a_token_hangs_on_the_token_alone():
    model, tokens, _ = toy()
    other = tokens.clone()
    other[:, 4] = other[:, 4].roll(1)  # the token before, as with another title
    runs = [forward(model, t) for t in (tokens, other)]
    (own, whole), (own2, whole2) = (control.copied(model, p, 2, 5) for p in runs)
    want = (model.W_E[tokens[:, 5]] @ model.W_V[1, 2]) @ model.W_O[1, 2]
    assert torch.allclose(own, want, atol=1e-12) and torch.equal(own, own2)
    assert (whole - whole2).abs().max() > 1e-3  # what the first layer wrote there is another thing
    v = reader(model, runs[0], 2).v[:, 5]
    assert torch.allclose(whole, v @ model.W_O[1, 2], atol=1e-12)
    assert (control.copied(model, runs[0], 1, 5)[0] - own).abs().max() > 1e-2
    other[:, 5] = other[:, 5].roll(1)  # a mutant: the name itself exchanged
    assert not torch.equal(control.copied(model, forward(model, other), 2, 5)[0], own)


# ---- the read side ------------------------------------------------------------------------------


def test_paths_sum_to_the_logit(case):
    model, tokens, limit = case
    if not model.cfg.attn_only:
        with pytest.raises(ValueError, match="attention-only"):
            read_side.path_names(model) and read_side.check(model)
        return
    seen, u = forward(model, tokens), torch.randn(len(tokens), model.cfg.d_model, generator=gen(4))
    u = u.to(model.W_E)
    each = read_side.paths_to_logit(model, tokens, seen.patterns, u)
    names, want = read_side.path_names(model), (seen.last * u).sum(-1)
    assert each.shape[1] == len(names) == (1 + model.cfg.n_heads) ** model.cfg.n_layers
    assert (each.sum((1, 2)) - want).abs().max() <= limit * want.abs().max()
    for left in ("direct", "0.1", "1.2", "0.1 → 1.2"):  # every kind of path is needed
        if left in names and model.cfg.d_model == SMALL.d_model:
            keep = [i for i, n in enumerate(names) if n != left]
            assert (each[:, keep].sum((1, 2)) - want).abs().max() > 1e-3


def test_each_path_is_the_term_of_the_expansion():
    from circuitbook.expansion import expand

    model, tokens, seen = toy()
    u = torch.randn(4, 24, generator=gen(4), dtype=torch.float64)
    each = read_side.paths_to_logit(model, tokens, seen.patterns, u)
    found = dict(zip(read_side.path_names(model), each.unbind(1), strict=True))
    for term in expand.expand(model, tokens, expand.record(model, tokens)):
        name = " → ".join(f"{l}.{h}" for l, h in term.path) or "direct"
        want = (term.write[:, -1] * u).sum(-1)
        assert torch.allclose(found[name].sum(1), want, atol=1e-10), name
    # and by source: a token made silent takes its own column away
    quiet = model.W_E.clone()
    token = tokens[0, 5]
    quiet[token] = 0
    silent = gauge.with_weights(model, W_E=quiet)
    after = read_side.paths_to_logit(silent, tokens[:1], [p[:1] for p in seen.patterns], u[:1])
    here = tokens[0] == token
    assert after[0][:, here].abs().max() == 0
    assert torch.allclose(after[0][:, ~here], each[0][:, ~here])


def test_the_read_side_cannot_see_scores():
    model, tokens, seen = toy()
    u = torch.randn(4, 24, generator=gen(4), dtype=torch.float64)
    other = gauge.with_weights(model, W_Q=model.W_Q * 3, W_K=-model.W_K)
    each = [read_side.paths_to_logit(m, tokens, seen.patterns, u) for m in (model, other)]
    assert torch.equal(*each)
    again = forward(other, tokens)
    assert (again.patterns[1] - seen.patterns[1]).abs().max() > 0.1


# ---- the reason side ----------------------------------------------------------------------------


def test_terms_sum_to_the_score(case):
    model, tokens, limit = case
    seen = forward(model, tokens)
    parts = reason.parts(model, tokens, seen)
    assert parts.shape[1] == len(reason.source_names(model))
    name = f"blocks.{model.cfg.n_layers - 1}.attn.hook_attn_scores"
    scores = cut.run(model, tokens, names=[name])[1][name][:, :, -1]
    for head in range(min(3, model.cfg.n_heads)):
        raw, centred = reason.terms(model, parts, head, KEY)
        s = scores[:, head]
        size = s.abs().max()
        assert (raw.sum((1, 2)) - s[:, KEY]).abs().max() <= limit * size
        assert (centred.sum((1, 2)) - (s[:, KEY] - s.mean(1))).abs().max() <= limit * size
        whole = sum(reason.by_class(centred).values())
        assert torch.allclose(whole, centred.sum((1, 2)), atol=limit * size.item())
    if model.cfg.d_model == SMALL.d_model:
        # mutants: no position, no 1/sqrt(d_head), query and key sides exchanged
        left = parts.clone()
        left[:, 1] = 0
        raw = reason.terms(model, left, 0, KEY)[0].sum((1, 2))
        assert (raw - scores[:, 0, KEY]).abs().max() > 1e-2
        turned = gauge.with_weights(model, W_Q=model.W_K, W_K=model.W_Q)
        raw = reason.terms(turned, parts, 0, KEY)[0].sum((1, 2))
        assert (raw - scores[:, 0, KEY]).abs().max() > 1e-2
        assert (scores[:, 0, KEY] * (6**0.5 - 1)).abs().max() > 1e-2


def test_terms_are_those_of_chapter_five():
    model, tokens, seen = toy()
    parts = reason.parts(model, tokens, seen)
    for row in range(2):
        window = bilinear.take_apart(model, tokens[row])
        assert torch.allclose(parts[row], window.parts, atol=1e-12)
        raw, centred = reason.terms(model, parts, 1, KEY)
        for a, b in ((0, 0), (1, 3), (2, 4), (4, 0)):
            want = bilinear.term(model, window, 1, a, b)[-1]
            assert raw[row, a, b].item() == pytest.approx(want[KEY].item(), abs=1e-10)
            assert centred[row, a, b].item() == pytest.approx(
                (want[KEY] - want.mean()).item(), abs=1e-10
            )


def test_classes_name_the_side_that_came_through_the_first_layer():
    centred = torch.zeros(1, 4, 4)  # rows: query sources token, position, 0.0, 0.1
    centred[0, 1, 0], centred[0, 3, 1], centred[0, 0, 2], centred[0, 2, 3] = 1.0, 2.0, 4.0, 8.0
    found = {name: x.item() for name, x in reason.by_class(centred).items()}
    assert found == {"neither": 1.0, "query side": 2.0, "key side": 4.0, "both": 8.0}


def test_what_is_equal_for_all_keys_is_no_reason():
    model, tokens, seen = toy()
    parts = reason.parts(model, tokens, seen)
    parts[:, 3] = parts[:, 3, 5:6]  # one head writes the same everywhere
    raw, centred = reason.terms(model, parts, 1, KEY)
    assert raw[:, :, 3].abs().max() > 1e-2  # a mutant without centring would blame it
    assert centred[:, :, 3].abs().max() < 1e-10
    assert centred[:, 3].abs().max() > 1e-3  # as a query it still asks


def test_the_key_term_is_a_sum_over_what_the_writer_read():
    model, tokens, seen = toy()
    _, centred = reason.terms(model, reason.parts(model, tokens, seen), 2, KEY)
    each = reason.key_term_by_token(model, tokens, seen.patterns[0][:, 1], (1, 2), KEY)
    assert torch.allclose(each.sum(1), centred[:, 0, 2 + 1], atol=1e-10)
    assert torch.equal(reason.through_key(centred, 1), centred[:, :, 3].sum(1))
    wrong = reason.key_term_by_token(model, tokens, seen.patterns[0][:, 0], (1, 2), KEY)
    assert (wrong.sum(1) - centred[:, 0, 3]).abs().max() > 1e-3


def planted(strength=1.0):
    """Layer 0, head 0 marks each token with the one before it; layer 1, head 0 asks for that mark.

    d_model 40: tokens in 0..9, marks in 10..19, positions in 20..39 (one-hot and learned).
    """
    cfg = Config(2, d_model=40, n_heads=1, d_head=20, n_ctx=20, d_vocab=10, pos_kind="learned")
    model = model_of(cfg, scale=0.0)
    for p in model.parameters():
        p.zero_()
    eye = torch.eye(40, dtype=torch.float64)
    W = {n: getattr(model, n).clone() for n in ("W_Q", "W_K", "W_V", "W_O")}
    for i in range(19):
        W["W_Q"][0, 0, 20 + i + 1, i] = 30.0  # position i + 1 asks for position i
        W["W_K"][0, 0, 20 + i, i] = 30.0
    W["W_V"][0, 0, :10, :10] = eye[:10, :10]
    W["W_O"][0, 0, :10, 10:20] = eye[:10, :10]
    W["W_Q"][1, 0, :10, :10] = eye[:10, :10] * 40 * strength
    W["W_K"][1, 0, 10:20, :10] = eye[:10, :10]
    W["W_V"][1, 0, :10, :10] = eye[:10, :10]
    W["W_O"][1, 0, :10, :10] = eye[:10, :10]
    return gauge.with_weights(
        model, W_E=eye[:10], W_pos=eye[20:], W_U=eye[:, :10] - 0.1 * eye.sum(1)[:, None], **W
    )


def test_a_planted_reason_is_found_and_a_planted_coincidence_is_not():
    model = planted()
    tokens = torch.tensor([[0, 3, 7, 5, 4, 6, 3]])  # title 3, name 7, ..., title 3
    seen = forward(model, tokens)
    assert seen.patterns[1][0, 0, -1, 2] > 0.95
    _, centred = reason.terms(model, reason.parts(model, tokens, seen), 0, 2)
    share = reason.through_key(centred, 0) / centred.sum((1, 2))
    each = reason.key_term_by_token(model, tokens, seen.patterns[0][:, 0], (0, 0), 2)
    assert share.item() == pytest.approx(1, abs=1e-6)
    key_side = reason.by_class(centred)["key side"]
    assert (key_side / centred.sum()).item() == pytest.approx(1, abs=1e-6)
    assert (each[0, 1] / each[0].sum()).item() == pytest.approx(1, abs=1e-6)
    pair = (0, 0), (1, 0)
    cuts = control.edge_cuts(model, seen, pair)
    assert cuts["key"][0][0, 2] < 0.2 and cuts["query"][0][0, 2] > 0.95
    other = tokens.clone()
    other[0, 1] = 8
    A, _ = control.patched(model, seen, forward(model, other), pair)
    assert A[0, 2] < 0.2
    # adversarial: a head that likes the name itself, as one layer does, looks there all the same
    liking = planted(0.0)
    W_Q, W_K = liking.W_Q.clone(), liking.W_K.clone()
    W_Q[1, 0, 3, 19], W_K[1, 0, 7, 19] = 40.0, 1.0
    liking = gauge.with_weights(liking, W_Q=W_Q, W_K=W_K)
    seen = forward(liking, tokens)
    assert seen.patterns[1][0, 0, -1, 2] > 0.95
    _, centred = reason.terms(liking, reason.parts(liking, tokens, seen), 0, 2)
    assert reason.through_key(centred, 0).abs().item() < 1e-9
    assert reason.by_class(centred)["neither"].item() == pytest.approx(centred.sum().item())
    assert control.edge_cuts(liking, seen, pair)["key"][0][0, 2] > 0.95
    assert forward(liking, other).patterns[1][0, 0, -1, 2] > 0.95  # nor does the control move it


def test_models_that_do_not_fit_are_refused():
    wrong = replace(SMALL, n_layers=3)
    model = model_of(wrong)
    with pytest.raises(ValueError, match="needs"):
        forward(model, tokens_of(wrong))
    with pytest.raises(ValueError, match="needs"):
        read_side.check(model)
    normed, tokens = model_of(replace(SMALL, norm="layernorm_pre")), tokens_of(SMALL)
    seen = forward(normed, tokens)
    for no_scales in (
        lambda: read_side.paths_to_logit(normed, tokens, seen.patterns, seen.last),
        lambda: reason.key_term_by_token(normed, tokens, seen.patterns[0][:, 1], (1, 2), KEY),
    ):
        with pytest.raises(ValueError, match="scales"):
            no_scales()
