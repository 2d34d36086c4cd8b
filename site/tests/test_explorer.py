"""The explorer's numbers are Python's: tokens, logits, patterns, cuts, contributions, rows.

What stands on the page is tested in test_explorer_page.py.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from explorer_page import AUNT, at, opened, opener, page
from playwright.sync_api import Page

from circuitbook import corpus, cut, paths, tokenizer, zoo

ROLES = ("attn-only-1l", "attn-only-2l", "gelu-1l", "gelu-2l")
TEXTS = 1000  # spelled
READ = 150  # of them, in each model
LONGEST = 64
TOLERANCE = 1e-2  # of a logit, in nats
__all__ = ["opener", "page"]  # fixtures
KEY = "Where is the key? asked Aunt Sally. Nobody knew. So Aunt"
ODD = (
    *("é ß ñ 日本 中文 한국 العربية עברית ไทย ﬁ ½ Ⅷ ٣ १ 𝟙 ² x̂ e\u0301 'S 's I'm don't".split()),
    *("it's don't you're I've I'm we'll he'd 'tis rock'n'roll O'Neill 's-'t".split()),
    *(" ", "  ", "    ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u0085", "\u2003", "\u2028"),
    *("\ufeff", "\u200b", "\u0000", "\u001b", "\u001c", "\u200d", "\ufffd", "\U0010ffff"),
    *("😀", "👩‍👩‍👧", "🇪🇺", "👍🏽", "1", "2026", "3.14", "0x1F", "1e-5", "<|bos|>", "A", " the"),
    *("def f(x):\n    return x**2\n", "for i in range(10):\n", "==", "!=", "{}", "__init__", "..."),
    *("\ud800", "\udc00", "\ud83d", "\ude00"),  # halves of pairs, which only JavaScript may hold
)

# Logits at the last place for many texts, given as UTF-16 units because JSON has no half pairs.
MANY = """async ({role, texts, most, read: count}) => {
  const {header, buffer} = await Explorer.fetchWeights(role), core = Explorer.core();
  const model = new core.Model(header, new Uint16Array(buffer));
  const tok = new Explorer.Tokenizer(Explorer.vocabulary), ids = [], numbers = [];
  for (const units of texts) {
    const own = tok.encode(String.fromCharCode(...units));
    ids.push(own);
    if (ids.length > count) continue;
    const read = own.slice(0, most);
    const bytes = new Uint8Array(model.logits(model.run(read), read.length - 1).buffer);
    let letters = '';
    for (let i = 0; i < bytes.length; i += 4096)
      letters += String.fromCharCode(...bytes.subarray(i, i + 4096));
    numbers.push(btoa(letters));
  }
  return {ids, numbers};
}"""

# Logits at the last place and in the middle, with cuts; `frozen`: the text whose patterns are kept.
CUT = """async ({role, text, frozen, off, edges}) => {
  const {header, buffer} = await Explorer.fetchWeights(role), core = Explorer.core();
  const model = new core.Model(header, new Uint16Array(buffer));
  const ids = Explorer.app.tokenizer.encode(text);
  const patterns = frozen && model.run(Explorer.app.tokenizer.encode(frozen)).patterns;
  const pass = model.run(ids, {off, edges, patterns});
  return [ids.length - 1, ids.length >> 1].map((at) => Array.from(model.logits(pass, at)));
}"""


def _texts() -> list[str]:
    """Half held-out text, half made of odd signs; between 1 and LONGEST tokens for most of them."""
    rng, tok = np.random.default_rng(0), tokenizer.load()
    windows = corpus.heldout_windows(TEXTS // 2, length=LONGEST, seed=1).tokens
    texts = [tok.decode(row[: rng.integers(1, LONGEST + 1)]) for row in windows]
    while len(texts) < TEXTS:
        texts.append("".join(rng.choice(ODD, rng.integers(1, 16))))
    order = rng.permutation(TEXTS)
    return [texts[i] for i in order]


def _units(text: str) -> list[int]:
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").tolist()


def _proper(text: str) -> str:
    """As a browser reads it: two halves beside each other are one sign, a lone half is U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _model(role: str) -> object:
    return zoo.load(role, device="cpu")


