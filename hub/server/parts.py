"""A whole hub in one folder: munge, Slurm's two daemons, the proxy and the hub, as children of this process.

`make hub-demo` and `make test-hub` start it so; on a server, systemd starts the same parts.
"""

import contextlib
import fcntl
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import layout
import machine
import namespaces
import strays

HERE = Path(__file__).resolve().parent
PYTHON = Path(sys.executable).parent
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
    try:
        machine.own_address()
    except OSError as error:
        return str(error)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    with namespaces.leave():
        alone = subprocess.run([*namespaces.under_leave(), *nobody, HERE / "enclosed", "true"], capture_output=True, text=True)
    if alone.returncode:
        return f"A user may not make a network namespace of its own here: {alone.stderr.strip()}."
    return None


def free_ports(count):
    """Ports of loopback that nobody listens at; all are held until the last is found, so they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


# Where every user may write.
SHARED = ("/tmp", "/var/tmp", "/dev/shm")


class Accounts:
    """System users made for a while: one group, and removed with all that is theirs."""

    def __init__(self, homes):
        self.homes, self.made, self.left = Path(homes), {}, set()
        # useradd keeps what these files were before its last change, passwords included.
        kept = [Path("/etc", f"{name}-") for name in ("passwd", "shadow", "group", "gshadow", "subuid", "subgid")]
        self.kept = {path: path.read_bytes() if path.exists() else None for path in kept}
        self.group = self._made("learners", "groupadd", "--system")
        nowhere = ["--system", "--user-group", "--no-create-home", "--shell=/usr/sbin/nologin"]
        self.proxy = self._made("ringtree-proxy", "useradd", *nowhere)

    def add(self, stem="learner"):
        """A new user `learner-N` with a home that is closed to others; returns (name, password)."""
        here = ["--create-home", f"--base-dir={self.homes}", f"--groups={self.group}", "--shell=/bin/bash"]
        name, password = self._made(stem, "useradd", *here), secrets.token_urlsafe(6)
        (self.homes / name).chmod(0o700)
        subprocess.run(["chpasswd"], input=f"{name}:{password}\n", text=True, check=True)
        self.made[name] = password
        return name, password

    def remove(self):
        numbers = {each.pw_uid for each in pwd.getpwall() if each.pw_name in self.made}
        strays.end(numbers.__contains__, strays.processes)  # userdel keeps an account that still has one
        self._remove_files(numbers)
        gone = [["userdel", "--remove", name] for name in self.made]
        for command in [*gone, ["userdel", self.proxy], ["groupdel", self.group]]:
            until = time.monotonic() + 10
            # 8: a process of the user has ended, and its parent has not noted that yet.
            while (
                done := subprocess.run(command, capture_output=True, text=True)
            ).returncode == 8 and time.monotonic() < until:
                time.sleep(0.5)
            if done.returncode:
                self.left.add(command[-1])
                print(f"{' '.join(command)} failed, do it yourself: {done.stderr.strip()}", file=sys.stderr)
        for path, text in self.kept.items():
            path.unlink(missing_ok=True) if text is None else path.write_bytes(text)

    def _remove_files(self, numbers):
        """What these users, or their submissions' strangers, have left where all may write: the next user may get their number."""
        ranges = [(number, number) for number in numbers]
        for line in Path("/etc/subuid").read_text().splitlines() if Path("/etc/subuid").exists() else ():
            name, first, count = line.split(":")
            if name in self.made:
                ranges.append((int(first), int(first) + int(count) - 1))
        for place in filter(os.path.isdir, SHARED):
            remove_below(place, lambda uid: any(first <= uid <= last for first, last in ranges))

    @staticmethod
    def _made(stem, *command):
        """Make a user or a group of the first free name, and return it; one hub at a time, if several start.

        Who asks for one name at the same moment gets it twice: useradd looks before it locks.
        """
        files = [Path("/etc/passwd"), Path("/etc/group")]
        turn = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            taken = {line.split(":")[0] for file in files for line in file.read_text().splitlines()}
            name = next(name for number in itertools.count(1) if (name := f"{stem}-{number}") not in taken)
            done = subprocess.run([*command, name], capture_output=True, text=True)
        finally:
            os.close(turn)
        if done.returncode:
            raise RuntimeError(f"{command[0]} could not make {name}: {done.stderr.strip()}")
        return name


