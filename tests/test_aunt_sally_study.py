"""The measurement of Aunt Sally: ratios by hand, the course models, and claims that must fall."""

import copy

import pytest
import torch

from circuitbook.aunt_sally import claims, control, prompts, sides, study
from circuitbook.aunt_sally.forward import forward


def test_a_ratio_of_means_and_its_error():
    top, bottom = [torch.tensor([1.0, 2.0, 3.0])], [torch.tensor([2.0, 2.0, 8.0])]
    ratio, se = sides.ratio(top, bottom)
    assert ratio == pytest.approx(0.5)  # the mean of ratios would be 0.625
    rest = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)  # top - ratio * bottom
    assert se == pytest.approx((rest.std() / 3**0.5 / 4).item())
    assert sides.ratio([t * 7 for t in top], bottom)[0] == pytest.approx(3.5)
    proportional = sides.ratio([b * 0.3 for b in bottom], bottom)
    assert proportional[0] == pytest.approx(0.3) and proportional[1] == pytest.approx(0, abs=1e-8)
    # frames of one name are one cluster: a second frame like the first adds no certainty
    assert sides.ratio(top * 2, bottom * 2)[1] == pytest.approx(se)


@pytest.mark.weights
def test_the_reason_in_the_course_model():
    from circuitbook import spine, zoo

    model = zoo.load("attn-only-2l", device="cpu")
    frame = prompts.frames(prompts.FRAMES[:1])[0]
    pair = spine.heads_pair(model, 8)
    seen = forward(model, frame.tokens)
    found = {w: forward(model, prompts.swapped(frame, w)) for w in prompts.SWAPS}
    looks = {w: p.patterns[1][:, pair[1][1], -1, frame.name].mean() for w, p in found.items()}
    assert looks["first"] <= looks["none"] / 2 and looks["both"] >= 0.8 * looks["none"]
    cuts = control.edge_cuts(model, seen, pair)
    kept = {n: (A[:, frame.name].mean() / looks["none"]).item() for n, (A, _) in cuts.items()}
    assert kept["key"] <= 0.2 and min(v for n, v in kept.items() if n != "key") >= 0.8


@pytest.mark.weights
def test_the_pair_does_not_hang_on_the_size_of_the_sample():
    from circuitbook import spine, zoo

    model = zoo.load("attn-only-2l-again", device="cpu")
    assert spine.heads_pair(model, 8) == spine.heads_pair(model, 16)


@pytest.fixture(scope="module")
def small():
    """The study on one frame: fifty-six prompts."""
    return study.study(1, least=56)


NONE = {"read": 0.0, "read64": 0.0, "reason": 0.0, "reason64": 0.0, "shortcut": 0.0}


def verdicts(d, least=56, **errors):
    found = claims.claims(d, dict.fromkeys(study.ROLES, NONE | errors), least)
    return {c["id"]: c["holds"] for c in found}


@pytest.mark.weights
def test_every_claim_holds_on_one_frame(small):
    d, found = small
    assert all(c["holds"] for c in found), [c["id"] for c in found if not c["holds"]]
    two = d["roles"]["attn-only-2l"]
    before, after = (two["swap"][k]["attention"][0] for k in ("none", "first"))
    assert two["fall"][0] == pytest.approx(1 - after / before)
    share = two["reason"]["key"][0] / two["reason"]["score"][0]
    assert two["reason"]["share"][0] == pytest.approx(share)
    assert 0.05 < two["value"][0] < 0.5 and two["token_part"] == 0
    assert len(two["read"]["edges"]) == len(d["tokens"])
    assert max(two["read"]["edges"]) == two["read"]["edges"][d["places"][0][1]]


@pytest.mark.weights
def test_claims_fall_when_what_they_say_is_not_so(small):
    def changed(change, role="gelu-2l"):
        d = copy.deepcopy(small[0])
        change(d["roles"][role])
        return verdicts(d)

    def grow(model, name="turned.3"):  # a control that *raises* attention is no control either
        model["cuts"][name]["attention"][0] = 1.3 * model["cuts"]["none"]["attention"][0]

    fine = verdicts(small[0])
    breaks = {
        "aunt.key_cut": (grow, "gelu-2l"),
        "aunt.uncle_control": (lambda m: m.update(token_part=1), "attn-only-2l-again"),
        "aunt.graph_is_blind": (lambda m: m["frozen"].update(changed=1), "gelu-2l"),
        "aunt.cut_run_again": (
            lambda m: m["frozen"].update(after=m["frozen"]["before"]),
            "attn-only-2l",
        ),
        "aunt.one_layer_score": (lambda m: m.update(moved=1e-6), "attn-only-1l"),
        "aunt.one_layer_another_reason": (lambda m: m.update(fall=[-0.2, 0.0]), "attn-only-1l"),
        "aunt.graphs_look_alike": (
            lambda m: m["read"]["largest"].update(named=0.4),
            "attn-only-1l",
        ),
    }
    for name, (change, role) in breaks.items():
        found = changed(change, role)
        assert fine[name] and {k for k in found if not found[k]} == {name}
    assert not verdicts(small[0], least=200)["aunt.two_against_one"]
    assert not verdicts(small[0], read=1e-3)["aunt.read_sums"]
    assert not verdicts(small[0], shortcut=1e-2)["aunt.key_cut"]
