"""explore(): its numbers are the model's, its bytes repeat, and no prompt can break out of it."""

import base64
import html
import json
import re

import pytest
import torch
from published_toy import published
from published_toy import tokens_of as published_tokens
from small_model import TINY, model_of, tokens_of

from circuitbook import paths, tokenizer, zoo
from circuitbook.explore import explore, page
from circuitbook.explore.reading import FROZEN
from circuitbook.model import Transformer

SALLY = "I always loved visiting Aunt Sally. Whenever I was feeling sad, Aunt"
MLP = TINY.replace(d_mlp=24, act="gelu")
CLASSIC = TINY.replace(
    norm="layernorm", positions="standard", pos_kind="learned", attn_bias=True, unembed_bias=True,
    d_mlp=24, act="gelu_new",
)  # fmt: skip
SHAPES = {"course": TINY, "mlp": MLP, "classic": CLASSIC}
WIDE = TINY.replace(n_layers=1, n_ctx=600)  # reads more than a view with this many heads holds


def toy(shape):
    """(a model, the ids of one prompt)"""
    if shape == "published":
        return published(), published_tokens(n=1)[0].tolist()
    return model_of(SHAPES[shape]), tokens_of(SHAPES[shape], n=1)[0].tolist()


def numbers(view):
    """The text of the numbers that the page holds; without drawing a picture."""
    return page.as_json(page.numbers(view.reading, view.head))


def data_of(view):
    """The numbers as the browser gets them."""
    return json.loads(numbers(view))


def unpacked(text, n):
    """What the script makes of a packed pattern."""
    digits = [page.DIGITS.index(c) for c in text]
    steps = iter(64 * a + b for a, b in zip(digits[::2], digits[1::2], strict=True))
    return [[next(steps) / 4095 if k <= q else 0.0 for k in range(n)] for q in range(n)]


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [*SHAPES, "published"])
def test_the_numbers_are_those_of_the_model(shape):
    model, ids = toy(shape)
    data = data_of(explore(ids, model))
    logits, cache = model.run_with_cache(torch.tensor([ids]))
    probability = logits[0].softmax(-1)
    n = len(ids)
    assert [data["layers"], data["heads"]] == [model.cfg.n_layers, model.cfg.n_heads]
    for at, (packed, size) in enumerate(zip(data["pattern"], data["size"], strict=True)):
        l, h = divmod(at, model.cfg.n_heads)
        pattern = cache[f"blocks.{l}.attn.hook_pattern"][0, h]
        assert (torch.tensor(unpacked(packed, n)) - pattern).abs().max() <= 0.5 / 4095 + 1e-9
        moved = cache[f"blocks.{l}.attn.hook_v"][0, :, h] @ model.W_O[l, h]
        assert torch.allclose(torch.tensor(size), moved.norm(dim=-1).float(), atol=6e-4)
    best = probability.topk(10, dim=-1)
    assert torch.allclose(torch.tensor(data["probability"]), best.values.float(), atol=6e-6)
    wanted = [[f"id {i}" for i in row] for row in best.indices.tolist()]
    assert data["next"] == wanted, "toy models have no tokenizer, so tokens are shown as ids"
    centred = (logits[0] - logits[0].mean(-1, keepdim=True)).gather(-1, best.indices)
    assert torch.allclose(torch.tensor(data["logit"]), centred.float(), atol=6e-4)


@pytest.mark.parametrize("shape", [*SHAPES, "published"])
def test_the_shares_sum_to_the_centred_logit(shape):
    model, ids = toy(shape)
    read = explore(ids, model).reading
    gap = (read.share.sum(-1) - read.logit).abs().max()
    assert read.share.shape == (len(ids), 10, len(read.parts)) and gap < 1e-9
    assert len(set(read.parts)) == len(read.parts)
    assert (FROZEN in read.notes) == (model.cfg.norm != "none")


def test_a_heads_share_is_what_its_removal_takes_from_the_logit_in_the_last_layer():
    model, ids = toy("course")
    read = explore(ids, model).reading
    name, last = read.parts[-1], len(ids) - 1
    assert name == "head 1.1"
    logits = model.run_with_hooks(
        torch.tensor([ids]),
        fwd_hooks=[("blocks.1.attn.hook_z", lambda z, hook: z * torch.tensor([1.0, 0])[:, None])],
    )[0, last]
    without = (logits - logits.mean())[read.top[last]]
    assert torch.allclose(read.logit[last] - without, read.share[last, :, -1], atol=1e-9)


