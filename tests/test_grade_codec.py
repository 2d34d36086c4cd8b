"""Values survive the way to a student's process and back; a lying message is refused in words."""

import functools
import json
import math
import pickle

import numpy as np
import pytest
import torch

from circuitbook.checks import maps
from circuitbook.config import Config
from circuitbook.grade.codec import Refused, Slots, content, encode
from circuitbook.grade.decode import decode, restore
from circuitbook.model import Transformer


def there(value, slots=None, **more):
    """The value after the way from the grader to the student."""
    ours, theirs = Slots(), slots or Slots()
    more = {"function": lambda f: 7} | more
    data = encode(value, ours, grow=True, **more)
    return decode(data, theirs, trusted=True, function=lambda n: ("function", n)), ours


def back(value):
    """The value after the way from the student to the grader, who trusts nothing."""
    return decode(encode(value, Slots()), Slots())


def same(a, b):
    """Equal in kind and content, element for element; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=True)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    return a == b or (a != a and b != b)


PLAIN = [
    None, True, False, 0, -3, 2**53, -(2**200), 1.5, -0.0, math.inf, math.nan, 1 + 2j, "",
    "x\ud800", b"", b"\x00\xff", [], [1, [2.0, "3"]], (), (1, (None,)), {},
    {1: "a", "1": {(1, 2): [3]}},
    {1, 2}, frozenset({"a"}), float("1e-320"),
    np.arange(6).reshape(2, 3), np.zeros((0, 3)), np.array(3.0),
    np.array([1 + 1j]), np.array([True, False]), np.arange(4, dtype=">i4").astype("i4"),
    *(torch.tensor([[0, 1], [1, 0]]).to(t) for t in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
        torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)),
    torch.tensor(2.0), torch.zeros(0, 4), torch.arange(24.0).view(2, 3, 4).mT,
    torch.ones(1).expand(3, 4),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda v: type(v).__name__)
def test_there_and_back(value):
    assert same(there(value)[0], value)
    assert same(back(value), value)


class Word(str):
    """A word of the student's own class."""

    __str__ = __repr__ = lambda self: "something else"


def test_minus_zero_and_bits_survive():
    assert math.copysign(1, back(-0.0)) == -1
    x = torch.randn(100, dtype=torch.float64)
    assert (back(x).view(torch.int64) == x.view(torch.int64)).all()


def test_what_is_more_general_becomes_plain():
    assert back(range(3)) == [0, 1, 2] and back(x for x in "ab") == ["a", "b"]
    assert same(back([np.float64(2.5), np.int32(7), np.longdouble(0.5)]), [2.5, 7, 0.5])
    assert same(back({np.str_("a"): np.bool_(True)}), {"a": True})
    assert same(back({np.int64(3), np.str_("b")}), {3, "b"}) and same(back(Word("w")), "w")
    assert same(back([np.complex64(1j), np.bytes_(b"x")]), [1j, b"x"])
    assert back({1: 2}.keys()) == [1] and same(back(torch.Size([1, 2])), (1, 2))
    assert back(torch.ones(2, requires_grad=True) * 2).tolist() == [2.0, 2.0]
    assert same(back(torch.nn.Parameter(torch.ones(2))), torch.ones(2))
    assert same(back(torch.max(torch.tensor([[1.0, 2.0]]), 1))[1], torch.tensor([1]))


def test_generators_go_on_where_they_were():
    ours, rng = torch.Generator().manual_seed(3), np.random.default_rng(3)
    torch.rand(5, generator=ours), rng.random(5)
    (theirs, other), _ = there([ours, rng])
    assert torch.equal(torch.rand(3, generator=theirs), torch.rand(3, generator=ours))
    assert np.array_equal(other.random(3), rng.random(3))


def test_a_model_is_rebuilt():
    cfg = Config(2, d_model=20, n_heads=2, d_head=5, n_ctx=16, d_vocab=30)
    model = Transformer(cfg, seed=3).double().requires_grad_(False).eval()
    theirs, _ = there(model)
    tokens = torch.tensor([[0, 7, 3]])
    assert theirs.cfg == cfg and torch.equal(theirs(tokens), model(tokens))
    assert not theirs.training and not any(p.requires_grad for p in theirs.parameters())


def test_a_map_of_the_checks_is_rebuilt_and_can_be_differentiated():
    W, x = torch.randn(3, 3).double(), torch.randn(2, 3).double()
    theirs, _ = there(functools.partial(maps.linear, W=W))
    y, moved = torch.func.jvp(theirs, (x,), (x,))
    assert torch.allclose(y, x @ W) and torch.allclose(moved, y)


def test_functions_go_by_number_and_only_from_the_grader():
    assert there([len, print])[0] == [("function", 7), ("function", 7)]
    with pytest.raises(Refused, match="returned a builtin_function_or_method"):
        encode(len, Slots())


