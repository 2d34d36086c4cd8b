"""The name task: what its prompts promise, what rules of position can do, and its circuit."""

import numpy as np
import pytest

from circuitbook.tasks import BOS, PAD, batch, names, names_rules, names_text
from circuitbook.tasks.names import KINDS, SPLITS

N = 3000


def drawn(split="unseen", n=N, seed=0):
    return names.prompts(n, np.random.default_rng(seed), split)


@pytest.mark.parametrize("split", SPLITS[1:])
def test_the_answer_is_the_only_name_that_occurs_once(split):
    p = drawn(split)
    for row, io, s, other, end in zip(p.tokens, p.io, p.s, p.others, p.end, strict=True):
        said = row[names.is_name(row)].tolist()
        assert said.count(io) == 1 and said.count(s) == 2
        assert len(said) == (3 if other < 0 else 5) and (other < 0 or said.count(other) == 2)
        assert row[0] == BOS and (row[end + 1 :] == PAD).all() and PAD not in row[: end + 1]


def test_the_places_are_those_of_the_words():
    p = drawn()
    rows = np.arange(N)
    assert (p.tokens[rows, p.at_io] == p.io).all()
    assert (p.tokens[rows, p.at_s1] == p.s).all() and (p.tokens[rows, p.at_s2] == p.s).all()
    assert (np.maximum(p.at_s1, p.at_io) < p.at_s2).all() and (p.at_s2 < p.end).all()
    third = p.others >= 0
    for k in (3, 4):
        assert (p.tokens[rows, p.at[:, k]] == p.others)[third].all()
        assert ((p.at[:, k] >= 0) == third).all()
    assert (p.first == (p.at_io < p.at_s1)).all() and abs(p.first.mean() - 0.5) < 0.04
    assert not names.is_name(p.tokens[rows, p.end]).any()


def test_a_third_person_stands_where_the_kind_says():
    p = drawn()
    kind = p.kind
    a, s, c, d = p.at[:, 0], p.at[:, 2], p.at[:, 3], p.at[:, 4]
    rule = {
        "none": (c < 0) & (d < 0),
        "before": (c < d) & (d < a),
        "between": (np.maximum(p.at[:, 1], a) < c) & (c < d) & (d < s),
        "after": (s < c) & (c < d),
        "around": (c < a) & (s < d),
    }
    for k, name in enumerate(KINDS):
        assert rule[name][kind == k].all(), name
        assert abs((kind == k).mean() - names.SHARES[k]) < 0.04, name


def test_templates_and_names_are_held_out():
    held, seen = set(names.name_pool("unseen")), set(names.name_pool("seen"))
    assert not held & seen and held | seen == set(names.ids(names.NAMES)) and len(held) >= 15
    parts = (names_text.INTROS, names_text.ACTIONS)
    held_parts = (names_text.HELD_OUT_INTROS, names_text.HELD_OUT_ACTIONS)
    assert len(parts[0]) >= 20 and len(names.NAMES) >= 60
    assert all(len(h) >= 6 and not set(h) & set(p) for p, h in zip(parts, held_parts, strict=True))
    for split in SPLITS:
        p = drawn(split)
        intros, actions = held_parts if split in ("unseen", "unseen templates") else parts
        for layout in p.layout[:300].tolist():
            x = names.sentence(names.Layout(*layout))
            assert x.endswith(actions) and any(intro in x for intro in intros), x
        said = set(p.tokens[names.is_name(p.tokens)].tolist())
        assert said == (held if split in ("unseen", "unseen names") else seen)
        assert set(p.cluster) == set(range(len(intros)))


def test_every_word_of_held_out_templates_is_trained():
    rows = names.draw(4000, np.random.default_rng(0)).tokens
    assert set(range(len(names.VOCAB))) == set(rows.ravel().tolist())


