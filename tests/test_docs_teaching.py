"""The teaching pages are held against lessons, wrong answers, models and commands.

Formulas are computed in both conventions, shapes read from models, commands looked up.
"""

import importlib.util
import re
import tomllib
from pathlib import Path

import _readme
import _teaching
import pytest
import torch
from _lesson import LessonError, lessons
from small_model import gen, model_of, tokens_of

from circuitbook import compose, taught, zoo
from circuitbook.config import Config
from circuitbook.model import Transformer

HERE = Path(__file__).resolve().parent.parent
DOCS = HERE / "docs"
GUIDE = DOCS / "teachers-guide.md"
MISTAKES = DOCS / "teaching" / "common-mistakes.md"
PLANS = DOCS / "teaching" / "class-plans.md"
CARD, SHAPES, CITE = (DOCS / f"{n}.md" for n in ("convention-card", "shapes", "how-to-cite"))
PAGES = (GUIDE, MISTAKES, PLANS, CARD, SHAPES, CITE)


@pytest.fixture(scope="module")
def course():
    return lessons(HERE / "scripts")


def read(page):
    return page.read_text(encoding="utf-8")


def rows(text, header):
    """The cells of the table whose first header cells are these."""
    found = re.search(
        rf"^\| {re.escape(' | '.join(header))} .*\n\|[ |:-]+\n((?:\|.*\n?)+)", text, re.M
    )
    assert found, f"no table begins with {header}"
    return [[c.strip() for c in line.strip().strip("|").split(" | ")]
            for line in found[1].splitlines()]  # fmt: skip


def plain(cell):
    return cell.strip("`")


# ---- the derived tables --------------------------------------------------------------------------


def filled(text, course):
    made = {k: lambda ls, f=f: _readme._table(*f(ls)) for k, f in _teaching.TABLES.items()}
    return _readme._fill(text, made, course, GUIDE.name)


def test_the_tables_of_the_guide_are_those_of_the_lessons(course):
    assert filled(read(GUIDE), course) == read(GUIDE), "run `make lessons`"


def test_totals_are_sums(course):
    for table in _teaching.TABLES.values():
        made = table(course)[1]
        for column in range(1, len(made[0])):
            if "`" in made[0][column] or made[-1][column] in ("", "all"):
                continue
            cells = [[int(n) for n in re.findall(r"\d+", row[column])] for row in made]
            sums = [sum(n) for n in zip(*(c for c in cells[:-1] if c), strict=True)]
            assert cells[-1] == sums
    points = {e.name: e.points for x in course for e in x.exercises + x.written}
    told = _teaching.weeks(course)[1]
    assert int(told[0][4]) == sum(points[name] for name in _teaching.WEEKS[0].graded)
    assert int(told[-1][4]) == sum(points[name] for w in _teaching.WEEKS for name in w.graded)
    code = sum(points[e.name] for lesson in course for e in lesson.exercises)
    assert f": {code} points" in _teaching.chapters(course)[1][-1][4]


def test_ten_weeks_with_words_and_code_in_each(course):
    assert len(_teaching.WEEKS) == 10
    words = {e.name for lesson in course for e in lesson.written}
    for week in _teaching.WEEKS:
        assert words & set(week.graded) and set(week.graded) - words, week
        assert {name[:2] for name in week.graded} <= set(week.chapters), week


def test_a_planned_exercise_that_is_gone_is_said(course, monkeypatch):
    monkeypatch.setattr(_teaching, "WEEKS", (_teaching.Week(("02",), ("02.gone",)),))
    with pytest.raises(LessonError, match=r"plans 02\.gone, and 02_qk_ov has no such exercise"):
        _teaching.weeks(course)
    monkeypatch.setattr(_teaching, "WEEKS", (_teaching.Week(("12",), ()),))
    with pytest.raises(LessonError, match="plans chapter 12, and there is none"):
        _teaching.weeks(course)


