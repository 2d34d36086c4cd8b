"""Tables of chapter 06, as rows for `plots.table`: evidence, protocols, removals, survival."""

CHANGES = ("head coordinates R", "stream coordinates G", "W_U + c 1ᵀ", "constant per query")
REMOVED = (
    "previous-token head, re-run", "previous-token head, patterns kept", "induction heads",
    "all but the pair (zero)", "all but the pair (mean)",
)  # fmt: skip
EVIDENCE = (
    ("a head matches prefixes", "induction.best_head", "two layers, attention only"),
    ("one layer has no such head", "induction.best_head", "one layer, attention only"),
    ("the weights hold the match", "induction.virtual_diagonal", "two layers, attention only"),
    ("the key edge carries the match", "induction.key_cut", "two layers, attention only"),
    ("so it is in every two-layer model", "induction.every_two_layer_model", "two layers, all"),
    ("the MLP's part is not needed for it", "induction.mlp_edge", "two layers with MLP"),
    ("the heads carry in-context learning", "induction.icl_lost", "two layers, attention only"),
    ("it grows abruptly", "induction.phase_change", "one and two layers"),
    ("the loss has a bump", "induction.bump", "two layers, attention only"),
    ("two layers can do it exactly", "induction.by_hand", "written by hand"),
)


def own(r, id):
    """ ", course models" where this part of the chapter was measured on them for want of others."""
    return ", course models" if r.claims[id].get("models") == "course" else ""


def state(r, id):
    """How a claim stands, in words for a table."""
    word = "holds" if r.claims[id]["holds"] else "fails"
    return ("random weights" if r.claims[id].get("random_weights") else word) + own(r, id)


def evidence_rows(r):
    """Claim, evidence, model size, state: from the claims themselves, for plots.table."""
    return [
        {
            "claim": words,
            "evidence": r.claims[id]["label"],
            "model": size,
            "state": state(r, id),
        }
        for words, id, size in EVIDENCE
    ]


def protocol_rows(r):
    """Prefix matching of each induction head by protocol, for plots.table."""
    names = {
        "course": "4 copies, jittered (share)",
        "shuffled copies": "the same, later copies shuffled (share)",
        "one repeat": "2 copies, jittered (share)",
        "4x25": "4 x 25, all copies (share)",
        "2x50": "2 x 50, one diagonal (share)",
    }
    return [
        {"head": head, **{label: scores[key] for key, label in names.items()}}
        for head, scores in r["protocols"].items()
    ]


def removal_rows(r):
    """Whole heads removed: what it costs at the repeats and what stays, for plots.table."""
    return [
        {
            "removed": name,
            "rise at repeats (nats)": x["rise"],
            "error (nats)": x["rise_se"],
            "drop that stays (nats)": x["drop"],
            "prefix matching (share)": x["prefix"],
        }
        for name, x in ((name, r["whole"][name]) for name in REMOVED)
    ]


def survival_rows(r):
    """What each change of weights does to each quantity, for plots.table; survivors first."""

    def word(moved):
        return f"moves {moved:.1%}" if moved >= 5e-4 else "moves < 0.1%" if moved else "survives"

    quantities = sorted(
        r["moves"][CHANGES[0]], key=lambda q: sum(r["moves"][c][q] > 0 for c in CHANGES)
    )
    return [{"quantity": q, **{c: word(r["moves"][c][q]) for c in CHANGES}} for q in quantities]
