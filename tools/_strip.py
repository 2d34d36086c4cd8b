"""An answer is everything from a line `# solution` to the end of its indented block.

Python's own tokenizer finds the line, so the words inside a string are left alone, and continuation
lines or texts in triple quotes that reach to the left margin do not end the block.
"""

import io
import tokenize

MARKER = "# solution"
_SILENT = {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def quiet_magics(source: str) -> str:
    """The cell with its IPython lines (%magic, !shell) as comments, so that Python can read it."""
    lines = source.split("\n")
    return "\n".join("#" + s[1:] if s.startswith(("%", "!")) else s for s in lines)


def _tokens(source: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(quiet_magics(source) + "\n").readline))


def _markers(tokens: list[tokenize.TokenInfo]) -> list[tuple[int, int]]:
    """Line and column of each marker that stands on a line of its own."""
    return [
        t.start
        for t in tokens
        if t.type == tokenize.COMMENT and t.string.strip() == MARKER and t.line.strip() == MARKER
    ]


def has_marker(source: str) -> bool:
    """Whether the code has a `# solution` line (not in a string)."""
    return bool(_markers(_tokens(source)))


def strip(source: str, message: str) -> str:
    """The code with each answer replaced by `raise NotImplementedError(message)`."""
    while True:
        tokens = _tokens(source)
        markers = _markers(tokens)
        if not markers:
            return source
        source = _strip_first(source, tokens, markers[0], message)


def _strip_first(
    source: str, tokens: list[tokenize.TokenInfo], marker: tuple[int, int], message: str
) -> str:
    line, column = marker
    end = line
    fresh = True  # at the first token of a logical line
    for token in tokens:
        if token.start[0] <= line:
            continue
        if token.type == tokenize.COMMENT and token.start[1] >= column:
            end = max(end, token.end[0])  # a comment inside the block goes with it
        if token.type in _SILENT:
            continue
        if fresh and token.start[1] < column:
            break
        fresh = token.type == tokenize.NEWLINE
        end = max(end, token.end[0])
    lines = source.split("\n")
    indent = " " * column
    return "\n".join(
        [*lines[: line - 1], f'{indent}raise NotImplementedError("{message}")', *lines[end:]]
    )
