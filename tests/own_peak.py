"""The peak memory of a program that runs on its own, in bytes.

On Linux `ru_maxrss` of a child begins with what its parent held when it forked, so a test process
that has grown would be measured in place of its child. VmHWM belongs to the program itself.
"""

import subprocess
import sys
from pathlib import Path

PRINT_PEAK = """
import re, resource, sys
try:
    with open("/proc/self/status") as status:
        print(1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read())[1]))
except FileNotFoundError:
    unit = 1 if sys.platform == "darwin" else 1024
    print(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def of(code: str) -> int:
    """Run `code` with this Python from the project's root; how many bytes it held at most."""
    done = subprocess.run(
        [sys.executable, "-c", code + PRINT_PEAK],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