def test_no_points_and_minutes_are_typed_into_the_guide():
    typed = re.sub(r"<!-- derive:(\w+) -->.*?<!-- /derive:\1 -->", "", read(GUIDE), flags=re.S)
    assert re.findall(r"\d+ (?:points|minutes|seconds)", typed) == []


# ---- questions in words ------------------------------------------------------------------------


def test_every_chapter_asks_for_words_and_says_what_earns_them(course):
    for lesson in course[1:]:
        assert 1 <= len(lesson.written) <= 2, lesson.name
        for cell in lesson.cells:
            if not cell.question:
                continue
            name, points = cell.question.name, cell.question.points
            assert "**In your own words.**" in cell.source and "?" in cell.source, name
            answer = lesson.cells[cell.index + 1].source
            marking, _, half = answer.partition("*Half right*")
            each = len(re.findall(r"\*1 point each\*, for two", marking))
            assert len(re.findall(r"\*1 point\*", marking)) + 2 * each == points, name
            assert len(re.findall(r'"[^"]+"', half)) >= 2, f"{name}: name two half-right answers"


# ---- mistakes and plans ------------------------------------------------------------------------


def wrong_answers():
    found = {}
    for path in sorted((HERE / "tests" / "variants").glob("ch*.py")):
        spec = importlib.util.spec_from_file_location(f"variants_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= {name: {f.__name__ for f in given} for name, given in module.WRONG.items()}
    return found


def test_every_exercise_has_two_mistakes_and_each_is_a_test(course):
    wrong, named = wrong_answers(), {}
    item = re.compile(r"- [A-Z].+ \(`(\w+)`\)\. \*\*Ask:\*\* .+[?.]")
    for part in read(MISTAKES).split("\n## ")[1:]:
        for exercise, items in re.findall(r"^\*\*`([\w.]+)`\*\*\n\n((?:- .*\n)+)", part, re.M):
            assert exercise[:2] == part[:2], exercise
            found = {line: item.fullmatch(line) for line in items.splitlines()}
            assert all(found.values()), [line for line in found if not found[line]]
            named[exercise] = [match[1] for match in found.values()]
            lost = set(named[exercise]) - wrong.get(exercise, set())
            assert not lost, f"{exercise}: no wrong answer is called {lost}"
        mine = [tests for exercise, tests in named.items() if exercise[:2] == part[:2]]
        assert part.count("\n- ") == sum(map(len, mine)), "a line that belongs to no exercise"
    for exercise in (e.name for lesson in course for e in lesson.exercises):
        assert len(set(named.get(exercise, ()))) >= 2, f"{exercise} needs two common mistakes"
    assert all(len(set(tests)) == len(tests) for tests in named.values())


def test_every_chapter_has_a_plan_of_ninety_minutes(course):
    exercises = {e.name for lesson in course for e in lesson.exercises + lesson.written}
    parts = read(PLANS).split("\n## ")[1:]
    assert [part[:2] for part in parts] == [lesson.number for lesson in course]
    for part in parts:
        assert "**Goals.**" in part and "**They must know.**" in part
        times = [re.split("–", row[0]) for row in rows(part, ["Minutes", "What happens"])]
        assert times[0][0] == "0" and times[-1][1] == "90", part[:30]
        assert [a for a, _ in times[1:]] == [b for _, b in times[:-1]], f"a gap in {part[:30]}"
        assert re.search("redict|board|guess", part), f"{part[:30]}: nothing is predicted"
        assert set(re.findall(r"`(\d\d\.\w+)`", part)) <= exercises, part[:30]


def test_what_is_predicted_in_class_stands_after_what_is_read(course):
    for lesson, part in zip(course, read(PLANS).split("\n## ")[1:], strict=True):

        def place(words, source=lesson.source):  # of a heading, of bold words, of a paragraph
            return re.search(r"(?:# (?:#+ )?(?:\d+ · )?|\*\*)" + re.escape(words), source).start()

        (before,) = re.findall(r"^\*\*Read before class\.\*\* (.+)", part, re.M)
        stop = place(re.search(r"\*(.+)\*", before)[1])
        assert all(place(f"{n} · ") < stop for n in re.findall(r"\d+", before)), lesson.name
        for _, row in rows(part, ["Minutes", "What happens"]):
            titles = re.findall(r"\*([A-Z][^*]+)\*", row) if re.search("redict|uess", row) else []
            assert all(place(t) >= stop for t in titles), f"{lesson.name}: {titles} is read before"


# ---- commands and links --------------------------------------------------------------------------


def code(text):
    return "\n".join(
        re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M) + re.findall(r"`([^`\n]+)`", text)
    )


