"""Learners who all come at once to one hub: seconds to a server, to live ranks and of a lab, memory of each, what failed.

    make hub-benchmark [ARGS="--learners 20 --gpus 4 --save benchmarks/hub.json"]

A hub of its own is started on loopback, as `make hub-demo` does, with pretended GPUs. Each learner logs in by the form,
asks for a server (every second one with a GPU), follows the course's link, opens the first lab with our answers, runs all of
its cells, saves, stops the server and logs out. Who gets no server at once waits in Slurm's queue, and that is timed too.
Then the saved notebooks are read from the disk: each must have every check passed.

One learner goes first, alone: seconds are this machine's, and what counts is how many times as long it takes together.
The machine's load before the start stands beside them. The exit status is 1 where anybody failed or anything was lost.
"""

import argparse
import contextlib
import json
import os
import platform
import pwd
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from importlib.metadata import version
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import nbformat
import requests
import websocket

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(os.environ.get("RINGTREE_HUB", ROOT / "hub")) / "server"))
import parts

LAB = "labs/release/01-ranks-and-groups/ranks-and-groups.ipynb"
ANSWERED = ROOT / LAB.replace("release", "source")
RANKS_START = "start"  # the cell of the lab that starts its ranks
PATIENCE = 1800  # seconds: all may be slow, and nothing may be given up
STAGES = {
    "login": "logged in",
    "queue": "in the queue",
    "server": "from asking to a server, queue included",
    "course": "the course in the home",
    "ranks": "from asking for a kernel to four live ranks",
    "lab": "the lab's cells, ranks included",
    "save": "saved",
    "stop": "server stopped, logged out",
}
# Whose memory, by what stands in the process's command; the ranks are what is left, their controller with them.
KINDS = {"server": "jupyterhub-singleuser", "kernel": "ipykernel_launcher", "ranks": ""}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=20)
    parser.add_argument("--gpus", type=int, default=4, help="how many to pretend (4)")
    parser.add_argument("--sharers", type=int, default=4, help="how many learners may share a core (4, as `make hub` sets it)")
    parser.add_argument("--gib", type=int, default=2, help="the memory that each asks for, in GiB (2)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the figures there, as JSON")
    options = parser.parse_args()
    if reason := parts.missing():
        sys.exit(reason)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    before = os.getloadavg()[0]
    folder = tempfile.mkdtemp(prefix="ringtree-hub-")
    hub = parts.Hub(folder, ROOT / "tools" / "course.py", gpus=options.gpus, sharers=options.sharers)
    try:
        hub.start()
        learners = [Learner(hub, number, options) for number in range(options.learners + 1)]
        alone = together(hub, learners[:1])
        all_at_once = together(hub, learners[1:])
        found = figures(learners[1:], learners[0], all_at_once) | {"machine": machine(before, alone, all_at_once)}
        report(found)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hub.end()
    if options.save:
        options.save.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(bool(found["failed"] or found["saved"] < options.learners))


