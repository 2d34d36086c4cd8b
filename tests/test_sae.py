"""The autoencoder's formulas, its explicit gradients, its file, and the loss it brings back."""

import json
from dataclasses import replace

import pytest
import torch

from circuitbook import recipes as models
from circuitbook import weightfile, zoo
from circuitbook.autoencoders import bundle, quality, sae, steps
from circuitbook.autoencoders import recipes as dictionaries
from circuitbook.autoencoders.sae import Dictionary
from circuitbook.config import Config
from circuitbook.model import Transformer

TOY = Config(1, d_model=24, n_heads=3, d_head=8, d_mlp=40, act="gelu", n_ctx=32, d_vocab=70)
LIMIT = {torch.float32: 1e-5, torch.float64: 1e-12}


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=gen(seed), dtype=torch.float64).to(dtype)


def random_dictionary(d_in=12, latents=50, d_out=9, k=0, dtype=torch.float64):
    return Dictionary(
        draw(d_in, latents, seed=1, dtype=dtype),
        draw(latents, seed=2, dtype=dtype),
        draw(latents, d_out, seed=3, dtype=dtype),
        draw(d_out, seed=4, dtype=dtype),
        k,
    )


def toy_model(dtype=torch.float32):
    model = Transformer(TOY, seed=1).to(dtype).eval().requires_grad_(False)
    for name, p in model.named_parameters():
        p.mul_(2.0 if "W_O" not in name else 6.0)
        if ".b_" in name:
            p.copy_(0.3 * torch.randn(p.shape, generator=gen(len(name))).to(dtype))
    return model


def some_tokens(n=6, length=20):
    tokens = torch.randint(1, TOY.d_vocab, (n, length), generator=gen(3))
    tokens[:, 0] = 0
    return tokens


# ---- formulas


def test_one_latent_by_hand():
    d = Dictionary(
        torch.tensor([[2.0], [0.0]]), torch.tensor([-1.0]),
        torch.tensor([[0.0, 3.0]]), torch.tensor([1.0, 1.0]),
    )  # fmt: skip
    x = torch.tensor([[2.0, 5.0], [0.25, 5.0]])
    assert d.encode(x).tolist() == [[3.0], [0.0]]  # 2 * 2 - 1, and ReLU(2 * 0.25 - 1)
    assert d(x).tolist() == [[1.0, 10.0], [1.0, 1.0]]
    errors = torch.tensor([1.0 + 25.0, 0.5625 + 16.0])
    assert sae.loss(d, x, x, 0.5).item() == pytest.approx(
        float((errors + torch.tensor([0.5 * 3 * 3.0, 0.0])).mean())
    )


@pytest.mark.parametrize("dtype", LIMIT)
def test_top_k_keeps_the_k_largest_and_nothing_below_zero(dtype):
    d = random_dictionary(k=4, dtype=dtype)
    x = draw(64, 12, seed=5, dtype=dtype)
    f, whole = d.encode(x), replace(d, k=0).encode(x)
    assert ((f > 0).sum(1) == 4).all()
    off = torch.where(f > 0, torch.zeros_like(whole), whole)
    assert (off.max(1).values <= torch.where(f > 0, f, torch.inf).min(1).values).all()
    assert torch.equal(f, torch.where(f > 0, whole, torch.zeros_like(f)))
    low = replace(d, b_enc=d.b_enc - 100)
    assert (low.encode(x) == 0).all() and torch.equal(low(x), d.b_dec.expand(64, -1))
    torch.testing.assert_close(
        quality.decoded(d, quality.codes(d, x, block=10)), d(x), rtol=0, atol=20 * LIMIT[dtype]
    )


