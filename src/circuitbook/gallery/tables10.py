"""Tables of chapter 10 as rows for `plots.table`: Euler's ratios, worked cases."""

from circuitbook.gallery.tables07 import visible

# What the reader guesses → the row of the measurement.
BLOCKS = {
    "ReLU, no biases": "relu",
    "bilinear, no biases": "bilinear",
    "LayerNorm": "LayerNorm",
    "GELU, no biases": "gelu",
    "SwiGLU, no biases": "swiglu",
    "ReLU with biases": "relu, biases",
}


def guess_rows(r, guess):
    """Guess beside measurement: random blocks first, then trained ones, which nobody guessed."""
    o = r["operators"]["euler"]

    def row(name, v, said):
        return {
            "block": name,
            "your guess": said,
            "xJ / F (ratio)": v["ratio"],
            "SD of each x's own (ratio)": v["spread"],
            "left over (% of F)": 100 * v["rest"],
            "biases' row (% of F)": 100 * v["bias"],
        }

    rows = [row(name, o["random"][key], guess[name]) for name, key in BLOCKS.items()]
    return rows + [row(f"{role}, on text", v, "") for role, v in o["trained"].items()]


def case_rows(r, roles=("gelu-1l", "swiglu-1l")):
    """Worked cases of some models: where share and effect differ most in sign."""
    rows = []
    for role in roles:
        for case in r["operators"]["shares"][role]["cases"]:
            x = case["numbers"]
            rows.append(
                {
                    "model": role,
                    "part": case["part"],
                    "text": f"…{visible(case['text'][-28:])}",
                    "next": visible(case["next"]),
                    "share, SwiGLU by content (logits)": x.get(
                        "forward", x.get("forward, content")
                    ),
                    "SwiGLU by gate (logits)": x.get("forward, gate", ""),
                    "slope (logits)": x["Jacobian"],
                    "effect (logits)": x["effect"],
                }
            )
    return rows