def test_held_out_names_are_trained_in_plain_sentences_only():
    rows = names.draw(4000, np.random.default_rng(0))
    assert rows.tokens.shape == rows.targets.shape == (4000, names.N_CTX)
    held = np.isin(rows.tokens, names.name_pool("unseen"))
    assert ((rows.targets >= 0).sum(1) == 1).all()
    at = (rows.targets >= 0).argmax(1)
    answer = rows.targets[np.arange(4000), at]
    mentions = names.is_name(rows.tokens).sum(1)
    people = np.array([len(set(r[names.is_name(r)])) for r in rows.tokens])
    task = names.is_name(answer) & (people >= 2)  # plain sentences name one, or answer an object
    assert abs(task.mean() - names.MIX[0]) < 0.03 and not held[task].any()
    assert (mentions[task] >= 3).all()
    assert set(names.ids(names.NAMES)) <= set(rows.tokens[~task].ravel())
    assert set(names.name_pool("unseen")) <= set(answer[~task])
    # the answer's place is the first padding, so nothing after it can be read
    assert (rows.tokens[np.arange(4000), at] != PAD).all()
    assert all((r[a + 1 :] == PAD).all() for r, a in zip(rows.tokens, at, strict=True))


def test_renamed_prompts_keep_all_but_the_names():
    p = drawn()
    other = names.renamed(p, np.random.default_rng(1))
    moved = other != p.tokens
    assert not moved[~names.is_name(p.tokens)].any() and names.is_name(other)[moved].all()
    assert (names.is_name(other) == names.is_name(p.tokens)).all()
    for row in other:
        said = row[names.is_name(row)].tolist()
        assert len(set(said)) == len(said)
    for asked in (p.io, p.s):
        assert not (other == asked[:, None]).any()


def test_only_the_answer_counts():
    p = drawn(n=500)
    expected = np.full_like(p.tokens, -1)
    expected[np.arange(500), p.end] = p.io
    assert (names.as_batch(p).targets == expected).all()


def test_draws_are_repeated_by_their_seed_alone():
    a, b, c = (names.draw(50, np.random.default_rng(s)) for s in (3, 3, 4))
    assert (a.tokens == b.tokens).all() and (a.targets == b.targets).all()
    assert (a.tokens != c.tokens).any()
    with pytest.raises(ValueError, match="unknown split"):
        names.draw(5, np.random.default_rng(0), "test")


# ---------------------------------------------------------------- rules of position


def by_hand(words, io):
    """One prompt written by hand: names are capitalised."""
    ids = names.ids(words.split())
    tokens = np.full((1, names.N_CTX), PAD)
    tokens[0, 0], tokens[0, 1 : len(ids) + 1] = BOS, ids
    nothing = np.full((1, 5), -1)
    one = names.ids([io])
    return names.Prompts(
        tokens,
        np.zeros((1, 8), int),
        np.array([len(ids)]),
        one,
        one,
        one,
        nothing,
        np.array([True]),
    )


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("Mary and John left . John waved at", {"first name", "last name but two",
         "first name that is not the last", "latest name that is not the last"}),
        ("John and Mary left . John waved at", {"second name", "last name but one", "newest name",
         "first name that is not the last", "latest name that is not the last"}),
        ("Anna slept . Anna left . John saw Mary . John waved at", {"last name but one",
         "newest name", "latest name that is not the last"}),
    ],
)  # fmt: skip
def test_rules_by_hand(words, right):
    p = by_hand(words, "Mary")
    found = names_rules.rules(p, drawn("seen", 200))
    free = {"best fixed position", "best fixed distance to the end", "linear in positions, fitted"}
    assert {k for k, v in found.items() if v == 1} - free == right | {"the name that occurs once"}
    assert found["best fixed position"] == found["best fixed distance to the end"] == 1


def test_no_rule_of_position_solves_the_task():
    train = drawn("seen", 2000, 1)
    for split in SPLITS[1:]:
        found = names_rules.rules(drawn(split), train)
        assert found.pop("the name that occurs once") == 1
        assert max(found.values()) <= 0.6, (split, found)


def test_the_fitted_rule_finds_a_rule_of_position_where_there_is_one():
    p = drawn("seen", 400)
    always = p.take(np.flatnonzero(p.first & (p.others < 0)))  # here the first name is the answer
    assert names_rules.fitted(always, {"p": always})["p"] == 1
    assert names_rules.fitted(p, {"p": p})["p"] < 0.6


def test_the_trainer_can_draw_the_task():
    from circuitbook.recipes import recipe

    rec = recipe("names-task")
    one, again = (batch(rec, 3) for _ in range(2))
    assert (one.tokens == again.tokens).all() and one.tokens.max() < len(names.VOCAB)
