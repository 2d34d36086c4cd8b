"""The laws that answers of chapter 07 must obey."""

import torch

from circuitbook.check import checker, draw, near
from circuitbook.checks.draws import pick


def causal(heads, n, seed=0):
    """Random causal patterns whose rows sum to one, [head, n, n]."""
    weight = draw(heads, n, n, seed=seed).exp().tril()
    return weight / weight.sum(-1, keepdim=True)


@checker("07.parameter_counts")
def parameter_counts(fn):
    def pair(*given, **more):
        return [int(x) for x in fn(*given, **more)]

    d_head, layers, d_mlp = pick(4, 2, 9, seed=0), pick(5, 3, 9, seed=1), pick(20, 7, 40, seed=2)
    d = 4 * d_head
    yield (
        "without biases, four square matrices and two of four times the width: 4 and 8 d²",
        lambda: pair(1, d, 4, d_head, 4 * d, biases=False) == [4 * d * d, 8 * d * d],
    )
    yield (
        "no MLP has no parameters, not even biases",
        lambda: pair(2, d, 4, 4, 0)[1] == 0 and pair(2, d, 4, 4, 0, biases=False)[1] == 0,
        "With d_mlp = 0 there is no output bias either.",
    )
    yield (
        "in a layer of width 2 with 3 neurons you can count the MLP's 17 by hand",
        lambda: pair(1, 2, 1, 2, 3)[1] == 17,
        "Two matrices of 6, a bias for each neuron, and one for each number of the output.",
    )
    yield (
        "a head may be narrow: width 8, one head of size 2 has 78 attention parameters",
        lambda: pair(1, 8, 1, 2, 0)[0] == 78,
        "A bias of size d_head for q, k and v of each head, one of size d_model for the output.",
    )
    yield (
        "layers add up",
        lambda: pair(layers, 12, 3, 4, d_mlp) == [layers * x for x in pair(1, 12, 3, 4, d_mlp)],
    )
    yield (
        "the sizes of GPT-2 give 28,348,416 and 56,669,184",
        lambda: pair(12, 768, 12, 64, 3072) == [28_348_416, 56_669_184],
    )


@checker("07.pre_activation_parts")
def pre_activation_parts(fn):
    n, d, heads = 6, 8, 3
    e, k, b = draw(n, d), draw(d, seed=1), 0.75
    patterns, OV = causal(heads, n, seed=2), draw(heads, d, d, seed=3)
    nobody = torch.zeros_like(OV)
    eye = torch.eye(n, dtype=torch.float64)
    previous = eye.roll(1, 0)
    previous[0] = eye[0]

    def parts(e=e, patterns=patterns, OV=OV, k=k, b=b):
        rows = fn(e, patterns, OV, k, b)
        if isinstance(rows, list | tuple):
            rows = torch.stack([torch.as_tensor(row) for row in rows])
        return torch.as_tensor(rows).double()

    def whole():
        writes = sum(A @ e @ W for A, W in zip(patterns, OV, strict=True))
        return (e + writes) @ k + b

    yield "there are a token, three heads and a bias", lambda: tuple(parts().shape) == (5, n)
    yield (
        "a head that looks at the token before brings what that token has, moved by W_OV",
        lambda: near(
            parts(patterns=torch.stack([previous] * 3))[2][1:], (e @ OV[1] @ k)[:-1], 1e-9
        ),
        "Row t of the pattern says which sources query t reads: A e W_OV k.",
    )
    yield (
        "the first row is what the bare token gives",
        lambda: near(parts()[0], e @ k, 1e-9),
    )
    yield (
        "the last row is the bias at every position",
        lambda: near(parts()[-1], torch.full((n,), b).double(), 1e-6),
    )
    yield (
        "the parts add up to the pre-activation",
        lambda: near(parts().sum(0), whole(), 1e-9),
        "Token, every head, and the bias once.",
    )
    yield (
        "heads that write nothing have parts of zero",
        lambda: near(parts(OV=nobody)[1:4], torch.zeros(3, n).double(), 1e-12),
    )
    yield (
        "the second head's row is the second head's",
        lambda: near(parts(OV=torch.stack([nobody[0], OV[1], nobody[2]]))[2], parts()[2], 1e-9),
    )