def missing(text):
    """What the commands in a page's code name and the project does not have."""
    lost, makefile = [], read(HERE / "Makefile")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M))
    for line in code(text).splitlines():
        for name in re.findall(r"\bmake ([a-z][a-z-]*)", line):
            lost += [f"make {name}"] if name not in targets else []
        program = re.search(r"python3? (?:(tools/\w+\.py)|-m (circuitbook[\w.]*))", line)
        if not program:
            continue
        if program[1]:
            files = [HERE / program[1]]
        else:
            files = sorted((HERE / "src" / program[2].replace(".", "/")).glob("*.py"))
            files = files if any(f.name == "__main__.py" for f in files) else []
        if not files or not all(f.is_file() for f in files):
            lost.append(program[0])
            continue
        source = "".join(map(read, files))
        lost += [o for o in re.findall(r"--[a-z]+", line) if f'"{o}"' not in source]
    for name in set(re.findall(r"\b(SUBMISSIONS|WRITTEN|SOURCE|OUT)=", code(text))):
        lost += [] if f'"{name}"' in read(HERE / "tools" / "grade.py") else [name]
    return lost


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_command_and_link_leads_somewhere(page):
    text = read(page)
    assert missing(text) == []
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / link).exists(), f"{page.name} points at {link}"
    assert "http" not in text and len(text.splitlines()) <= 400


def test_the_search_for_commands_finds_what_is_missing():
    block = "```\nmake granola\npython tools/derive.py assignments --varient 3\n```\n`make grade`"
    assert missing(block) == ["make granola", "--varient"]
    assert missing("`python -m circuitbook.nothing x`") == ["python -m circuitbook.nothing"]
    assert "make grade" in code(read(GUIDE)) and "--variant" in code(read(GUIDE))


# ---- the convention card -------------------------------------------------------------------------


def product(text, env):
    """`W_E W_QK2 W_OV1^T` as a matrix."""
    change = {"": lambda m: m, "^T": lambda m: m.mT, "^-1": torch.linalg.inv,
              "^-T": lambda m: torch.linalg.inv(m).mT}  # fmt: skip
    out = None
    for token in plain(text).split():
        name, mark = re.fullmatch(r"([A-Za-z_]+\d?)(\^T|\^-1|\^-T)?", token).groups(default="")
        factor = change[mark](env[name])
        out = factor if out is None else out @ factor
    return out


def environments(card):
    """The code's matrices and the papers', with QK and OV as the card itself defines them."""
    shapes = {"W_E": (7, 6), "W_U": (6, 7), "A1": (4, 4), "A2": (4, 4), "W_in": (6, 5)}
    shapes |= {"W_out": (5, 6)} | {f"W_{x}{i}": (6, 3) for x in "QKV" for i in ("", 1, 2)}
    shapes |= {f"W_O{i}": (3, 6) for i in ("", 1, 2)}
    ours = {n: torch.randn(s, generator=gen(i)).double() for i, (n, s) in enumerate(shapes.items())}
    papers = {n: m if n in ("A1", "A2") else m.mT for n, m in ours.items()}
    define = {name: (p, c) for name, p, c, _ in card if name in ("QK form", "OV map")}
    for name, (p, c) in define.items():
        for i in ("", "1", "2"):
            new = f"W_{name[:2]}{i}"
            papers[new], ours[new] = (
                product(re.sub(r"(W_[QKVO])", rf"\g<1>{i}", text), env)
                for text, env in ((p, papers), (c, ours))
            )
    return papers, ours


