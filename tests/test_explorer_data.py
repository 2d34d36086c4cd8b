"""The explorer's data scripts say exactly what the weights, the tokenizer and the results say."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import parse_qsl

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from circuitbook import paths, tokenizer

APP = paths.ROOT / "site" / "apps" / "explorer"
pytestmark = pytest.mark.weights


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("explorer_build", APP / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _module()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("explorer")
    build.build(out)
    return out


def _values(built: Path) -> dict:
    """data.js, read as what it is: one JSON value for each name."""
    lines = (built / "data.js").read_text().splitlines()
    pairs = [re.fullmatch(r"Explorer\.(\w+) = (.*);", line).groups() for line in lines]
    return {name: json.loads(value) for name, value in pairs}


def _weights(built: Path, role: str) -> tuple[dict, np.ndarray]:
    text = (built / f"weights-{role}.js").read_text()
    name, header, numbers = re.fullmatch(
        r'Explorer\.weights\("([^"]+)", (\{.*\}), "([^"]*)"\);\n', text
    ).groups()
    assert name == role
    return json.loads(header), np.frombuffer(base64.b64decode(numbers), "<f2")


@pytest.mark.parametrize("role", build.MODELS)
def test_weights_are_the_files_numbers(built: Path, role: str) -> None:
    header, numbers = _weights(built, role)
    tensors = load_file(paths.WEIGHTS / f"{role}.safetensors")
    assert header["tensors"].keys() == tensors.keys()
    covered = np.zeros(len(numbers), bool)
    for name, place in header["tensors"].items():
        a, b = place["offset"], place["offset"] + tensors[name].size
        assert not covered[a:b].any()
        covered[a:b] = True
        there = numbers[a:b].reshape(place["shape"])
        assert np.array_equal(there.view(np.uint16), tensors[name].view(np.uint16)), name
    assert covered.all()
    manifest = json.loads((paths.WEIGHTS / "MANIFEST.json").read_text())
    config = manifest[role]["recipe"]["config"]
    assert header["config"].items() <= config.items()
    assert header["config"] == _values(built)["models"][role]


def test_vocabulary_is_the_tokenizers(built: Path) -> None:
    saved = json.loads((paths.WEIGHTS / "tokenizer.json").read_text())["model"]
    data = _values(built)["vocabulary"]
    assert {symbol: i for i, symbol in enumerate(data["vocab"])} == saved["vocab"]
    assert [tuple(pair.split(" ")) for pair in data["merges"]] == [
        tuple(pair) for pair in saved["merges"]
    ]
    assert data["vocab"][0] == data["bos"] == tokenizer.BOS


def test_presets_are_the_chapters_prompts(built: Path) -> None:
    presets = {preset["name"]: preset for preset in _values(built)["presets"]}
    tok, results = tokenizer.load(), paths.RESULTS / "course"
    aunt = json.loads((results / "09_sparse_autoencoders.json").read_text())["data"]["aunt"]
    induction = json.loads((results / "06_induction.json").read_text())["data"]
    # Joined and split again, a prompt must be the tokens that the chapter ran.
    assert tok.pieces(presets["Aunt Sally"]["text"]) == aunt["tokens"][1:]
    assert tok.pieces(presets["repeated tokens"]["text"]) == induction["example"]["tokens"][1:]
    assert presets["Aunt Sally"]["heads"]["gelu-2l"] == aunt["roles"]["gelu-2l"]["head"]
    assert presets["repeated tokens"]["writers"] == {"attn-only-2l": induction["pair"][0]}
    assert presets["repeated tokens"]["heads"] == {"attn-only-2l": induction["pair"][1]}
    assert len(presets) >= 4


def test_building_twice_gives_the_same_bytes_and_no_torch(built: Path, tmp_path: Path) -> None:
    code = (
        f"import sys, runpy; sys.argv = ['build.py', {str(tmp_path)!r}]; "
        f"runpy.run_path({str(APP / 'build.py')!r}, run_name='__main__'); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=paths.ROOT)
    names = sorted(path.name for path in built.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(["data.js", *(f"weights-{role}.js" for role in build.MODELS)])
    for name in names:
        assert (built / name).read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.fixture
def other_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with copies of what `build` reads, to damage."""
    root = tmp_path / "project"
    for name in ("weights", "results/course", "scripts"):
        (root / name).mkdir(parents=True)
    for name in ("MANIFEST.json", "tokenizer.json", *(f"{r}.safetensors" for r in build.MODELS)):
        shutil.copy(paths.WEIGHTS / name, root / "weights" / name)
    for name in ("06_induction.json", "09_sparse_autoencoders.json"):
        shutil.copy(paths.RESULTS / "course" / name, root / "results" / "course" / name)
    monkeypatch.setenv("CIRCUITBOOK_ROOT", str(root))
    return root


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def _other_model(root: Path, **changes: object) -> None:
    path = root / "weights" / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    manifest["gelu-1l"]["recipe"]["config"].update(changes)
    path.write_text(json.dumps(manifest))


