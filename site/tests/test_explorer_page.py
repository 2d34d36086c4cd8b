"""The explorer's page does what its controls say, and shows what Python computes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from axe_core_python.sync_playwright import Axe
from explorer_page import (
    ALL,
    AUNT,
    LINK,
    PREDICTIONS,
    READY,
    at,
    opened,
    opener,
    page,
    shown_rows,
    shown_state,
    shown_values,
)
from playwright.sync_api import Page

from circuitbook import cut, tokenizer, zoo

__all__ = ["opener", "page"]  # fixtures


def _as_shown(logits: torch.Tensor) -> list[list[str]]:
    """Python's ten likeliest tokens, written as the page writes them."""
    tok, p = tokenizer.load(), logits.softmax(-1)
    return [
        [tok.text(i).replace(" ", "␣").replace("\n", "⏎"), "", f"{p[i]:.3f}", f"{logits[i]:+.2f}"]
        for i in p.topk(10).indices.tolist()
    ]


def _aunt() -> tuple[object, torch.Tensor]:
    return zoo.load("attn-only-2l", device="cpu"), torch.tensor([tokenizer.load().encode(AUNT)])


def _colours(page: Page) -> list[str]:
    return page.locator("#cx-tokens button").evaluate_all(
        "all => all.map(x => getComputedStyle(x).backgroundColor)"
    )


def _assert_row(page: Page, values: torch.Tensor, above: float = 0.5) -> None:
    """The tokens carry these numbers; at least one of them is large enough to be seen."""
    there = torch.tensor([x or 0.0 for x in shown_values(page)])
    assert (there - values).abs().max() < 2e-4
    assert values.max() > above


def test_aunt_sally_opens_with_one_click(page: Page) -> None:
    at(page, "#model=attn-only-2l&text=something+else&off=0.4&pin=1")
    page.get_by_role("button", name="Aunt Sally").click()
    model, tokens = _aunt()
    assert shown_rows(page) == _as_shown(cut.run(model, tokens)[0][0, -1])
    assert shown_rows(page)[0][0] == "␣Sally"
    state = shown_state(page)
    assert state["head"] == "1.7" and state["off"] == [] and state["pin"] is None
    assert "␣Sally (8)" in page.inner_text("#cx-readout")


def test_repeated_tokens_open_with_one_click(page: Page) -> None:
    at(page)
    page.get_by_role("button", name="repeated tokens").click()
    assert shown_state(page)["head"] == "1.7"
    shown = page.locator("#cx-tokens button").all_inner_texts()
    assert shown[0] == "start" and shown[1:7] == shown[10:16]
    # The second ␣count looks at the token after the first one.
    values = shown_values(page)
    assert values.index(max(values[1:])) == 7


def test_every_preset_opens_in_every_model(page: Page) -> None:
    at(page)
    names = page.evaluate("Explorer.presets.map((x) => x.name)")
    for role in page.evaluate("Object.keys(Explorer.models)"):
        page.select_option("#cx-model", role)
        for name in names:
            page.get_by_role("button", name=name, exact=True).click()
            assert shown_state(page)["model"] == role
            assert page.inner_text("#cx-notice") == ""
            assert len(shown_rows(page)) == 10


def test_hover_keyboard_and_pin_colour_the_tokens(page: Page) -> None:
    at(page)
    model, tokens = _aunt()
    name = "blocks.1.attn.hook_pattern"
    A = cut.run(model, tokens, names=[name])[1][name][0, 7]
    buttons, last = page.locator("#cx-tokens button"), tokens.shape[1] - 1
    _assert_row(page, A[last])
    start = _colours(page)
    buttons.nth(9).hover()
    _assert_row(page, A[9])
    assert _colours(page) != start and page.locator("#cx-tokens .cx-out").count() == last - 9
    page.mouse.move(5, 5)
    assert _colours(page) == start
    assert page.locator('#cx-tokens [tabindex="0"]').count() == 1  # one stop for the tabulator
    buttons.nth(last).focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    _assert_row(page, A[2])
    page.keyboard.press("Enter")
    assert shown_state(page)["pin"] == 2
    assert buttons.nth(2).get_attribute("aria-pressed") == "true"
    page.wait_for_function("document.querySelector('#cx-live').textContent.includes('(2)')")
    page.keyboard.press("Enter")
    assert shown_state(page)["pin"] is None
    page.keyboard.press("End")
    _assert_row(page, A[last])
    page.keyboard.press("ArrowRight")  # nothing beyond the end
    _assert_row(page, A[last])


