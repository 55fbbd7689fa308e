"""A notebook kernel for tests: run cells in it as a front end does, break it, and see what is left."""

import contextlib
import os
import queue
import time

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from ringtree.live.processes import warm


class Answer:
    """What one cell gave: its printed text, its error (name and message) and how it was shown."""

    def __init__(self):
        self.text = ""
        self.shown = []
        self.error = None
        self.message = ""
        self.traceback = ""


# A sitecustomize.py with which whatever processes are to be forked from has a second thread.
SECOND_THREAD = """
import sys, threading, time
if any(word.endswith("forks.py") for word in sys.orig_argv):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


class Kernel:
    def __init__(self, cold=False, **environment):
        env = {**os.environ, **environment}
        with pytest.MonkeyPatch.context() as patch:
            if cold:
                patch.delenv(warm.ADDRESS, raising=False)
            self.manager, self.client = start_new_kernel(kernel_name="python3", env=env, stderr=-3)
        self.pid = self.manager.provisioner.process.pid

    def send(self, code, allow_stdin=False):
        return self.client.execute(code, allow_stdin=allow_stdin)

    def run(self, code, timeout=90, allow_stdin=False):
        return self.answer(self.send(code, allow_stdin), timeout)

    def answer(self, request, timeout=90):
        answer, until = Answer(), time.monotonic() + timeout
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.1, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the cell has not ended after {timeout} s; so far: {answer.text!r}") from None
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            match message["header"]["msg_type"]:
                case "stream":
                    answer.text += content["text"]
                case "display_data" | "execute_result" | "update_display_data":
                    answer.shown.append(content["data"].get("text/plain", ""))
                case "error":
                    answer.error, answer.message = content["ename"], content["evalue"]
                    answer.traceback = "\n".join(content["traceback"])
                case "status" if content["execution_state"] == "idle":
                    return answer

    def interrupt(self):
        self.manager.interrupt_kernel()

    def descendants(self):
        """Processes below this kernel now: what must be gone after it."""
        return psutil.Process(self.pid).children(recursive=True)

    def close(self):
        below = self.descendants() if psutil.pid_exists(self.pid) else []
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        return below


@contextlib.contextmanager
def kernel(cold=False, **environment):
    """A kernel, and nothing below it afterwards. cold: started as a user's is, not forked (see ringtree/live/processes/warm.py)."""
    live = Kernel(cold, **environment)
    try:
        yield live
    finally:
        below = live.close()
        assert wait_gone(below), f"left running: {alive(below)}"


def alive(processes):
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def wait_gone(processes, seconds=20.0):
    """Whether these processes are all gone within `seconds`."""
    until = time.monotonic() + seconds
    while alive(processes):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