@checker("07.mean_ablation")
def mean_ablation(fn):
    n, d, words = 5, 6, 11
    last, v, U = draw(n, d), draw(d, seed=1), draw(d, words, seed=2)
    a, mean = draw(n, seed=3).abs() + 0.2, 0.2

    def fall(last=last, a=a, mean=mean, v=v, U=U):
        return torch.as_tensor(fn(last, a, mean, v, U)).double()

    def logp(x, U=U):
        return (x @ U).log_softmax(-1)

    same = torch.full((n,), mean, dtype=torch.float64)
    c = draw(d, seed=4)
    fires = torch.tensor([mean, mean, 3.0, mean, mean], dtype=torch.float64)

    yield (
        "differences between words fall by (activation - mean) times the written difference",
        lambda: near(
            fall() - fall()[:, :1],
            (a - mean)[:, None] * ((v @ U) - (v @ U)[0]),
            1e-9,
        ),
        "Before minus after: a word that the neuron raises has a positive fall.",
    )
    yield (
        "a neuron that is at its mean already is not missed",
        lambda: near(fall(a=same), torch.zeros(n, words).double(), 1e-12),
        "Replace the activation by the mean that is given, not by zero.",
    )
    yield (
        "both sides are probabilities: the second distribution still sums to one",
        lambda: near((logp(last) - fall()).exp().sum(-1), torch.ones(n).double(), 1e-9),
        "After the change the softmax is taken again.",
    )
    yield (
        "only the position where it fires changes",
        lambda: bool((fall(a=fires).abs().sum(-1) > 1e-9).tolist() == [0, 0, 1, 0, 0]),
        "Each position has its own activation.",
    )
    yield (
        "W_U + c 1ᵀ changes nothing",
        lambda: near(fall(U=U + c[:, None]), fall(), 1e-9),
        "Use log-probabilities, not logits.",
    )
    yield (
        "a neuron that writes nothing is not missed",
        lambda: near(fall(v=torch.zeros(d).double()), torch.zeros(n, words).double(), 1e-12),
    )


def _losses(gap, noise, windows=24, k=40, seed=0):
    """Two models on the same windows: b's late tokens are worse by `gap`, with noise of its own."""
    shared = draw(windows, k, seed=seed) * 3
    a, b = shared.clone(), shared.clone()
    b[:, 30:] += gap + noise * draw(windows, 10, seed=seed + 1)
    return a, b


@checker("07.windows_needed")
def windows_needed(fn):
    early, late = (5, 8), (31, 40)
    own = torch.arange(24)
    a, b = _losses(0.5, 0.4)

    def need(a=a, b=b, doc=own, early=early, late=late):
        return float(fn(a, b, doc, early, late))

    def same(value):
        """As many as for the drawn losses; some are needed there, so zero for all is wrong."""
        return near(value, need(), 1e-6) and value > 0.1

    x = torch.tensor([1.0, 3.0, 1.0, 3.0], dtype=torch.float64)
    hand_a, hand_b = torch.zeros(4, 6).double(), torch.zeros(4, 6).double()
    hand_a[:, 5] = x  # with early token 1 and late token 6 the difference of scores is x
    pairs = torch.tensor([0, 0, 1, 1])
    alike = torch.tensor([0, 1, 0, 1])
    ahead = draw(4, 1, seed=6).repeat(1, 6)  # one model is better or worse on all tokens alike
    twice = [torch.cat([m, m]) for m in (a, b)]

    yield (
        "the k-th token stands in column k - 1, and both ends count",
        lambda: near(
            need(early=(1, 1), late=(30, 31)),
            need(a[:, [0, 29, 30]], b[:, [0, 29, 30]], early=(1, 1), late=(2, 3)),
            1e-6,
        ),
    )
    yield (
        "four windows of differences 1, 3, 1, 3: mean 2, error of the mean 1/√3, so 4/3 windows",
        lambda: near(need(hand_a, hand_b, torch.arange(4), (1, 1), (6, 6)), 4 / 3, 1e-6),
        "n (2 se / mean)², and the variance has the factor G/(G-1).",
    )
    yield (
        "in two documents that hold a 1 and a 3 each, the documents agree: no error, 0 windows",
        lambda: near(need(hand_a, hand_b, pairs, (1, 1), (6, 6)), 0.0, 1e-9),
        "Sum the deviations inside each document, then square.",
    )
    yield (
        "in a document of ones and a document of threes the error is larger: 4 windows",
        lambda: near(need(hand_a, hand_b, alike, (1, 1), (6, 6)), 4.0, 1e-6),
        "Windows of one document are no independent draws.",
    )
    yield (
        "it does not matter which model is named first",
        lambda: same(need(b, a)),
    )
    yield (
        "what both models find hard alike does not count: the difference is paired",
        lambda: same(need(a + draw(24, 1, seed=9), b + draw(24, 1, seed=9))),
    )
    yield (
        "noise that the two models share, token by token, cancels",
        lambda: same(need(*(m + 5 * draw(24, 40, seed=8) for m in (a, b)))),
        "Take the difference for each window first, its spread afterwards.",
    )
    yield (
        "what one model finds hard early and late alike does not count: a score is a difference",
        lambda: near(need(hand_a + ahead, hand_b, torch.arange(4), (1, 1), (6, 6)), 4 / 3, 1e-6),
        "The score is late minus early, for both models.",
    )
    yield (
        "twice the gap with the same noise needs fewer windows",
        lambda: need(*_losses(1.0, 0.4)) < need() / 3,
    )
    yield (
        "every window copied once, the copies being the same documents: twice as many",
        lambda: same(need(*twice, doc=torch.cat([own, own])) / 2),
        "The answer counts windows, not documents.",
    )
