"""Head scores: laws, hand-sized cases, controls with known answers, mutants that must fail."""

import math
import subprocess
import sys

import pytest
import torch

from circuitbook import probe

POOL = torch.arange(1, 400)


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def random_pattern(n, heads, length, seed=0):
    scores = torch.randn(n, heads, length, length, generator=gen(seed), dtype=torch.float64)
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)
    return scores.masked_fill(mask, -torch.inf).softmax(-1)


def brute_score(pattern, tokens, wanted):
    """Slow and plain: the mean over queries with a wanted key of the attention summed over them."""
    out = torch.zeros(pattern.shape[:2], dtype=torch.float64)
    for b in range(pattern.shape[0]):
        for h in range(pattern.shape[1]):
            values = []
            for t in range(tokens.shape[1]):
                keys = [j for j in range(t) if wanted(tokens[b].tolist(), t, j)]
                if keys:
                    values.append(sum(pattern[b, h, t, j].item() for j in keys))
            out[b, h] = sum(values) / len(values)
    return out


# ---------------------------------------------------------------- scores


def test_previous_token_hand_case():
    pattern = torch.tensor(
        [[[1.0, 0, 0, 0], [1, 0, 0, 0], [0.5, 0.3, 0.2, 0], [0.1, 0.1, 0.7, 0.1]]]
    )
    # queries 2 and 3 only: A[2,1] = 0.3, A[3,2] = 0.7. Query 1 (key BOS) does not count.
    assert probe.previous_token_score(pattern).item() == pytest.approx(0.5)


def test_previous_token_shifted_by_one_is_seen():
    tokens = torch.arange(12)[None]
    assert probe.previous_token_score(probe.synthetic_pattern("previous", tokens)).item() == 1
    two_back = probe.synthetic_pattern("fixed_offset", tokens, offset=2)
    assert probe.previous_token_score(two_back).item() == 0
    resting = probe.synthetic_pattern("first", tokens)  # would get 1/11 if query 1 counted
    assert probe.previous_token_score(resting).item() == 0


def test_prefix_and_duplicate_equal_brute_force():
    tokens = torch.randint(1, 6, (3, 14), generator=gen(1))
    pattern = random_pattern(3, 4, 14)
    prefix = brute_score(pattern, tokens, lambda x, t, j: j >= 1 and x[j - 1] == x[t])
    duplicate = brute_score(pattern, tokens, lambda x, t, j: x[j] == x[t])
    torch.testing.assert_close(
        probe.prefix_matching_score(pattern, tokens), prefix, rtol=0, atol=1e-14
    )
    torch.testing.assert_close(
        probe.duplicate_token_score(pattern, tokens), duplicate, rtol=0, atol=1e-14
    )
    for mutant in (  # the wrong neighbour, two after, or the copy itself
        lambda x, t, j: x[j + 1] == x[t] and j + 1 < t,
        lambda x, t, j: j >= 2 and x[j - 2] == x[t],
        lambda x, t, j: x[j] == x[t],
    ):
        assert (brute_score(pattern, tokens, mutant) - prefix).abs().max() > 1e-2


def test_prefix_hand_case_excludes_the_query_itself():
    # BOS A B A A: query 3 looks at 2; query 4 looks at 2 (after the first A), not at itself.
    tokens = torch.tensor([[0, 1, 2, 1, 1]])
    mask = probe.after_earlier_copies(tokens)[0]
    assert mask.nonzero().tolist() == [[3, 2], [4, 2]]
    assert probe.earlier_copies(tokens)[0].nonzero().tolist() == [[3, 1], [4, 1], [4, 3]]


def test_scores_take_extra_leading_axes():
    tokens = torch.randint(1, 4, (2, 3, 9), generator=gen(2))
    pattern = torch.stack([random_pattern(3, 2, 9, s) for s in (0, 1)])
    full = probe.prefix_matching_score(pattern, tokens)
    assert full.shape == (2, 3, 2)
    torch.testing.assert_close(full[1], probe.prefix_matching_score(pattern[1], tokens[1]))


