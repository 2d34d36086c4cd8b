"""Links and typed text: what a reader wrote is kept, and no part of a link goes unread."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import parse_qsl

import pytest
from explorer_page import (
    ALL,
    AUNT,
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

from circuitbook import paths

__all__ = ["opener", "page"]  # fixtures


def test_a_link_restores_everything(page: Page, open_page: Callable[..., Page]) -> None:
    at(page, ALL)
    page.check("#cx-freeze")
    state = shown_state(page)
    assert state["pin"] == 8 and state["at"] == 20 and state["token"] == 300
    assert state["off"] == ["0.1", "1.2"] and len(state["edges"]) == 2 and state["frozen"] == AUNT
    page.click("#cx-copy")
    link = page.input_value("#cx-link")
    assert link == page.url  # the address itself is in step
    other = opened(open_page, "#" + link.split("#")[1])
    assert shown_state(other) == state
    assert shown_rows(other) == shown_rows(page) and shown_values(other) == shown_values(page)
    assert other.inner_text("#cx-notice") == ""


@pytest.mark.parametrize("text", ["", "%", "a+b & c=d # e", "é😀\n\tx", "100 %41", '"<b>&amp;'])
def test_any_text_survives_a_link(page: Page, text: str) -> None:
    at(page)
    page.fill("#cx-text", text)
    page.wait_for_function("(x) => Explorer.app.state.text === x", arg=text)
    page.wait_for_selector(READY)
    page.click("#cx-copy")
    other = at(page, "#" + page.input_value("#cx-link").split("#")[1])
    assert shown_state(other)["text"] == text
    assert other.input_value("#cx-text") == text


@pytest.mark.parametrize(
    "link",
    [
        "#model=gpt-9&text=a",
        "#model=__proto__",
        "#text=a&head=7.7",
        "#text=a&head=x",
        "#text=a&pin=99",
        "#text=a&at=-1",
        "#text=a&token=4096",
        "#text=a&look=up",
        "#text=a&off=9.9,zz",
        "#model=attn-only-1l&text=a&cut=0.1>1.1.k",
        "#text=a&cut=1.1>0.1.k",
        "#text=a&cut=nonsense",
        "#colour=red",
        "#%E0%A4%A&%=%",
        "#text=a&head=01.7",
        "#text=a&off=01.7",
        "#text=a&cut=0.04>1.07.k",
        "#text=a&weigh=2",
        "#text=a&text=b",
        "#garbage",
        "#text=a+b&freeze=a+longer+text+than+that",
    ],
)
def test_a_bad_link_gives_defaults_and_says_so(page: Page, link: str) -> None:
    at(page, link)
    assert page.inner_text("#cx-notice") != ""
    assert len(shown_rows(page)) == 10
    page.get_by_role("button", name="Aunt Sally").click()
    assert shown_rows(page)[0][0].startswith("␣")
    assert page.inner_text("#cx-notice") == ""


def test_an_anchor_of_the_page_is_no_bad_link(open_page: Callable[..., Page]) -> None:
    page = opened(open_page, "#how-to-read-it")
    page.wait_for_load_state()
    assert page.inner_text("#cx-notice") == ""
    assert shown_rows(page)[0][0] == "␣Sally"


# Types, and uses another control before the pause after the last key is over. Nothing here waits.
TYPE_AND = """([text, id]) => {
  const box = document.getElementById('cx-text'), other = document.getElementById(id);
  box.focus();
  box.value = text;
  box.dispatchEvent(new Event('input'));
  box.blur();
  if (other.type === 'select-one') {
    other.value = 'gelu-1l';
    other.dispatchEvent(new Event('change'));
  } else other.click();
}"""


@pytest.mark.parametrize(
    "control", ["cx-weighted", "cx-look-in", "cx-model", "cx-freeze", "cx-copy", "cx-at-pinned"]
)
def test_typed_words_outlive_every_control(page: Page, control: str) -> None:
    at(page)
    text = AUNT + " MARY and then"
    page.evaluate(TYPE_AND, [text, control])
    state = shown_state(page)
    assert state["text"] == page.input_value("#cx-text") == text
    if control == "cx-freeze":
        assert state["frozen"] == text
    if control == "cx-copy":
        assert "MARY+and+then" in page.input_value("#cx-link")
        assert page.inner_text("#cx-notice") != ""
    page.wait_for_timeout(200)  # the timer of the last key
    assert shown_state(page)["text"] == text


def test_a_preset_replaces_what_was_typed(page: Page) -> None:
    at(page)
    page.evaluate("document.querySelector('#cx-presets button').id = 'first-preset'")
    page.evaluate(TYPE_AND, ["something else", "first-preset"])
    page.wait_for_timeout(200)
    assert shown_state(page)["text"] == page.input_value("#cx-text") == AUNT


LINKS = json.loads(
    (paths.ROOT / "site" / "apps" / "explorer" / "links.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("chapter", LINKS)
def test_the_link_of_each_chapter_opens_without_a_notice(page: Page, chapter: str) -> None:
    at(page, "#" + LINKS[chapter])
    assert page.inner_text("#cx-notice") == ""
    # Nothing in the link is lost or left unread.
    written = page.evaluate("Explorer.toHash(Explorer.app.state)")
    assert sorted(parse_qsl(written[1:])) == sorted(parse_qsl(LINKS[chapter]))
