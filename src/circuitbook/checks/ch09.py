"""The laws that answers of chapter 09 must obey."""

import torch

from circuitbook.check import checker, draw, near, untouched
from circuitbook.checks.draws import shuffled


def dictionary(seed=0, d=5, latents=9):
    """(W_enc, b_enc, W_dec, b_dec), rows of W_dec of many lengths, about half of the latents on."""
    length = torch.linspace(0.3, 3, latents, dtype=torch.float64)[:, None]
    W_enc, b_enc = draw(d, latents, seed=seed), 0.2 * draw(latents, seed=seed + 1)
    return W_enc, b_enc, draw(latents, d, seed=seed + 2) * length, draw(d, seed=seed + 3)


def latents(x, W_enc, b_enc):
    """ReLU(x W_enc + b_enc)."""
    return (x @ W_enc + b_enc).relu()


HAND = (
    torch.tensor([[0.6], [0.8]], dtype=torch.float64),
    torch.tensor([-0.1], dtype=torch.float64),
    torch.tensor([[0.6, 0.8]], dtype=torch.float64),
)
HAND_X = torch.tensor([[0.3, 0.4], [0.04, -0.03]], dtype=torch.float64)


@checker("09.cheat")
def cheat(fn):
    x = draw(20, 5, seed=8)
    W_enc, b_enc, W_dec, b_dec = dictionary()

    def new(times):
        return [torch.as_tensor(w) for w in fn(W_enc.clone(), b_enc.clone(), W_dec.clone(), times)]

    def copies(times):
        E, b, D = new(times)
        return latents(x, E, b) @ D + b_dec

    yield (
        "by hand: at two times, a latent of 0.4 becomes 0.2 and its row twice as long",
        lambda: (
            near(latents(HAND_X, *fn(*(w.clone() for w in HAND), 2.0)[:2]), [[0.2], [0.0]], 1e-9)
            and near(fn(*(w.clone() for w in HAND), 2.0)[2], [[1.2, 1.6]], 1e-9)
        ),
        "The latent of the first input is 0.5 - 0.1. Make both smaller; the row grows.",
    )
    yield (
        "the copies are the same",
        lambda: near(copies(7.0), latents(x, W_enc, b_enc) @ W_dec + b_dec, 1e-9),
        "What the latents lose, the decoder's rows must gain.",
    )
    yield (
        "every latent is that many times smaller",
        lambda: near(7 * latents(x, *new(7.0)[:2]), latents(x, W_enc, b_enc), 1e-9),
        "Smaller, not larger. And the bias is part of what goes through the ReLU.",
    )
    yield (
        "the penalty sinks as far as you like",
        lambda: latents(x, *new(1e6)[:2]).sum() < 1e-5 * latents(x, W_enc, b_enc).sum(),
    )
    yield (
        "one time changes nothing",
        lambda: near(new(1.0)[0], W_enc, 1e-12) and near(new(1.0)[2], W_dec, 1e-12),
    )

    def as_they_were():
        given = W_enc.clone(), b_enc.clone(), W_dec.clone()
        fn(*given, 3.0)
        return all(torch.equal(a, b) for a, b in zip(given, (W_enc, b_enc, W_dec)))

    yield "the given arrays are left as they were", untouched(fn, as_they_were), "Return new ones."


@checker("09.honest_loss")
def honest_loss(fn):
    x = draw(20, 5, seed=8)
    parts = dictionary()
    zero = torch.zeros(2, dtype=torch.float64)

    def rescaled(s):
        W_enc, b_enc, W_dec, b_dec = parts
        return W_enc * s, b_enc * s, W_dec / s[:, None], b_dec

    def unit():
        return rescaled(parts[2].norm(dim=1))

    def error(*w):
        return (x - latents(x, *w[:2]) @ w[2] - w[3]).square().sum(1).mean().item()

    ones = torch.ones(9, dtype=torch.float64)
    yield (
        "by hand: 0.21 for the first input, 0.0025 for the second, and their mean",
        lambda: near(fn(HAND_X, *HAND, zero, 0.5), 0.10625, 1e-9),
        "Sum the squared error over the entries of a row. Then take the mean over rows.",
    )
    yield "with λ at zero it is the error alone", lambda: near(fn(x, *parts, 0.0), error(*parts))
    yield (
        "with decoder rows of length one it is the naive loss",
        lambda: near(
            fn(x, *unit(), 0.4), error(*unit()) + 0.4 * latents(x, *unit()[:2]).sum(1).mean().item()
        ),
    )
    yield (
        "a hundred times smaller latents and longer rows: the same loss",
        lambda: near(fn(x, *rescaled(0.01 * ones), 0.4), fn(x, *parts, 0.4)),
        "What a latent adds to the copy has a length: its value times the length of its row.",
    )
    yield (
        "each latent with a factor of its own: the same loss",
        lambda: near(fn(x, *rescaled(torch.linspace(0.1, 4, 9).double()), 0.4), fn(x, *parts, 0.4)),
        "One length for each latent, not one for the whole decoder.",
    )
    yield (
        "the price grows in proportion to λ",
        lambda: near(
            fn(x, *parts, 0.6) - fn(x, *parts, 0.0), 3 * (fn(x, *parts, 0.2) - fn(x, *parts, 0.0))
        ),
    )
    yield (
        "the same rows twice: the same loss",
        lambda: near(fn(torch.cat([x, x]), *parts, 0.4), fn(x, *parts, 0.4)),
        "A mean over rows does not care how many there are.",
    )


def attention(n=6, heads=3, d=8, seed=0):
    """(read, pattern, W_V, W_O, x) with causal rows that sum to one."""
    scores = draw(heads, n, n, seed=seed).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    W_V, W_O = draw(heads, d, 4, seed=seed + 1), draw(heads, 4, d, seed=seed + 2)
    return draw(d, seed=seed + 3), scores.softmax(-1), W_V, W_O, draw(n, d, seed=seed + 4)


