"""The laws that answers of chapter 10 must obey."""

from functools import partial

import torch
import torch.nn.functional as F

from circuitbook.check import checker, draw, near
from circuitbook.checks import maps

PHI = {"relu": F.relu, "gelu": F.gelu}


@checker("10.realised_parts")
def realised_parts(fn):
    parts = draw(4, 6)
    W_in, b_in = draw(6, 9, seed=1), draw(9, seed=2)
    W_out, b_out = draw(9, 6, seed=3), draw(6, seed=4)
    zero_in, zero_out = torch.zeros(9).double(), torch.zeros(6).double()
    one = torch.ones(1, 1, dtype=torch.float64)

    def answer(p=parts, b=b_in, kind="gelu", c=b_out, W=W_in):
        return torch.as_tensor(fn(p, W, b, W_out, c, kind))

    def alone(p, kind):
        """One dimension, one neuron, no bias: the shares of the parts alone."""
        got = fn(torch.tensor(p)[:, None].double(), one, zero_in[:1], one, zero_out[:1], kind)
        return torch.as_tensor(got)[:, 0].tolist()

    yield "a row for each part, and one for the biases", lambda: answer().shape == (5, 6)
    for kind, phi in PHI.items():
        yield (
            f"{kind}: the rows sum to what the MLP writes",
            lambda kind=kind, phi=phi: near(
                answer(kind=kind).sum(0), phi(parts.sum(0) @ W_in + b_in) @ W_out + b_out, 1e-9
            ),
            "The gates belong to the whole state, biases included.",
        )
    yield (
        "by hand, ReLU: parts 3 and -1 of a neuron that is on keep their signs",
        lambda: near(alone([3.0, -1.0], "relu"), [3.0, -1.0, 0.0]),
        "Neither part goes through the bend by itself. One gate serves both.",
    )
    yield (
        "by hand, ReLU: a neuron that is off passes nothing",
        lambda: near(alone([1.0, -3.0], "relu"), [0.0, 0.0, 0.0]),
    )
    half = parts.clone()
    half[0] /= 2
    yield (
        "a part cut into two halves: each gets half of its share",
        lambda: near(answer(torch.cat([half, half[:1]]))[0], answer()[0] / 2, 1e-9),
        "For given gates the share is linear in the part.",
    )
    unread = torch.cat([W_in[:5], torch.zeros(1, 9).double()])  # nobody reads the last coordinate
    aside = torch.cat([parts, torch.eye(6)[5:].double()])
    yield (
        "a part that no neuron reads has no share",
        lambda: near(answer(aside, W=unread)[4], zero_out, 1e-12),
        "A part acts through what the neurons read of it.",
    )
    stretched = parts * torch.tensor([[1.0], [2.0], [0.0], [1.0]])
    yield (
        "a part of zero has no share, whatever the rest does",
        lambda: near(answer(stretched)[2], zero_out, 1e-12),
    )
    opposite = torch.stack([parts[0], -parts[0]])
    yield (
        "GELU, at a state where every neuron reads exactly zero: nothing is NaN",
        lambda: bool(answer(opposite, zero_in).isfinite().all()),
        "φ(z)/z is 0/0 here. Write the gate itself.",
    )
    yield (
        "GELU: there the shares are nearly those of a state a hair away",
        lambda: near(answer(opposite, zero_in), answer(opposite, zero_in + 1e-7), 1e-5),
        "What does the gate tend to when z goes to zero?",
    )
    yield (
        "without input there is only the biases' row",
        lambda: near(answer(0 * parts)[-1], F.gelu(b_in) @ W_out + b_out, 1e-9),
    )

    yield (
        "ReLU: a neuron at exactly zero is off, so its parts have no share",
        lambda: near(alone([1.0, -1.0], "relu"), [0.0, 0.0, 0.0]),
        "The gain is 1 where z > 0, else 0.",
    )

    def small():
        # A d by d matrix of these would not fit into the address space of any machine.
        d, weight = 6_000_000, draw(1, seed=5).float()
        wide = weight.expand(1, d).contiguous()
        got = fn(wide, wide.mT.contiguous(), weight, wide, wide[0].clone(), "gelu")
        return tuple(torch.as_tensor(got).shape) == (2, d)

    yield "no d by d matrix is built", small, "Take the parts through W_in first."


