"""Sphinx's settings for the site. tools/site.py calls Sphinx and names the folders.

Nothing is executed, and nothing is loaded from outside: scripts, styles and fonts come from the
installed packages.
"""

from circuitbook import __version__

project = "Circuitbook"
author = "The Circuitbook authors"
project_copyright = "The Circuitbook authors. Words, figures and results: CC BY 4.0; code: MIT"
release = version = __version__
language = "en"

extensions = ["myst_nb", "sphinx_design"]
exclude_patterns = ["_extra", "_static"]
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # the default names an outside address
nb_render_markdown_format = "myst"  # tables among the outputs
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_dmath_double_inline = True  # an equation that stands inside a line
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["mystnb.unknown_mime_type"]
smartquotes = False
highlight_language = "none"  # a fence that names no language is no Python

# MathJax 3 with its own fonts, copied by tools/site.py; without its menu, which weighs 400 kB.
mathjax_path = "mathjax/startup.js"
mathjax3_config = {"loader": {"load": ["input/tex", "output/chtml", "a11y/assistive-mml"]}}

html_theme = "sphinx_book_theme"
html_title = "Circuitbook"
html_favicon = "_static/icon.svg"
html_css_files = ["circuitbook.css"]
html_js_files = [("circuitbook.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_use_index = False
html_domain_indices = False
html_show_search_summary = False  # it fetches pages, and a page on disk cannot be fetched
html_baseurl = ""  # no canonical address: the site works wherever it lies
html_context = {"default_mode": "auto"}
html_theme_options = {
    "use_download_button": False,  # it would offer the page's source; a link offers the notebook
    "use_repository_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
