"""Name prompts on models of the published kind: norms, positions in the stream, biases; exact."""

from dataclasses import replace

import pytest
import torch
from small_model import gen, model_of, tokens_of

from circuitbook import cut, fold, gauge
from circuitbook.aunt_sally import control, prompts, read_side, reason, sides, study
from circuitbook.aunt_sally.forward import attend, forward, reader
from circuitbook.config import Config

TWO = Config(
    2, d_model=32, n_heads=4, d_head=8, n_ctx=40, d_vocab=120, norm="layernorm_pre",
    positions="standard", pos_kind="learned", attn_bias=True, unembed_bias=True,
)  # fmt: skip
KINDS = {
    "two": TWO,
    "one": replace(TWO, n_layers=1),
    "mlp": replace(TWO, d_mlp=40, act="gelu"),
    "unfolded": replace(TWO, norm="layernorm"),
    "late positions": replace(TWO, positions="shortformer"),
}
CASES = [(kind, dtype) for kind in KINDS for dtype in ("float32", "float64")]
KEY, HEAD = 4, 2
EDGES = ("key", 1, "k"), ("query", 1, "q"), ("value", 1, "v"), ("0.0", 0, "k")


def given(kind, dtype="float64"):
    """(model, tokens [n, pos], limit of relative rounding)."""
    model = model_of(KINDS[kind], getattr(torch, dtype), seed=2, scale=2.0)
    for name, p in model.named_parameters():  # biases that matter, gains near one
        kind = name.rsplit(".", 1)[-1]
        if kind == "w":
            p.add_(1)
        elif kind[0] == "b":
            p.mul_(5)
    return model, tokens_of(model.cfg, n=4, length=12), 1e-10 if dtype == "float64" else 1e-4