@pytest.mark.parametrize("dtype", LIMIT)
def test_rescaling_law(dtype):
    d, x = random_dictionary(d_out=12, dtype=dtype), draw(200, 12, seed=6, dtype=dtype)
    s = torch.rand(50, generator=gen(7)).to(dtype) * 3 + 0.1
    other = sae.rescaled(d, s)
    torch.testing.assert_close(other(x), d(x), rtol=0, atol=200 * LIMIT[dtype])
    before, after = sae.loss(d, x, x, 0.3), sae.loss(other, x, x, 0.3)
    assert after.item() == pytest.approx(before.item(), rel=LIMIT[dtype] * 10)
    # without the norm the penalty falls when latents shrink, and the output is still the same
    small = sae.rescaled(d, torch.full((50,), 0.1, dtype=dtype))
    assert small.encode(x).sum() < 0.11 * d.encode(x).sum()
    unit = sae.unit_rows(d)
    torch.testing.assert_close(unit.W_dec.norm(dim=1), torch.ones(50, dtype=dtype))
    torch.testing.assert_close(unit(x), d(x), rtol=0, atol=200 * LIMIT[dtype])


# ---- explicit gradients


@pytest.mark.parametrize("k", [0, 5])
@pytest.mark.parametrize("dense", [False, True])
def test_gradients_are_those_of_the_loss(k, dense, monkeypatch):
    monkeypatch.setattr(steps, "DENSE", -1.0 if dense else 2.0)
    d = random_dictionary(k=k, dtype=torch.float32)
    d = replace(d, b_enc=d.b_enc * 0.1)
    x, y = draw(64, 12, seed=8, dtype=torch.float32), draw(64, 9, seed=9, dtype=torch.float32)
    leaves = {
        n: getattr(d, n).clone().requires_grad_() for n in ("W_enc", "b_enc", "W_dec", "b_dec")
    }
    sae.loss(replace(d, **leaves), x, y, 0.3).backward()
    params = {"E": d.W_enc.T.contiguous(), "b_enc": d.b_enc, "D": d.W_dec, "b_dec": d.b_dec}
    p = x @ d.W_enc + d.b_enc  # in float32, so that the same latents are on
    g = steps.gradients(params, x, y, k, 0.3, p.clone())
    near = 0.02 if dense and not k else 1e-5  # the dense form multiplies in bfloat16
    for mine, leaf in ((g.E.T, "W_enc"), (g.b_enc, "b_enc"), (g.D, "W_dec"), (g.b_dec, "b_dec")):
        true = leaves[leaf].grad
        assert (mine - true).norm() <= near * true.norm(), leaf
    on = d.encode(x) > 0
    assert torch.equal(g.fired, on.sum(0))
    error = d(x) - y
    assert (g.error - error).norm() <= near * error.norm()


def test_radial_part_is_gone():
    D = torch.nn.functional.normalize(draw(7, 5), dim=1)
    rest = steps.without_radial(draw(7, 5, seed=1), D)
    assert (rest * D).sum(1).abs().max() < 1e-12


# ---- the loss that comes back


@pytest.mark.parametrize("dtype", LIMIT)
def test_losses_are_those_of_a_run_with_a_hook(dtype):
    model, tokens = toy_model(dtype), some_tokens()
    d = random_dictionary(40, 90, 40, k=6, dtype=dtype)
    seen = quality.read(model, tokens, torch.arange(6))

    def run(way):
        def hook(post, hook):
            return torch.cat([post[:, :1], way(post[:, 1:])], 1)

        hooks = [("blocks.0.mlp.hook_post", hook)]
        return model.run_with_hooks(tokens, return_type="loss_per_token", fwd_hooks=hooks)[:, 1:]

    for way in (d, torch.zeros_like, lambda post: post):
        torch.testing.assert_close(
            quality.losses(model, seen, way), run(way).mean(1), rtol=0, atol=40 * LIMIT[dtype]
        )
    plain = model(tokens, return_type="loss_per_token")[:, 1:].mean(1)
    torch.testing.assert_close(quality.losses(model, seen), plain, rtol=0, atol=40 * LIMIT[dtype])


