"""A room of its own for a student's code: Linux namespaces, no rights, nothing of the host to see.

The room has its own processes, network (none), and file system: Python, the course's package and
its weights, read-only, and a scratch folder of limited size. Nobody in it is root, and nothing in
it can make a further room. Without namespaces (macOS, some containers) little of this is possible;
`probe` says what is, and the report repeats it.
"""

import ctypes
import os
import platform
import re
import resource
import signal
import struct
import sys
from pathlib import Path

import circuitbook
from circuitbook import paths
from circuitbook.grade.report import Limits

__all__ = [
    "NOBODY", "SCRATCH", "close_all_but", "enter", "no_hidden_memory", "places", "probe",
    "worker_limits",
]  # fmt: skip

NOBODY = 65534
SCRATCH = "/scratch"  # where a student's code may write, as it is called inside
_MB = 1 << 20
_NEWNS, _NEWUTS, _NEWIPC = 0x00020000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
_PDEATHSIG, _DUMPABLE, _SECCOMP, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 4, 22, 24, 38
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203, "s390x": 217, "riscv64": 41}
_FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048,
          "relatime": 1 << 21}  # fmt: skip

# What outlives a process, or takes memory that no process is seen to hold: shared memory, queues
# and keys of the kernel, files without a name. shmget, semget, msgget, mq_open, add_key,
# request_key, keyctl, memfd_create, userfaultfd, io_uring_setup, memfd_secret: by machine.
_GENERIC = (194, 190, 186, 180, 217, 218, 219, 279, 282, 425, 447)
_HIDDEN = {
    "x86_64": (0xC000003E, (29, 64, 68, 240, 248, 249, 250, 319, 323, 425, 447)),
    "aarch64": (0xC00000B7, _GENERIC),
    "riscv64": (0xC00000F3, _GENERIC),
}

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *given: object) -> None:
    known = [g.encode() if isinstance(g, str) else g for g in given]
    if getattr(_libc, name)(*known) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    _call("mount", source, target, kind, ctypes.c_ulong(flags), data)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _call("prctl", option, ctypes.c_ulong(value), zero, zero, zero)


def _pivot(new: str, old: str) -> None:
    number = _PIVOT_ROOT[platform.machine()]
    if _libc.syscall(ctypes.c_long(number), new.encode(), old.encode()) != 0:
        raise OSError(ctypes.get_errno(), "pivot_root is not allowed")


def close_all_but(*keep: int) -> None:
    """Close every file of this process but these, and point 0, 1 and 2 to nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


# ---- what the room shows ------------------------------------------------------------------------


def places() -> list[str]:
    """The folders and files of the host that the room shows, read-only."""
    package = Path(circuitbook.__file__).parent
    found = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"]
    found += ["/etc/ld.so.cache", "/etc/localtime", sys.prefix, sys.base_prefix, str(package)]
    found += [p for p in sys.path if p.rstrip("/").endswith(("site-packages", "dist-packages"))]
    try:
        found.append(str(paths.folder("WEIGHTS")))
    except FileNotFoundError:
        pass  # an installed package without the course's folder: no weights, so none to show
    return [p for p in dict.fromkeys(map(os.path.abspath, found)) if os.path.exists(p)]


def _place(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(source, target, None, _BIND | _REC)


def _read_only(below: str) -> None:
    """Make every bound place read-only, mounts inside it too, and keep its other flags."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        parts = line.split()
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), parts[4])
        if not point.startswith(below + "/") or point.startswith(f"{below}/dev/"):
            continue
        flags = sum(_FLAGS.get(word, 0) for word in parts[5].split(","))
        extra = _RDONLY | _NOSUID | _NODEV
        _mount("none", point, None, _REMOUNT | _BIND | flags | extra)