def off(got, want):
    return ((got - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("case", CASES)
def test_one_head_again_is_the_whole_model_again(case):
    model, tokens, limit = given(*case)
    seen = forward(model, tokens)
    assert off(model.unembed(seen.last[:, None])[:, 0], model(tokens)[:, -1]) <= limit
    for head in range(3):
        A, last = attend(model, reader(model, seen, head))
        assert off(A, seen.patterns[-1][:, head, -1]) <= limit
        assert off(last, seen.last) <= limit


@pytest.mark.parametrize("case", CASES)
def test_queries_and_keys_are_the_models_own_biases_and_all(case):
    """Softmax does not see a bias of the keys, so the scores are compared before it."""
    model, tokens, limit = given(*case)
    attn = model.blocks[-1].attn
    names = [f"blocks.{model.cfg.n_layers - 1}.attn.hook_{n}" for n in ("attn_scores", *"qkv")]
    cache = cut.run(model, tokens, names=names)[1]
    scores, *qkv = (cache[n] for n in names)
    for head in range(3):
        r = reader(model, forward(model, tokens), head)
        raw = torch.einsum("ne,nke->nk", r.q, r.k) / model.cfg.d_head**0.5
        want = scores[:, head, -1]
        assert off(raw, want) <= limit
        own = qkv[0][:, -1, head], qkv[1][:, :, head], qkv[2][:, :, head]
        for got, theirs in zip((r.q, r.k, r.v), own, strict=True):
            assert off(got, theirs) <= limit
        bare = raw - (r.q @ attn.b_K[head])[:, None] / model.cfg.d_head**0.5  # mutant: no b_K
        assert off(bare, want) > 1e-2 and off(bare.softmax(-1), want.softmax(-1)) <= limit


@pytest.mark.parametrize("case", [c for c in CASES if c[0] != "one"])
def test_cuts_and_patches_are_runs_of_the_whole_model(case):
    model, tokens, limit = given(*case)
    pair, other = ((0, 1), (1, HEAD)), tokens.clone()
    other[:, 3] = other[:, 3].roll(1)
    seen, there = forward(model, tokens, cut.Cut()), forward(model, other, cut.Cut())
    found = control.edge_cuts(model, seen, pair)
    runs = {
        name: (found[name], cut.cut_path(model, (0, g), pair[1], into)) for name, g, into in EDGES
    }
    runs["patched"] = (
        control.patched(model, seen, there, pair),
        control.other_reason(pair, there.writes[:, 1]),
    )
    for name, ((A, last), change) in runs.items():
        slow = forward(model, tokens, change)
        assert off(A, slow.patterns[1][:, HEAD, -1]) <= limit, name
        assert off(last, slow.last) <= limit, name
        assert off(seen.last, slow.last) > 1e-3, name
    if model.cfg.norm != "none" and case[1] == "float64":
        # mutant: the cut input divided by the uncut scale
        w = seen.writes[:, 1]
        n = (seen.stream - w) - (seen.stream - w).mean(-1, keepdim=True)
        n = n / seen.scales[-1]
        if model.cfg.norm == "layernorm_pre" and model.cfg.positions == "standard":
            k = n @ model.W_K[1, HEAD] + model.blocks[1].attn.b_K[HEAD]
            A = attend(model, reader(model, seen, HEAD)._replace(k=k))[0]
            assert off(A, found["key"][0]) > 1e-3


# ---- the read side ------------------------------------------------------------------------------


def all_paths(model, tokens, seen, u, b=None, **wrong):
    given_ = {"scales": (seen.scales, seen.last_scale), "offset": b} | wrong
    return read_side.paths_to_logit(model, tokens, seen.patterns, u, **given_)


@pytest.mark.parametrize("case", [c for c in CASES if c[0] != "mlp"])
def test_paths_sum_to_the_logit(case):
    model, tokens, limit = given(*case)
    seen = forward(model, tokens)
    frame = prompts.Frame(tokens, tokens[:, 3], 2, 3, [True, False, True, False])
    logits = model(tokens)[:, -1]
    answer = logits.gather(1, frame.answer[:, None])[:, 0]
    rival = frame.answer[torch.tensor([2, 3, 0, 1])]
    wants = answer - logits.mean(1), answer - logits.gather(1, rival[:, None])[:, 0]
    names = read_side.path_names(model)
    ways = zip(read_side.directions(model, frame), read_side.offsets(model, frame), wants)
    for u, b, want in ways:
        each = all_paths(model, tokens, seen, u, b)
        assert each.shape[1] == len(names) == len(set(names))
        assert off(each.sum((1, 2)), want) <= limit
        left = ["direct", "0.1", "unembedding bias", "bias 0"]
        left += ["1.2", "0.1 → 1.2", "bias 1", "bias 0 → 1.2"] * (model.cfg.n_layers == 2)
        if model.cfg.positions == "standard":
            left += ["position", "position → 0.1"]
            left += ["position → 0.1 → 1.2"] * (model.cfg.n_layers == 2)
        assert set(left) <= set(names)
        for name in left:  # every kind of path is needed
            keep = [i for i, n in enumerate(names) if n != name]
            assert off(each[:, keep].sum((1, 2)), want) > 1e-3, name
        # mutants: a scale forgotten, b_U forgotten
        ones = [torch.ones_like(s) for s in seen.scales]
        for scales in ((ones, seen.last_scale), (seen.scales, torch.ones_like(seen.last_scale))):
            assert off(all_paths(model, tokens, seen, u, b, scales=scales).sum((1, 2)), want) > 1e-2
        if model.cfg.n_layers == 2:
            later = ([seen.scales[0], ones[1]], seen.last_scale)
            assert off(all_paths(model, tokens, seen, u, b, scales=later).sum((1, 2)), want) > 1e-2
        assert off(all_paths(model, tokens, seen, u).sum((1, 2)), want) > 1e-3


@pytest.mark.parametrize("kind", ["two", "one", "unfolded", "late positions"])
def test_each_path_is_the_term_of_the_expansion(kind):
    from circuitbook.expansion import expand

    model, tokens, _ = given(kind)
    seen = forward(model, tokens)
    u = torch.randn(4, 32, generator=gen(4), dtype=torch.float64)
    found = dict(
        zip(read_side.path_names(model), all_paths(model, tokens, seen, u).unbind(1), strict=True)
    )
    frozen, n = expand.record(model, tokens), 0
    for term in expand.expand(model, tokens, frozen):
        last = expand.read(model.ln_final, term.write, frozen.last_scale)[:, -1]
        name = " → ".join([term.source, *(f"{l}.{h}" for l, h in term.path)])
        name = name.removeprefix("token → ") if term.path else name.replace("token", "direct")
        assert torch.allclose(found[name].sum(1), (last * u).sum(-1), atol=1e-10), name
        n += 1
    assert n == len(found) - 1  # all but the bias of the unembedding


def test_edges_of_a_graph_have_nodes_for_positions_and_biases():
    model, tokens, _ = given("two")
    seen, u = forward(model, tokens), torch.randn(4, 32, generator=gen(4), dtype=torch.float64)
    each, names = all_paths(model, tokens, seen, u), read_side.path_names(model)
    edges = sides.graph_edges(each, names, slice(0, 25))
    assert {k: x.shape[1] for k, x in edges.items()} == {"token": 12, "position": 12, "bias": 1}
    assert torch.allclose(sum(x.sum(1) for x in edges.values()), each.sum((1, 2)), atol=1e-10)
    # with patterns and scales held, no W_E at a token takes its own edges away and no others
    quiet = model.W_E.clone()
    quiet[tokens[0, 5]] = 0
    silent = gauge.with_weights(model, W_E=quiet)
    after = sides.graph_edges(all_paths(silent, tokens, seen, u), names, slice(0, 25))
    here = tokens[0] == tokens[0, 5]
    assert after["token"][0, here].abs().max() == 0
    assert torch.equal(after["token"][0, ~here], edges["token"][0, ~here])
    for kind in ("position", "bias"):
        assert torch.equal(after[kind], edges[kind]), kind


# ---- the reason side ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_terms_sum_to_the_score(case):
    model, tokens, limit = given(*case)
    seen = forward(model, tokens)
    parts, names = reason.parts(model, tokens, seen), reason.source_names(model)
    name = f"blocks.{model.cfg.n_layers - 1}.attn.hook_attn_scores"
    scores = cut.run(model, tokens, names=[name])[1][name][:, :, -1]
    for head in range(3):
        raw, centred = reason.terms(model, parts, head, KEY)
        assert raw.shape[1:] == (len(names), len(names)) and names[-1] == "own bias"
        s = scores[:, head]
        assert off(raw.sum((1, 2)), s[:, KEY]) <= limit
        assert off(centred.sum((1, 2)), s[:, KEY] - s.mean(1)) <= limit
        by = reason.by_class(centred, model)
        assert tuple(by) == reason.classes(model) and {"position", "bias"} <= set(by)
        assert torch.allclose(sum(by.values()), centred.sum((1, 2)), atol=1e-4)
        assert torch.equal(by["neither"], centred[:, 0, 0])
        biases = [i for i, n in enumerate(names) if "bias" in n]
        rest = [i for i in range(len(names)) if i not in biases]
        want = centred.sum((1, 2)) - centred[:, rest][:, :, rest].sum((1, 2))
        assert torch.allclose(by["bias"], want, atol=1e-4)
        for i in range(len(names)):  # every source is needed
            keep = [j for j in range(len(names)) if j != i]
            assert off(raw[:, keep][:, :, keep].sum((1, 2)), s[:, KEY]) > 1e-3, names[i]
        # a key bias asks the same of every key: no reason
        assert centred[:, :, -1].abs().max() <= limit * raw.abs().max()
    # mutant: the scale forgotten
    ones = seen._replace(scales=[torch.ones_like(x) for x in seen.scales])
    raw = reason.terms(model, reason.parts(model, tokens, ones), 0, KEY)[0]
    assert off(raw.sum((1, 2)), scores[:, 0, KEY]) > 1e-2


@pytest.mark.parametrize("kind", ["two", "mlp", "unfolded", "late positions"])
def test_the_key_term_is_a_sum_over_what_the_writer_read(kind):
    model, tokens, _ = given(kind)
    seen = forward(model, tokens)
    _, centred = reason.terms(model, reason.parts(model, tokens, seen), HEAD, KEY)
    at = model, tokens, seen.patterns[0][:, 1], (1, HEAD), KEY
    each = reason.key_term_by_token(*at, seen)
    assert torch.allclose(each.sum(1), centred[:, 0, 3], atol=1e-10)
    for l in (0, 1):  # mutants: one scale forgotten
        wrong = seen._replace(scales=list(seen.scales))
        wrong.scales[l] = torch.ones_like(wrong.scales[l])
        each = reason.key_term_by_token(*at, wrong)
        assert (each.sum(1) - centred[:, 0, 3]).abs().max() > 1e-3
    other = forward(model, tokens.clone().index_fill_(1, torch.tensor([7]), 9))
    assert torch.equal(other.stream[:, :5], seen.stream[:, :5])  # a later word is in no sum


# ---- what the norm makes false, and what it leaves true ------------------------------------------


def test_the_token_part_is_the_same_before_the_scale_only():
    model, tokens, _ = given("two")
    other = tokens.clone()
    other[:, 4] = other[:, 4].roll(1)
    one, two = (forward(model, t) for t in (tokens, other))
    (own, whole), (own2, whole2) = (control.copied(model, p, HEAD, 5) for p in (one, two))
    assert torch.equal(own, own2) and (whole - whole2).abs().max() > 1e-3
    x = model.W_E[tokens[:, 5]]
    want = (x - x.mean(-1, keepdim=True)) @ model.W_V[1, HEAD] @ model.W_O[1, HEAD]
    assert torch.allclose(own, want, atol=1e-12)
    scaled = [o / p.scales[1][:, 5] for o, p in ((own, one), (own2, two))]
    assert off(*scaled) > 1e-4  # after the scale the same part has another length
    frame = prompts.Frame(tokens, tokens[:, 5], 4, 5, [True, False] * 2)
    change = study.scale_change([frame], {"none": [one], "first": [two]})
    assert change == pytest.approx((two.scales[1] / one.scales[1] - 1)[:, 5].abs().max().item())
    assert change > 1e-4


def test_one_layer_never_sees_another_first_title():
    model, tokens, _ = given("one")
    other = tokens.clone()
    other[:, 4] = other[:, 4].roll(1)
    found = []
    for t in (tokens, other):
        r = reader(model, forward(model, t), 1)
        found.append((r.q * r.k[:, 5]).sum(-1))
    assert torch.equal(*found)


def test_a_frozen_run_never_asks_a_key_with_norms_too():
    model, tokens, _ = given("two")
    frame = prompts.Frame(tokens, tokens[:, 3], 2, 3, [True, False] * 2)
    k_cut = cut.cut_path(model, (0, 1), (1, HEAD), "k")
    clean = forward(model, tokens, cut.Cut())
    held = forward(model, tokens, k_cut + cut.freeze_patterns(model, tokens))
    u, b = read_side.directions(model, frame)[0], read_side.offsets(model, frame)[0]
    assert torch.equal(held.last, clean.last)
    assert torch.equal(*(all_paths(model, tokens, p, u, b) for p in (clean, held)))
    assert off(forward(model, tokens, k_cut).last, clean.last) > 1e-3


def test_folding_moves_no_reason_and_no_logit():
    model, tokens, _ = given("unfolded")
    folded = fold.fold_value_biases(fold.center_writing_weights(fold.fold_layer_norm(model)))
    seen = [forward(m, tokens) for m in (model, folded)]
    assert torch.allclose(*(x.patterns[1] for x in seen), atol=1e-10)
    score = [
        reason.terms(m, reason.parts(m, tokens, p), HEAD, KEY)[1].sum((1, 2))
        for m, p in zip((model, folded), seen, strict=True)
    ]
    assert torch.allclose(*score, atol=1e-9)


# ---- the prompts ---------------------------------------------------------------------------------


def test_names_that_are_not_one_token_are_left_out(monkeypatch):
    real = prompts.tokenizer.load()

    class Splitting:
        """A tokenizer that spells three women's names and one man's in two tokens."""

        def encode(self, text, bos=True):
            if text.strip() in ("Polly", "Clara", "Mary", "Frank"):
                return [5, 6]
            return real.encode(text, bos=bos)

        def token(self, text):
            return real.token(text)

    monkeypatch.setattr(prompts.tokenizer, "load", Splitting)
    kept = prompts.names()
    women, men = ([n for n, female in kept if female is sex] for sex in (True, False))
    assert len(women) == len(men) == 25 and not {"Polly", "Clara", "Mary", "Frank"} & {*women, *men}
    assert kept[prompts.row_of("Sally")][0] == "Sally"
    frame = prompts.frames(prompts.FRAMES[:1])[0]
    assert len(frame.tokens) == 50 and prompts.rivals(frame).shape == (50, 24)
    found = frame.tokens[prompts.row_of("Sally"), frame.name]
    assert found == real.token(" Sally")