# ---- what is changed in place -------------------------------------------------------------------


def test_only_generators_follow():
    given = [torch.Generator().manual_seed(0), np.random.default_rng(0)]
    slots = Slots()
    theirs, ours = there(given, slots)
    torch.rand(1, generator=theirs[0]), theirs[1].random(1)
    for value in theirs:
        number = slots.number(value)
        restore(number, content(number, slots), ours)
    assert torch.equal(given[0].get_state(), theirs[0].get_state())
    assert given[1].random() == theirs[1].random()
    for value in (torch.ones(2), np.ones(2), [1], {1: 2}, {1}):
        theirs, ours = there(value)
        with pytest.raises(Refused):
            restore(ours.number(value), encode(value, Slots()), ours)


def test_what_was_changed_and_is_returned_travels_as_it_is_now():
    slots, x, draws = Slots(), torch.ones(2), torch.Generator()
    theirs, ours = there([x, draws], slots)
    theirs[0].zero_()
    inner, moved = decode(encode((theirs[0], theirs[1]), slots.moving()), ours)
    assert inner.tolist() == [0, 0] and x.tolist() == [1, 1] and moved is draws


# ---- what is refused ----------------------------------------------------------------------------


def _loop():
    loop = []
    loop.append(loop)
    return loop


def _deep():
    nested = []
    for _ in range(5000):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "returned a object"),
        (type("Secret41", (), {})(), "an object of some other class"),
        (Transformer, "returned a type"),
        (_loop(), "nested too deeply"),
        (_deep(), "nested too deeply"),
        (np.array(["a"]), "array"),
        (np.array([object()]), "array"),
        (torch.eye(2).to_sparse(), "tensor of an unusual kind"),
        ([0] * 2_100_000, "too many parts"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_cannot_be_sent_is_told(value, words):
    with pytest.raises(Refused, match=words) as error:
        encode(value, Slots())
    assert "41" not in str(error.value)


def _frame(tree, *blocks):
    head = json.dumps([tree, [len(b) for b in blocks]]).encode()
    return len(head).to_bytes(8, "big") + head + b"".join(blocks)


def _tensor(shape, data=b"x" * 8, kind="float64"):
    return _frame({"tensor": 0, "kind": kind, "shape": shape}, data)


LIES = [
    b"", b"x", b"\xff" * 100, pickle.dumps([1, 2]), _frame({"pickle": 0}, pickle.dumps(print)),
    _frame([1, 2]), _frame(1.5), _frame({}), _frame({"slot": 0}), _frame({"slot": -1}),
    _frame({"slot": "0"}), _frame({"slot": True}), _tensor([2]), _tensor([-1]), _tensor([1] * 40),
    _tensor([1 << 40, 1 << 40]), _tensor([1.0]), _tensor("1"), _tensor([1], kind="object"),
    _frame({"array": 0, "kind": "object", "shape": [1]}, b"x" * 8),
    _frame({"array": 0, "kind": "O", "shape": [1]}, b"x" * 8),
    _frame({"array": 3, "kind": "float64", "shape": [1]}, b"x" * 8),
    _frame({"function": 0}), _frame({"partial": ["linear", {"tuple": []}, {"dict": []}]}),
    _frame({"model": {"dict": []}, "state": {}, "grad": [], "train": True}),
    _frame({"_block": 0}), _frame({"value": 1}), _frame({"dict": [[{"list": []}, 1]]}),
    _frame({"dict": [[1]]}), _frame({"set": [{"list": []}]}), _frame({"list": 3}),
    _frame({"int": "z"}), _frame({"float": "x"}), _frame({"complex": ["1"]}), _frame({"bytes": 9}),
    _frame({"generator": 0}, b"short"), _frame({"rng": {"dict": []}}), _frame({"dtype": "os"}),
    (10**18).to_bytes(8, "big") + b"[]", _frame({"bytes": 0}, b"abc")[:-1], b"[" * 100_000,
    (200_000).to_bytes(8, "big") + b"[" * 200_000,
]  # fmt: skip


@pytest.mark.parametrize("data", LIES, ids=range(len(LIES)))
def test_a_lying_message_is_refused_and_nothing_else(data):
    with pytest.raises(Refused, match="no answer"):
        decode(data, Slots())


def test_a_slot_that_is_none_is_refused():
    _, ours = there([1])
    assert decode(_frame({"slot": 0}), ours) == [1]
    for number in (-1, 1, True, 0.0, "0"):
        with pytest.raises(Refused):
            decode(_frame({"slot": number}), ours)


def test_a_lying_change_is_refused():
    for given, wrong in (
        (torch.Generator(), _frame({"list": []})),
        (np.random.default_rng(0), _frame({"dict": []})),
        (np.random.default_rng(0), encode(torch.Generator(), Slots())),
    ):
        _, ours = there([given])
        with pytest.raises(Refused):
            restore(ours.number(given), wrong, ours)