def test_the_head_shown_first_adds_most_unless_one_is_asked_for():
    model, ids = toy("mlp")
    view = explore(ids, model)
    shares = {n: s for n, s in zip(view.reading.parts, view.reading.share[-1, 0], strict=True)
              if n.startswith("head")}  # fmt: skip
    assert "head {}.{}".format(*view.head) == max(shares, key=shares.get)
    assert explore(ids, model, layer=0).head[0] == 0
    assert explore(ids, model, head=1).head[1] == 1
    asked = explore(ids, model, layer=1, head=0)
    assert asked.head == (1, 0) and data_of(asked)["at"] == 2


def test_the_model_and_its_hooks_are_left_as_they_were():
    model, ids = toy("classic")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    explore(ids, model)
    assert not model.use_attn_result and not model.use_split_qkv_input
    assert not any(point.fwd_hooks for point in model.hook_dict.values())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


# ---- the course's models -------------------------------------------------------------------------


@pytest.mark.weights
def test_a_prompt_its_tokens_and_its_ids_are_the_same_view():
    known = tokenizer.load()
    view = explore(SALLY)
    ids = known.encode(SALLY)
    assert view.reading.tokens[0] == "BOS" and view.reading.tokens[-1] == "␣Aunt"
    assert view.reading.next[-1][0] == "␣Sally"
    for same in (known.pieces(SALLY), [known.text(i) for i in ids], ids, torch.tensor([ids])):
        assert numbers(explore(same)) == numbers(view)
    assert explore(ids, zoo.load("attn-only-2l")).reading.next == view.reading.next


@pytest.mark.weights
def test_what_is_unusual_in_a_prompt_is_said_in_the_view():
    ids = tokenizer.load().encode(SALLY)
    assert len(data_of(explore(ids))["notes"]) == 1
    assert "does not begin with" in data_of(explore(ids[1:]))["notes"][0]
    assert "more than once" in data_of(explore([0, *ids]))["notes"][0]


@pytest.mark.weights
def test_the_same_prompt_gives_the_same_bytes():
    assert explore(SALLY)._repr_mimebundle_() == explore(SALLY)._repr_mimebundle_()


@pytest.mark.weights
def test_the_bundle_holds_html_a_picture_with_words_and_text():
    view = explore(SALLY, "gelu-1l", head=3)
    data, metadata = view._repr_mimebundle_()
    assert set(data) == {"text/html", "image/png", "text/plain"}
    png = base64.b64decode(data["image/png"])
    assert png.startswith(b"\x89PNG") and data["image/png"] in data["text/html"]
    alt = metadata["image/png"]["alt"]
    assert f'alt="{html.escape(alt)}"' in data["text/html"] and alt in data["text/plain"]
    share = dict(zip(view.reading.parts, view.reading.share[-1, 0].tolist(), strict=True))
    for said in ("Head 0.3 of gelu-1l", f"{share['head 0.3']:+.2f} nats", "'␣Aunt'"):
        assert said in alt


@pytest.mark.weights
@pytest.mark.parametrize("role", ["attn-only-2l", "gelu-2l"])
def test_sixty_four_tokens_stay_below_one_megabyte(role):
    ids = [0, *range(200, 263)]
    data, _ = explore(ids, role)._repr_mimebundle_()
    assert sum(map(len, data.values())) < 1_000_000


def test_the_widest_model_stays_below_one_megabyte_and_says_what_is_left_out():
    # GPT-2's heads and parts: a random model of its depth, where no pattern is sparse.
    wide = CLASSIC.replace(n_layers=12, n_heads=12, d_model=48, d_head=4, n_ctx=80, d_vocab=300)
    ids = [0, *range(100, 163)]
    view = explore(ids, Transformer(wide).requires_grad_(False))
    data, _ = view._repr_mimebundle_()
    assert sum(len(part.encode()) for part in data.values()) < 1_000_000
    few = view.reading.share.shape[1]
    assert 1 <= few < 10 and f"first {few} tokens" in data_of(view)["notes"][-1]
    with pytest.raises(ValueError, match=r"has 70 tokens; with 144 heads one view holds 66"):
        explore([0, *range(100, 169)], Transformer(wide))


# ---- no prompt breaks out ------------------------------------------------------------------------

HOSTILE = (
    "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>"
    "<!-- $x$ & \" ' ` ${1} \u2028 \x00 \u202e {0} \U0001f600"
)


