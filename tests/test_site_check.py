"""A built page that loads, links or says something wrong is found, and so is a heavy one."""

import pytest
from _site_check import LIMIT, Page, problems, weight


def write(path, text):
    """A file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))


WELL = (
    "<!doctype html><html lang='en'><head><title>t</title><script src='a.js'></script></head><body>"
    "<h1 id='one'>A</h1><h2>B</h2><img src='a.png' alt='a'><a href='#one'>x</a>"
    "<a href='other.html#two'>y</a><a href='https://example.org/'>z</a>"
    "<a href='other.html#model=a&head=1.7'>a state</a></body></html>"
)
SPOILT = {
    "loads https://example.org/a.js, which is not beside it": (
        "'a.js'",
        "'https://example.org/a.js'",
    ),
    "loads //example.org/a.js, which is not beside it": ("'a.js'", "'//example.org/a.js'"),
    "loads /a.js, which is not beside it": ("'a.js'", "'/a.js'"),
    "loads b.js, which is not there": ("a.js", "b.js"),
    "shows a.png without alt text": (" alt='a'", ""),
    "links to #three, and there is no such place": ("'#one'", "'#three'"),
    "links to other.html#one, and there is no such place": ("#two", "#one"),
    "links to third.html, which is not there": ("other.html#two", "third.html"),
    "has the id 'one' 2 times": ("<h2>", "<h2 id='one'>"),
    "skips a level of headings (h1 to h3)": ("<h2>B</h2>", "<h3>B</h3>"),
    "has no language (<html lang>)": (" lang='en'", ""),
    f"loads {LIMIT + 1:,} bytes at first; at most {LIMIT:,} are allowed": ("", ""),
}


@pytest.mark.parametrize("said", [None, *SPOILT])
def test_a_spoilt_page_is_found(tmp_path, said):
    page = WELL.replace(*SPOILT[said], 1) if said else WELL
    write(tmp_path / "index.html", page)
    write(tmp_path / "other.html", "<html lang='en'><body><h1 id='two'>C</h1></body></html>")
    large = LIMIT + 1 - len(page) - 3 if said and "bytes" in said else 10
    write(tmp_path / "a.png", b"x" * large)
    write(tmp_path / "a.js", "1;\n")
    assert problems(tmp_path) == ([f"index.html {said}"] if said else [])


def test_no_site_at_all(tmp_path):
    assert problems(tmp_path) == [f"there is no index.html in {tmp_path}: run `make site`"]


def test_the_parts_of_mathjax_weigh_too(tmp_path):
    write(tmp_path / "mathjax" / "startup.js", "x" * 10)
    write(tmp_path / "mathjax" / "input" / "tex.js", "x" * 70)
    write(tmp_path / "p.html", "<script src='mathjax/startup.js'></script>")
    assert weight(Page(tmp_path / "p.html")) == 80 + (tmp_path / "p.html").stat().st_size


def test_a_file_that_is_loaded_twice_weighs_once(tmp_path):
    write(tmp_path / "a.js", "x" * 50)
    write(tmp_path / "p.html", "<script src='a.js?v=1'></script><script src='a.js'></script>")
    page = Page(tmp_path / "p.html")
    assert weight(page) == 50 + (tmp_path / "p.html").stat().st_size
