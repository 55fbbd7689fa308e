"""Run a command, on another host than the notebook's kernel, and end it when that kernel is gone.

    python lifeline.py FOLDER command [arguments]

The first process of a job of Slurm. The ranks cannot look themselves: one that is inside a long C call looks at nothing.
FOLDER is the cluster's, on a file system that all hosts share: it names the controller, which lives as long as the kernel,
and is removed with it.
"""

import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

LOOK = 5.0  # seconds between two looks
MISSES = 3  # looks in vain, before the kernel counts as gone


def is_there(folder):
    """Return whether the controller still listens."""
    try:
        name = next(glob.iglob(os.path.join(folder, "security", "*-engine.json")))
        with open(name) as file:
            found = json.load(file)
        socket.create_connection((found["location"], found["registration"]), LOOK).close()
    except (OSError, ValueError, StopIteration):
        return False
    return True


def is_gone(folder):
    """Return whether the controller is looked for in vain, MISSES times."""
    for _ in range(MISSES):
        if is_there(folder):
            return False
        time.sleep(LOOK)
    return True


def main():
    folder, command = sys.argv[1], sys.argv[2:]
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    code = None
    try:
        while code is None:
            try:
                code = child.wait(LOOK)
            except subprocess.TimeoutExpired:
                if is_gone(folder):
                    break
    finally:
        child.kill()  # and Slurm ends the ranks with their job, which ends with this program
    # Ranks may have ended by themselves because their kernel did: then its folder is left to this program too.
    if code is None or is_gone(folder):
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