def test_scores_refuse_what_has_no_answer():
    pattern = random_pattern(1, 1, 5)
    with pytest.raises(ValueError, match="repeat"):
        probe.prefix_matching_score(pattern, torch.arange(5)[None])
    with pytest.raises(
        (ValueError, TypeError)
    ):  # TypeError: the shape check of the test run is first
        probe.prefix_matching_score(pattern, torch.zeros(1, 6, dtype=torch.long))
    with pytest.raises(ValueError, match="3 positions"):
        probe.previous_token_score(random_pattern(1, 1, 2))
    with pytest.raises(ValueError, match="period"):
        probe.stripe_score(pattern, 3)


# ---------------------------------------------------------------- the course protocol


def test_repeated_batch_layout():
    batch = probe.repeated_batch(POOL, 40, copies=2, block=7, gap=(3, 12), generator=gen())
    assert batch.tokens.shape == (40, 1 + 14 + 12)
    assert (batch.tokens[:, 0] == 0).all()
    copies = [batch.tokens.gather(1, at) for at in (batch.first, batch.second)]
    assert torch.equal(*copies)
    assert torch.equal(batch.second - batch.first, (7 + batch.gap).expand(-1, 7))
    assert (
        batch.gap[:, 0].bincount(minlength=13)[3:].tolist() == [4] * 10
    )  # every gap equally often
    for row, second in zip(batch.tokens, batch.second, strict=True):
        assert row.unique().numel() == row.numel() - 7  # all distinct except the second copy
        queries = probe.earlier_copies(row).any(-1).nonzero().flatten()
        assert torch.equal(queries, second)


def test_four_copies_stand_where_the_gaps_say():
    batch = probe.repeated_batch(POOL, 20, copies=4, block=6, gap=(2, 11), generator=gen())
    assert batch.tokens.shape == (20, 1 + 24 + 33)
    assert batch.gap.shape == (20, 3)
    for column in batch.gap.T:
        assert column.bincount(minlength=12)[2:].tolist() == [2] * 10
    for row, gaps in zip(batch.tokens, batch.gap, strict=True):
        block, begin = row[1:7], 1
        copied = set(range(7, 7))
        for gap in gaps.tolist():
            begin += 6 + gap
            assert torch.equal(row[begin : begin + 6], block)
            copied |= set(range(begin, begin + 6))
        assert row.unique().numel() == row.numel() - 18
        assert set(probe.earlier_copies(row).any(-1).nonzero().flatten().tolist()) == copied


def test_repeated_batch_is_reproducible_and_refuses():
    one, two = (probe.repeated_batch(POOL, 5, generator=gen(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    other = probe.repeated_batch(POOL, 5, generator=gen(4))
    assert not torch.equal(one.tokens, other.tokens)
    for pool in (POOL[:50], POOL - 1, torch.cat([POOL, POOL])):
        with pytest.raises(ValueError):
            probe.repeated_batch(pool, 5)
    with pytest.raises(ValueError, match="gap"):
        probe.repeated_batch(POOL, 5, gap=(4, 3))


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("uniform", 0, 0.1),
        ("first", 0, 0),
        ("previous", 0, 0),
        ("duplicate", 0, 0),
        ("induction", 0.999999, 1),
    ],
)
def test_controls_on_the_course_protocol(kind, low, high):
    batch = probe.repeated_batch(POOL, 32, generator=gen())
    pattern = probe.synthetic_pattern(kind, batch.tokens)
    torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern[..., 0]))
    assert (pattern.triu(1) == 0).all()
    score = probe.prefix_matching_score(pattern, batch.tokens).mean().item()
    assert low <= score <= high
    if kind == "duplicate":
        assert probe.duplicate_token_score(pattern, batch.tokens).mean().item() > 0.999999