def test_each_product_of_the_card_holds_in_both_conventions():
    card = rows(read(CARD), ["Object", "Papers (columns)"])
    papers, ours = environments(card)
    assert len(card) >= 12
    for name, left, right, relation in card:
        theirs, mine = product(left, papers), product(right, ours)
        wanted = {"same": theirs, "transposed": theirs.mT}[relation]
        assert mine.shape == wanted.shape and torch.allclose(mine, wanted), name


def test_the_code_computes_what_the_card_says():
    card = {name: mine for name, _, mine, _ in rows(read(CARD), ["Object", "Papers (columns)"])}
    model = model_of()
    e, late = {"W_E": model.W_E}, {x: getattr(model, f"W_{x}")[1, 1] for x in "QKVO"}
    early = {x: getattr(model, f"W_{x}")[0, 0] for x in "QKVO"}
    e |= {f"W_{x}": late[x] for x in "QKVO"}
    e |= {"W_QK2": product(card["QK form"], e), "W_OV2": product(card["OV map"], e)}
    assert torch.allclose(e["W_QK2"], model.QK[1, 1].AB) and torch.allclose(
        e["W_OV2"], model.OV[1, 1].AB
    )
    e["W_OV1"] = product(card["OV map"], {f"W_{x}": early[x] for x in "QKVO"})
    scores = compose.composition_scores(
        *(early[x][None] for x in "VO"), *(late[x][None] for x in "QKVO")
    )
    for kind, score in zip("QKV", scores, strict=True):
        size = e["W_OV1"].norm() * e["W_OV2" if kind == "V" else "W_QK2"].norm()
        assert score.item() == pytest.approx(
            (product(card[f"{kind}-composition"], e).norm() / size).item()
        )
    left, right = taught.virtual_qk(model.W_E, early["V"], early["O"], late["Q"], late["K"])
    table = product(card["virtual QK circuit"], e) / model.cfg.d_head**0.5
    assert torch.allclose(left @ right, table - table.mean(1, keepdim=True))


def test_the_freedoms_leave_what_the_card_says():
    text = read(CARD)
    table = {row[0]: row[1:] for row in rows(text, ["Freedom"])}
    _, ours = environments(rows(text, ["Object", "Papers (columns)"]))
    ours |= {"R": torch.randn(3, 3, generator=gen(50)).double(),
             "G": torch.randn(6, 6, generator=gen(51)).double()}  # fmt: skip
    for freedom, also in (("head coordinates R", {}), ("stream coordinates G", {"W_K", "W_V"})):
        given, makes = (re.findall(r"`([^`]+)`", cell) for cell in table[freedom])
        new = dict(ours)
        for text in given:
            name = re.search(r"W_[QKVOE]\b|W_pos", text)[0]
            if name in ours:
                new[name] = product(text, ours)
        new |= {n: product(f"G^-1 {n}", ours) for n in also}
        for name, form in (("W_QK", "W_Q W_K^T"), ("W_OV", "W_V W_O")):
            wanted = next(t for t in makes if name in t)
            assert torch.allclose(product(form, new), product(wanted, ours)), (freedom, name)


# ---- shapes and words ----------------------------------------------------------------------------

MODELS = {
    "gelu-2l": (None, {"always", "MLP", "any MLP", "split", "result", "mlp_in"}),
    "norm": (
        Config(1, 16, 2, 4, 20, 12, 24, act="gelu_new", norm="layernorm", attn_bias=True,
               unembed_bias=True, positions="standard", pos_kind="learned"),
        {"always", "MLP", "any MLP", "result", "mlp_in", "LayerNorm", "attention biases",
         "output bias", "learned positions"},
    ),
    "swiglu-1l": (None, {"always", "MLP", "any MLP", "split", "result", "mlp_in", "gated MLP"}),
    "mixture": (  # not moe-1l, whose d_mlp equals its d_model
        Config(1, 16, 2, 4, 20, 12, 24, act="gelu", n_experts=3, top_k=2),
        {"always", "any MLP", "split", "result", "mlp_in", "mixture"},
    ),
}  # fmt: skip
CALLS = {"set_use_split_qkv_input(True)": "split", "set_use_attn_result(True)": "result",
         "set_use_hook_mlp_in(True)": "mlp_in"}  # fmt: skip


