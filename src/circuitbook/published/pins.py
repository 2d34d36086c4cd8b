"""What the published track consists of: repositories, revisions, files, and hashes where known.

A revision of None means that no full commit hash of it is on record here. The first download then
takes the newest commit. Whatever is first found whole is written down, with every file's size and
sha256, in the lock file (see :mod:`circuitbook.published.disk`): from then on that is the pin.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MODEL_FILES = ("config.json", "model_final.pth")


@dataclass(frozen=True)
class Pin:
    """One repository of the hub at one revision, and the files of it that the course reads."""

    name: str  # what the course calls it
    repository: str  # owner/name on the hub
    kind: str  # "model" or "dataset", as the hub says
    revision: str | None  # a full commit hash
    files: tuple[str, ...]
    sha256: dict[str, str] = field(default_factory=dict)  # file -> hash, where it is on record
    megabytes: float = 0.0  # of the whole download, for the announcement before the hub says more
    licence: str = ""
    sizes: dict[str, int] = field(default_factory=dict)  # file -> bytes, from the lock file


MODELS: dict[str, Pin] = {
    pin.name: pin
    for pin in (
        Pin(
            "attn-only-1l", "NeelNanda/Attn_Only_1L512W_C4_Code", "model", None, MODEL_FILES,
            {"model_final.pth": "9537eddb383d60ae1d84fecd039af1716cf19668b4cc92aa28e79ba57dbfa3a5"},
            megabytes=205.0,
        ),
        Pin(
            "attn-only-2l", "NeelNanda/Attn_Only_2L512W_C4_Code", "model", None, MODEL_FILES,
            megabytes=210.0,
        ),
        Pin(
            "gelu-1l", "NeelNanda/GELU_1L512W_C4_Code", "model",
            "bddc0e332f0ae84279e6a6a45d91b314899e1603", MODEL_FILES, megabytes=213.0,
            licence="MIT",
        ),
        Pin(
            "gelu-2l", "NeelNanda/GELU_2L512W_C4_Code", "model", None, MODEL_FILES,
            megabytes=227.0,
        ),
        Pin(
            "gpt2", "openai-community/gpt2", "model", "607a30d783dfa663caf39e06633721c8d4cfcd7e",
            ("config.json", "model.safetensors", "tokenizer.json"),
            {
                "model.safetensors":
                    "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
                "tokenizer.json":
                    "8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6",
                "config.json":
                    "0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4",
            },
            megabytes=550.0, licence="MIT",
        ),
    )
}  # fmt: skip

TOKENIZER = Pin(
    "tokenizer", "NeelNanda/gpt-neox-tokenizer-digits", "model",
    "0f6671571a20be9756b9991d978047c03b75e749",
    ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"), megabytes=2.0,
)  # fmt: skip

# The test split is what is measured; the validation split only says which words are frequent.
TEXT = Pin(
    "text", "Salesforce/wikitext", "dataset", "b08601e04326c79dfdd32d625aee71d232d685c3",
    (
        "wikitext-103-raw-v1/test-00000-of-00001.parquet",
        "wikitext-103-raw-v1/validation-00000-of-00001.parquet",
    ),
    megabytes=1.5, licence="CC BY-SA",
)  # fmt: skip

ALL: dict[str, Pin] = MODELS | {TOKENIZER.name: TOKENIZER, TEXT.name: TEXT}
