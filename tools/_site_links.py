"""A link that works in the repository works on the site: each target has one place there.

Lessons link from notebooks/, pages of docs/ from docs/. Outside addresses are left alone.
"""

import posixpath
import re

from _site_tree import SiteError, Tree, relative

# Not in code: a fence or a backtick span is matched first and kept as it is.
_LINK = re.compile(
    r"(?P<code>^(?P<fence>```+|~~~+).*?^(?P=fence)|(?P<ticks>`+).+?(?P=ticks)|<!--.*?-->)"
    r"|(?P<head>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()(?P<target>[^()\s]+)(?P<tail>(?:\s+\"[^\"]*\")?\))",
    re.DOTALL | re.MULTILINE,
)
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "results/claims.md": "claims.md",
    "results/comparison.md": "comparison.md",
    "results/comparison.html": "comparison.md",
    "figures/course/09_attribution_graph.html": "attribution-graph.md",
}


def page_of(path: str) -> str | None:
    """The page that a file of the repository becomes, as Sphinx's source of it, or None."""
    if path in PAGES:
        return PAGES[path]
    for folder, ending in (("notebooks/", ".ipynb"), ("docs/", ".md")):
        if path.startswith(folder) and path.endswith(ending):
            return path.removeprefix(folder)
    return None


def rewrite(text: str, source: str, page: str, tree: Tree) -> str:
    """The Markdown of the file `source`, with its links as the page `page` must write them."""

    def one(match: re.Match) -> str:
        if match["code"]:
            return match[0]
        target = _target(match["target"], source, page, tree, match["head"].startswith("!"))
        return f"{match['head']}{target}{match['tail']}"

    return _LINK.sub(one, text)


def _target(target: str, source: str, page: str, tree: Tree, picture: bool) -> str:
    if re.match(r"[a-z][a-z0-9+.-]*:|#", target):
        return target
    name, mark, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    if path.startswith("..") or not (tree.root / path).exists():
        raise SiteError(f"{source} links to {target}, and there is no such file. Mend the link.")
    became = None if picture else page_of(path)
    if (tree.root / path).is_dir():  # a folder has no page; the home page says what there is
        became, mark, anchor = "index.md", "", ""
    return relative(became or f"_extra/{tree.offer(path)}", page) + mark + anchor
