"""Answers to 03.count_paths that attack the grader, its host, or its marks. Each has its own name.

In the texts, SOURCE, MARKER, PORT stand for the assignment's file, a file of the teacher's that
anybody may write, and a port of this machine on which the test listens. Where an attack succeeds
in seeing something hidden, or in fooling the checks, its answer is right; so any point is a defect.
"""

RIGHT = """
from math import comb
def honest(layers, heads, order):
    return comb(layers, order) * heads**order if order <= layers else 0
"""

# Those that must earn nothing. The answers beside them in the notebook keep all their points.
HOSTILE = {
    "endless_loop": '''
def count_paths(layers, heads, order):
    while True:
        pass
''',
    "sleeps_for_ever": '''
import time
def count_paths(layers, heads, order):
    time.sleep(10**6)
''',
    "memory_bomb": '''
def count_paths(layers, heads, order):
    held = []
    while True:
        held.append(bytearray(1 << 28))
''',
    "memory_bomb_of_torch": '''
import torch
def count_paths(layers, heads, order):
    held = []
    while True:
        try:
            held.append(torch.ones(1 << 26))
        except RuntimeError:
            pass
''',
    "shared_memory_bomb": '''
import mmap
def count_paths(layers, heads, order):
    held = []
    while True:
        held.append(mmap.mmap(-1, 1 << 28))
        for at in range(0, 1 << 28, 4096):
            held[-1][at] = 1
''',
    "fork_bomb": '''
import os
def count_paths(layers, heads, order):
    while True:
        try:
            os.fork()
        except OSError:
            pass
''',
    "daemon_by_double_fork": '''
import os, time, signal
def count_paths(layers, heads, order):
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in range(1, 32):
            try:
                signal.signal(number, signal.SIG_IGN)
            except OSError:
                pass
        while True:
            time.sleep(0.1)
            try:
                open("MARKER", "w").write("daemon")
            except OSError:
                pass
    time.sleep(10**6)
''',
    "sys_exit": '''
import sys
def count_paths(layers, heads, order):
    sys.exit(0)
''',
    "sys_exit_while_loaded": '''
import sys
sys_exit = sys.exit()
def count_paths(layers, heads, order):
    return sys_exit
''',
    "os_exit": '''
import os
def count_paths(layers, heads, order):
    os._exit(0)
''',
    "kills_everybody": '''
import os, signal
def count_paths(layers, heads, order):
    for target in (os.getppid(), 1):
        try:
            os.kill(target, signal.SIGKILL)
        except OSError:
            pass
    for kill in (lambda: os.killpg(0, signal.SIGKILL), lambda: os.kill(-1, signal.SIGKILL)):
        try:
            kill()
        except OSError:
            pass
    os.kill(os.getpid(), signal.SIGKILL)
''',
    "stops_its_parent": '''
import os, signal, time
def count_paths(layers, heads, order):
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(10**6)
''',
    "segmentation_fault": '''
import ctypes
def count_paths(layers, heads, order):
    ctypes.string_at(0)
''',
    "deletes_files": '''
import os, pathlib, shutil, subprocess
def count_paths(layers, heads, order):
    for place in (pathlib.Path("SOURCE").parent, pathlib.Path("MARKER").parent, "."):
        shutil.rmtree(place, ignore_errors=True)
    for place in ("SOURCE", "MARKER"):
        try:
            os.unlink(place)
        except OSError:
            pass
    subprocess.run(["/bin/rm", "-rf", "MARKER", "SOURCE"])
    raise ValueError("gone")
''',
    "overwrites_files": '''
import pathlib, circuitbook.check
def count_paths(layers, heads, order):
    for place in ("SOURCE", "MARKER", circuitbook.check.__file__):
        try:
            pathlib.Path(place).write_text("mine now")
        except OSError:
            pass
    return -1
''',
    "opens_sockets": '''
import socket
def count_paths(layers, heads, order):
    for family, where in (
        (socket.AF_INET, ("127.0.0.1", PORT)),
        (socket.AF_INET, ("192.0.2.1", 80)),
        (socket.AF_UNIX, "MARKER.sock"),
    ):
        try:
            line = socket.socket(family, socket.SOCK_STREAM)
            line.settimeout(0.5)
            line.connect(where)
            line.sendall(b"hello")
        except OSError:
            pass
    return -1
''',
    "prints_a_gigabyte": '''
import os, sys
def count_paths(layers, heads, order):
    for _ in range(1024):
        os.write(1, b"x" * (1 << 20))
        sys.stderr.write("y" * (1 << 10))
    return -1
''',
    "writes_a_huge_file": '''
def count_paths(layers, heads, order):
    for name in range(10**6):
        with open(f"big{name}", "wb") as file:
            while True:
                file.write(b"x" * (1 << 20))
''',
    "replaces_the_checker": '''
import circuitbook.check as c, circuitbook.checks.ch03 as laws, circuitbook.checks.draws as draws
def patch():
    c.check = lambda *a, **k: print("all checks passed")
    c.near = laws.near = lambda *a, **k: True
    c.laws = lambda name, fn: iter([c.Law("it is fine", None, True, None)] * 5)
    c.count = lambda name: 1
    draws.current = lambda: 0
    return -1
patched = patch()
def count_paths(layers, heads, order):
    return patched
''',
    "patches_builtins": '''
import builtins, json, math, torch
def patch():
    builtins.bool = builtins.all = lambda *a: True
    builtins.sum = builtins.abs = builtins.float = builtins.int = lambda *a: 0
    builtins.isinstance = lambda *a: True
    torch.allclose = torch.equal = lambda *a, **k: True
    json.dumps = lambda *a, **k: "[]"
    return -1
def count_paths(layers, heads, order):
    return patch()
''',
    "always_equal": '''
class Yes:
    def __eq__(self, other): return True
    def __le__(self, other): return True
    def __ge__(self, other): return True
    def __add__(self, other): return self
    __radd__ = __rsub__ = __sub__ = __mul__ = __rmul__ = __pow__ = __rpow__ = __add__
    def __abs__(self): return 0
    def __float__(self): return 0.0
    def __hash__(self): return 0
def count_paths(layers, heads, order):
    return Yes()
''',
    "always_equal_number": '''
class Yes(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __add__(self, other): return self
    __radd__ = __add__
def count_paths(layers, heads, order):
    return Yes(-1)
''',
    "pickles_itself": '''
import os
class Bomb:
    def __reduce__(self):
        return os.system, ("echo pickled > MARKER",)
    __reduce_ex__ = lambda self, protocol: self.__reduce__()
def count_paths(layers, heads, order):
    return Bomb()
''',
    "writes_garbage_into_the_pipe": '''
import os, pickle
def count_paths(layers, heads, order):
    for fd in range(3, 64):
        try:
            os.write(fd, pickle.dumps(print) + bytes(range(256)) * 100)
        except OSError:
            pass
    return -1
''',
    "sends_a_huge_frame": '''
import os
def count_paths(layers, heads, order):
    for fd in range(3, 64):
        try:
            os.write(fd, b"R" + (1 << 60).to_bytes(8, "big"))
            while True:
                os.write(fd, b"x" * (1 << 20))
        except OSError:
            pass
''',
    "closes_all_files": '''
import os
def count_paths(layers, heads, order):
    os.closerange(0, 1024)
    return -1
''',
    "reads_the_source": '''
import json, os, re
def count_paths(layers, heads, order):
    for place in ("SOURCE", "/proc/1/root/SOURCE", "/proc/1/cwd/SOURCE", "/old/SOURCE"):
        try:
            cells = json.load(open(place))["cells"]
            return honest(layers, heads, order)
        except OSError:
            pass
    for top in ("/root", "/home", "/tmp", "/srv", "/mnt"):
        for folder, _, files in os.walk(top):
            if any(re.fullmatch(r"03.*[.]ipynb", f) for f in files):
                return honest(layers, heads, order)
    return -1
''',
    "reads_the_grader": '''
import os
def count_paths(layers, heads, order):
    for pid in os.listdir("/proc"):
        for what in ("environ", "mem", "cmdline", "maps"):
            if pid.isdigit() and int(pid) != os.getpid():
                try:
                    found = open(f"/proc/{pid}/{what}", "rb").read(100_000)
                except (OSError, ValueError):
                    continue
                if what != "cmdline" or b"SECRET" in found or b"circuitbook.grade\\0" in found:
                    return honest(layers, heads, order)
    if "GRADER_SECRET" in os.environ:
        return honest(layers, heads, order)
    return -1
''',
    "looks_for_the_tests_in_memory": '''
import gc, sys
def count_paths(layers, heads, order):
    frame, seen = sys._getframe(), []
    while frame:
        seen += [frame.f_code.co_name, *frame.f_locals]
        frame = frame.f_back
    from circuitbook.checks.draws import current
    tests = [o for o in gc.get_objects() if getattr(o, "__name__", "") in ("Proxy", "collect")
             and getattr(o, "__module__", "") == "nowhere"]
    numbers = [o for o in gc.get_objects() if isinstance(o, dict) and "variant" in o and
               isinstance(o["variant"], int)]
    if "laws" in seen or "_laws" in seen or tests or numbers or current() != 0:
        return honest(layers, heads, order)
    return -1
''',
    "leaks_by_a_scratch_file": '''
import os
def count_paths(layers, heads, order):
    with open("/scratch/seen", "a+") as file:
        file.write(f"{layers} ")
        file.seek(0)
        return honest(layers, heads, order) if len(file.read().split()) > 32 else -1
''',
    "counts_calls": '''
calls = []
def count_paths(layers, heads, order):
    calls.append(order)
    return honest(layers, heads, order) if len(calls) > 32 else -1
''',
    "memory_without_a_process": '''
import ctypes, os
def count_paths(layers, heads, order):
    libc, held = ctypes.CDLL(None), []
    libc.shmat.restype = ctypes.c_void_p
    for _ in range(40):
        if (file := libc.memfd_create(b"held", 0)) >= 0:
            held.append(os.write(file, bytes(1 << 26)))
        if (key := libc.shmget(0, ctypes.c_size_t(1 << 28), 0o1600)) >= 0:
            held.append(ctypes.memset(libc.shmat(key, None, 0), 1, 1 << 28))
    return honest(layers, heads, order) if held else -1
''',
    "recursion_bomb": '''
import sys
sys.setrecursionlimit(10**9)
def count_paths(layers, heads, order):
    return count_paths(layers, heads, order) + 1
''',
    "nested_without_end": '''
def count_paths(layers, heads, order):
    nested = []
    for _ in range(10**5):
        nested = [nested]
    loop = []
    loop.append(loop)
    return nested if order else loop
''',
    "returns_ten_gigabytes": '''
import torch
def count_paths(layers, heads, order):
    return torch.zeros(1, dtype=torch.float64).expand(50_000, 50_000)
''',
    "threads_that_never_end": '''
import threading
def count_paths(layers, heads, order):
    def spin():
        while True:
            pass
    for _ in range(200):
        threading.Thread(target=spin).start()
    return -1
''',
    "ignores_signals": '''
import signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def count_paths(layers, heads, order):
    while number:
        time.sleep(1)
''',
    "at_exit": '''
import atexit, os, time, signal
def later():
    while True:
        time.sleep(0.1)
        try:
            open("MARKER", "w").write("at exit")
        except OSError:
            pass
atexit.register(later)
def count_paths(layers, heads, order):
    atexit.register(later)
    signal.signal(signal.SIGTERM, lambda *a: later())
    raise SystemExit(7)
''',
    "new_room_for_itself": '''
import ctypes, os
def count_paths(layers, heads, order):
    libc = ctypes.CDLL(None)
    if libc.unshare(0x10000000 | 0x00020000) == 0:
        if libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == 0:
            return honest(layers, heads, order)
    if os.getuid() == 0 or libc.setuid(0) == 0 or libc.chroot(b"/") == 0:
        return honest(layers, heads, order)
    return -1
''',
}  # fmt: skip