def test_loss_recovered_has_its_ends_and_an_error():
    full, zero = 3 + draw(400, seed=1) * 0.1, 4 + draw(400, seed=2) * 0.1
    doc = torch.arange(400)
    assert quality.recovered(full, zero, full, doc).mean == 1.0
    assert quality.recovered(full, zero, zero, doc).mean == 0.0
    half = quality.recovered(full, zero, (full + zero) / 2, doc)
    assert half.mean == pytest.approx(0.5) and half.se < 1e-12  # every window says the same
    noisy = (full + zero) / 2 + draw(400, seed=3) * 0.2
    estimate = quality.recovered(full, zero, noisy, doc)
    draws = []
    for seed in range(300):  # the bootstrap's opinion of the same error
        at = torch.randint(400, (400,), generator=gen(seed))
        draws.append(quality.recovered(full[at], zero[at], noisy[at], doc).mean)
    assert estimate.se == pytest.approx(torch.tensor(draws).std().item(), rel=0.15)
    # a ratio of means: a window that zeroing does not touch rules nothing
    zero[0] = full[0]
    assert quality.recovered(full, zero, noisy, doc).mean == pytest.approx(0.5, abs=0.05)


def test_score_of_a_perfect_and_of_an_empty_dictionary():
    model, tokens = toy_model(torch.float64), some_tokens()
    seen = quality.read(model, tokens, torch.arange(6))
    full, zero = (quality.losses(model, seen, way) for way in (None, torch.zeros_like))
    x = seen.post.flatten(0, 1)
    eye = torch.eye(40, dtype=torch.float64)
    # two latents for each neuron, one for its positive and one for its negative part
    perfect = Dictionary(
        torch.cat([eye, -eye], 1), torch.zeros(80, dtype=torch.float64),
        torch.cat([eye, -eye], 0), torch.zeros(40, dtype=torch.float64),
    )  # fmt: skip
    good = quality.score(model, seen, perfect, full, zero)
    assert good["recovered"] == pytest.approx(1) and good["variance_kept"] == pytest.approx(1)
    assert good["l0"] == pytest.approx(40, abs=0.01) and good["dead"] <= 0.5
    empty = replace(perfect, b_enc=perfect.b_enc - 1e6, b_dec=x.mean(0))
    bad = quality.score(model, seen, empty, full, zero)
    assert bad["l0"] == 0 and bad["dead"] == 1 and bad["variance_kept"] == pytest.approx(0)
    with pytest.raises(ValueError, match="one-layer"):
        quality.read(Transformer(replace(TOY, n_layers=2)), tokens, torch.arange(6))


# ---- the file


def test_eight_bits():
    rows = draw(30, 64, dtype=torch.float32) * torch.logspace(-4, 3, 30)[:, None]
    q, scale = bundle.quantise(rows)
    assert q.dtype == torch.int8 and scale.dtype == torch.float16
    again = bundle.restore((q, scale))
    # half a step, and what float16 does to the step itself
    step = rows.abs().amax(1) / 127
    assert ((rows - again).abs() <= 0.5 * step[:, None] * 1.01 + 127 * step[:, None] * 6e-4).all()
    assert (q.abs().amax(1)[scale > 1e-3] == 127).all()  # all eight bits are used
    assert bundle.quantise(torch.zeros(2, 3))[0].abs().max() == 0
    d = sae.unit_rows(random_dictionary(k=4, dtype=torch.float32))
    stored, d = bundle.unpack(bundle.pack(d), 0), replace(d, k=0)
    x = draw(100, 12, seed=5, dtype=torch.float32)
    assert (stored(x) - d(x)).norm() < 0.02 * d(x).norm()