class Learner(threading.Thread):
    """One account and all that it does, in `seconds` by stage; `error` says what it failed at, if it did."""

    def __init__(self, hub, number, options):
        super().__init__(daemon=True)
        self.hub, self.gib = hub, options.gib
        self.gpus = number % 2 if options.gpus else 0
        self.account, self.password = hub.accounts.add()
        self.seconds, self.error, self.memory = {}, None, {}
        self.session, self.address = requests.Session(), hub.address
        self.url = f"{hub.address}/user/{self.account}"

    def run(self):
        stage = "login"
        try:
            for stage in ("login", "server", "course", "lab", "save", "stop"):
                began = time.monotonic()
                getattr(self, f"do_{stage}")()
                self.seconds[stage] = time.monotonic() - began
        except Exception as error:  # whatever it is, this learner failed and the others go on
            self.error = f"{self.account}, {stage}: {type(error).__name__}: {error}"

    # ------------------------------------------------------------ the hub's pages, as a browser asks for them

    def ask(self, method, url, **what):
        answer = self.session.request(method, url, timeout=PATIENCE, **what)
        if answer.status_code >= 400:
            raise RuntimeError(f"{method} {url.removeprefix(self.address)} gave {answer.status_code}: {answer.text[:200]}")
        return answer

    def secret(self):
        """What the hub's forms carry, so that no other site's page can send them."""
        return self.session.cookies.get("_xsrf", path="/hub/")

    def do_login(self):
        self.ask("GET", f"{self.address}/hub/login")
        form = {"username": self.account, "password": self.password, "_xsrf": self.secret()}
        self.ask("POST", f"{self.address}/hub/login", data=form, allow_redirects=False)
        # Any page but the one that this learner was led to: that would be the page for choosing.
        if not self.ask("GET", f"{self.address}/hub/home").url.endswith("/hub/home"):
            raise RuntimeError("the name or the password was refused")

    def do_server(self):
        form = {"gpus": self.gpus, "hours": 1, "gib": self.gib, "_xsrf": self.secret()}
        self.ask("POST", f"{self.address}/hub/spawn", data=form, allow_redirects=False)
        asked = {"url": f"{self.address}/hub/api/users/{self.account}", "headers": {"X-XSRFToken": self.secret()}}
        while not (server := self.ask("GET", **asked).json()["servers"].get("", {})).get("ready"):
            if not server.get("pending"):
                raise RuntimeError("the server did not start")
            time.sleep(1)
        submitted, started = self.hub.slurm("squeue", "--noheader", f"--user={self.account}", "--format=%V|%S").split("|")
        as_seconds = [time.mktime(time.strptime(moment, "%Y-%m-%dT%H:%M:%S")) for moment in (submitted, started)]
        self.seconds["queue"] = as_seconds[1] - as_seconds[0]
        token = self.ask("POST", f"{asked['url']}/tokens", headers=asked["headers"], json={"note": "benchmark"})
        self.token = {"Authorization": f"token {token.json()['token']}"}

    def do_course(self):
        link = parse_qs(urlsplit(self.hub.course_link()).query)
        repository = {"repo": link["repo"][0], "branch": link["branch"][0], "targetpath": link["targetPath"][0]}
        told = self.ask("GET", f"{self.url}/git-pull/api", headers=self.token, params=repository).text
        if '"phase": "finished"' not in told:
            raise RuntimeError(f"the course did not come: {told[-200:]}")

    def do_stop(self):
        self.ask("DELETE", f"{self.address}/hub/api/users/{self.account}/server", headers={"X-XSRFToken": self.secret()})
        while self.hub.slurm("squeue", "--noheader", f"--user={self.account}", "--format=%T"):
            time.sleep(1)
        self.ask("GET", f"{self.address}/hub/logout")

    # ------------------------------------------------------------ the lab, by the server's interface

    def do_lab(self):
        self.lab = nbformat.read(ANSWERED, as_version=4)
        began = time.monotonic()
        asked = {"path": f"course/{LAB}", "name": "", "type": "notebook", "kernel": {"name": "python3"}}
        kernel = self.ask("POST", f"{self.url}/api/sessions", headers=self.token, json=asked).json()["kernel"]["id"]
        channels = f"{self.url}/api/kernels/{kernel}/channels".replace("http", "ws", 1)
        line = websocket.create_connection(channels, header=self.token, timeout=PATIENCE)
        with contextlib.closing(line):
            for cell in self.lab.cells:
                if cell.cell_type == "code":
                    cell.outputs = outputs(line, cell.source)
                if cell.id == RANKS_START:
                    self.seconds["ranks"] = time.monotonic() - began
            self.memory = memory_of(pwd.getpwnam(self.account).pw_uid)

    def do_save(self):
        where = f"{self.url}/api/contents/course/{LAB}"
        self.ask("PUT", where, headers=self.token, json={"type": "notebook", "format": "json", "content": self.lab})

    def saved(self):
        """Whether the notebook on the disk has what was sent to it, and every check passed."""
        path = Path(pwd.getpwnam(self.account).pw_dir, "course", LAB)
        if not hasattr(self, "lab") or not path.exists():
            return False
        theirs = nbformat.read(path, as_version=4)
        checks = [str(cell.outputs) for cell in theirs.cells if cell.id.endswith("-check")]
        return theirs.cells == self.lab.cells and bool(checks) and all(" is right" in each for each in checks)