def _last_logits(model: torch.nn.Module, all_ids: list[list[int]]) -> torch.Tensor:
    """Logits at the last place of each text. What is padded behind a place cannot change it."""
    order = sorted(range(len(all_ids)), key=lambda i: len(all_ids[i]))
    out = torch.empty(len(all_ids), model.cfg.d_vocab)
    for some in torch.tensor(order).split(25):
        rows = [torch.tensor(all_ids[i]) for i in some]
        ends = torch.tensor([len(row) - 1 for row in rows])
        with torch.no_grad():
            logits = model(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
        out[some] = logits[torch.arange(len(rows)), ends]
    return out


def test_a_thousand_texts_agree(page: Page) -> None:
    tok, texts, lengths, worst = tokenizer.load(), _texts(), set(), 0.0
    for part, role in enumerate(ROLES):
        own = texts[part :: len(ROLES)]
        asked = {
            "role": role,
            "texts": [_units(text) for text in own],
            "most": LONGEST,
            "read": READ,
        }
        answer = page.evaluate(MANY, asked)
        for text, ids in zip(own, answer["ids"], strict=True):
            assert ids == tok.encode(_proper(text)), ascii(text)
        read = [ids[:LONGEST] for ids in answer["ids"][:READ]]
        lengths |= {len(ids) for ids in read}
        mine = _last_logits(_model(role), read).numpy()
        for text, numbers, here in zip(own[:READ], answer["numbers"], mine, strict=True):
            there = np.frombuffer(base64.b64decode(numbers), np.float32)
            worst = max(worst, float(np.abs(there - here).max()))
            assert worst < TOLERANCE, (role, ascii(text))
            top, other = np.argsort(-here)[:5], np.argsort(-there)[:5]
            # The same five in the same order, but for tokens that Python hardly tells apart.
            assert np.abs(here[top] - here[other]).max() < 1e-3, (role, ascii(text))
    print(f"largest difference of a logit in {READ} texts for each model: {worst:.1e}")
    assert min(lengths) == 1 and max(lengths) == LONGEST and len(lengths) > 50


TRIES = 8


def _allowed(milliseconds: float) -> float:
    """The limit for an idle machine; one that has more to do than it has cores gets more time."""
    return milliseconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.parametrize("role", ROLES)
def test_64_tokens_are_answered_in_300_ms(page: Page, role: str) -> None:
    """From asking the worker to the answer that the page draws, each time for another text."""
    times = page.evaluate(
        """async ({role, tries, limit}) => {
          const {line} = Explorer.app, times = [];
          await line.load(role);
          while (times.length < tries && !(times.length > 2 && Math.min(...times) < limit)) {
            const k = times.length, ids = Array.from({length: 64}, (_, i) => i && 100 + 7 * i + k);
            const asked = {role, ids, off: [], edges: [], frozen: null, at: 63, token: null};
            const start = performance.now();
            await line.ask('run', asked);
            times.push(performance.now() - start);
          }
          return times;
        }""",
        {"role": role, "tries": TRIES, "limit": _allowed(300)},
    )
    print(f"{role}: {min(times):.0f} ms, the best of {len(times)}")
    assert min(times) < _allowed(300), times


def test_first_view_within_a_second(open_page: Callable[..., Page]) -> None:
    times = []
    while len(times) < TRIES and not (times and min(times) < _allowed(1000)):
        page = opened(open_page)
        times.append(page.evaluate("Explorer.firstView"))
        page.close()
    print(f"first view after {min(times):.0f} ms, the best of {len(times)}")
    assert min(times) < _allowed(1000), times


@pytest.mark.parametrize("role", ["attn-only-2l", "gelu-2l"])
@pytest.mark.parametrize("text", [AUNT, KEY])
def test_cuts_are_pythons(page: Page, role: str, text: str) -> None:
    model = _model(role)
    tokens = torch.tensor([tokenizer.load().encode(text)])
    places = [tokens.shape[1] - 1, tokens.shape[1] // 2]
    whole = cut.run(model, tokens)[0][0, places]

    def compare(there: cut.Cut, **here: object) -> None:
        asked = {"role": role, "text": text, "frozen": None, "off": [], "edges": [], **here}
        logits = torch.tensor(page.evaluate(CUT, asked))
        mine = cut.run(model, tokens, there)[0][0, places]
        assert (logits - mine).abs().max() < 1e-3, here
        # A cut that does nothing would agree too.
        assert (mine - whole).abs().max() > 0.02, here

    writer = {"attn-only-2l": 4, "gelu-2l": 5}[role]
    for into in "qkv":
        edge = {"from": f"0.{writer}", "to": "1.7", "into": into}
        compare(cut.cut_path(model, (0, writer), (1, 7), into), edges=[edge])
    off = [(0, writer), (1, 7)]
    names = [f"{layer}.{head}" for layer, head in off]
    compare(cut.ablate_heads(model, tokens, off), off=names)
    compare(cut.pattern_preserving_ablation(model, tokens, off), off=names, frozen=text)
    edge = {"from": "0.2", "to": "1.3", "into": "k"}
    both = cut.ablate_heads(model, tokens, [(1, 7)]) + cut.cut_path(model, (0, 2), (1, 3), "k")
    compare(both, off=["1.7"], edges=[edge])
    # Two edges into one input add up, and an edge of a head that is off takes nothing more away.
    two = [((0, 2), (1, 3), "v"), ((0, writer), (1, 3), "v")]
    edges = [{"from": f"{a}.{b}", "to": f"{c}.{d}", "into": i} for (a, b), (c, d), i in two]
    compare(cut.cut_paths(model, two), edges=edges)
    compare(
        cut.ablate_heads(model, tokens, [(0, 2)]) + cut.cut_paths(model, two),
        off=["0.2"],
        edges=edges,
    )


def test_patterns_of_another_text_of_the_same_length(page: Page) -> None:
    model, tok = _model("gelu-2l"), tokenizer.load()
    other = AUNT.replace("Sally", "Ruth")
    tokens, before = (torch.tensor([tok.encode(text)]) for text in (other, AUNT))
    there = cut.freeze_patterns(model, before)
    asked = {"role": "gelu-2l", "text": other, "frozen": AUNT, "off": [], "edges": []}
    logits = torch.tensor(page.evaluate(CUT, asked))
    places = [tokens.shape[1] - 1, tokens.shape[1] // 2]
    mine = cut.run(model, tokens, there)[0][0, places]
    assert (logits - mine).abs().max() < 1e-3
    assert (mine - cut.run(model, tokens)[0][0, places]).abs().max() > 0.05


@pytest.mark.parametrize("role", ROLES)
def test_patterns_and_sizes_are_pythons(page: Page, role: str) -> None:
    at(page, f"#model={role}&text=" + AUNT.replace(" ", "+"))
    model, tokens = _model(role), torch.tensor([tokenizer.load().encode(AUNT)])
    seen = page.evaluate("""() => ({n: Explorer.app.view.n,
      patterns: Explorer.app.view.patterns.map((x) => Array.from(x)),
      sizes: Explorer.app.view.sizes.map((x) => Array.from(x))})""")
    for layer in range(model.cfg.n_layers):
        names = [f"blocks.{layer}.attn.hook_{x}" for x in ("pattern", "v")]
        _, cache = cut.run(model, tokens, names=names)
        A, v = cache[names[0]][0], cache[names[1]][0]
        there = torch.tensor(seen["patterns"][layer]).view(-1, seen["n"], seen["n"])
        assert (there - A).abs().max() < 1e-4
        sizes = torch.einsum("p h e, h e d -> h p d", v, model.W_O[layer]).norm(dim=-1)
        there = torch.tensor(seen["sizes"][layer]).view(-1, seen["n"])
        assert (there / sizes - 1).abs().max() < 1e-3


@pytest.mark.parametrize("role", ["attn-only-2l", "gelu-2l"])
def test_contributions_add_up_and_are_pythons(page: Page, role: str) -> None:
    tok, model = tokenizer.load(), _model(role)
    name, tokens = tok.token(" Sally"), torch.tensor([tok.encode(AUNT)])
    at(page, f"#model={role}&token={name}&text=" + AUNT.replace(" ", "+"))
    reading = page.evaluate("Explorer.app.view.reading")
    parts = {part["name"]: part["value"] for part in reading["parts"]}
    logits, cache = cut.run(model, tokens, names=None)
    u, last = model.W_U[:, name], len(tokens[0]) - 1
    mine = {"embedding": cache["hook_embed"][0, last] @ u}
    bias = torch.zeros(())
    for layer in range(model.cfg.n_layers):
        result = cache[f"blocks.{layer}.attn.hook_result"][0, last] @ u
        mine |= {f"{layer}.{head}": x for head, x in enumerate(result)}
        if model.cfg.d_mlp:
            b = model.blocks[layer].mlp.b_out @ u
            mine[f"MLP {layer}"] = cache[f"blocks.{layer}.hook_mlp_out"][0, last] @ u - b
            bias = bias + b
    if model.cfg.d_mlp:
        mine["bias"] = bias
    assert parts.keys() == mine.keys()
    assert all(math.isclose(parts[k], float(mine[k]), abs_tol=1e-3) for k in mine)
    assert math.isclose(sum(parts.values()), float(logits[0, last, name]), abs_tol=1e-3)
    assert math.isclose(sum(parts.values()), reading["target"]["logit"], abs_tol=1e-3)


@pytest.mark.parametrize(("layer", "head"), [(0, 5), (1, 7)])
def test_qk_and_ov_rows_are_pythons(page: Page, layer: int, head: int) -> None:
    model, word = _model("attn-only-2l"), tokenizer.load().token(" Aunt")
    asked = {"role": "attn-only-2l", "layer": layer, "head": head, "token": word}
    rows = page.evaluate("(x) => Explorer.app.line.ask('rows', x)", asked)
    x = model.W_E[word]
    scores = (x @ model.W_Q[layer, head]) @ (model.W_E @ model.W_K[layer, head]).T
    scores = scores / model.cfg.d_head**0.5
    written = x @ model.W_V[layer, head] @ model.W_O[layer, head] @ model.W_U
    for kind, mine in (("qk", scores - scores.mean()), ("ov", written)):
        for end, sign in (("top", 1), ("bottom", -1)):
            best = (sign * mine).topk(10)
            there = rows[kind][end]
            values = torch.tensor([row["value"] for row in there])
            assert (values - sign * best.values).abs().max() < 1e-3, (kind, end)
            ids = torch.tensor([row["id"] for row in there])
            assert (mine[ids] - values).abs().max() < 1e-3, (kind, end)


def test_models_of_the_page_are_the_bundled_ones(page: Page) -> None:
    models = page.evaluate("Explorer.models")
    assert tuple(models) == ROLES
    assert paths.models() == "course"
    for role, config in models.items():
        assert config.items() <= zoo.card(role)["recipe"]["config"].items()
