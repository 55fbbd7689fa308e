"""Who uses the hub in its tests: the administrator by the hub's API, learners by their servers' API and in a browser."""

import functools
import json
import os
import pwd
import subprocess
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import requests
import websocket
from requests.adapters import HTTPAdapter
from sampling import held_in

PATIENCE = 150  # seconds, on two busy cores

# What a victim does: ranks, shared memory, a kernel with its connection file.
VICTIM = """
import os, glob, ringtree
from ipykernel import get_connection_file
from multiprocessing import shared_memory
ranks = ringtree.start(2)
memory = shared_memory.SharedMemory(create=True, size=8)
print(os.getpid(), memory._name, os.environ["TMPDIR"], get_connection_file())
"""
# In a learner's home, for whoever reads it: who that was.
UNTRUE = """
import os, pathlib
with open(pathlib.Path(__file__).with_name("who-reads"), "a") as told:
    print(os.geteuid(), file=told)
"""
CONNECT = """
import socket
try:
    socket.socket(socket.AF_UNIX).connect({path!r}); print("connected")
except OSError as error:
    print(error.strerror)
"""


def attack(theirs, code):
    """What happens to the attacker's code in their own notebook: its output, or the error's own name."""
    return theirs(f"try:\n    print({code})\nexcept Exception as error:\n    print(type(error).__name__)")


def in_place_of(folder, commands):
    """The PATH on which these commands, {name: what it does in sh}, are found before the system's own."""
    for name, does in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def wait_for(done, what, seconds=PATIENCE):
    """What `done()` returns once it is true."""
    until = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < until, f"waited {seconds} s in vain for {what}"
        time.sleep(0.3)
    return found


class Administrator:
    """Starts and stops anybody's server through the hub's API."""

    def __init__(self, hub, token):
        self.hub, self.headers = hub, {"Authorization": f"token {token}"}

    def ask(self, method, path, **body):
        url = f"{self.hub.address}/hub/api/{path}"
        return requests.request(method, url, headers=self.headers, json=body or None, timeout=60)

    def start(self, name, **asked):
        self.ask("POST", f"users/{name}")  # a user who has never logged in is unknown to the hub
        answer = self.ask("POST", f"users/{name}/server", **asked)
        assert answer.status_code in (201, 202), answer.text

    def server(self, name):
        """The hub's word on a learner's server: a dict with "ready", "pending", …; empty where there is none."""
        told = self.ask("GET", f"users/{name}?include_stopped_servers").json()
        return told.get("servers", {}).get("", {})

    def stop(self, name):
        """Stop a server, or take it out of the queue, and wait until its job has gone."""
        self.ask("DELETE", f"users/{name}/server")
        job = self.server(name).get("state", {}) or {}
        if job.get("job_id"):
            self.hub.slurm("scancel", job["job_id"])
        wait_for(lambda: not self.job(name), f"the job of {name} to end")
        wait_for(
            lambda: not self.server(name).get("pending") and not self.server(name).get("ready"), f"{name}'s server to stop"
        )

    def job(self, name):
        """Slurm's words on a learner's jobs, one a line: number, state, GPUs."""
        return self.hub.slurm("squeue", "--noheader", f"--user={name}", "--format=%i %T %b")

    def progress(self, name):
        """What the page of a starting server shows, message by message, until the server is ready or has failed."""
        with requests.get(
            f"{self.hub.address}/hub/api/users/{name}/server/progress", headers=self.headers, stream=True, timeout=PATIENCE
        ) as answer:
            for line in answer.iter_lines(decode_unicode=True):
                if line.startswith("data:"):
                    yield json.loads(line[5:])


