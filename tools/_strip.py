"""An answer is everything from a line `# solution` to the end of its indented block.

Python's own tokenizer finds the line, so the words inside a string are left alone, and continuation
lines or texts in triple quotes that reach to the left margin do not end the block. In the teachers'
notebooks nbgrader's two lines stand around the block; what is between them vanishes for students.
"""

import io
import tokenize

MARKER = "# solution"
# nbgrader's own words: its preprocessors look for them, and put this stub in an answer's place.
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
HIDDEN, HIDDEN_END = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
TEXT_STUB = "YOUR ANSWER HERE"
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


def mark(source: str) -> str:
    """The code with nbgrader's two lines around each answer, in place of the line `# solution`."""
    while True:
        tokens = _tokens(source)
        markers = _markers(tokens)
        if not markers:
            return source
        (line, column), lines = markers[0], source.split("\n")
        end, indent = _end(tokens, markers[0]), " " * column
        inside = [indent + BEGIN, *lines[line:end], indent + END]
        source = "\n".join([*lines[: line - 1], *inside, *lines[end:]])


def clear(source: str, stub: str = STUB) -> str:
    """What students get: each marked answer is replaced by `stub`, each hidden test by nothing.

    Lines are read as nbgrader reads them, so that its own preprocessors give the same.
    """
    kept, inside = [], False
    for line in source.split("\n"):
        if BEGIN in line:
            indent = line[: len(line) - len(line.lstrip())]
            kept += [indent + part for part in stub.split("\n")]
            inside = True
        elif HIDDEN in line:
            inside = True
        elif END in line or HIDDEN_END in line:
            inside = False
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def _end(tokens: list[tokenize.TokenInfo], marker: tuple[int, int]) -> int:
    """The last line of the block that a marker opens."""
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
    return end