def outputs(line, code):
    """What a cell leaves behind it, as a notebook stores it. Raises RuntimeError for a cell that raises."""
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "username": "",
        "session": "benchmark",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    line.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}))
    left = []
    while True:
        told = json.loads(line.recv())
        if told["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        if told["msg_type"] == "error":
            raise RuntimeError(f"{told['content']['ename']}: {told['content']['evalue'][:200]}")
        if told["msg_type"] in ("stream", "display_data", "execute_result"):
            left.append(nbformat.v4.output_from_msg(told))
        if told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
            return left


# ---------------------------------------------------------------- what is measured


def together(hub, learners):
    """All of them at once, each in a thread of its own, and how the machine fares meanwhile."""
    watch = Watch(hub)
    watch.start()
    for learner in learners:
        learner.start()
    for learner in learners:
        learner.join()
    watch.stop()
    return watch


class Watch(threading.Thread):
    """The machine every two seconds: its load, its free memory, and the GPUs and servers that Slurm has given."""

    def __init__(self, hub):
        super().__init__(daemon=True)
        self.hub, self.over = hub, threading.Event()
        self.load, self.gpus, self.servers = 0.0, 0, 0
        self.free_before = self.free = available()
        self.began = time.monotonic()

    def run(self):
        while not self.over.wait(2):
            self.load = max(self.load, os.getloadavg()[0])
            self.free = min(self.free, available())
            held = self.hub.slurm("squeue", "--noheader", "--states=RUNNING,COMPLETING", "--format=%b").splitlines()
            self.servers = max(self.servers, len(held))
            self.gpus = max(self.gpus, sum(int(found[1]) for each in held if (found := re.search(r"gpu:(\d+)", each))))

    def stop(self):
        self.over.set()
        self.join()
        self.seconds = time.monotonic() - self.began


def available():
    """Memory that nobody needs, in bytes."""
    return 1024 * int(re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[1])


def memory_of(uid):
    """A user's memory now in bytes, of each kind and of all; what processes share is divided among them (PSS)."""
    found = dict.fromkeys(KINDS, 0)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if process.stat().st_uid != uid:
                continue
            command = (process / "cmdline").read_text()
            size = 1024 * int(re.search(r"Pss: +(\d+)", (process / "smaps_rollup").read_text())[1])
            found[next(kind for kind, name in KINDS.items() if name in command)] += size
    return found | {"all": sum(found.values())}


def figures(learners, alone, watch):
    """All that is worth keeping, in seconds and MB."""
    there = [each for each in learners if not each.error]
    return {
        "learners": len(learners),
        "gpus": len(learners[0].hub.gpus),
        "failed": [each.error for each in (alone, *learners) if each.error],
        "saved": sum(each.saved() for each in learners),
        "waited": sum(each.seconds.get("queue", 0) > 5 for each in learners),
        "seconds": {
            stage: {"alone": round(alone.seconds[stage], 1), **spread([each.seconds[stage] for each in there])}
            for stage in STAGES
            if there and not alone.error
        },
        "all_done": round(watch.seconds),
        "memory_mb": {kind: spread([each.memory[kind] / 1e6 for each in there]) for kind in ("all", *KINDS) if there},
        "servers_at_once": watch.servers,
        "gpus_at_once": watch.gpus,
        "memory_taken_mb": round((watch.free_before - watch.free) / 1e6),
    }


def spread(values):
    return {"median": round(statistics.median(values), 1), "most": round(max(values), 1)}


def machine(before, *watches):
    slurm = subprocess.run(["slurmd", "-V"], capture_output=True, text=True).stdout.split()
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "load_before": round(before, 1),
        "load_most": [round(each.load, 1) for each in watches],
        "python": platform.python_version(),
        "jupyterhub": version("jupyterhub"),
        "slurm": slurm[-1] if slurm else "",
        "date": time.strftime("%Y-%m-%d"),
    }


def report(found):
    told = found["machine"]
    print(f"\n{found['learners']} learners at once; {told['cores']} cores, {told['memory_gb']} GB")
    print(f"at most {found['servers_at_once']} servers and {found['gpus_at_once']} GPUs at once; {found['waited']} waited")
    print(f"load: {told['load_before']} before, at most {told['load_most'][0]} with one, {told['load_most'][-1]} with all")
    print(f"\n{'seconds':48}{'alone':>8}{'median':>8}{'most':>8}   median / alone")
    for stage, row in found["seconds"].items():
        ratio = f"{row['median'] / row['alone']:.1f}" if row["alone"] else ""
        print(f"  {STAGES[stage]:46}{row['alone']:8.1f}{row['median']:8.1f}{row['most']:8.1f}   {ratio:>14}")
    print(f"  {'all, from the first login to the last logout':46}{'':8}{'':8}{found['all_done']:8}")
    print(f"\n{'MB a learner, at the end of the lab (PSS)':48}{'':8}{'median':>8}{'most':>8}")
    for kind, row in found["memory_mb"].items():
        print(f"  {kind:46}{'':8}{row['median']:8.0f}{row['most']:8.0f}")
    print(f"\nsaved notebooks with every check passed: {found['saved']} of {found['learners']}; failed: {len(found['failed'])}")
    for error in found["failed"]:
        print(f"  {error}")


if __name__ == "__main__":
    main()
