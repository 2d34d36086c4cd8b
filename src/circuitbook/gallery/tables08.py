"""Tables of chapter 08, from the saved numbers."""

ROWS = (
    "outputs", "loss", "leverages", "lengths |W_i|", "angles between features", "D_i",
    "features per unit", "best cosine to a unit",
)  # fmt: skip


def toy_survival_rows(r):
    """What each change of the toy's hidden coordinates moves, for plots.table."""
    moves = r["moves"]["toy"]

    def word(move):
        return "survives" if not move else f"moves {move:.0%}"

    return [
        {"number": name, **{change: word(moves[change][name]) for change in moves}} for name in ROWS
    ]
