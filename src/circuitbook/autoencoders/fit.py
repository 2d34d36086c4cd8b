"""Many small autoencoders train side by side: five matrix products a step, gradients written out.

L = mean over rows of |h - ĥ|² + λ Σ_j f_j |D_j|,  f = ReLU(hE + b),  ĥ = fD + b_dec.

With r = h - ĥ for a row and the rows of a batch summed, minus half the gradient is

    s_j  = (r · D_j - λ|D_j|/2) where f_j > 0, else 0
    E: hᵀs        b: Σ s        D_j: Σ f_j r - (λ/2) Σ f_j D_j/|D_j|        b_dec: Σ r

A *lane* is one autoencoder on one toy. Lanes never meet, so each runs on one thread, whatever the
number of threads, and its bytes do not depend on it. All lanes see one stream of sparse codes.
Inputs stand in columns (d rows, `batch` columns) next to latents in columns (`batch` rows): at
these sizes a product is several times faster that way round than the other.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from circuitbook.autoencoders import repoint
from circuitbook.autoencoders.sae import Dictionary

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-6  # eps is for half the gradient, summed over the batch
TOGETHER = 8  # steps whose codes are drawn at once


@dataclass(frozen=True)
class Setting:
    """One way of training.

    repoint: "" (never), "missing" or "blind"; every `every` steps up to step `until`, both
    multiples of eight.
    """

    latents: int = 40
    penalty: float = 0.3
    steps: int = 15_000
    batch: int = 4_096
    rate: float = 1e-3
    on: float = 0.05
    repoint: str = ""
    every: int = 512
    until: int = 6_144
    seed: int = 0


def start(d: int, setting: Setting, lane: int) -> Dictionary:
    """Unit decoder rows and unit encoder columns, drawn independently; biases zero."""
    g = torch.Generator().manual_seed(10_007 * setting.seed + lane)
    drawn = torch.randn(2, setting.latents, d, generator=g)
    D, E = torch.nn.functional.normalize(drawn, dim=-1)
    return Dictionary(E.T.clone(), torch.zeros(len(D)), D, torch.zeros(d))


class Codes:
    """A stream of sparse codes: each entry is on with probability `on`, then uniform on [0, 1).

    The places that are on are found by geometric gaps, so a draw costs only what is on.
    """

    def __init__(self, size: int, on: float, generator: torch.Generator) -> None:
        self.on, self.generator = on, generator
        self.flat = torch.zeros(size)
        self.at = torch.zeros(0, dtype=torch.long)

    def draw(self) -> Float[Tensor, " size"]:
        """The next `size` entries; they are overwritten by the next call."""
        self.flat.index_fill_(0, self.at, 0.0)
        size, last, found = len(self.flat), -1, []
        few = int(size * self.on + 6 * (size * self.on) ** 0.5 + 8)
        while last < size:
            gaps = torch.empty(few, dtype=torch.long).geometric_(self.on, generator=self.generator)
            found.append(gaps.cumsum(0) + last)
            last = int(found[-1][-1])
        self.at = torch.cat(found)
        self.at = self.at[self.at < size]
        return self.flat.scatter_(0, self.at, torch.rand(len(self.at), generator=self.generator))


class Lane:
    """One autoencoder in training. All its numbers lie in one block [2(d + 2), latents].

    Rows 0 … d-1: encoder, d: its bias, d + 1: zero.  Then d rows: decoder, a row that holds
    λ|D_j|/2 (no parameter), a row whose first d entries are the decoder's bias.
    """

    def __init__(self, first: Dictionary, setting: Setting) -> None:
        (d, n), batch = first.W_enc.shape, setting.batch
        if n < d:
            raise ValueError(f"{n} latents in {d} dimensions: use at least {d}")
        self.d, self.setting, self.time = d, setting, 0
        self.moved: list[int] = []  # latents carried elsewhere, at each time of asking
        self.all = torch.zeros(2 * d + 4, n)
        like = torch.zeros_like(self.all)
        self.first, self.second, self.grad, self.size = (like.clone() for _ in range(4))
        self.enc, self.dec = self.all[: d + 2], self.all[d + 2 :]
        self.D, self.half, self.b_dec = self.dec[:d], self.dec[d], self.dec[d + 1, :d, None]
        self.enc[:d], self.enc[d], self.D[:] = first.W_enc, first.b_enc, first.W_dec.T
        self.b_dec[:, 0] = first.b_dec
        self.d_enc, self.d_dec = self.grad[: d + 2], self.grad[d + 2 :]
        self.d_D, self.minus_f, self.d_bias = self.d_dec[:d], self.d_dec[d], self.d_dec[d + 1, :d]
        self.norm = torch.empty(n)
        self.f, self.s = torch.empty(batch, n), torch.empty(batch, n)
        self.r = torch.zeros(d + 2, batch)
        self.r[d] = -1  # meets λ|D|/2 in the product below
        self.residual = self.r[:d]

    def step(self, h: Float[Tensor, "d_and_two batch"]) -> None:
        """One step of Adam on the batch h; row d of h is one, row d + 1 zero."""
        self.time += 1
        half = self.setting.penalty / 2
        torch.linalg.vector_norm(self.D, dim=0, out=self.norm)
        torch.mul(self.norm, half, out=self.half)
        torch.mm(h.T, self.enc, out=self.f).relu_()
        torch.addmm(h[: self.d], self.D, self.f.T, alpha=-1, out=self.residual)
        self.residual.sub_(self.b_dec)
        torch.mm(self.r.T, self.dec, out=self.s)
        torch.ops.aten.threshold_backward.grad_input(self.s, self.f, 0.0, grad_input=self.s)
        torch.mm(h, self.s, out=self.d_enc)
        torch.mm(self.r, self.f, out=self.d_dec)
        self.d_D.addcmul_(self.D, self.minus_f.mul_(half).div_(self.norm))
        self.d_dec[self.d :].zero_()
        torch.sum(self.residual, 1, out=self.d_bias)
        self.first.lerp_(self.grad, 1 - BETA_1)
        self.second.mul_(BETA_2).addcmul_(self.grad, self.grad, value=1 - BETA_2)
        torch.sqrt(self.second, out=self.size).add_(EPS)
        unbiased = math.sqrt(1 - BETA_2**self.time) / (1 - BETA_1**self.time)
        self.all.addcdiv_(self.first, self.size, value=self.setting.rate * unbiased)

    def repoint(self, h: Float[Tensor, "n d"], which: str) -> int:
        """Carry the spare latents to other directions and forget their past; how many they are."""
        now = self.dictionary()
        f = now.encode(h)
        spare = repoint.spare_latents(now, f).nonzero().flatten()
        if len(spare):
            residual, count = h - now.decode(f), len(spare)
            if which == "missing":
                to = repoint.missing_directions(h, residual, count)
            else:
                to = repoint.blind_directions(h, residual, count, self.time)
            self.enc[: self.d, spare] = self.D[:, spare] = to.T
            self.enc[self.d, spare] = 0.0
            self.first[:, spare] = self.second[:, spare] = 0.0
        self.moved.append(len(spare))
        return len(spare)

    def dictionary(self) -> Dictionary:
        """A copy of the weights as they are now."""
        parts = self.enc[: self.d], self.enc[self.d], self.D.T.contiguous(), self.b_dec[:, 0]
        return Dictionary(*(part.clone() for part in parts))


def train(
    W: Float[Tensor, "lane d feature"], setting: Setting, lanes: list[Lane] | None = None
) -> list[Dictionary]:
    """One autoencoder for each toy W[lane], on fresh hidden vectors h = Wx in every step.

    lanes: to go on from (default: `start` of each). Threads: as many as torch may use, one a lane.
    """
    count, d, n = W.shape
    lanes = lanes or [Lane(start(d, setting, i), setting) for i in range(count)]
    maps = torch.nn.functional.pad(W, (0, 0, 0, 2))
    threads = torch.get_num_threads()
    workers = min(threads, count)
    places = [torch.empty(d + 2, setting.batch) for _ in range(workers)]
    g = torch.Generator().manual_seed(setting.seed)
    ahead = [Codes(TOGETHER * n * setting.batch, setting.on, g) for _ in range(2)]

    @torch.no_grad()
    def work(worker: int, codes: Tensor, steps: int, mend: bool) -> None:
        h, block = places[worker], codes.view(TOGETHER, n, setting.batch)
        for i in range(worker, count, workers):
            if mend:
                lanes[i].repoint((maps[i, :d] @ block).mT.reshape(-1, d), setting.repoint)
            for x in block[:steps]:
                torch.mm(maps[i], x, out=h)
                h[d].fill_(1.0)
                lanes[i].step(h)

    # One thread each, this one too: a thread that waits inside a product would spin, and take the
    # others' time.
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            running: list = []
            for block, done in enumerate(range(0, setting.steps, TOGETHER)):
                codes = ahead[block % 2].draw()  # drawn while the block before is worked on
                for one in running:
                    one.result()
                steps = min(TOGETHER, setting.steps - done)
                mend = bool(setting.repoint) and 0 < done <= setting.until
                mend = mend and not done % setting.every
                running = [pool.submit(work, w, codes, steps, mend) for w in range(workers)]
            for one in running:
                one.result()
    finally:
        torch.set_num_threads(threads)
    return [lane.dictionary() for lane in lanes]
