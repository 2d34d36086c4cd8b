"""Rows of every head's two token tables: which keys a word looks for, which words it raises.

QK row: token as the query, W_E W_QK W_E^T / sqrt(d_head), minus the row's mean, which softmax
cannot see. OV row: token as the source, W_E W_OV W_U with W_U centred. Both ignore position, and
above the first layer both leave out what earlier heads wrote into the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from circuitbook import inputs, results, scan, spine, tokenizer, zoo
from circuitbook.model import Transformer

ROLES = ("attn-only-1l", "attn-only-2l")


def used_tokens() -> dict[str, list[str]]:
    """The tokens that a chapter speaks of, in its order: from its saved results and its prompt.

    02: the rows of its two tables, and the name that it asks about. 03: the words of its first
    prompt. 04: sources and destinations of its skip-trigrams and of its bugs.
    """
    two, four = (results.read(results.evidence_path(c))["data"] for c in CHAPTERS)
    words = tokenizer.load()
    prompt = [words.text(t) for t in spine.name_prompts().tokens[0].tolist()]
    triples = [word for row in four["table"] for word in row["triple"][:2]]
    bugs = [word for bug in four["bugs"] for word in (bug["source"], *bug["destinations"])]
    rows = [row["token"] for table in two["tables"].values() for row in table]
    found = {"02": [*rows, " Sally"], "03": prompt, "04": triples + bugs}
    return {chapter: list(dict.fromkeys(tokens)) for chapter, tokens in found.items()}


CHAPTERS = ("02_qk_ov", "04_skip_trigrams")


def by_id(texts: list[str]) -> dict[str, int]:
    """Token id of a token's text; a text that two ids share is an error where it is asked for."""
    ids: dict[str, int] = {}
    for i, text in enumerate(texts):
        ids.setdefault(text, i)
    return ids


@torch.no_grad()
def ends(factors: scan.Factors, rows: Int[Tensor, " n"], k: int) -> dict[str, list]:
    """The k largest and the k smallest entries of some rows: ids [n, k] and values [n, k]."""
    top = scan.top_k(*factors, k, rows=rows)
    low = scan.top_k(-factors.A, factors.B, k, rows=rows)
    return {
        "top": top.ids.tolist(), "top values": top.values.tolist(),
        "low": low.ids.tolist(), "low values": (-low.values).tolist(),
    }  # fmt: skip


@torch.no_grad()
def own(factors: scan.Factors, rows: Int[Tensor, " n"]) -> list[list]:
    """(a token's rank in its own row, its entry there); 1 is best."""
    rank = scan.self_rank(*factors, rows=rows).tolist()
    entry = (factors.A[rows] * factors.B.mT[rows]).sum(1).tolist()
    return [list(pair) for pair in zip(rank, entry, strict=True)]


def heads(model: Transformer) -> Iterator[tuple[int, int]]:
    """(layer, head) of every head."""
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            yield layer, head


def tables(model: Transformer, layer: int, head: int) -> dict[str, scan.Factors]:
    """The head's centred QK and OV tables as thin factors."""
    W_V, W_O = model.W_V[layer, head], model.W_O[layer, head]
    return {
        "qk": inputs.qk_factors(model, layer, head),
        "ov": scan.ov_factors(model.W_E, W_V, W_O, model.W_U),
    }


def compute(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """For each role and head: both ends of the rows of all tokens in `rows`, and own ranks."""
    texts, used = tokenizer.load(), used_tokens()
    ids = by_id([texts.text(t) for t in range(texts.vocab_size)])
    chapters: dict[int, list[str]] = {}
    for chapter, tokens in used.items():
        for token in tokens:
            chapters.setdefault(ids[token], []).append(chapter)
    rows = sorted(chapters)
    found: dict[str, Any] = {}
    for role in ROLES:
        model = zoo.load(role, device="cpu")
        found[role] = {}
        for layer, head in heads(model):
            both = tables(model, layer, head)
            at = torch.tensor(rows)
            found[role][f"{layer}.{head}"] = {
                name: ends(table, at, cfg["k"]) for name, table in both.items()
            } | {"own": own(both["ov"], at)}
    shown = {i for role in found.values() for head in role.values() for i in _named(head)}
    return {
        "rows": [{"id": i, "text": texts.text(i), "chapters": chapters[i]} for i in rows],
        "heads": found,
        "vocabulary": texts.vocab_size,
        "texts": {i: texts.text(i) for i in sorted(shown)},
    }


def _named(head: Mapping[str, Any]) -> Iterator[int]:
    for table in ("qk", "ov"):
        for end in ("top", "low"):
            for row in head[table][end]:
                yield from row
