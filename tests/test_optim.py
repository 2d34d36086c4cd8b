"""Which optimisers know the basis, and what Muon takes for a matrix."""

import pytest
import torch

from circuitbook import fast, optim
from circuitbook.config import Config
from circuitbook.recipes import Recipe


def rotation(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0].float()


def gradients(rows, cols, steps=4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, cols, generator=generator) for _ in range(steps)]


def weights_after(make, grads, turn=None):
    """A zero matrix after some steps of an optimiser; `turn` rotates its rows' space."""
    p = torch.zeros_like(grads[0]).requires_grad_()
    optimizer = make([p])
    for grad in grads:
        p.grad = grad.clone() if turn is None else turn @ grad
        optimizer.step()
    return p.detach()


MAKERS = {
    "muon": lambda ps: optim.Muon(ps, 0.02, 0.95, 0.01),
    "sgd": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9),
    "adam": lambda ps: torch.optim.Adam(ps, 0.01, betas=(0.9, 0.95)),
}


@pytest.mark.parametrize(("name", "commutes"), [("muon", True), ("sgd", True), ("adam", False)])
@pytest.mark.parametrize("shape", [(24, 64), (24, 24), (24, 8)])
def test_rotation_of_the_stream(name, commutes, shape):
    """Steps on Q g from 0 end at Q times the steps on g: true of Muon and SGD, not of Adam."""
    grads, q = gradients(*shape), rotation(24)
    ahead, after = weights_after(MAKERS[name], grads, q), q @ weights_after(MAKERS[name], grads)
    off = ((ahead - after).norm() / after.norm()).item()
    assert off < 0.06 if commutes else off > 0.5  # Muon's products are in bfloat16
    x, turn = grads[0].double(), q.double()
    exact = optim.orthogonalise(x, torch.float64)
    both = optim.orthogonalise(turn @ x, torch.float64), turn @ exact
    torch.testing.assert_close(*both, atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape", [(24, 64), (64, 24), (3, 20, 20)])
def test_orthogonalise(shape):
    """Singular vectors stay, singular values go to 0.7 ... 1.2; a factor on G changes nothing."""
    g = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    found = optim.orthogonalise(g)
    assert found.shape == g.shape and found.dtype == g.dtype
    u, s, vh = torch.linalg.svd(g, full_matrices=False)
    inner = u.mT @ found @ vh.mT
    big = s / s.amax(-1, keepdim=True) > 0.05
    diagonal = inner.diagonal(dim1=-2, dim2=-1)
    assert diagonal[big].min() > 0.6 and diagonal[big].max() < 1.3
    assert (inner - torch.diag_embed(diagonal)).abs().max() < 0.05
    torch.testing.assert_close(optim.orthogonalise(4 * g), found, atol=0.02, rtol=0)
    assert not optim.orthogonalise(torch.zeros(shape)).any()


@pytest.mark.parametrize("shape", [(8, 256, 32), (8, 32, 256), (1, 5, 3), (4, 3, 5), (7, 9)])
def test_head_stacks_go_there_and_back(shape):
    p = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    d_model = max(shape[1:]) if len(shape) == 3 else 0
    matrix = optim.Muon._matrix(p, d_model)
    assert torch.equal(optim.Muon._back(matrix, p), p)
    if len(shape) == 3:
        h, narrow = shape[0], min(shape[1:])
        reads = shape[1] == d_model
        assert matrix.shape == ((d_model, h * narrow) if reads else (h * narrow, d_model))
        last = p[-1]  # the last head's block, whole and in place
        assert torch.equal(matrix[:, -narrow:] if reads else matrix[-narrow:], last)


def test_square_stacks_are_refused():
    """d_head = d_model: nothing tells a reading stack from a writing one."""
    with pytest.raises(ValueError, match=r"smaller than d_model; got shape \(4, 16, 16\)"):
        optim.Muon([torch.zeros(4, 16, 16)], 0.1, 0.9, 0.0)
    for wide in (16, 32):
        cfg = Config(n_layers=1, d_model=16, n_heads=2, d_head=wide, d_vocab=20)
        with pytest.raises(ValueError, match="heads narrower than the stream"):
            optim.build(fast.init(cfg, 0), Recipe(cfg).to_dict())
        assert optim.build(fast.init(cfg, 0), Recipe(cfg, optimizer="adam").to_dict())


def test_experts_of_a_stack_are_taken_apart():
    """One expert's update does not depend on another's gradient, square stacks included."""
    for shape in [(3, 16, 16), (3, 16, 40), (3, 40, 16)]:
        generator = torch.Generator().manual_seed(0)
        grad, ends = torch.randn(shape, generator=generator), []
        for p in (torch.zeros(shape), torch.zeros(shape[1:])):
            p.requires_grad_()
            both = p.ndim == 3
            optimizer = optim.Muon([] if both else [p], 0.1, 0.9, 0.0, [p] if both else [])
            p.grad = grad.clone() if both else grad[1].clone()
            optimizer.step()
            ends.append(p.detach()[1] if both else p.detach())
        torch.testing.assert_close(ends[0], ends[1], atol=2e-3, rtol=0)
        assert ends[0].abs().max() > 1e-2
    cfg = Config(
        n_layers=1, d_model=16, n_heads=2, d_head=4, d_vocab=20, d_mlp=16, act="gelu",
        n_experts=3, top_k=2,
    )  # fmt: skip
    params = fast.init(cfg, 0)
    _, muon = optim.build(params, Recipe(cfg).to_dict())
    apart = [p for group in muon.param_groups if group["apart"] for p in group["params"]]
    assert [id(p) for p in apart] == [id(params[f"blocks.0.mlp.W_{w}"]) for w in ("in", "out")]
    held = [id(p) for group in muon.param_groups for p in group["params"]]
    assert (
        id(params["blocks.0.mlp.W_router"]) in held and id(params["blocks.0.mlp.b_in"]) not in held
    )


def test_muon_step_by_hand():
    """p <- p (1 - lr decay) - lr sqrt(max(1, cols/rows)) O(Nesterov momentum)."""
    g1, g2 = gradients(6, 24, steps=2)
    p = torch.ones(6, 24).requires_grad_()
    optimizer = optim.Muon([p], 0.1, 0.9, 0.5)
    wanted, m = torch.ones(6, 24), torch.zeros(6, 24)
    for g in (g1, g2):
        p.grad = g.clone()
        optimizer.step()
        m = 0.9 * m + 0.1 * g
        update = 0.1 * g + 0.9 * m
        wanted = wanted * (1 - 0.1 * 0.5) - 0.1 * 2.0 * optim.orthogonalise(update)
        torch.testing.assert_close(p.detach(), wanted, atol=2e-3, rtol=0)


def test_heads_of_a_stack_share_one_matrix():
    """Head 0's update depends on head 1's gradient: the stack is one matrix on the stream."""
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(2, 12, 3, generator=generator)
    other = g.clone()
    other[1] = torch.randn(12, 3, generator=generator)
    ends = [weights_after(MAKERS["muon"], [x])[0] for x in (g, other)]
    assert (ends[0] - ends[1]).abs().max() > 1e-3


def test_matrices_of_equal_shape_do_not_mix():
    """W_Q and W_K are orthogonalised in one call and get what each would get alone."""
    (a, b), alone = gradients(6, 24, steps=2), []
    for g in (a, b):
        alone.append(weights_after(MAKERS["muon"], [g]))
    ps = [torch.zeros(6, 24).requires_grad_() for _ in range(2)]
    ps[0].grad, ps[1].grad = a.clone(), b.clone()
    MAKERS["muon"](ps).step()
    for p, wanted in zip(ps, alone, strict=True):
        torch.testing.assert_close(p.detach(), wanted, atol=1e-4, rtol=0)


def test_build_gives_every_parameter_to_one_optimiser():
    cfg = Config(n_layers=2, d_mlp=64, act="gelu", d_model=32, n_heads=2, d_head=8, d_vocab=50)
    params = fast.init(cfg, 0)
    for kind, number in (("muon", 2), ("adam", 1), ("sgd", 1)):
        built = optim.build(params, Recipe(cfg, optimizer=kind).to_dict())
        assert len(built) == number
        owned = [id(p) for o in built for group in o.param_groups for p in group["params"]]
        assert sorted(owned) == sorted(id(p) for p in params.values())
    muon = optim.build(params, Recipe(cfg).to_dict())[1]
    shapes = {tuple(p.shape) for p in muon.param_groups[0]["params"]}
    assert shapes == {(2, 32, 8), (2, 8, 32), (32, 64), (64, 32)}, "no embedding, no bias"
    bare = fast.init(Config(n_layers=0, d_vocab=50), 0)
    assert len(optim.build(bare, Recipe(Config(n_layers=0, d_vocab=50)).to_dict())) == 1
    with pytest.raises(ValueError, match="muon, adam or sgd; got 'lion'"):
        optim.build(params, Recipe(cfg, optimizer="lion").to_dict())
