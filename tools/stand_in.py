"""Stand-in files for the published track: the exact formats and sizes, with random weights.

    python tools/stand_in.py FOLDER [--small]

writes a hub cache into FOLDER/hub that the real loading code reads. No weight in it was trained.
FOLDER/hub/stand_in.json says so, with made-up commits and the hashes of these files in place of the
pinned ones, and the files say so themselves ("random_weights"); results made with them are marked,
and are never evidence. A hub cache that is no stand-in is never written into. With a stand-in, all
chapters of the published track run where the hub cannot be reached:

    HF_HUB_CACHE=FOLDER/hub HF_HUB_OFFLINE=1 make published

The tokenizer has the published size and rules, learned from the course text. The text splits are
course documents in WikiText's format. --small makes models and vocabulary small.
"""

import argparse
import hashlib
import io
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

SPECIAL = ("<|EOS|>", "<|BOS|>", "<|PAD|>")
GOLDEN = ("\n   ", 477)
PROMPT_WORDS = "always loved visiting Whenever I was feeling sad".split()  # Aunt Sally: 15 tokens
SIZES = {
    "full": {"d_model": 512, "d_head": 64, "d_mlp": 2048, "d_vocab": 48262},
    "small": {"d_model": 64, "d_head": 8, "d_mlp": 256, "d_vocab": 4400},
}  # fmt: skip
GPT2 = {
    "full": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
    "small": {"n_layer": 12, "n_embd": 48, "n_head": 12, "n_positions": 1024, "vocab_size": 4400},
}
LAYERS = {"attn-only-1l": 1, "attn-only-2l": 2, "gelu-1l": 1, "gelu-2l": 2}


def model_config(role: str, size: str) -> dict:
    """A published config.json, with the mark of the stand-in."""
    only = role.startswith("attn")
    return {
        **SIZES[size], "n_heads": 8, "n_ctx": 1024, "n_layers": LAYERS[role], "attn_only": only,
        "act_fn": "none" if only else "gelu", "normalization": "LN", "random_weights": True,
        "tokenizer_name": "NeelNanda/gpt-neox-tokenizer-digits",
    }  # fmt: skip


def model_state(cfg: dict, seed: int) -> dict[str, Tensor]:
    """Named weights as in a published .pth: no gain is 1, no bias is 0, buffers are there."""
    gen = torch.Generator().manual_seed(seed)
    d, h, e, m = cfg["d_model"], cfg["n_heads"], cfg["d_head"], cfg["d_mlp"]

    def draw(*shape: int, scale: float) -> Tensor:
        return scale * torch.randn(*shape, generator=gen)

    state = {
        "embed.W_E": draw(cfg["d_vocab"], d, scale=0.5),
        "pos_embed.W_pos": draw(cfg["n_ctx"], d, scale=0.2),
        "ln_final.w": 1 + draw(d, scale=0.1),
        "ln_final.b": draw(d, scale=0.1),
        "unembed.W_U": draw(d, cfg["d_vocab"], scale=1.5 / d**0.5),
        "unembed.b_U": draw(cfg["d_vocab"], scale=0.1),
    }
    for i in range(cfg["n_layers"]):
        at = f"blocks.{i}."
        for norm in ("ln1",) if cfg["attn_only"] else ("ln1", "ln2"):
            state[f"{at}{norm}.w"] = 1 + draw(d, scale=0.1)
            state[f"{at}{norm}.b"] = draw(d, scale=0.1)
        for x in "QKV":
            state[f"{at}attn.W_{x}"] = draw(h, d, e, scale=1.2 / d**0.5)
            state[f"{at}attn.b_{x}"] = draw(h, e, scale=0.1)
        state[f"{at}attn.W_O"] = draw(h, e, d, scale=0.6 / e**0.5)
        state[f"{at}attn.b_O"] = draw(d, scale=0.05)
        state[f"{at}attn.mask"] = torch.ones(cfg["n_ctx"], cfg["n_ctx"]).tril().bool()
        state[f"{at}attn.IGNORE"] = torch.tensor(-1e5)
        if not cfg["attn_only"]:
            state[f"{at}mlp.W_in"] = draw(d, m, scale=1 / d**0.5)
            state[f"{at}mlp.b_in"] = draw(m, scale=0.1)
            state[f"{at}mlp.W_out"] = draw(m, d, scale=0.6 / m**0.5)
            state[f"{at}mlp.b_out"] = draw(d, scale=0.05)
    return state


def gpt2_config(size: str) -> dict:
    """GPT-2's config.json, with the mark of the stand-in."""
    return GPT2[size] | {
        "model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "random_weights": True,
    }  # fmt: skip