@checker("10.euler_table")
def euler_table(fn):
    x = draw(5, 6)
    W, V, O, b = draw(6, 9, seed=1), draw(6, 9, seed=2), draw(9, 6, seed=3), draw(9, seed=4)

    weights = {"W": W, "V": V, "O": O}
    # A neuron and its opposite: no row finds all of them off.
    relu = {"W": torch.cat([W, -W], 1), "O": draw(18, 6, seed=5), "phi": "relu"}
    bilinear = partial(maps.bilinear, **weights)
    lengths = x.norm(dim=-1).sort().values
    border, far = float(lengths[0] + lengths[1]) / 2, 1.5 * float(lengths[-1])
    two = draw(2, 6, seed=8)

    def degree(f, at=x):
        return fn({"it": f}, at)["it"]

    yield "a matrix: one", lambda: near(degree(partial(maps.linear, W=W)), 1, 1e-5)
    yield (
        "ReLU without biases: one",
        lambda: near(degree(partial(maps.mlp, **relu)), 1, 1e-5),
    )
    yield (
        "a product of two reads: two",
        lambda: near(degree(bilinear), 2, 1e-5),
        "Move along x itself: x J is the derivative of F(t x) at t = 1.",
    )
    yield (
        "bilinear after bilinear: four",
        lambda: near(degree(partial(maps.bilinear_twice, **weights)), 4, 1e-4),
    )
    yield (
        "a norm: zero",
        lambda: near(degree(partial(maps.norm)), 0, 1e-5),
        "Longer x, the same output.",
    )
    yield (
        "a decaying map: minus two",
        lambda: near(degree(partial(maps.decaying)), -2, 1e-4),
    )
    yield (
        "the square root of every entry: one half, no whole number",
        lambda: near(degree(partial(maps.root)), 0.5, 1e-5),
    )
    yield (
        "GELU: no number fits",
        lambda: degree(partial(maps.mlp, W=W, O=O, phi="gelu")) is None,
        "Is x J a multiple of F at all? Look at what is left.",
    )
    yield (
        "ReLU with biases: no number fits",
        lambda: degree(partial(maps.mlp, W=W, O=O, phi="relu", b=b)) is None,
    )
    yield (
        "every row has a number of its own: then there is none for the map",
        lambda: degree(partial(maps.softplus_of_sum)) is None,
    )
    yield (
        "one row that disagrees is enough",
        lambda: degree(partial(maps.one_row, border=border)) is None,
        "Compare all rows, not their sum.",
    )
    yield (
        "the sign of F does not matter",
        lambda: near(degree(partial(maps.opposite, **weights)), 2, 1e-5),
    )
    yield (
        "J is taken at x: what the map does at twice x is another matter",
        lambda: near(degree(partial(maps.beyond, far=far)), 1, 1e-5),
        "A derivative needs a small step.",
    )
    yield (
        "several maps at once keep their names",
        lambda: (
            list(fn({"a": bilinear, "b": partial(maps.norm)}, two)) == ["a", "b"]
            and near(fn({"a": bilinear, "b": partial(maps.norm)}, two)["a"], 2, 1e-5)
        ),
    )


def gated(x, W_gate, b_gate, W_in, b_in, W_out):
    """(SiLU(x W_gate + b_gate) * (x W_in + b_in)) W_out."""
    return (F.silu(x @ W_gate + b_gate) * (x @ W_in + b_in)) @ W_out


@checker("10.gate_and_content")
def gate_and_content(fn):
    x, w = draw(6), draw(3, 6, seed=1)
    W_gate, b_gate = draw(6, 9, seed=2), draw(9, seed=3)
    W_in, b_in, W_out = draw(6, 9, seed=4), draw(9, seed=5), draw(9, 6, seed=6)
    weights = (W_gate, b_gate, W_in, b_in, W_out)
    blind = w.clone()
    blind[:, 3:] = 0  # the last three coordinates alone are read below
    top = torch.zeros(6, 1, dtype=torch.float64)
    top[3:] = 1

    def answer(at=x, change=w, given=weights):
        content, gate = fn(change, at, *given)
        return torch.as_tensor(content), torch.as_tensor(gate)

    def slope(f, h=1e-5):
        return (f(h) - f(-h)) / (2 * h)

    yield (
        "together they are the whole first-order change",
        lambda: near(
            sum(answer()),
            torch.stack([slope(lambda t, v=v: gated(x + t * v, *weights)) for v in w]),
            1e-6,
        ),
        "SiLU(z) = z σ(z) has the slope σ(z)(1 + z(1 − σ(z))).",
    )
    yield (
        "the content route is what happens when the gate is held",
        lambda: near(
            answer()[0],
            (F.silu(x @ W_gate + b_gate) * (w @ W_in)) @ W_out,
            1e-9,
        ),
    )
    yield (
        "what the content side cannot read has no content route",
        lambda: (
            near(
                answer(change=blind, given=(W_gate, b_gate, W_in * top, b_in, W_out))[0],
                0 * w,
                1e-12,
            )
            and answer(change=blind, given=(W_gate, b_gate, W_in * top, b_in, W_out))[1].abs().max()
            > 0.1
        ),
    )
    yield (
        "what the gate side cannot read has no gate route",
        lambda: near(
            answer(change=blind, given=(W_gate * top, b_gate, W_in, b_in, W_out))[1], 0 * w, 1e-12
        ),
    )
    silent = (W_gate, b_gate, W_in, -x @ W_in, W_out)
    yield (
        "where the content reads zero, the gate has nothing to scale",
        lambda: near(answer(given=silent)[1], 0 * w, 1e-9),
        "The slope of the gate is multiplied by u, and u has a bias.",
    )
    closed = (W_gate, -x @ W_gate, W_in, b_in, W_out)
    yield (
        "where the gate reads zero, content does not pass; the gate route is half of u",
        lambda: (
            near(answer(given=closed)[0], 0 * w, 1e-9)
            and near(answer(given=closed)[1], (w @ W_gate * (x @ W_in + b_in)) @ W_out / 2, 1e-9)
        ),
    )