@pytest.mark.weights
def test_a_prompt_of_markup_is_only_text():
    view = explore(HOSTILE)
    tags = re.findall(r"<(/?[a-z!][a-z0-9-]*)", view.html, re.IGNORECASE)
    assert tags.count("script") == tags.count("/script") == 2 and "!" not in "".join(tags)
    assert tags.count("img") == 1 and "onerror" not in view.html.split('alt="')[1].split('"')[0]
    text = re.search(r'json">(.*?)</script>', view.html, re.DOTALL)[1]
    assert text == numbers(view)
    assert not re.search(r"[<>&]|[^\x20-\x7e]", text)
    shown = "".join(data_of(view)["tokens"][1:])
    assert "</script><script>" in shown and "<0x80><0xAE>" in shown and "<U+0000>" in shown


def test_json_keeps_what_it_escapes():
    text = "</script>&<!--\u2028é"
    assert json.loads(page.as_json([text])) == [text]
    assert not set("<>&\u2028é") & set(page.as_json([text]))


def test_the_page_names_no_address_no_id_and_no_global():
    model, ids = toy("course")
    own = re.sub(r"base64,[A-Za-z0-9+/=]+", "", explore(ids, model).html)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|\bsrc=\"(?!data:)", own)
    assert not re.search(
        r"\bid=|getElementById|window\.|globalThis|require\(|import\(|fetch\(", own
    )
    assert own.count("<script>(function () {") == 1 and own.count("})();</script>") == 1


# ---- bad input -----------------------------------------------------------------------------------

TOY, IDS = model_of(), [0, 5, 6]
BAD = {
    "empty": (lambda: explore([], TOY), ValueError, "is empty"),
    "empty batch": (lambda: explore([[]], TOY), ValueError, "is empty"),
    "two prompts": (lambda: explore(tokens_of(n=2), TOY), ValueError, "one prompt at a time"),
    "too large": (lambda: explore([0, 24], TOY), ValueError, "id 24 .* from 0 to 23"),
    "negative": (lambda: explore([0, -1], TOY), ValueError, "id -1 is outside"),
    "too long": (lambda: explore([0] * 17, TOY), ValueError, "17 tokens .* at most 16"),
    "wide": (lambda: explore([0] * 600, model_of(WIDE)), ValueError, "one view holds 565"),
    "mixed": (lambda: explore([0, "a"], TOY), TypeError, "one kind only"),
    "decimals": (lambda: explore([0.5], TOY), TypeError, "whole numbers"),
    "flags": (lambda: explore([True], TOY), TypeError, "whole numbers"),
    "no prompt": (lambda: explore(None, TOY), TypeError, "not NoneType"),
    "a number": (lambda: explore(7, TOY), TypeError, "not int"),
    "no such layer": (lambda: explore(IDS, TOY, layer=2), ValueError, "layers run from 0 to 1"),
    "no such head": (lambda: explore(IDS, TOY, head=-1), ValueError, "no head -1"),
    "layer in words": (lambda: explore(IDS, TOY, layer="1"), TypeError, "whole number or None"),
    "no heads": (
        lambda: explore(IDS, model_of(TINY.replace(n_layers=0))), ValueError, "no attention heads"
    ),
    "other model": (lambda: explore(IDS, torch.nn.Linear(2, 2)), TypeError, "not Linear"),
    "unknown role": (lambda: explore("a", "attn-3l"), KeyError, "no role 'attn-3l'.*Roles: "),
}  # fmt: skip
TEXT = {
    "no text": (lambda: explore(""), ValueError, "is empty"),
    "two tokens": (lambda: explore([" Sally", "abracadabra"]), ValueError, "tokens, not one"),
    "half a pair": (lambda: explore("a\ud800b"), ValueError, "U\\+D800"),
    "other vocabulary": (lambda: explore("a", TOY), ValueError, "as a list of ids"),
    "long text": (lambda: explore("a b " * 150), ValueError, "one view holds 199"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_line(case):
    call, kind, said = BAD[case]
    with pytest.raises(kind, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.weights
@pytest.mark.parametrize("case", TEXT)
def test_bad_text_gets_one_clear_line(case):
    call, kind, said = TEXT[case]
    with pytest.raises(kind, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_broken_model_is_refused_before_anything_is_shown():
    model = model_of()
    model.W_E[5] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        explore(IDS, model)


def test_ids_are_shown_without_any_tokenizer(project):
    assert not (paths.WEIGHTS / "tokenizer.json").exists()
    data = data_of(explore(IDS, TOY))
    assert data["tokens"] == ["id 0", "id 5", "id 6"] and "not known here" in data["notes"][0]