class Learner:
    """One user of the system and of the hub."""

    def __init__(self, hub, name, password):
        self.hub, self.name, self.password = hub, name, password
        account = pwd.getpwnam(name)
        self.uid, self.gid, self.home = account.pw_uid, account.pw_gid, account.pw_dir
        self.token = None

    def start(self, **asked):
        """Ask for a server and wait until it is ready."""
        self.hub.admin.start(self.name, **asked)
        wait_for(self.ready, f"{self.name}'s server")

    def ready(self):
        return self.hub.admin.server(self.name).get("ready")

    def gpus(self, kind="gpu"):
        """The GPUs that Slurm says the running job holds, or has parts of (kind "shard"): a set of numbers."""
        job = self.hub.admin.job(self.name).split()[0]
        told = self.hub.slurm("scontrol", "--details", "--oneliner", "show", "job", job)
        return held_in(told, kind).get(int(job), set())

    def processes(self):
        """This user's processes, by number: their command lines."""
        found = {}
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # one that has ended meanwhile
                if each.stat().st_uid == self.uid:
                    found[int(each.name)] = (each / "cmdline").read_text()
        return found

    def runs(self, words):
        """Whether one of the processes has these words in its command line."""
        return any(words in each for each in self.processes().values())

    def as_user(self, *command, **options):
        """Run a command as this user, outside any allotment, as over ssh."""
        drop = ["/usr/sbin/runuser", "-u", self.name, "--"]  # by which root may start what is in no job: see strays.py
        return subprocess.run([*drop, *map(str, command)], capture_output=True, text=True, timeout=60, **options)

    def by_slurm(self, *command):
        """One of Slurm's commands, as this user would give it over ssh."""
        return self.as_user("env", f"SLURM_CONF={self.hub.folder / 'slurm.conf'}", *command, cwd=self.home)

    def write(self, name, text):
        """A file in this learner's home, which is theirs; returns its path."""
        path = Path(self.home, name)
        self.as_user("mkdir", "-p", path.parent)
        self.as_user("tee", path, input=text)
        return path

    @property
    def url(self):
        return f"{self.hub.address}/user/{self.name}"

    def headers(self):
        if not self.token:
            self.token = self.hub.admin.ask("POST", f"users/{self.name}/tokens", note="tests").json()["token"]
        return {"Authorization": f"token {self.token}"}

    @contextmanager
    def kernel(self, number=None, keep=False, patience=PATIENCE):
        """A notebook's kernel on this learner's server: a function that runs code and returns what it printed or raised.

        number: a kernel that was kept; the function tells its `number`, and its websocket, `line`. patience: seconds between two
        messages.
        """
        if number is None:
            answer = requests.post(f"{self.url}/api/kernels", headers=self.headers(), json={}, timeout=60)
            assert answer.status_code == 201, answer.text
            number = answer.json()["id"]
        line = websocket.create_connection(
            f"{self.url}/api/kernels/{number}/channels".replace("http", "ws", 1), header=self.headers(), timeout=patience
        )
        try:
            here = functools.partial(run, line)
            here.number, here.line = number, line
            yield here
        finally:
            line.close()
            if not keep:
                requests.delete(f"{self.url}/api/kernels/{number}", headers=self.headers(), timeout=60)


class From(HTTPAdapter):
    """Requests of a session come from this address of loopback's."""

    def __init__(self, address):
        self.address = address
        super().__init__()

    def init_poolmanager(self, *given, **more):
        super().init_poolmanager(*given, **more, source_address=(self.address, 0))


def log_in(hub, name, password, address="127.0.0.1", **headers):
    """Send the hub's form from an address of loopback's; returns (the session, the answer to the form)."""
    session = requests.Session()
    session.mount("http://", From(address))
    session.get(f"{hub.address}/hub/login", timeout=60)
    form = {"username": name, "password": password, "_xsrf": session.cookies.get("_xsrf")}
    return session, session.post(f"{hub.address}/hub/login", data=form, headers=headers, timeout=120)


@contextmanager
def in_group(hub, name, what):
    """A user is in the hub's group of "ADMINS" or "ASSISTANTS" meanwhile, which is there only then."""
    group = hub.settings[f"RINGTREE_HUB_{what}"]
    subprocess.run(["groupadd", "--system", group], check=True)
    try:
        subprocess.run(["gpasswd", "--add", name, group], check=True, stdout=subprocess.DEVNULL)
        yield
    finally:
        subprocess.run(["groupdel", group], check=True)