@checker("10.router_part")
def router_part(fn):
    n, m, d = 5, 4, 6
    logits, W_router = draw(n), draw(d, n, seed=1)
    logits[logits.argsort()] += 0.01 * torch.arange(n)  # a slope needs a little room to a border
    neurons, W_out, b_out = draw(n, m, seed=2), draw(n, m, d, seed=3), draw(n, d, seed=4)
    w = draw(d, seed=5)
    outputs = torch.einsum("em,emd->ed", neurons, W_out) + b_out
    chosen = logits.topk(2).indices
    left_out = [e for e in range(n) if e not in chosen.tolist()]

    def answer(k=2, change=w, l=logits, R=W_router, a=neurons, O=W_out, b=b_out):
        return torch.as_tensor(fn(change, l, R, a, O, b, k))

    def mixed(l, k):
        top = l.topk(k).indices
        return l[top].softmax(0) @ outputs[top]

    def slope(k, h=1e-5):
        step = h * (w @ W_router)
        return (mixed(logits + step, k) - mixed(logits - step, k)) / (2 * h)

    for k in (2, 3):
        yield (
            f"{k} experts: it is the slope of the mixture when the experts' outputs are held",
            lambda k=k: near(answer(k), slope(k), 1e-6),
            "The weight of e changes by π_e times (its logit's change − the mean change).",
        )
    yield (
        "one expert, renormalised: its weight is one and stays one",
        lambda: near(answer(1), torch.zeros(d).double(), 1e-12),
        "Softmax over the selected experts only.",
    )
    even = W_router.clone()
    even[:, chosen] = W_router[:, chosen[:1]]
    yield (
        "a change that lifts all selected experts alike does nothing",
        lambda: near(answer(R=even), torch.zeros(d).double(), 1e-9),
    )
    shared = draw(d, seed=6)
    yield (
        "what all experts write alike does not count",
        lambda: near(answer(b=b_out + shared), answer(), 1e-9),
    )
    deaf = W_router.clone()
    deaf[:, left_out] += 3.0
    far = b_out.clone()
    far[left_out] = 50.0
    yield (
        "experts that are not selected do not count",
        lambda: near(answer(R=deaf), answer(), 1e-9) and near(answer(b=far), answer(), 1e-9),
    )
    quiet = torch.zeros(n, m, dtype=torch.float64)
    yield (
        "experts whose neurons are all silent still write their biases",
        lambda: answer(a=quiet).abs().max() > 1e-9,
    )


@checker("10.jump")
def jump(fn):
    outputs = draw(6, 4)
    logits = torch.tensor([0.3, 1.2, -0.4, 1.2, 2.0, 0.9], dtype=torch.float64)  # 1 and 3 are tied

    def mixed(l, k, given=outputs):
        top = l.topk(k).indices
        return l[top].softmax(0) @ given[top]

    def across(k, leaves, enters, l=logits, given=outputs):
        nudge = torch.zeros(6).double()
        nudge[leaves], nudge[enters] = 1e-9, -1e-9
        return mixed(l - nudge, k, given) - mixed(l + nudge, k, given)

    def answer(k, leaves, enters, l=logits, given=outputs):
        return torch.as_tensor(fn(l, given, leaves, enters, k))

    three = torch.tensor([0.3, 0.9, -0.4, 1.2, 2.0, 0.9], dtype=torch.float64)
    for k, leaves, enters, l in ((2, 1, 3, logits), (3, 1, 5, three)):
        yield (
            f"{k} experts: it is the output just after the border minus just before",
            lambda k=k, a=leaves, b=enters, l=l: near(answer(k, a, b, l), across(k, a, b, l), 1e-6),
            "The two have one weight: softmax over the set that is selected.",
        )
    yield "the way back is the opposite jump", lambda: near(answer(2, 3, 1), -answer(2, 1, 3), 1e-9)
    alone = torch.tensor([0.3, 1.2, -0.4, 1.2, 0.0, 0.9], dtype=torch.float64)
    yield (
        "one expert: the whole difference",
        lambda: near(answer(1, 1, 3, alone), outputs[3] - outputs[1], 1e-9),
    )
    same = outputs.clone()
    same[3] = same[1]
    yield (
        "two experts that write the same: no jump",
        lambda: near(answer(2, 1, 3, given=same), torch.zeros(4).double(), 1e-12),
    )
    yield (
        "a constant in all outputs: no difference",
        lambda: near(answer(2, 1, 3, given=outputs + 5.0), answer(2, 1, 3), 1e-9),
    )
    quiet = logits.clone()
    quiet[[0, 2, 5]] -= 4.0
    yield (
        "how loud the experts outside are does not matter",
        lambda: near(answer(2, 1, 3, quiet), answer(2, 1, 3), 1e-9),
    )
    loud = logits.clone()
    loud[4] += 1.0
    yield (
        "how loud those inside are does matter",
        lambda: answer(2, 1, 3, loud).norm() < 0.9 * answer(2, 1, 3).norm(),
    )
