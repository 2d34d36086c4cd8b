"""A hub on this machine: paths, redirects, ETags and ranges of the real one, and faults to order.

Small files are answered after a relative redirect and named by git's hash. Large ones are named by
their sha256 and lie on another host (here another port), which knows ranges. `StandInHub.fault`
makes the next requests go wrong; `StandInHub.requests` is the list of all that was asked.
"""

import hashlib
import json
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import stand_in

# What the client reads from the environment; a test clears these and sets its own.
CLIENT = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HF_HOME", "HUGGINGFACE_HUB_CACHE")
LARGE = (".pth", ".safetensors", ".parquet")
GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi".split()
)


def git_hash(data):
    """The name that git gives to a file's bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def tiny_texts():
    """A few made-up articles, long enough for windows and short enough for a second."""
    chance = random.Random(0)

    def told(words):
        return " ".join(chance.choices(GREEK, k=words))

    test = [(f"Letter {k}", f"{told(900)}.\n= 7 =\n{told(100)}\n") for k in range(8)]
    validation = [(f"Word {k}", f"Aunt Sally says {told(150)}") for k in range(6)]
    return stand_in.Texts(test, validation, [told(3000), "x = 1\n    y = 2\n\n   z\n" * 40])


@dataclass
class Fault:
    """What goes wrong with requests of one method whose path has `part` in it."""

    part: str
    method: str
    times: int
    status: int = 0  # answered in place of the file
    headers: dict = field(default_factory=dict)
    cut: int | None = None  # the connection ends after this many bytes
    short: int | None = None  # the file itself has only so many bytes, and the answer says so
    pause: float = 0.0  # seconds of silence in the middle of the file, or before an answer
    wrong: bool = False  # as many bytes, but others


class StandInHub:
    """`with StandInHub(repositories) as hub:` serves {(kind, name): {commit: {file: bytes}}}.

    The first commit of a repository is what "main" means.
    """

    def __init__(self, repositories):
        self.repositories = repositories
        self.requests = []  # (method, path, range or None)
        self.faults = []
        self._guard = threading.Lock()

    def __enter__(self):
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(self)) for _ in range(2)]
        self.url, self.store = (f"http://127.0.0.1:{s.server_port}" for s in self._servers)
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def fault(self, part, method="GET", times=1, **what):
        """Order a fault for the next `times` requests."""
        self.faults.append(Fault(part, method, times, **what))

    def asked(self, part, method="GET"):
        """The ranges of all requests so far with `part` in their path."""
        return [r for m, path, r in self.requests if m == method and part in path]

    def note(self, method, path, wanted):
        """Keep a request, and return the fault that was ordered for it, if any."""
        with self._guard:
            self.requests.append((method, path, wanted))
            for fault in self.faults:
                if fault.times and fault.method == method and fault.part in path:
                    fault.times -= 1
                    return fault
        return None

    def find(self, path):
        """(status, error code, commit, file name, bytes) for a path of the hub."""
        parts = unquote(path).strip("/").split("/")
        kind = "dataset" if parts[0] == "datasets" else "model"
        parts = parts[kind == "dataset" :]
        commits = self.repositories.get((kind, "/".join(parts[:2])))
        if commits is None or parts[2:3] != ["resolve"]:
            return 401, "RepoNotFound", "", "", b""  # what the hub says to a stranger
        commit = next(iter(commits)) if parts[3] == "main" else parts[3]
        if commit not in commits:
            return 404, "RevisionNotFound", "", "", b""
        name = "/".join(parts[4:])
        if name not in commits[commit]:
            return 404, "EntryNotFound", commit, name, b""
        return 200, "", commit, name, commits[commit][name]


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            self.answer()

        def answer(self):
            path, wanted = urlsplit(self.path).path, self.headers.get("Range")
            fault = hub.note(self.command, path, wanted)
            if fault and fault.status:
                return self.say(fault.status, fault.headers)
            if fault and fault.pause and self.command == "HEAD":
                time.sleep(fault.pause)
            if path.startswith("/store/"):
                return self.bytes(*self.stored(path.removeprefix("/store")), wanted, fault)
            if path.startswith("/api/resolve-cache/"):
                status, code, commit, name, data = hub.find(path.removeprefix("/api/resolve-cache"))
                told = {"X-Repo-Commit": commit, "ETag": f'"{git_hash(data)}"'}
                return self.bytes(data, told, wanted, fault)
            status, code, commit, name, data = hub.find(path)
            if status != 200:
                told = {"X-Error-Code": code, "X-Error-Message": code}
                return self.say(status, told | ({"X-Repo-Commit": commit} if commit else {}))
            told = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(data))}
            fixed = path.replace("/resolve/main/", f"/resolve/{commit}/")
            if name.endswith(LARGE):
                sha256 = hashlib.sha256(data).hexdigest()
                told |= {"X-Linked-ETag": f'"{sha256}"', "X-Xet-Hash": sha256}
                told |= {"Link": f'<{hub.url}/xet>; rel="xet-auth"'}
                return self.say(302, told | {"Location": f"{hub.store}/store{fixed}"})
            told |= {"X-Linked-ETag": f'"{git_hash(data)}"'}
            return self.say(307, told | {"Location": f"/api/resolve-cache{fixed}"})

        def stored(self, path):
            data = hub.find(path)[-1]
            return data, {"ETag": f'"{hashlib.md5(data).hexdigest()}"'}  # the store's own name

        def say(self, status, headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def bytes(self, data, told, wanted, fault):
            start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
            body = data[start:] if not fault or fault.short is None else data[: fault.short]
            self.send_response(206 if wanted else 200)
            if wanted:
                end = f"bytes {start}-{len(data) - 1}/{len(data)}"
                self.send_header("Content-Range", end)
            for name, value in {**told, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            if self.command == "HEAD":
                return
            if fault and fault.wrong:
                body = bytes(255 - b for b in body[:100]) + body[100:]
            half = len(body) // 2 if fault and fault.pause else 0
            try:
                if fault and fault.cut is not None:
                    self.wfile.write(body[: fault.cut])
                    self.wfile.flush()
                    self.close_connection = True
                    return
                self.wfile.write(body[:half])
                if half:
                    self.wfile.flush()
                    time.sleep(fault.pause)
                self.wfile.write(body[half:])
            except OSError:  # the client has gone
                self.close_connection = True

    return Handler


def published(size="small"):
    """Stand-in files of every pin as StandInHub takes them, and what their pins are.

    The pins are plain data, {name: {"revision": ..., "sha256": {...}}}.
    """
    from circuitbook.published.pins import ALL

    texts, served, told = tiny_texts(), {}, {}
    for name, pin in ALL.items():
        files = stand_in.files(name, size, texts)
        whole = json.dumps({file: git_hash(data) for file, data in files.items()})
        commit = pin.revision or hashlib.sha1(whole.encode()).hexdigest()
        served[pin.kind, pin.repository] = {commit: files}
        known = {file: hashlib.sha256(files[file]).hexdigest() for file in pin.sha256}
        told[name] = {"revision": pin.revision, "sha256": known}
    return served, told