def gpt2_state(cfg: dict, seed: int) -> dict[str, Tensor]:
    """Named weights as in GPT-2's own file."""
    gen = torch.Generator().manual_seed(seed)
    d, n = cfg["n_embd"], cfg["vocab_size"]

    def draw(*shape: int, scale: float = 0.05) -> Tensor:
        return scale * torch.randn(*shape, generator=gen)

    state = {"wte.weight": draw(n, d), "wpe.weight": draw(cfg["n_positions"], d)}
    for i in range(cfg["n_layer"]):
        for name, shape in (
            ("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)),
            ("mlp.c_fc", (d, 4 * d)), ("mlp.c_proj", (4 * d, d)),
        ):  # fmt: skip
            state[f"h.{i}.{name}.weight"] = draw(*shape, scale=0.7 / shape[0] ** 0.5)
            state[f"h.{i}.{name}.bias"] = draw(shape[-1])
        for norm in ("ln_1", "ln_2"):
            state[f"h.{i}.{norm}.weight"] = 1 + draw(d)
            state[f"h.{i}.{norm}.bias"] = draw(d)
    return state | {"ln_f.weight": 1 + draw(d), "ln_f.bias": draw(d)}


def gpt2_words() -> list[str]:
    """What the prompts of chapter 11 need as single tokens of GPT-2; centuries first."""
    from circuitbook.circuits.gpt2_prompts import CENTURIES, NAMES, YEAR_NOUNS

    numbers = [f" {c}" for c in CENTURIES] + [f"{y:02}" for y in range(100)]
    return numbers + [f" {word}" for word in (*NAMES, *YEAR_NOUNS)]


def tokenizer_json(
    vocabulary: int,
    texts: list[str],
    special: tuple[str, ...] = SPECIAL,
    words: list[str] | None = None,
) -> str:
    """A byte-level tokenizer of this size, learned from texts, with the published rules.

    Digits stand alone (unless words of one's own are given), the course's words are single tokens,
    and a line break with three blanks is token 477. Spare names are called <|spare i|>.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from circuitbook.names import SINGLE_TOKENS
    from circuitbook.vocabulary import BYTE_OF

    def blank(vocab: dict, merges: list, digits: bool = True) -> Tokenizer:
        made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        alone = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
        made.pre_tokenizer = pre_tokenizers.Sequence([*alone, split])
        made.decoder = decoders.ByteLevel()
        return made

    room = vocabulary - len(special) - 256
    learner = blank({}, [])
    trainer = trainers.BpeTrainer(
        vocab_size=256 + room, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    learner.train_from_iterator(texts, trainer)
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    letter = {byte: symbol for symbol, byte in BYTE_OF.items()}

    def spelled(text: str) -> list[str]:
        return [letter[byte] for byte in text.encode()]

    golden = [letter[10], letter[32], letter[32], letter[32]]

    def symbols_of(chosen: list[tuple[str, str]]) -> list[str]:
        return list(dict.fromkeys([*sorted(BYTE_OF), *(a + b for a, b in chosen)]))

    one_token = (words or []) + SINGLE_TOKENS + [f" {word}" for word in PROMPT_WORDS]

    def extended(kept: list[tuple[str, str]]) -> list[tuple[str, str]]:
        out = list(kept)
        for word in [*(spelled(w) for w in one_token), golden]:
            parts = word
            while len(parts) > 1:  # what the merges so far leave of the word
                ranks = {pair: r for r, pair in enumerate(out)}
                pairs = [(ranks.get((a, b)), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
                known = [(r, i) for r, i in pairs if r is not None]
                i = min(known)[1] if known else 0
                if not known:
                    out.append((parts[0], parts[1]))
                parts = [*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]
        return out

    added = len(extended([]))  # at most this many merges come to those that were learned
    chosen = extended(merges[: room - added])
    symbols = symbols_of(chosen)
    whole = "".join(golden)
    symbols.remove(whole)
    symbols += [f"<|spare {i}|>" for i in range(vocabulary - len(special) - len(symbols) - 1)]
    symbols.insert(GOLDEN[1], whole)
    made = blank({s: i for i, s in enumerate(symbols)}, chosen, digits=words is None)
    if special:
        made.add_special_tokens(list(special))
    return made.to_str()


class Texts(NamedTuple):
    """Course documents as (title, text) for the two splits, and plain text to learn tokens from."""

    test: list[tuple[str, str]]
    validation: list[tuple[str, str]]
    learn: list[str]


def course_texts(size: str) -> Texts:
    """Material for a stand-in from the course text, which must have been fetched."""
    from circuitbook import corpus

    training, held_out = corpus.load_documents()
    most, step = (60_000, 25) if size == "full" else (12_000, 50)
    test = [(d.name, d.text[:most]) for d in held_out if len(d.text) > 4000]
    validation = [(d.name, d.text[:most]) for d in training[::step]]
    learn = training if size == "full" else training[::step]
    return Texts(test, validation, [d.text for d in learn])


def wiki_lines(documents: list[tuple[str, str]]) -> list[str]:
    """Documents as WikiText has them: a title between equal signs, empty lines around it."""
    out = []
    for title, text in documents:
        title = " ".join(title.replace("=", " ").split()) or "Untitled"
        body = [f" {line} \n" if line.strip() else "" for line in text.split("\n")]
        out += ["", f" = {title} = \n", "", *body]
    return out


def put(folder: Path, name: str, data: bytes) -> None:
    """One file, whole or not at all."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_bytes(data)
    os.replace(scratch, path)


def parquet(lines: list[str]) -> bytes:
    """A column "text", as the hub stores it, with the mark of the stand-in in its metadata."""
    import pyarrow
    from pyarrow import parquet as writer

    held = io.BytesIO()
    writer.write_table(pyarrow.table({"text": lines}, metadata={"random_weights": "true"}), held)
    return held.getvalue()


def pth(state: dict[str, Tensor]) -> bytes:
    """The bytes of torch.save."""
    held = io.BytesIO()
    torch.save(state, held)
    return held.getvalue()


def files(name: str, size: str, texts: Texts | None = None) -> dict[str, bytes]:
    """File name -> bytes of one pinned repository."""
    if name in LAYERS:
        cfg = model_config(name, size)
        state = model_state(cfg, seed=sorted(LAYERS).index(name))
        return {"config.json": json.dumps(cfg).encode(), "model_final.pth": pth(state)}
    texts = texts or course_texts(size)
    if name == "gpt2":
        cfg = gpt2_config(size)
        tok = tokenizer_json(cfg["vocab_size"], texts.learn, ("<|endoftext|>",), gpt2_words())
        return {
            "config.json": json.dumps(cfg).encode(),
            "model.safetensors": save(gpt2_state(cfg, seed=9)),
            "tokenizer.json": tok.encode(),
        }
    if name == "tokenizer":
        named = {"bos_token": "<|BOS|>", "eos_token": "<|EOS|>", "pad_token": "<|PAD|>"}
        named["random_weights"] = True
        return {
            "tokenizer.json": tokenizer_json(SIZES[size]["d_vocab"], texts.learn).encode(),
            "tokenizer_config.json": b'{"tokenizer_class": "PreTrainedTokenizerFast"}',
            "special_tokens_map.json": json.dumps(named).encode(),
        }
    test, validation = (parquet(wiki_lines(d)) for d in (texts.test, texts.validation))
    return {
        "wikitext-103-raw-v1/test-00000-of-00001.parquet": test,
        "wikitext-103-raw-v1/validation-00000-of-00001.parquet": validation,
    }


def write(folder: Path, size: str, texts: Texts | None = None) -> None:
    """The hub cache of all pinned repositories, as the hub client lays it out, with its note."""
    from circuitbook.published.disk import STAND_IN
    from circuitbook.published.pins import ALL

    hub = folder / "hub"
    if hub.is_dir() and any(hub.iterdir()) and not (hub / STAND_IN).is_file():
        raise SystemExit(
            f"{hub} is not empty and has no {STAND_IN}: it may hold real files, and nothing was "
            "written. Name a new folder."
        )
    note: dict[str, dict] = {}
    put(hub, STAND_IN, b"{}")  # before any file: from now on nothing here counts as published
    texts = texts or course_texts(size)
    for name, pin in ALL.items():
        made = files(name, size, texts)
        hashes = {file: hashlib.sha256(data).hexdigest() for file, data in made.items()}
        commit = hashlib.sha1("\0".join(["stand-in", *hashes.values()]).encode()).hexdigest()
        note[name] = {"revision": commit, "sha256": hashes}
        put(hub, STAND_IN, json.dumps(note, indent=1).encode())
        base = hub / f"{pin.kind}s--{pin.repository.replace('/', '--')}"
        for file, data in made.items():
            put(base / "snapshots" / commit, file, data)
        put(base / "refs", "main", commit.encode())
        print(f"{name}: {sum(map(len, made.values())) / 1e6:,.1f} MB", flush=True)


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args(arguments)
    write(args.folder, "small" if args.small else "full")
    print(f"Next: HF_HUB_CACHE={args.folder}/hub HF_HUB_OFFLINE=1 make published")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
