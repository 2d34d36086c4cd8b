"""An answer without a thought earns nothing, a right one everything; the table of floors is true.

A law that changes makes this red: `python -m circuitbook.checks.trivial` writes the table anew.
"""

import pytest
from right_and_wrong import EXERCISES, answers

from circuitbook.checks import trivial
from circuitbook.checks.floors import FLOORS
from circuitbook.grade import earned, marks


@pytest.mark.parametrize("chapter", trivial.CHAPTERS)
@pytest.mark.filterwarnings("ignore")  # whatever torch says to such answers
def test_the_table_of_floors_is_what_the_laws_give_today(chapter):
    found = trivial.floors([chapter])
    with open(trivial.__file__.replace("trivial", "floors"), encoding="utf-8") as file:
        lines = [x for x in file.read().splitlines() if x.startswith(f'    "{chapter}.')]
    assert lines == trivial.text(found).removeprefix(trivial.HEAD).splitlines()[1:-1]
    for name, (most, laws, _) in found.items():
        assert FLOORS[name] == most < laws and earned(7, most, laws, most) == 0, name


def test_every_exercise_has_a_floor():
    assert set(FLOORS) == {name for _, name in EXERCISES}


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("11.counterexample", lambda F, circuit, model: circuit),
        ("01.change_stream", lambda weights, G: weights),
        ("02.copying_score", lambda *given: 1.0),
        *((name, lambda *given: 0.0) for name in ("07.windows_needed", "06.honest_score",
                                                   "09.honest_loss", "05.k_score")),
        ("03.term_and_cut", lambda *given: []),
    ],
)  # fmt: skip
def test_what_a_teacher_tried_earns_nothing(name, fn, capsys):
    assert marks(name, fn, variant=41021, points=4) == 0


@pytest.mark.parametrize(("chapter", "name"), [("05", "05.k_score"), ("11", "11.two_drops")])
def test_right_answers_get_all_points_and_wrong_ones_at_most_half(chapter, name, capsys):
    right, wrong = answers(chapter)
    assert marks(name, right[name][0], variant=5, points=4) == 4
    assert all(marks(name, fn, variant=5, points=4) < 2 for fn in wrong[name])