@checker("09.edges_into")
def edges_into(fn):
    read, A, W_V, W_O, x = attention()

    def value(x, read=read):
        moved = torch.einsum("hk,kd,hde,hef->f", A[:, -1], x, W_V, W_O)
        return (x[-1] + moved) @ read

    t = torch.tensor
    hand = {
        "read": t([1.0, 1]),
        "pattern": t([[[1.0, 0], [0.25, 0.75]]]),
        "W_V": t([[[1.0], [0]]]),
        "W_O": t([[[0.0, 2]]]),
        "x": t([[1.0, 0], [3, 1]]),
    }
    one = torch.eye(6, dtype=torch.float64)[2][:, None] * x  # only token 2
    yield (
        "there is one edge for each token",
        lambda: tuple(torch.as_tensor(fn(read, A, W_V, W_O, x)).shape) == (6,),
    )
    yield (
        "the edges sum to what the reader sees",
        lambda: near(sum(torch.as_tensor(fn(read, A, W_V, W_O, x)).tolist()), value(x).item()),
        "Add up the heads. And there is one more path: straight ahead, at the last position only.",
    )
    yield (
        "by hand: 0.5 from the first token, 8.5 from the last (4.5 through the head, 4 directly)",
        lambda: near(fn(*(v.double() for v in hand.values())), [0.5, 8.5], 1e-9),
        "The last row of the pattern says what the last position takes from each token.",
    )
    yield (
        "a token alone brings its own edge",
        lambda: near(torch.as_tensor(fn(read, A, W_V, W_O, x))[2], value(one).item()),
        "With the patterns held the model is linear: token 2 brings what it brings alone.",
    )
    yield (
        "twice the reader, twice the edges",
        lambda: near(fn(2 * read, A, W_V, W_O, x), 2 * torch.as_tensor(fn(read, A, W_V, W_O, x))),
    )


@checker("09.swap_first_title")
def swap_first_title(fn):
    word = torch.tensor([0, *shuffled(range(1, 40), seed=0)])  # BOS stays what it is
    aunt, uncle = int(word[7]), int(word[9])

    def swap(*tokens):
        return torch.as_tensor(fn(word[list(tokens)], aunt, uncle)).tolist()

    def words(*tokens):
        return word[list(tokens)].tolist()

    prompt = word[[0, 3, 7, 5, 2, 7]]

    def again():
        return fn(torch.as_tensor(fn(prompt.clone(), aunt, uncle)), aunt, uncle)

    def as_it_was():
        given = prompt.clone()
        fn(given, aunt, uncle)
        return torch.equal(given, prompt)

    yield (
        "Aunt … Aunt becomes Uncle … Aunt",
        lambda: swap(0, 3, 7, 5, 2, 7) == words(0, 3, 9, 5, 2, 7),
        "Only the title before the name changes. The last token asks the question: leave it.",
    )
    yield (
        "Uncle … Uncle becomes Aunt … Uncle",
        lambda: swap(0, 9, 5, 2, 9) == words(0, 7, 5, 2, 9),
        "The control goes both ways.",
    )
    yield "the name and all other words stay", lambda: swap(0, 1, 7, 8, 2, 7)[3:5] == words(8, 2)
    yield (
        "a title in the middle is not the first",
        lambda: swap(0, 7, 5, 9, 4, 7) == words(0, 9, 5, 9, 4, 7),
    )
    yield (
        "applied twice it gives the prompt back",
        lambda: torch.equal(torch.as_tensor(again()), prompt),
    )
    yield "the given prompt is left as it was", untouched(fn, as_it_was), "Work on a clone."


@checker("09.loss_recovered")
def loss_recovered(fn):
    full, zero = draw(30).abs() + 2, draw(30, seed=1).abs() + 5
    spliced = full + 0.1 * draw(30, seed=2).abs()
    hand = [torch.tensor(v, dtype=torch.float64) for v in ([1.0, 2], [3.0, 2.5], [1.5, 2.25])]
    idle = torch.cat([zero, full[:1]])  # one more window, in which the MLP does nothing

    yield "it is one number", lambda: torch.as_tensor(fn(full, zero, spliced)).ndim == 0
    yield (
        "the model itself has 1",
        lambda: near(fn(full, zero, full), 1.0, 1e-9),
        "All of the rise from full to zero is undone there. Put that rise below the line.",
    )
    yield (
        "the zero ablation has 0",
        lambda: near(fn(full, zero, zero), 0.0, 1e-9),
        "How much of the rise from full to zero is undone?",
    )
    yield (
        "by hand: rises of 2 and 0.5, of which 1.5 and 0.25 come back: 0.7",
        lambda: near(fn(*hand), 0.7, 1e-9),
        "The share of the whole rise, not the mean of two shares.",
    )
    yield (
        "half way between the two losses is 0.5",
        lambda: near(fn(full, zero, (full + zero) / 2), 0.5, 1e-9),
    )
    yield (
        "a nat more in all three losses changes nothing",
        lambda: near(fn(full + 1, zero + 1, spliced + 1), fn(full, zero, spliced), 1e-9),
        "Compare differences of losses, not losses.",
    )
    yield (
        "a window in which the ablation does nothing does no harm",
        lambda: near(
            fn(torch.cat([full, full[:1]]), idle, torch.cat([spliced, full[:1]])),
            fn(full, zero, spliced),
            1e-9,
        ),
    )
    yield (
        "worse than the zero ablation is below 0",
        lambda: near(fn(full, zero, 2 * zero - full), -1.0, 1e-9),
    )
