"""Every edge cut alone, against whole runs; ranks of scores and effects; figures; the benchmark."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_model import gen, model_of, tokens_of

from circuitbook import compose, cut, gauge
from circuitbook.composition import bilinear, coordinates, edges, pairs
from circuitbook.config import Config
from circuitbook.gallery import ch05 as gallery

ch05 = pytest.importorskip("circuitbook.taught.ch05", reason="run tools/derive.py taught")
ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "results" / "course" / "05_composition.json"
SMALL = Config(2, d_model=24, n_heads=3, d_head=6, n_ctx=40, d_vocab=70)
ROLES = ("attn-only-2l", "attn-only-2l-again")
PATTERN = "blocks.1.attn.hook_pattern"


def load(role, dtype):
    if role == "random":
        return model_of(SMALL, dtype, seed=2)
    from circuitbook import zoo

    return zoo.load(role, dtype=dtype, device="cpu")


@pytest.fixture(params=["random", *(pytest.param(r, marks=pytest.mark.weights) for r in ROLES)])
def role(request):
    return request.param


def apart(model, tokens):
    window = bilinear.take_apart(model, tokens[0])
    return window, edges.readers(model, window)


def gap(got, want):
    return ((got - want).abs().max() / want.abs().max()).item()


# ---- fast cuts are the slow ones ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_readers_are_the_models_own(role, dtype):
    model = load(role, dtype)
    tokens = tokens_of(model.cfg, n=1, length=16)
    _, r = apart(model, tokens)
    logits, cache = cut.run(model, tokens, names=lambda n: n.startswith("blocks.1"))
    limit = 1e-11 if dtype == torch.float64 else 2e-5
    for name in "qkv":
        hook = cache[f"blocks.1.attn.hook_{name}"][0].transpose(0, 1)
        assert gap(getattr(r, name), hook) <= limit
    assert gap(r.pattern, cache[PATTERN][0]) <= limit
    assert gap(r.write, cache["blocks.1.attn.hook_result"][0].transpose(0, 1)) <= limit
    assert gap(model.unembed(r.last[None]), logits) <= limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_edge_cut_alone_is_a_whole_run(role, dtype):
    model = load(role, dtype)
    tokens = tokens_of(model.cfg, n=1, length=14)
    window, r = apart(model, tokens)
    limit = 1e-10 if dtype == torch.float64 else 2e-5
    names = [PATTERN, "blocks.1.hook_resid_post"]
    seen, before = set(), cut.run(model, tokens, names=names)[1]
    moved = worst = 0.0
    for n, c in enumerate(edges.cuts(model, window, r)):
        h1, h2, into = c.edge
        seen.add(c.edge)
        if model.cfg.n_heads == 8 and n % 2:  # half of 192 runs of a trained model are enough
            continue
        edge = cut.cut_path(model, (0, h1), (1, h2), into)
        cache = cut.run(model, tokens, edge, names=names)[1]
        want = cache["blocks.1.hook_resid_post"][0]
        assert gap(r.last + c.write - r.write[h2], want) <= limit, c.edge
        assert (c.pattern - cache[PATTERN][0, h2]).abs().max() <= limit, c.edge
        assert torch.equal(c.pattern, r.pattern[h2]) == (into == "v"), c.edge
        moved = max(moved, gap(want, before["blocks.1.hook_resid_post"][0]))
        wrong = gap(r.last - c.write + r.write[h2], want)  # mutant: the sign turned
        worst = max(worst, wrong)
    assert len(seen) == 3 * model.cfg.n_heads**2 and min(moved, worst) > 1e-2


def test_chosen_edges_are_those_of_the_full_list():
    model = load("random", torch.float64)
    window, r = apart(model, tokens_of(SMALL, 1, 12))
    every = {c.edge: c for c in edges.cuts(model, window, r)}
    wanted = [(2, 1, "k"), (0, 0, "v")]
    got = list(edges.cuts(model, window, r, wanted))
    assert [c.edge for c in got] == wanted
    assert all(torch.equal(c.write, every[c.edge].write) for c in got)
    turned = every[(1, 2, "k")]  # mutant: writer and reader exchanged
    assert (turned.pattern - got[0].pattern).abs().max() > 1e-2


def test_v_cut_is_minus_the_virtual_head(role):
    model = load(role, torch.float64)
    tokens, h1, h2 = tokens_of(model.cfg, n=1, length=16), 1, 2
    cache = cut.run(model, tokens, names=lambda n: n.endswith("hook_pattern"))[1]
    A1, A2 = (cache[f"blocks.{l}.attn.hook_pattern"][0, h] for l, h in ((0, h1), (1, h2)))
    X = model.W_E[tokens[0]]
    W = model.W_V[0, h1] @ model.W_O[0, h1] @ model.W_V[1, h2] @ model.W_O[1, h2] @ model.W_U
    edge = cut.cut_path(model, (0, h1), (1, h2), "v")
    change = cut.logit_change(model, tokens, edge)[0]
    assert gap(change, -(A2 @ A1 @ X @ W)) <= 1e-5
    assert pairs.virtual_head_error(model, tokens[0], (h1, h2)) <= 1e-5
    assert gap(change, -(A1 @ A2 @ X @ W)) > 1e-3  # mutant: patterns in the wrong order
    after = cut.run(model, tokens, edge, names=[PATTERN])[1][PATTERN]
    assert torch.equal(after, cache[PATTERN])  # not one bit of any pattern


def unchanged(model, tokens, how, but=()):
    """Are all queries, keys, values and patterns of the second layer, without `but`, the same?"""
    names = [f"blocks.1.attn.hook_{x}" for x in ("q", "k", "v", "pattern")]
    old, new = (cut.run(model, tokens, c, names=names)[1] for c in (None, how))
    same = {}
    for name in names:
        kind = name.rsplit("_", 1)[1]
        for h in range(model.cfg.n_heads):
            at = (slice(None), h) if kind == "pattern" else (slice(None), slice(None), h)
            same[kind, h] = torch.equal(old[name][at], new[name][at])
    return {key for key, ok in same.items() if not ok} == set(but)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k_cut_reaches_one_key_and_one_pattern(role, dtype):
    model = load(role, dtype)
    tokens = tokens_of(model.cfg, n=2, length=16)
    for h1, h2 in [(0, 1), (2, 0)]:
        edge = {c: cut.cut_path(model, (0, h1), (1, h2), c) for c in edges.INPUTS}
        assert unchanged(model, tokens, edge["k"], but=[("k", h2), ("pattern", h2)])
        assert unchanged(model, tokens, edge["q"], but=[("q", h2), ("pattern", h2)])
        assert unchanged(model, tokens, edge["v"], but=[("v", h2)])
        whole = cut.ablate_heads(model, tokens, [(0, h1)])  # mutant: the head, not the edge
        assert not unchanged(model, tokens, whole, but=[("k", h2), ("pattern", h2)])
        got = pairs.local_changes(model, tokens, (h1, h2))
        assert got == {"K-cut": 0, "K-cut, own": 2, "same layer": 0}


def test_local_changes_count_what_a_wider_cut_moves(monkeypatch):
    model, tokens = load("random", torch.float64), tokens_of(SMALL)
    honest = cut.cut_path

    def wider(model, writer, reader, into):
        return honest(model, writer, reader, into) + honest(model, writer, (1, 2), "q")

    monkeypatch.setattr(cut, "cut_path", wider)
    assert pairs.local_changes(model, tokens, (0, 1))["K-cut"] == 2  # q and pattern of head 1.2
    monkeypatch.setattr(cut, "ablate_heads", lambda m, t, heads: honest(m, (0, 0), (1, 2), "k"))
    assert pairs.local_changes(model, tokens, (0, 1))["same layer"] == 2


def test_heads_of_one_layer_cannot_compose(role):
    model = load(role, torch.float64)
    tokens = tokens_of(model.cfg, n=1, length=12)
    assert unchanged(model, tokens, cut.ablate_heads(model, tokens, [(1, 0), (1, 1)]))
    with pytest.raises(ValueError, match="does not come before"):
        cut.cut_path(model, (1, 0), (1, 1), "k")


# ---- ranks --------------------------------------------------------------------------------------


def test_ranks_and_rho_by_hand():
    assert edges.ranks(np.array([5.0, 1, 5, 9])).tolist() == [1.5, 0, 1.5, 3]
    x, y = np.arange(6.0), np.array([1.0, 0, 2, 3, 5, 4])
    assert float(edges.rank_correlation(x, y)) == pytest.approx(1 - 6 * 4 / (6 * 35))
    skew = np.exp(5 * x)
    assert float(edges.rank_correlation(skew, y)) == pytest.approx(1 - 6 * 4 / (6 * 35))
    assert abs(np.corrcoef(skew, y)[0, 1] - (1 - 6 * 4 / (6 * 35))) > 0.1  # mutant: no ranks
    rows = edges.rank_correlation(np.stack([x, x]), np.stack([y, -y]))
    assert rows.tolist() == pytest.approx([rows[0], -rows[0]])


def test_interval_covers_the_truth_where_edges_share_heads():
    """Tables whose entries depend on their writer: the truth is zero, 64 are not independent."""
    rng, n, hits, naive_hits, trials = np.random.default_rng(0), 8, 0, 0, 40
    for trial in range(trials):
        x, y = (rng.normal(size=(n, 1)) + 0.3 * rng.normal(size=(n, n)) for _ in range(2))
        rho, low, high = edges.rank_interval(x, y, n=80, seed=trial)
        hits += low <= 0 <= high
        assert low <= rho <= high
        at = rng.integers(0, n * n, (80, n * n))  # mutant: edges drawn as if they shared nothing
        naive = np.quantile(edges.rank_correlation(x.ravel()[at], y.ravel()[at]), [0.025, 0.975])
        naive_hits += naive[0] <= 0 <= naive[1]
    assert hits >= 0.8 * trials and naive_hits <= 0.7 * trials


def test_one_draw_serves_all_tables_of_a_stack():
    x = np.random.default_rng(1).normal(size=(6, 6))
    single, twice = (edges.rank_interval(t, t**3, 60) for t in (x, np.stack([x, x])))
    assert single == pytest.approx((1, 1, 1)) and twice == pytest.approx((1, 1, 1))
    y = np.random.default_rng(2).normal(size=(6, 6))
    wide, stacked = (edges.rank_interval(np.stack([x] * k), np.stack([y] * k), 60) for k in (1, 4))
    assert stacked == pytest.approx(wide)  # four copies are no new evidence
    narrow = edges.rank_interval(x, y, 200, level=0.5)
    assert narrow[2] - narrow[1] < wide[2] - wide[1]


# ---- score and effect part ----------------------------------------------------------------------


def planted(write_from, loud, wasted=0.0):
    """A width-64 model whose head 0.0 writes coordinate `write_from` where the keys of 1.0 read."""
    config = Config(2, d_model=64, n_heads=2, d_head=8, n_ctx=40, d_vocab=70)
    model, e = model_of(config, seed=3, scale=1.0), torch.eye(64, dtype=torch.float64)
    W_E = torch.randn(70, 64, generator=gen(1), dtype=torch.float64)
    W_E[:, 0], W_E[:, 63] = 1.0, 0.0  # the constant; room for the write
    W = {name: getattr(model, name).clone() for name in ("W_Q", "W_K", "W_V", "W_O")}
    for name, w in W.items():
        w[0 if name in ("W_V", "W_O") else 1, 0] = 0
    W["W_V"][0, 0, write_from, 0], W["W_O"][0, 0, 0] = 1.0, e[63]
    W["W_V"][0, 0, 5, 1], W["W_O"][0, 0, 1] = 1.0, wasted * e[62]
    W["W_Q"][1, 0, 0, 0], W["W_K"][1, 0, 63, 0] = loud, loud
    return gauge.with_weights(model, W_E=W_E, **W)


def told(model):
    """(K-score, change of the pattern, visible share) of the edge 0.0 -> keys of 1.0."""
    tokens = tokens_of(model.cfg, n=1, length=30)
    window, r = apart(model, tokens)
    change = next(edges.cuts(model, window, r, [(0, 0, "k")]))
    effect = (change.pattern - r.pattern[0]).abs().sum(-1)[1:].mean().item() / 2
    slow = cut.run(model, tokens, cut.cut_path(model, (0, 0), (1, 0), "k"), names=[PATTERN])[1]
    assert (slow[PATTERN][0, 0] - change.pattern).abs().max() < 1e-10
    share = edges.visible(model, window, r, (0, 0, "k"))[1]
    return pairs.scores(model).k[0, 0].item(), effect, share


def test_a_blind_pair_and_a_quiet_pair():
    score, effect, share = told(planted(write_from=0, loud=10.0))
    assert score >= 5 * compose.random_baseline(64) and effect < 1e-6 and share < 1e-12
    score, effect, share = told(planted(write_from=4, loud=10.0))  # mutant: it varies over keys
    assert score >= 5 * compose.random_baseline(64) and effect > 0.2 and share > 0.1
    score, effect, share = told(planted(write_from=4, loud=10.0, wasted=100.0))
    assert 0 < score < compose.random_baseline(64) and effect >= 0.2 and share > 0.1
    score, effect, _ = told(planted(write_from=4, loud=0.01, wasted=100.0))  # mutant: softly
    assert 0 < score < compose.random_baseline(64) and effect < 1e-3


def test_survival_table(role):
    model = load(role, torch.float64)
    tokens = tokens_of(model.cfg, n=1, length=20)[0]
    moves = coordinates.survival(model, tokens, (1, 2), ch05.rotated_score)
    assert tuple(moves) == gallery.CHANGES
    moved = {(c, q): m for c, row in moves.items() for q, m in row.items()}
    R, G, C, K = gallery.CHANGES
    slip, score = "score of the rotated product", "K-composition score"
    may_move = {(R, slip), (G, slip), (G, score), (C, "logits")}
    may_move.add((K, "raw share of the pair's term"))
    assert {q for _, q in moved} == set(gallery.QUANTITIES)
    for key, m in moved.items():
        assert (m > 1e-3) if key in may_move else (m < 1e-6), (key, m)


# ---- the reader's tables and figures ------------------------------------------------------------


def toy_result():
    """Scores in one order, effects in the same but for two planted exceptions."""
    n = 4
    score = np.arange(3 * n * n, dtype=float).reshape(3, n, n) / 100
    effect = score[:] ** 2
    effect[1, 3, 2], effect[0, 0, 1] = -1.0, 9.0
    table = np.ones((3, n, n))
    E = {"pattern": effect, "loss": table, "loss_se": table, "spread": table, "visible": table}
    E |= {"size": score[::-1], "write": np.arange(n), "reader": np.arange(n) / 10}
    return {"scores": dict(zip("qkv", score)), "effects": E}


def test_disagreements_are_found_where_they_were_planted():
    rows = gallery.disagreement_rows(toy_result(), n=1)
    assert [(row["kind"], row["edge"]) for row in rows] == [
        ("high score, small effect", "0.3 → key of 1.2"),
        ("the reverse", "0.0 → query of 1.1"),
    ]
    assert rows[0]["size of the write (norm)"] == 3 and rows[0]["reader (nats)"] == 0.2
    assert rows[1]["score (0 to 1)"] == 0.01 and rows[1]["pattern change (0 to 1)"] == 9
    d = toy_result()
    d["effects"]["size"][2, 1, 3] = 50
    first = gallery.virtual_rows(d, n=2)[0]
    assert first["virtual head"] == "0.1 → 1.3" and first["mean size (norm)"] == 50


DRAWING = """
import copy, json, sys
sys.modules["torch"] = None
from pathlib import Path
from circuitbook import results
from circuitbook.gallery import ch05, figures
saved = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
r = results.Result(results.read(Path(sys.argv[1])))
for name, draw in figures("05").items():
    assert len(draw(r).alt) > 60, name