def _single_precision(root: Path) -> None:
    path = root / "weights" / "gelu-1l.safetensors"
    path.write_bytes(save({"embed.W_E": np.zeros((2, 2), np.float32)}))
    manifest = json.loads((root / "weights" / "MANIFEST.json").read_text())
    manifest["gelu-1l"]["sha256"] = build.hashlib.sha256(path.read_bytes()).hexdigest()
    (root / "weights" / "MANIFEST.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda r: (r / "weights/gelu-2l.safetensors").unlink(), "gelu-2l.*missing.*git checkout"),
        (lambda r: _cut_short(r / "weights/gelu-2l.safetensors"), "damaged.*git checkout weights/"),
        (lambda r: (r / "weights/tokenizer.json").write_text("{"), "tokenizer.*git checkout"),
        (lambda r: (r / "weights/MANIFEST.json").unlink(), "MANIFEST.*git checkout"),
        (lambda r: (r / "results/course/06_induction.json").unlink(), "06_ind.*git checkout"),
        (lambda r: _other_model(r, norm="layernorm"), "norm='layernorm'.*model.js"),
        (lambda r: _other_model(r, act="swiglu"), "act='swiglu'.*model.js"),
        (_single_precision, "embed.W_E is float32"),
    ],
)
def test_what_cannot_be_used_is_said_and_nothing_is_written(
    other_root: Path, tmp_path: Path, spoil: object, message: str
) -> None:
    out = tmp_path / "out"
    build.build(out)  # the copy is sound to begin with
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    spoil(other_root)
    with pytest.raises(build.ExplorerError, match=message) as error:
        build.build(out)
    assert "\n" not in str(error.value)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_page_loads_every_script_once_in_an_order_that_works() -> None:
    page = (APP / "page.md").read_text()
    named = re.findall(r'src="_static/explorer/([\w.]+)"', page)
    files = sorted(path.name for path in (APP / "static").glob("*.js"))
    assert sorted(named) == sorted([*files, "data.js"])
    assert named[0] == "math.js" and named[-1] == "main.js"
    assert "://" not in page  # nothing from outside


def test_scripts_reach_for_nothing_outside_and_stay_short() -> None:
    for path in (APP / "static").iterdir():
        text = path.read_text()
        assert len(text.splitlines()) <= 400, path.name
        assert not re.search(r"\bfetch\(|XMLHttpRequest|importScripts|://|type=.module", text), path


def _links() -> dict[str, dict[str, str]]:
    links = json.loads((APP / "links.json").read_text(encoding="utf-8"))
    return {chapter: dict(parse_qsl(link)) for chapter, link in links.items()}


def test_each_chapter_has_a_link_to_a_model_of_the_page() -> None:
    lessons = sorted(path.name[:2] for path in (paths.ROOT / "scripts").glob("[0-9][0-9]_*.py"))
    links = _links()
    assert sorted(links) == lessons
    assert all(link["model"] in build.MODELS and link["text"] for link in links.values())


def test_the_links_name_the_heads_that_the_chapters_found() -> None:
    """Each value here is read from the results, so a new training run shows which link is stale."""

    def data(lesson: str) -> dict:
        return json.loads((paths.RESULTS / "course" / f"{lesson}.json").read_text())["data"]

    links, induction, gallery = _links(), data("06_induction"), data("11_circuit_gallery")
    aunt, bug = data("09_sparse_autoencoders")["aunt"], data("04_skip_trigrams")["bugs"][0]
    sally, repeat = "".join(aunt["tokens"][1:]), "".join(induction["example"]["tokens"][1:])
    before, after = induction["pair"]
    wanted = dict.fromkeys(("00", "01", "03", "05", "06", "10", "11"), after)
    wanted |= dict.fromkeys(("02", "08"), before)
    wanted |= {"07": gallery["induction"]["gelu-2l"]["induction head"]}
    wanted |= {"04": f"0.{bug['head']}", "09": aunt["roles"]["gelu-2l"]["head"]}
    assert {chapter: link["head"] for chapter, link in links.items()} == wanted
    assert {chapter: link["off"] for chapter, link in links.items() if "off" in link} == (
        dict.fromkeys(("01", "03", "11"), before)
    )
    assert links["05"]["cut"] == f"{before}>{after}.k"
    own = {"04", "10"}  # texts of their own
    assert {link["text"] for chapter, link in links.items() if chapter not in own} == {
        sally,
        repeat,
    }
    assert links["03"]["freeze"] == links["10"]["freeze"] == sally
    pieces = tokenizer.load().pieces(links["04"]["text"])
    assert pieces[-2:] == [bug["source"], bug["destinations"][0]]