def test_weighting_and_direction(page: Page) -> None:
    at(page)
    model, tokens = _aunt()
    names = [f"blocks.1.attn.hook_{x}" for x in ("pattern", "v")]
    cache = cut.run(model, tokens, names=names)[1]
    A, v = cache[names[0]][0, 7], cache[names[1]][0, :, 7]
    moved = A * (v @ model.W_O[1, 7]).norm(dim=-1)
    moved = moved / moved.sum(-1, keepdim=True)
    assert (moved[-1] - A[-1]).abs().max() > 0.02
    page.check("#cx-weighted")
    page.wait_for_selector(READY)
    _assert_row(page, moved[-1])
    page.check("#cx-look-in")
    page.locator("#cx-tokens button").nth(8).click()
    page.wait_for_selector(READY)
    page.mouse.move(5, 5)
    _assert_row(page, moved[:, 8])
    page.uncheck("#cx-weighted")
    page.wait_for_selector(READY)
    _assert_row(page, A[:, 8])


def test_ink_can_be_read_on_every_colour(page: Page) -> None:
    worst = page.evaluate("""() => {
      const bright = (c) => { const [r, g, b] = c.map((v) => v / 255)
        .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      return Math.min(...Array.from({length: 1001}, (_, i) => {
        const c = Explorer.cividis(i / 1000), y = bright(c);
        return Explorer.ink(c) === '#000' ? (y + 0.05) / 0.05 : 1.05 / (y + 0.05);
      })); }""")
    assert worst >= 4.5


def test_switching_a_head_off_shows_pythons_ablation(page: Page) -> None:
    at(page)
    model, tokens = _aunt()
    assert page.is_disabled("#cx-clear")
    page.uncheck('[data-off="1.7"]')
    clean = cut.run(model, tokens)[0][0, -1]
    without = cut.run(model, tokens, cut.ablate_heads(model, tokens, [(1, 7)]))[0][0, -1]
    rows, p, p0 = shown_rows(page), without.softmax(-1), clean.softmax(-1)
    order = torch.maximum(p, p0).topk(10).indices.tolist()
    tok = tokenizer.load()
    for i, row in zip(sorted(order, key=lambda i: -p[i]), rows, strict=True):
        assert row[0] == tok.text(i).replace(" ", "␣")
        assert row[2] == f"{p[i]:.3f}" and row[4] == f"{without[i]:+.2f}"
        assert float(row[3].replace("−", "-")) == pytest.approx(float(p[i] - p0[i]), abs=6e-4)
        assert float(row[5].replace("−", "-")) == pytest.approx(
            float(without[i] - clean[i]), abs=6e-3
        )
    assert "1.7" in page.inner_text("#cx-words")
    sally = next(row for row in rows if row[0] == "␣Sally")
    assert sally[3].startswith("−")
    assert page.locator("#cx-predictions .cx-clean").count() == 10
    page.click("#cx-clear")
    assert shown_rows(page) == _as_shown(clean)
    assert page.is_checked('[data-off="1.7"]')


