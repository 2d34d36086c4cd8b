"""The whole study of blocks that select, on tiny random models: data, sentences, pictures."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gated_toys import small
from small_model import TINY, model_of

from circuitbook import corpus, zoo
from circuitbook.claims import recheck
from circuitbook.conditional import selective
from circuitbook.gallery import gated10
from circuitbook.results import plain

LENGTH = 16
FIGURES = ("gate_and_content", "router_and_experts", "composition", "expert_use", "who_routes",
           "other_routings")  # fmt: skip


@pytest.fixture(scope="module")
def studied():
    models = {"swiglu-1l": small(dtype=torch.float32),
              "moe-1l": small("gelu", 5, 2, dtype=torch.float32),
              "attn-only-2l": model_of(TINY.replace(d_vocab=30), torch.float32)}  # fmt: skip
    models["moe-1l"].blocks[0].mlp.W_router.mul_(0.2)

    def windows(n, *, length=LENGTH, seed=0):
        tokens = np.random.default_rng(seed).integers(1, 30, (n, LENGTH))
        tokens[:, 0] = 0
        return SimpleNamespace(tokens=tokens, doc=np.arange(n) // 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo, "load", models.__getitem__)
        patch.setattr(corpus, "heldout_windows", windows)
        found = selective.study(windows=80, places=5)
    claims = found.pop("claims")
    return json.loads(json.dumps(plain(found))), claims


def test_data_is_plain_and_sentences_follow_from_it(studied):
    data, claims = studied
    assert set(data) == {"gated", "experts", "selection"}
    assert len({c["id"] for c in claims}) == len(claims) >= 25
    for c in claims:
        assert recheck(c) == "", c["id"]
    verdict = {c["id"]: c["holds"] for c in claims}
    for id in ("gated.same_block", "experts.logits_add_up", "experts.local", "gated.routes"):
        assert verdict[id], id
    kinds = {c["label"] for c in claims}
    assert kinds == {"identity", "measurement", "intervention", "conjecture"}


def test_identities_can_fail(studied):
    data, _ = studied
    table = data["selection"] | {"random blocks": {"SwiGLU": {"ok": False}}}
    made = selective.gated_claims.claims(data["gated"], table)
    assert not next(c for c in made if c["id"] == "gated.routes")["holds"]
    local = data["experts"] | {"local": data["experts"]["local"] | {"reached": 1}}
    made = selective.expert_claims.claims(local, data["gated"], data["selection"])
    assert not next(c for c in made if c["id"] == "experts.local")["holds"]


def test_pictures_and_tables(studied):
    data, _ = studied
    for name in FIGURES:
        figure = getattr(gated10, name)(data)
        assert len(figure.alt) > 100 and len(figure.png) > 10_000
    rows = gated10.likeness_rows(data)
    assert [r["block"] for r in rows] == ["attention", "SwiGLU", "mixture of experts"]
    assert rows[0]["other positions reach"] == "100% of writes"
    assert len(gated10.measure_rows(data)) == 8 and len(gated10.measure_rows(data, "experts")) == 7