@pytest.mark.parametrize(("copies", "n"), [(2, 32), (4, 64)])
def test_jitter_exposes_every_fixed_offset_head(copies, n):
    batch = probe.repeated_batch(POOL, n, copies=copies, generator=gen())
    wanted = probe.after_earlier_copies(batch.tokens)
    queries = wanted.any(-1).sum(-1)
    lengths = range(1, batch.tokens.shape[1])
    scores = [(wanted.diagonal(-d, -2, -1).sum(-1) / queries).mean().item() for d in lengths]
    best = max(scores)
    head = probe.synthetic_pattern(
        "fixed_offset", batch.tokens, offset=lengths[scores.index(best)]
    )  # the short cut above agrees with the score itself
    score = probe.prefix_matching_score(head, batch.tokens).mean().item()
    assert score == pytest.approx(best, abs=1e-6)
    assert best <= 0.05
    if copies == 2:
        assert best == pytest.approx(1 / 32)  # one sequence in thirty-two


def test_without_jitter_a_fixed_offset_head_passes():
    batch = probe.repeated_batch(POOL, 8, copies=2, block=20, gap=(9, 9), generator=gen())

    def score(offset):
        pattern = probe.synthetic_pattern("fixed_offset", batch.tokens, offset=offset)
        return probe.prefix_matching_score(pattern, batch.tokens).mean().item()

    assert score(28) == 1  # block + gap - 1
    assert score(27) == score(29) == 0  # shifted by one: the copy's neighbours


def test_published_protocols_and_their_blind_spot():
    many = probe.published_batch("4x25", POOL, 6, generator=gen())
    assert many.tokens.shape == (6, 101)
    assert torch.equal(many.tokens[:, 1:26], many.tokens[:, 76:101])
    stripe = probe.published_batch("2x50", POOL, 6, generator=gen())
    assert stripe.tokens.shape == (6, 101)
    assert torch.equal(
        stripe.tokens.gather(1, stripe.first), stripe.tokens.gather(1, stripe.second)
    )

    fixed = probe.synthetic_pattern("fixed_offset", many.tokens, offset=24)
    assert probe.prefix_matching_score(fixed, many.tokens).mean().item() > 0.9  # fooled
    fixed = probe.synthetic_pattern("fixed_offset", stripe.tokens, offset=49)
    assert probe.stripe_score(fixed, 50).mean().item() == 1  # fooled
    for offset in (48, 50):
        moved = probe.synthetic_pattern("fixed_offset", stripe.tokens, offset=offset)
        assert probe.stripe_score(moved, 50).mean().item() == 0
    ideal = probe.synthetic_pattern("induction", many.tokens)
    assert probe.prefix_matching_score(ideal, many.tokens).mean().item() == pytest.approx(1)
    with pytest.raises(ValueError, match="unknown protocol"):
        probe.published_batch("3x3", POOL, 2)


def test_stripe_reads_exactly_the_second_copy():
    pattern = torch.zeros(1, 1, 7, 7)  # period 3: second-copy queries 4, 5, 6, keys 2, 3, 4
    for t, value in ((2, 9.0), (3, 9.0), (4, 0.2), (5, 0.3), (6, 0.4)):
        pattern[0, 0, t, t - 2] = value
    assert probe.stripe_score(pattern, 3).item() == pytest.approx(0.3)


def test_synthetic_refuses():
    with pytest.raises(ValueError, match="unknown kind"):
        probe.synthetic_pattern("nearest", torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="offset"):
        probe.synthetic_pattern("fixed_offset", torch.zeros(1, 3, dtype=torch.long))


# ---------------------------------------------------------------- output


def test_repeat_effect_brute_force_and_shift_mutant():
    batch = probe.repeated_batch(
        torch.arange(1, 60), 3, copies=2, block=5, gap=(2, 9), generator=gen()
    )
    logits = torch.randn(*batch.tokens.shape, 60, generator=gen(5), dtype=torch.float64)
    effect = probe.repeat_effect(logits, batch.tokens, batch.first, batch.second)
    log_p = logits.log_softmax(-1)
    for at, ranks, losses in (
        (batch.first, effect.rank_first, effect.loss_first),
        (batch.second, effect.rank_second, effect.loss_second),
    ):
        for b in range(3):
            for i in range(1, 5):
                token, t = batch.tokens[b, at[b, i]], at[b, i] - 1
                order = logits[b, t].argsort(descending=True)
                assert order[ranks[b, i - 1] - 1] == token
                assert losses[b, i - 1].item() == pytest.approx(
                    -log_p[b, t, token].item(), abs=1e-12
                )
    shifted = probe.repeat_effect(logits.roll(1, 1), batch.tokens, batch.first, batch.second)
    assert (shifted.loss_second - effect.loss_second).abs().max() > 1e-2