def _furnish(shown: list[str], limits: Limits) -> None:
    """A new root in memory; the host's disappears."""
    _mount("none", "/", None, _REC | _PRIVATE)
    hidden = [(p, os.path.realpath(p)) for p in shown]
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, "mode=755")
    os.makedirs("/tmp/old")
    os.makedirs("/tmp/new")
    os.chdir("/tmp")
    _pivot("/tmp", "/tmp/old")
    os.chdir("/")
    _mount("tmpfs", "/new", "tmpfs", _NOSUID | _NODEV, "size=1m,nr_inodes=4096,mode=755")
    os.makedirs("/proc")
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    _bind_all(hidden)
    _read_only("/new")
    for name in ("null", "zero", "random", "urandom"):
        _place(f"/old/dev/{name}", f"/new/dev/{name}")
    os.makedirs("/new/proc")
    _mount("proc", "/new/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    os.makedirs("/new" + SCRATCH)
    size = f"size={limits.written * _MB},nr_inodes=4096,mode=1777"
    _mount("tmpfs", "/new" + SCRATCH, "tmpfs", _NOSUID | _NODEV, size)
    if not os.path.lexists("/new/tmp"):  # it is there when Python or the course lies below /tmp
        os.symlink(SCRATCH, "/new/tmp")
    _mount("none", "/new", None, _REMOUNT | _RDONLY | _NOSUID | _NODEV, "size=1m,nr_inodes=4096")
    os.chdir("/new")
    _pivot(".", ".")
    _call("umount2", ".", 2)  # lazily: with it goes the last way back to the host's files
    os.chdir(SCRATCH)


def _bind_all(pairs: list[tuple[str, str]]) -> None:
    """Bind the real places, shortest first, then set the links that lead to them."""
    shown: list[str] = []
    for target in sorted({real for _, real in pairs}, key=len):
        if not any(target == s or target.startswith(s + "/") for s in shown):
            shown.append(target)
            _place("/old" + target, "/new" + target)
    for link, real in pairs:
        if link != real and not os.path.lexists("/new" + link):
            os.makedirs(os.path.dirname("/new" + link), exist_ok=True)
            os.symlink(real, "/new" + link)


# ---- rights -------------------------------------------------------------------------------------


def _become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def _no_more_rooms() -> None:
    """Forbid new user namespaces: in one, a student could take memory that nobody counts."""
    try:
        _call("unshare", _NEWUSER)
    except OSError:
        return  # the system forbids them to everybody, or this process is in one of ours already
    Path("/proc/sys/user/max_user_namespaces").write_text("0", encoding="ascii")


def _drop_rights() -> None:
    for capability in range(64):
        try:
            _prctl(_CAPBSET_DROP, capability)
        except OSError:
            break  # the last one of this kernel
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    _prctl(_NO_NEW_PRIVS, 1)
    _prctl(_DUMPABLE, 0)  # nobody else in the room may read or steer this process


def no_hidden_memory() -> None:
    """Refuse, for good, the system calls in _HIDDEN. Errors: OSError where that cannot be done."""
    kind, numbers = _HIDDEN[platform.machine()] if platform.machine() in _HIDDEN else (0, ())
    if not kind:
        raise OSError(f"no list of system calls for {platform.machine()}")
    deny = len(numbers) + 5
    steps = [(0x20, 0, 0, 4), (0x15, 0, deny - 2, kind)]  # the call's machine is this one
    steps += [(0x20, 0, 0, 0), (0x35, deny - 4, 0, 1 << 30)]  # and it is none of a second set
    steps += [(0x15, deny - 5 - i, 0, n) for i, n in enumerate(numbers)]
    steps += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]  # allow; refuse, EPERM
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(held := _buffer(code)))
    zero = ctypes.c_ulong(0)
    _call("prctl", _SECCOMP, ctypes.c_ulong(2), ctypes.byref(_buffer(program)), zero, zero)
    del held


def _buffer(data: bytes) -> ctypes.Array:
    return ctypes.create_string_buffer(data, len(data))


def worker_limits(limits: Limits, sizes: tuple[int, int]) -> None:
    """Hard limits of one student's process; sizes: bytes of address space and data at its start."""
    space, data = sizes
    most = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: int(limits.wall) + 5,
        resource.RLIMIT_NOFILE: 128,
        resource.RLIMIT_FSIZE: limits.written * _MB,
    }
    if sys.platform == "linux":
        most[resource.RLIMIT_AS] = space + (limits.memory + 1024) * _MB
        most[resource.RLIMIT_DATA] = data + limits.memory * _MB
        most[resource.RLIMIT_NPROC] = limits.processes + _own_tasks()
    for kind, value in most.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    if sys.platform == "linux":
        _prctl(_DUMPABLE, 1)
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _own_tasks() -> int:
    """Processes and threads of this user that are visible here; the limit counts them too."""
    me, tasks = os.getuid(), 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == me:
                tasks += len(os.listdir(folder / "task"))
        except OSError:
            pass  # it ended meanwhile
    return tasks


# ---- coming in ----------------------------------------------------------------------------------


def enter(shown: list[str], limits: Limits) -> None:
    """Go into a new room for good. Only the returning process is inside; it is process 1 there."""
    flags = _NEWNS | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS
    if os.geteuid() == 0:
        _call("unshare", flags)
    else:
        uid, gid = os.geteuid(), os.getegid()
        _call("unshare", flags | _NEWUSER)
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {uid} 1"),
            ("gid_map", f"{NOBODY} {gid} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(line, encoding="ascii")
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    root = os.geteuid() == 0
    _furnish(shown, limits)
    if root:
        _become_nobody()
        _no_more_rooms()
    else:
        Path("/proc/sys/user/max_user_namespaces").write_text("0", encoding="ascii")
    _drop_rights()
    no_hidden_memory()
    _prctl(_PDEATHSIG, signal.SIGKILL)
    os.umask(0o077)


def probe(shown: list[str], limits: Limits) -> str:
    """ "" when a room can be made here, else why not. Tried once, in a process of its own."""
    if sys.platform != "linux":
        return f"this system ({sys.platform}) has no namespaces"
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        words = b"ok"
        try:
            enter(shown, limits)
        except Exception as error:  # whatever forbids it: the words go into the report
            words = f"{type(error).__name__}: {error}".encode()
        os.write(theirs, words)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        words = pipe.read(1000).decode()
    os.waitpid(child, 0)
    return "" if words == "ok" else words or "the kernel ended the trial"
