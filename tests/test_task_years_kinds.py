"""The kinds of prompt by which rules and model are judged, and the clusters of errors."""

import numpy as np
import torch

from circuitbook.tasks import years, years_circuit, years_rules


def rng(seed=0):
    return np.random.default_rng(seed)


def test_kinds_of_prompt():
    """Each kind has the rows it names, and an answer that fails one kind alone is told by it."""
    given = years.prompts(600, rng(5), "heldout")
    law = years.law(given.yy)
    count = given.distractor.sum(1)
    before = (given.distractor * (torch.arange(years.N_CTX) < given.year_at[:, None])).sum(1) > 0
    rows = {"one year": count == 0, "a distractor before YY": before,
            "distractors only after YY": (count > 0) & ~before}  # fmt: skip
    assert list(rows) == list(years_rules.KINDS)
    assert (sum(x.long() for x in rows.values()) == 1).all()
    for kind, wrong in rows.items():
        p = torch.where(wrong[:, None], 1.0 - (law > 0).double(), law)
        found = years_rules.by_kind(p, given)
        assert found[kind] == found["worst"] < 0.5, kind
        assert all(found[k] == 1 for k in rows if k != kind)


def test_bodies_are_the_clusters():
    given = years.prompts(300, rng(6), "heldout")
    body = years_circuit.bodies(given) - len(years.TRAIN_BODIES)
    for row in range(300):
        said = years.text(given.tokens[row])
        last = years.HELD_OUT_BODIES[int(body[row])].rsplit("{", 1)[1].split("}")[1]
        assert last.strip() in said
        marker = "between" if "between" in years.HELD_OUT_BODIES[int(body[row])] else "from"
        assert f" {marker} " in f" {said.replace('.', ' ')}"
    spread = years_circuit.summary(body.double(), body)  # all alike within a body: larger error
    assert spread["se"] > 3 * (body.double().std() / 300**0.5).item()