def test_repeat_effect_on_a_perfect_copier():
    batch = probe.repeated_batch(
        torch.arange(1, 60), 3, copies=2, block=5, gap=(2, 9), generator=gen()
    )
    logits = torch.zeros(*batch.tokens.shape, 60)
    ahead = batch.second[:, :-1]
    rows = torch.arange(3)[:, None]
    logits[rows, ahead, batch.tokens[rows, ahead + 1]] = 50.0
    effect = probe.repeat_effect(logits, batch.tokens, batch.first, batch.second)
    assert (effect.rank_second == 1).all()
    assert (effect.rank_first == 60).all()  # ties count against the model
    torch.testing.assert_close(effect.loss_first, torch.full((3, 4), math.log(60)))
    with pytest.raises(ValueError, match="different tokens"):
        probe.repeat_effect(logits, batch.tokens, batch.first, batch.second - 1)


# ---------------------------------------------------------------- means


def test_clustered_mean_equals_definition():
    x = torch.randn(9, generator=gen(), dtype=torch.float64)
    doc = torch.tensor([4, 4, 1, 1, 1, 7, 7, 2, 9])
    got = probe.clustered_mean(x, doc)
    mean = x.mean()
    meat = sum((x[doc == g] - mean).sum() ** 2 for g in doc.unique())
    assert got.n_clusters == 5
    assert got.mean == pytest.approx(mean.item(), abs=1e-15)
    assert got.se == pytest.approx(math.sqrt(meat * 5 / 4) / 9, abs=1e-15)
    alone = probe.clustered_mean(x, torch.arange(9))
    assert alone.se == pytest.approx((x.std() / 3).item(), abs=1e-15)


def test_clusters_widen_the_error_of_copies():
    x = torch.randn(20, generator=gen(), dtype=torch.float64)
    honest = probe.clustered_mean(x, torch.arange(20))
    copied = x.repeat_interleave(10)
    by_doc = probe.clustered_mean(copied, torch.arange(20).repeat_interleave(10))
    naive = probe.clustered_mean(copied, torch.arange(200))
    assert by_doc.se == pytest.approx(honest.se)
    assert naive.se < 0.4 * honest.se
    with pytest.raises(ValueError, match="two documents"):
        probe.clustered_mean(x, torch.zeros(20, dtype=torch.long))


def test_pairing_removes_what_windows_share():
    shared = 10 * torch.randn(30, generator=gen())
    doc = torch.arange(30) // 2
    gap = probe.paired_difference(shared + 0.1, shared, doc)
    assert gap.mean == pytest.approx(0.1, abs=1e-5)
    assert gap.se < 1e-5


def test_in_context_score_counts_tokens_after_bos():
    loss = torch.arange(1.0, 512.0).repeat(4, 1)  # loss_k = k
    doc = torch.arange(4)
    assert probe.in_context_score(loss, doc).mean == pytest.approx(500.5 - 50.5)
    single = probe.in_context_score(loss, doc, early=(50, 50), late=(500, 500))
    assert single.mean == 450
    spike = torch.zeros(2, 511)
    spike[:, 49] = 1.0  # only the 50th token after BOS
    assert probe.in_context_scores(spike, (50, 50), (500, 500)).tolist() == [-1, -1]
    assert probe.in_context_scores(spike, (51, 51), (500, 500)).tolist() == [0, 0]
    with pytest.raises(ValueError, match="range"):
        probe.in_context_scores(loss[:, :400])


def test_the_trainer_can_import_it_with_torch_alone():
    """probe and compose import without jaxtyping and TransformerLens."""
    code = (
        "import sys; sys.modules['jaxtyping'] = sys.modules['transformer_lens'] = None\n"
        "from circuitbook import compose, probe\n"
        "import torch\n"
        "assert probe.repeated_batch(torch.arange(1, 300), 2).tokens.shape == (2, 338)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
