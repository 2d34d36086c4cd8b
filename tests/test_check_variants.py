"""Graded work: the same laws on other draws accept right answers and reject wrong ones.

An answer learned by heart from the visible check fails there, whatever the exercise.
"""

import copy
import functools
import hashlib
import inspect
import types

import numpy as np
import pytest
import torch
from right_and_wrong import EXERCISES, answers

from circuitbook.check import count, laws, variant

OTHERS = (1, 2, 3)
# Its four questions are fixed names: to know the visible answers is to know the answer.
BY_NAME = {"01.which_numbers_move"}
LEAVES = {"01.centred_contribution", "01.change_stream", "03.term_and_cut", "09.cheat",
          "09.swap_first_title"}  # fmt: skip
# Laws that listen to what the answer asks for; who recites asks for nothing.
LISTENS = {"06.honest_score": 1}


def failed(name, fn, number):
    """The laws that fn breaks, one after the other as they are found."""
    with variant(number):
        found = laws(name, fn)
    return ((law.sentence, law.problem) for law in found if not law.passed)


@pytest.mark.parametrize(("chapter", "name"), EXERCISES)
def test_right_answers_pass_on_other_draws(chapter, name):
    for fn in answers(chapter)[0][name]:
        for number in OTHERS:
            assert list(failed(name, fn, number)) == [], f"{fn.__name__} in variant {number}"


@pytest.mark.parametrize(("chapter", "name"), EXERCISES)
def test_wrong_answers_fail_on_other_draws(chapter, name):
    for fn in answers(chapter)[1][name]:
        for number in OTHERS:
            assert any(failed(name, fn, number)), f"{fn.__name__} is accepted in variant {number}"


@pytest.mark.parametrize(("chapter", "name"), EXERCISES)
def test_words_and_their_number_are_the_same_in_every_variant(chapter, name):
    def nothing(*args, **kwargs):
        raise NotImplementedError

    told = []
    for number in (0, *OTHERS):
        with variant(number):
            told.append([(law.sentence, law.hint) for law in laws(name, nothing)])
    assert all(words == told[0] for words in told)
    assert len(told[0]) == len(set(told[0])) == count(name)


@pytest.mark.parametrize(("chapter", "name"), EXERCISES)
def test_a_law_that_forbids_changes_believes_a_stand_in(chapter, name):
    """An answer in another process changes nothing here: only its stand-in can say that it did."""

    class StandIn:
        changed = True
        __call__ = staticmethod(answers(chapter)[0][name][0])

    forbid = [law for law in laws(name, StandIn()) if " left as " in law.sentence]
    assert not any(law.passed for law in forbid)
    assert forbid or name not in LEAVES


# ---- learned by heart ---------------------------------------------------------------------------


def mark(value):
    """What an argument is, as hashable data; of a function its code and what it holds."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value).tobytes()
        return str(value.dtype), value.shape, hashlib.sha256(data).hexdigest()
    if isinstance(value, torch.Generator):
        return mark(value.get_state())
    if isinstance(value, torch.nn.Module):
        return mark(dict(value.state_dict()))
    if isinstance(value, functools.partial):
        return value.func.__name__, mark(value.args), mark(value.keywords)
    if isinstance(value, types.MethodType):
        return value.__qualname__
    if isinstance(value, types.FunctionType):
        value = inspect.unwrap(value)  # type checks are wrapped around under pytest
        cells = [mark(cell.cell_contents) for cell in value.__closure__ or ()]
        return value.__qualname__, value.__code__.co_code, str(value.__code__.co_consts), *cells
    if isinstance(value, dict):
        return tuple((k, mark(v)) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return type(value).__name__, tuple(mark(v) for v in value)
    return repr(value)


class ByHeart:
    """Remembers every question and its answer; afterwards it knows these, and no others."""

    def __init__(self, fn):
        self.fn, self.known = fn, {}

    def __call__(self, *args, **kwargs):
        question = mark((args, kwargs))
        if self.fn is not None:
            self.known[question] = self.fn(*args, **kwargs)
        if question not in self.known:
            raise LookupError("never seen")
        return copy.deepcopy(self.known[question])


@pytest.mark.parametrize(("chapter", "name"), EXERCISES)
def test_an_answer_learned_by_heart_fails_on_other_draws(chapter, name):
    pupil = ByHeart(answers(chapter)[0][name][0])
    assert list(failed(name, pupil, 0)) == []
    pupil.fn = None
    visible = list(failed(name, pupil, 0))
    assert len(visible) == LISTENS.get(name, 0), "it has not learned the visible check"
    for number in OTHERS:
        others = failed(name, pupil, number)
        more = any(law not in visible for law in others)
        assert more == (name not in BY_NAME), f"it passes variant {number}"