@contextmanager
def outsider(hub):
    """(name, password) of a user of the system who is in none of the hub's groups; removed after it."""
    name = f"{hub.name}-outsider"
    subprocess.run(["useradd", "--create-home", f"--base-dir={hub.folder / 'homes'}", name], check=True)
    try:
        subprocess.run(["chpasswd"], input=f"{name}:known-{name}\n", text=True, check=True)
        yield name, f"known-{name}"
    finally:
        subprocess.run(["userdel", "--remove", name], check=True, capture_output=True)


def try_out(hub):
    """Start and stop one learner's server. Where nobody gets one, no test has to wait for its own: they all fail by this error."""
    first = Learner(hub, *hub.accounts.add())
    try:
        first.start(gpus=0, gib=2)
    except AssertionError as error:
        raise RuntimeError(
            f"{error}: {hub.admin.job(first.name)!r}, {hub.admin.server(first.name)}\n{hub.last_words()}"
        ) from None
    hub.admin.stop(first.name)


def left_by(hub):
    """The users of a hub that has ended who could not be removed. Another hub may have taken the names of the others."""
    return hub.accounts.left if hub.accounts else set()


def received(line):
    """The next message of a kernel's websocket, of which the server's pings are none: they would keep us waiting forever."""
    until = time.monotonic() + line.gettimeout()
    while True:
        kind, frame = line.recv_data_frame(control_frame=True)
        if kind == websocket.ABNF.OPCODE_TEXT:
            return json.loads(frame.data)
        assert kind in (websocket.ABNF.OPCODE_PING, websocket.ABNF.OPCODE_PONG), f"the websocket was closed: {frame}"
        assert time.monotonic() < until, f"waited {line.gettimeout()} s in vain for the kernel to say something"


def answers(line, kind, content, channel):
    """Ask a kernel by its websocket; yields what it says to that."""
    header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "username": "", "session": "tests", "version": "5.3"}
    line.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": channel}))
    while True:
        told = received(line)
        if told["parent_header"].get("msg_id") == header["msg_id"]:
            yield told


def switch_debugger_on(line):
    """As JupyterLab's button does; returns whether the kernel did."""
    asked = {"type": "request", "seq": 1, "command": "initialize", "arguments": {"clientID": "tests", "adapterID": ""}}
    answer = next(told for told in answers(line, "debug_request", asked, "control") if told["msg_type"] == "debug_reply")
    return answer["content"].get("success")


def run(line, code):
    """Run code in a kernel by its websocket; returns its printed text, or "NameOfError: its message"."""
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    printed = ""
    for told in answers(line, "execute_request", content, "shell"):
        if told["msg_type"] == "stream":
            printed += told["content"]["text"]
        elif told["msg_type"] == "error":
            printed += f"{told['content']['ename']}: {told['content']['evalue']}"
        elif told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
            return printed.strip()


# ---------------------------------------------------------------- in a browser


@contextmanager
def at_the_hub(chromium, learner, path="/hub/home", width=1400, height=900, **reader):
    """A browser's page where this learner has logged in and follows a link of the hub."""
    context = chromium.new_context(viewport={"width": width, "height": height}, **reader)
    context.set_default_timeout(PATIENCE * 1000)
    try:
        page = context.new_page()
        page.goto(f"{learner.hub.address}{path}")
        page.fill("#username_input", learner.name)
        page.fill("#password_input", learner.password)
        page.click("#login_submit")
        yield page
    finally:
        if folder := os.environ.get("RINGTREE_HUB_PICTURES"):
            page.screenshot(path=os.path.join(folder, f"{learner.name}-{int(time.time())}.png"))
        context.close()


def choose(page, **asked):
    """Fill the page that asks for GPUs, hours and memory, and ask for a server."""
    for name, value in asked.items():
        page.select_option(f"#{name}", str(value))
    page.click("#spawn_form [type=submit]")
