"""Run a Python module in a child, and end it, with all that it has started, when the process that asked is gone.

    python -m ringtree.live.processes.nanny PARENT_PID FOLDER module [arguments]

The plain way to start engines and controller, where they cannot be forked. A
process, not a thread, keeps watch: a rank inside a long C call holds the
interpreter lock, and a thread of it would never look. FOLDER is removed when
the parent is gone; "-" means none.
"""

import os
import runpy
import shutil
import signal
import sys
import time

from ringtree.live.processes.forks import die_with, forks_die_too


def main():
    parent, folder, module = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    nanny, child = os.getpid(), os.fork()
    if child == 0:
        if sys.platform == "linux":
            die_with(nanny)
            if module.endswith("controller"):  # it forks, and has not always begun to look after what it forked
                forks_die_too()
        sys.argv = sys.argv[3:]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit(0)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(signum, lambda received, _: os.kill(child, received))
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)  # what it has left behind
            code = os.waitstatus_to_exitcode(status)
            if code < 0:  # pass the signal on, so that the launcher sees why it ended
                signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
                os.kill(os.getpid(), -code)
            os._exit(code)
        if os.getppid() != parent:
            if folder != "-":
                shutil.rmtree(folder, ignore_errors=True)
            os.killpg(0, signal.SIGKILL)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