def test_an_edge_is_cut_from_the_form(page: Page) -> None:
    at(page)
    model, tokens = _aunt()
    page.get_by_role("button", name="Aunt Sally").click()
    page.wait_for_selector(READY)
    # A preset puts its own edge into the form.
    assert page.input_value("#cx-edge-from") == "0.4" and page.input_value("#cx-edge-to") == "1.7"
    page.select_option("#cx-edge-from", "0.4")
    page.select_option("#cx-edge-into", "k")
    page.select_option("#cx-edge-to", "1.7")
    page.click("#cx-edge-add")
    there = cut.cut_path(model, (0, 4), (1, 7), "k")
    name = "blocks.1.attn.hook_pattern"
    logits, cache = cut.run(model, tokens, there, names=[name])
    page.wait_for_selector(READY)
    row = page.evaluate("Explorer.app.view.reading.rows")
    for x in row:
        assert x["logit"] == pytest.approx(float(logits[0, -1, x["id"]]), abs=1e-3)
    values = torch.tensor([x or 0.0 for x in shown_values(page)])
    assert (values - cache[name][0, 7, -1]).abs().max() < 2e-4
    assert values[8] < 0.3  # Sally has lost what the head came for
    words = page.inner_text("#cx-words")
    assert "0.4" in words and "key" in words and "pattern of 1.7" in words
    page.get_by_role("button", name="Undo").click()
    assert shown_state(page)["edges"] == []
    assert "Nothing is cut" in page.inner_text("#cx-words")


def test_frozen_patterns_stay(page: Page) -> None:
    at(page)
    model, tokens = _aunt()
    before = shown_values(page)
    page.check("#cx-freeze")
    page.uncheck('[data-off="0.4"]')
    page.wait_for_selector(READY)
    assert shown_values(page) == before
    there = cut.pattern_preserving_ablation(model, tokens, [(0, 4)])
    logits = cut.run(model, tokens, there)[0][0, -1]
    for x in page.evaluate("Explorer.app.view.reading.rows"):
        assert x["logit"] == pytest.approx(float(logits[x["id"]]), abs=1e-3)
    # Another text of the same length keeps them, one of another length takes them anew and says so.
    page.fill("#cx-text", AUNT.replace("Sally", "Ruth"))
    page.wait_for_function("Explorer.app.state.text.includes('Ruth')")
    page.wait_for_selector(READY)
    assert shown_values(page) == before and page.inner_text("#cx-notice") == ""
    assert "Sally" in page.inner_text("#cx-words")
    page.fill("#cx-text", AUNT + " Sally")
    page.wait_for_function("Explorer.app.state.text.endsWith('Sally')")
    page.wait_for_selector(READY)
    assert "taken anew" in page.inner_text("#cx-notice")
    page.uncheck("#cx-freeze")
    page.check('[data-off="0.4"]')
    assert shown_state(page)["frozen"] is None
    assert "Nothing is cut" in page.inner_text("#cx-words")


def test_a_token_is_chosen_by_typing_or_from_the_list(page: Page) -> None:
    at(page)
    tok = tokenizer.load()
    page.locator(PREDICTIONS).nth(2).get_by_role("button").click()
    assert shown_state(page)["token"] == page.evaluate("Explorer.app.view.reading.rows[2].id")
    for typed, text in (("␣Ruth", " Ruth"), (" the", " the"), ("⏎", "\n"), ("Polly", " Polly")):
        page.fill("#cx-token", typed)
        page.press("#cx-token", "Enter")
        if typed == "Polly" and len(tok.encode("Polly", bos=False)) > 1:
            assert "with the blank" in page.inner_text("#cx-notice")
        else:
            text = typed if typed == "Polly" else text
        assert shown_state(page)["token"] == tok.token(text)
    # A byte and a hidden sign have no text of their own: they are typed as the page shows them.
    for typed in ("<0xF0>", "U+000C", "start"):
        page.fill("#cx-token", typed)
        page.press("#cx-token", "Enter")
        assert page.evaluate("Explorer.app.name(Explorer.app.state.token)") == typed
        assert page.inner_text("#cx-notice") == ""
    page.fill("#cx-token", "unbelievably long")
    page.press("#cx-token", "Enter")
    assert "not one" in page.inner_text("#cx-notice")
    assert shown_state(page)["token"] is not None
    page.fill("#cx-lookup", "␣Uncle")
    page.press("#cx-lookup", "Enter")
    assert shown_state(page)["lookup"] == tok.token(" Uncle")
    page.wait_for_function("document.querySelector('#cx-rows').textContent.includes('␣Uncle')")
    assert "Direct path only" in page.inner_text("#cx-rows-note")
    page.click('[data-head="0.4"]')
    page.wait_for_selector(READY)
    assert "first layer" in page.inner_text("#cx-rows-note")