def remove_below(place, is_theirs, within=None):
    """Remove what belongs to these users, in a folder and in each below it where all may write.

    A folder is held open while it is looked at. Other users may put a link in its place meanwhile, which then leads nowhere.
    """
    with contextlib.suppress(OSError):
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
        try:
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):  # gone meanwhile
                    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    is_folder = stat.S_ISDIR(about.st_mode)
                    if is_theirs(about.st_uid):
                        shutil.rmtree(name, dir_fd=folder) if is_folder else os.unlink(name, dir_fd=folder)
                    elif is_folder and about.st_mode & stat.S_IWOTH:
                        remove_below(name, is_theirs, folder)
        finally:
            os.close(folder)


class Hub:
    """The parts of one hub and their folder. `start()` and `end()`; `kill(part)` and `restart(part)` try its ends.

    course: the program that writes what learners get. gpus: how many GPUs to pretend, as device files that no
    driver answers; None: those of this machine. sharers: how many learners share a core. shared: how many GPUs are set
    aside, each for `sharing` learners.
    """

    def __init__(self, folder, course, *, gpus=None, sharers=4, shared=0, sharing=4, config=layout.CONFIG, settings=None):
        self.folder, self.course = Path(folder), Path(course).resolve()
        self.config, self.settings = config, settings or {}
        self.parts, self.sharers, self.shared = {}, sharers, dict(shared=shared, sharing=sharing)
        self.port, *self.slurm_ports = free_ports(3)
        self.address = f"http://127.0.0.1:{self.port}"
        self.name = f"hub{self.port}"
        self.pretended = gpus
        pretended = [str(self.folder / "gpus" / f"gpu{number}") for number in range(gpus or 0)]
        self.gpus = machine.find_gpus() if gpus is None else pretended
        self.cards = machine.find_cards() if gpus is None else [str(self.folder / "gpus" / "uverbs0")]
        self.accounts, self.leave = None, contextlib.ExitStack()
        self.munge = Path("/run") / self.name  # as on a server, where no learner's server sees it
        self.sockets = {"munge": self.munge / "socket", "hub": "sockets/hub.sock"}  # a part with one is waited for

    # ------------------------------------------------------------ beginning and end

    def start(self):
        self.leave.enter_context(namespaces.leave())
        for name, mode in dict(logs=0o700, controller=0o700, node=0o700, homes=0o711, gpus=0o755).items():
            (self.folder / name).mkdir()
            (self.folder / name).chmod(mode)
        self.munge.mkdir(mode=0o755)
        self.munge.chmod(0o755)
        if self.pretended:
            self._pretend_gpus()
        self.accounts = Accounts(self.folder / "homes")
        layout.make_folders(self.folder, self.accounts.proxy)
        self.teacher, _ = self.accounts.add("teacher")
        layout.make_exchange(self.folder, self.teacher)
        layout.give_labs(self.course.parent.parent / "labs", self.teacher)
        layout.give_strangers(self.teacher)
        self._configure()
        layout.publish_course(self.folder, self.course)
        for part in ("munge", "slurmctld", "slurmd", "proxy", "hub", "grading"):
            self.restart(part)
        self._wait_until_ready()

    def end(self):
        """End every job, then every part; remove the users and the folder."""
        if self._alive("slurmctld"):
            for name in ("ringtree-hub", "ringtree-grading"):
                self.slurm("scancel", "--full", f"--name={name}")
            self._wait(lambda: not self.slurm("squeue", "--noheader"), 30, "jobs to end", fatal=False)
        for part in ("grading", "hub", "proxy", "slurmd", "slurmctld", "munge"):
            self.kill(part, signal.SIGTERM, patience=10)
        self._end_jobs_left()
        self.leave.close()
        if self.accounts:
            self.accounts.remove()
        for folder in (self.folder, self.munge):
            shutil.rmtree(folder, ignore_errors=True)

    def _end_jobs_left(self):
        """A job whose controller and node are gone goes on: whatever is in Slurm's control groups ends, and they go."""
        groups = Path("/sys/fs/cgroup")  # of version 1, one for each kind, or of version 2
        roots = [*groups.glob(f"*/slurm_{self.name}"), *groups.glob(f"**/{self.name}_slurmstepd.scope")]
        until = time.monotonic() + 10
        while left := {int(pid) for root in roots for each in root.rglob("cgroup.procs") for pid in each.read_text().split()}:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until:
                break
            time.sleep(0.2)
        for root in roots:
            for each in [*sorted(root.rglob("*/"), reverse=True), root]:
                with contextlib.suppress(OSError):
                    each.rmdir()

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
        if part in self.sockets:
            self._wait((self.folder / self.sockets[part]).exists, 60, f"the socket of {part}")

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
        return layout.course_link(self.folder)

    def _alive(self, part):
        return part in self.parts and self.parts[part].poll() is None

    def _munge(self):
        here = self.munge
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
        # Set again, as for the proxy: changing the AppArmor profile clears the death signal too.
        command = [*namespaces.under_leave(), "setpriv", "--pdeathsig=TERM", "--"]
        learners = {"RINGTREE_HUB_GROUP": self.accounts.group, "RINGTREE_HUB_TEACHER": self.teacher}
        return [*command, "slurmd", "-D", "-N", self.name], self._slurm_conf() | learners

    def _proxy(self):
        command = ["setpriv", f"--reuid={self.accounts.proxy}", f"--regid={self.accounts.proxy}", "--clear-groups"]
        command += ["--pdeathsig=TERM", "--"]  # set again: changing the user clears the death signal
        command += layout.proxy_command(self.folder, PYTHON, self.address)
        (self.folder / "proxy" / "api.sock").unlink(missing_ok=True)
        return command, {"CONFIGPROXY_AUTH_TOKEN": self._environment()["CONFIGPROXY_AUTH_TOKEN"], "HOME": "/nonexistent"}

    def _grading(self):
        account = pwd.getpwnam(self.teacher)
        command = [
            "setpriv",
            f"--reuid={account.pw_uid}",
            f"--regid={account.pw_gid}",
            "--init-groups",
            "--pdeathsig=TERM",
            "--",
        ]
        command += [PYTHON / "python", HERE / "grading.py", "serve"]
        here = dict(home=account.pw_dir, slurm_conf=self.folder / "slurm.conf")
        return command, layout.grading_environment(self.folder, PYTHON, **here)

    def _hub(self):
        (self.folder / "sockets" / "hub.sock").unlink(missing_ok=True)
        return layout.hub_command(PYTHON, self.config), self._environment() | self.settings

    def _environment(self):
        return layout.environment(
            self.folder,
            PYTHON,
            address=self.address,
            group=self.accounts.group,
            proxy_group=self.accounts.proxy,
            gpus=len(self.gpus),
            slurm_conf=self.folder / "slurm.conf",
        )

    def _slurm_conf(self):
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    # ------------------------------------------------------------ what they need

    def _pretend_gpus(self):
        """Device files with NVIDIA's number, and one with InfiniBand's, which no driver answers: Slurm allots and refuses them."""
        devices = {path: os.makedev(195, number) for number, path in enumerate(self.gpus)}
        for path, device in (devices | {path: os.makedev(231, 192) for path in self.cards}).items():
            os.mknod(path, 0o666 | 0o020000, device)
            os.chmod(path, 0o666)

    def _configure(self):
        machine.fill(
            self.folder,
            **machine.look_at_machine(),
            gpus=self.gpus,
            cards=self.cards,
            node=self.name,
            controller_port=self.slurm_ports[0],
            node_port=self.slurm_ports[1],
            slurm_user="root",
            munge_socket=self.munge / "socket",
            state=self.folder,
            logs=self.folder / "logs",
            programs=HERE,
            sharers=self.sharers,
            **self.shared,
            hours=12,
        )

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