def glossary(header, tags, cfg):
    """Name -> shape of every row that a model with these tags has, `l` being layer 0."""
    sizes = {"batch": 3, "pos": 10, "key": 10, "head": cfg.n_heads, "expert": cfg.n_experts, "1": 1}
    sizes |= {n: getattr(cfg, n) for n in ("d_model", "d_head", "d_mlp", "d_vocab", "n_ctx")}
    found = {}
    for name, shape, when, *_ in rows(read(SHAPES), header):
        if CALLS.get(plain(when), when) in tags:
            axes = plain(shape).strip("[]").split(", ")
            assert plain(name) not in found, f"{name} has two shapes"
            found[plain(name).replace(".l.", ".0.")] = tuple(sizes[a] for a in axes)
    return found


@pytest.mark.parametrize("role", MODELS)
def test_shapes_are_those_of_a_model(role):
    cfg, tags = MODELS[role]
    model = Transformer(cfg) if cfg else zoo.load(role)
    model.set_use_attn_result(True)
    model.set_use_hook_mlp_in(True)
    model.set_use_split_qkv_input("split" in tags)
    _, cache = model.run_with_cache(tokens_of())
    for header, real in (
        (["Parameter", "Shape", "When"], dict(model.named_parameters())),
        (["Hook", "Shape", "When", "Unit"], cache),
    ):
        real = {n: tuple(t.shape) for n, t in real.items() if "blocks.1" not in n}
        assert glossary(header, tags, model.cfg) == real
    if role == "gelu-2l":
        for axis, size, _ in rows(read(SHAPES), ["Axis", "Size"]):
            name = {"layer": "n_layers", "head": "n_heads", "pos": "n_ctx", "key": "n_ctx"}
            name = name.get(plain(axis), plain(axis))
            if hasattr(model.cfg, name):
                assert int(size.split()[-1]) == getattr(model.cfg, name), axis


def test_words_are_sorted_and_their_chapters_use_them(course):
    sources = {lesson.number: lesson.source.lower() for lesson in course}
    words = rows(read(SHAPES), ["Word", "In plain words"])
    names = [w for w, _, _ in words]
    assert len(set(names)) == len(names) >= 60 and names == sorted(names, key=str.lower)
    for word, _, link in words:
        number = re.match(r"\[(\d\d)\]\(\.\./notebooks/\1_", link)[1]
        term = word.partition(" (")[0].partition(",")[0].lower()
        stem = term.removesuffix("s").split()[-1]
        assert stem in sources[number], f"{word}: chapter {number} does not use it"


# ---- how to cite ---------------------------------------------------------------------------------


def test_version_title_and_claims_are_the_projects():
    project = tomllib.loads(read(HERE / "pyproject.toml"))["project"]
    cff, page = read(HERE / "CITATION.cff"), read(CITE)
    keys = dict(re.findall(r"^([a-z-]+): *\"?(.*?)\"?$", cff, re.M))
    assert keys["cff-version"] == "1.2.0" and keys["version"] == project["version"]
    assert {"message", "title", "authors"} <= set(keys) and "doi" not in keys
    assert project["authors"][0]["name"] in cff
    assert re.findall(
        r"^  - ([\w.-]+)$", cff.partition("license:")[2].partition("abstract")[0], re.M
    ) == (project["license"].split(" AND "))
    assert f"version = {{{project['version']}}}" in page and keys["title"] in page
    ledger = read(HERE / "results" / "claims.md")
    for claim in re.findall(r"claim `([\w.]+)`", page):
        assert f"`{claim}`" in ledger