@pytest.fixture
def kept(project, monkeypatch):
    """A bundled dictionary of a toy role, in a project of its own."""
    rec = models.Recipe(TOY, steps=10)
    monkeypatch.setitem(models.RECIPES, "toy", rec)
    mine = dictionaries.Recipe("toy", 0, "neurons", 50, chunks=2, k=4)
    monkeypatch.setitem(dictionaries.RECIPES, "sae-toy", mine)
    monkeypatch.setattr("circuitbook.corpus.corpus_sha256", lambda: "c" * 64)
    weightfile.write_weights("toy", {"w": torch.ones(2).half()}, rec, "c" * 64)
    weightfile.manifest_entry("toy", rec, "c" * 64, seconds=1, device="cpu")
    d = sae.unit_rows(random_dictionary(40, 50, 40, k=4, dtype=torch.float32))
    bundle.write("sae-toy", d, mine, seconds=3, measured={"curve": []})
    return d


def refused(match):
    with pytest.raises(zoo.WeightsError, match=match) as error:
        bundle.load("sae-toy")
    said = str(error.value)
    assert "git checkout weights/" in said and "circuitbook.autoencoders.train sae-toy" in said


def test_a_bundled_dictionary_comes_back_as_stored(kept):
    there = bundle.load("sae-toy")
    packed = bundle.unpack(bundle.pack(kept), 4)
    assert torch.equal(there.W_enc, packed.W_enc) and torch.equal(there.W_dec, packed.W_dec)
    assert torch.equal(there.b_enc, kept.b_enc) and there.k == 4
    listed = weightfile.read_manifest()["sae-toy"]
    assert listed["model"] == "toy" and listed["tokens"] == 2 * 64 * 511
    data = weightfile.weight_path("sae-toy").read_bytes()
    bundle.write(
        "sae-toy", kept, dictionaries.RECIPES["sae-toy"], seconds=3, measured={"curve": []}
    )
    assert weightfile.weight_path("sae-toy").read_bytes() == data
    with pytest.raises(KeyError, match="sae-toy"):
        bundle.load("sae-boy")


def test_what_is_wrong_with_a_file_is_said(kept, monkeypatch):
    path = weightfile.weight_path("sae-toy")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")
    refused("damaged or was changed")
    path.unlink()
    refused("are missing")
    path.write_bytes(data)
    listed = weightfile.read_manifest()
    weightfile.manifest_path().write_text(json.dumps({"toy": listed["toy"]}))
    refused("not listed")
    changed = {**listed, "toy": {**listed["toy"], "sha256": "0" * 64}}
    weightfile.manifest_path().write_text(json.dumps(changed))
    refused("another toy")
    other = {**listed, "sae-toy": {**listed["sae-toy"], "corpus_sha256": "d" * 64}}
    weightfile.manifest_path().write_text(json.dumps(other))
    refused("other text")
    weightfile.manifest_path().write_text(json.dumps(listed))
    monkeypatch.setitem(
        dictionaries.RECIPES, "sae-toy", replace(dictionaries.RECIPES["sae-toy"], seed=1)
    )
    refused("another recipe")
    with pytest.raises(zoo.WeightsError, match="training curve"):
        bundle.measured("sae-toy")
    monkeypatch.setenv("MODELS", "published")
    with pytest.raises(zoo.WeightsError, match="MODELS=course"):
        bundle.load("sae-toy")


@pytest.mark.weights
def test_the_bundled_files_load_and_are_small():
    sizes = {}
    for name, rec in dictionaries.RECIPES.items():
        d = bundle.load(name)
        sizes[name] = weightfile.weight_path(name).stat().st_size
        assert d.latents == rec.latents and d.k == rec.k
        # int8 with a float16 scale: rows are of length 1 up to that rounding
        torch.testing.assert_close(d.W_dec.norm(dim=1), torch.ones(d.latents), atol=0.02, rtol=0)
        assert bundle.measured(name)["curve"][-1]["rows"] == rec.rows
    assert sizes["sae-gelu-1l"] <= 10e6
    assert sum(size for name, size in sizes.items() if name.startswith("transcoder")) <= 2.2e6