assert len(ch05.disagreement_rows(r)) == 6 and len(ch05.virtual_rows(r)) == 5
assert "transformer_lens" not in sys.modules

other = copy.deepcopy(saved)  # alt texts follow the numbers
h1, h2 = other["data"]["pair"]
other["data"]["pair"] = [(h1 + 1) % 8, (h2 + 1) % 8]
for draw in (ch05.composition_tables, ch05.slip, ch05.score_against_effect):
    old, new = draw(r).alt, draw(results.Result(other)).alt
    assert f"0.{h1} to" in old and f"0.{(h1 + 1) % 8} to" in new and old != new, draw
other["data"]["rungs"] = [row | {"ok": False} for row in other["data"]["rungs"]]
assert ch05.composition_ladder(results.Result(other)).alt.count("(fails)") == len(r["rungs"])
"""


def test_the_accepted_numbers_draw_without_torch():
    if not EVIDENCE.is_file():
        pytest.skip("chapter 05 has not been accepted yet")
    done = subprocess.run(
        [sys.executable, "-c", DRAWING, str(EVIDENCE)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


# ---- beside TransformerLens ---------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch):
    pytest.importorskip("transformer_lens")
    spec = importlib.util.spec_from_file_location("bench_comp", ROOT / "bench" / "composition.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in (("D_MODEL", 24), ("D_HEAD", 4), ("HEADS", 3), ("MIN_SPEEDUP", 0.0)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(sys, "argv", ["composition.py", "--layers", "2", "--repeats", "1"])
    with torch.no_grad():  # the script switches gradients off; this puts them back
        yield module


def test_bench_at_a_tiny_shape(bench, capsys, monkeypatch):
    assert bench.main() == 0
    out = capsys.readouterr().out
    assert "6 heads of 4 in 24, 108 scores" in out and out.endswith("ok\n")
    monkeypatch.setattr(bench, "MIN_SPEEDUP", 1e9)
    assert bench.main() == 1  # too slow
    monkeypatch.setattr(bench, "MIN_SPEEDUP", 0.0)
    honest = compose.composition_scores

    def forgotten(*weights):  # mutant: keys read like queries
        q, _, v = honest(*weights)
        return compose.Scores(q, q, v)

    monkeypatch.setattr(compose, "composition_scores", forgotten)
    assert bench.main() == 1
    assert "MISSED" in capsys.readouterr().out


def test_scores_are_those_of_transformer_lens():
    pytest.importorskip("transformer_lens")
    from lens_reference import lens_model

    model = model_of(SMALL.replace(positions="standard"), torch.float32, seed=2)
    ours, lens = pairs.scores(model), lens_model(model)
    for i, mode in enumerate("QKV"):
        every = lens.all_composition_scores(mode)
        theirs = getattr(every, "scores", every)[0, :, 1].detach()
        assert (ours[i] - theirs).abs().max() <= 1e-5
        assert (ours[(i + 1) % 3] - theirs).abs().max() > 1e-2  # mutant: another input