def test_too_long_a_text_is_cut_and_said(page: Page) -> None:
    at(page)
    page.fill("#cx-text", "one two three " * 400)
    page.wait_for_selector("#cx-notice:not(:empty)")
    page.wait_for_selector(READY, timeout=60_000)
    most = page.evaluate("Explorer.models[Explorer.app.state.model].n_ctx")
    assert f"reads {most} tokens" in page.inner_text("#cx-notice")
    assert page.locator("#cx-tokens button").count() == most
    assert len(page.input_value("#cx-text")) == 400 * 14  # what was typed is not lost


def test_the_grid_shows_what_the_caption_says(page: Page) -> None:
    at(page)
    page.evaluate("document.querySelector('#cx-heads-table').open = true")
    picture = """() => { const c = document.querySelector('[data-head="1.7"] canvas');
      return Array.from(c.getContext('2d').getImageData(8, c.height - 1, 1, 1).data); }"""
    wanted = """(weighted) => { const {view} = Explorer.app;
      return [...Explorer.cividis(Explorer.row(view, 1, 7, view.n - 1, weighted)[8]), 255]; }"""
    for weighted in (False, True, False):
        page.set_checked("#cx-weighted", weighted)
        page.wait_for_selector(READY)
        assert page.evaluate(picture) == page.evaluate(wanted, weighted)
        heads = page.locator("#cx-heads-table thead").inner_text()
        assert ("Weighted attention" in heads) == weighted
    assert page.evaluate(wanted, True) != page.evaluate(wanted, False)


REFUSED = "class { constructor() { throw new Error('no worker here'); } }"
BROKEN = """class {
  constructor() { setTimeout(() => this.onerror(new Event('error', {cancelable: true})), 300); }
  postMessage() {}
}"""


@pytest.mark.parametrize("worker", [REFUSED, BROKEN])
def test_without_a_worker_the_page_computes(open_page: Callable[..., Page], worker: str) -> None:
    page = open_page("explorer.html" + LINK)
    page.add_init_script(f"window.Worker = {worker}")
    page.reload()
    page.wait_for_selector(READY)
    assert page.evaluate("Explorer.app.line.worker") is None
    model, tokens = _aunt()
    assert shown_rows(page) == _as_shown(cut.run(model, tokens)[0][0, -1])


def test_works_under_a_sub_path(open_served: Callable[..., Page]) -> None:
    page = open_served("explorer.html" + LINK)
    page.wait_for_selector(READY)
    assert shown_rows(page)[0][0] == "␣Sally"
    assert page.evaluate("Boolean(Explorer.app.line.worker)")


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_axe_finds_nothing_serious(open_page: Callable[..., Page], width: int, dark: bool) -> None:
    page = opened(open_page, ALL, width=width, dark=dark)
    for table in page.locator("#cx-app details").all():
        table.locator("summary").click()
    wanted = "dark" if dark else "light"
    assert page.locator("html").get_attribute("data-theme") == wanted
    found = Axe().run(page, {"include": [["#cx-app"]]})["violations"]
    serious = [x for x in found if x["impact"] in ("serious", "critical")]
    assert not serious, [(x["id"], x["nodes"][0]["html"][:200]) for x in serious]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_views_have_tables_in_words(page: Page) -> None:
    at(page)
    page.locator("#cx-tokens-table summary").click()
    page.wait_for_selector("#cx-tokens-table tbody tr")
    rows = page.locator("#cx-tokens-table tbody tr").all_inner_texts()
    assert re.search(r"8\s+␣Sally\s+0\.927", rows[8])
    page.locator("#cx-heads-table summary").click()
    heads = page.locator("#cx-heads-table tbody tr").all_inner_texts()
    assert len(heads) == 16 and re.search(r"1\.7\s+␣Sally\s+0\.927\s+on", heads[-1])
