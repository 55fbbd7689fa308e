"""Set a server up, or take it all away again: `make hub`, `make hub-remove`.

Every step says what it will change before anything is changed, does nothing where nothing is left to do, and can be undone.
What was there before is noted in RECORD, so that only what this program made is removed. Homes stay.
"""

import argparse
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import layout
import machine
import namespaces
from choices import GIB_A_GPU

CHECKOUT = Path(__file__).resolve().parent.parent.parent
STATE = Path("/var/lib/ringtree-hub")
SETTINGS = Path("/etc/ringtree-hub/environment")
SLURM = Path("/etc/slurm")
UNITS = Path("/etc/systemd/system")
SSH = Path("/etc/ssh/sshd_config.d/ringtree-hub.conf")
RECORD = STATE / "private" / "installed.json"
GRADING = SETTINGS.with_name("grading")
MORE = SETTINGS.with_name("jupyterhub_config.py")  # an administrator's own
GROUP, PROXY = "learners", "ringtree-proxy"
STAFF = ("ringtree-admins", "ringtree-assistants")  # groups, empty at first: jupyterhub_config.py says what they may
PACKAGES = ("slurm-wlm", "munge", "git", "python3-venv", "iproute2", "uidmap")
SERVICES = ("munge", "slurmctld", "slurmd", "ringtree-proxy", "ringtree-hub", "ringtree-grading")


def run(*command, **options):
    return subprocess.run([str(each) for each in command], check=True, **options)


def has_systemd():
    return Path("/run/systemd/system").is_dir()


class Record(dict):
    """What was made, kept on disk from the moment that it is made."""

    def __init__(self):
        super().__init__(json.loads(RECORD.read_text()) if RECORD.exists() else {})

    def note(self, **made):
        self.update(made)
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.parent.chmod(0o700)
        RECORD.write_text(json.dumps(self, indent=1))


# Each step: `plan` tells what is left to do, or None; `do` does it; `undo` takes away what the record says it made.


class Packages:
    def __init__(self, given):
        pass

    @staticmethod
    def installed():
        told = run(
            "dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", capture_output=True, text=True
        ).stdout
        return {line.split()[0] for line in told.splitlines() if line.endswith(" installed")}

    def plan(self, record):
        lacking = [name for name in PACKAGES if name not in self.installed()]
        return f"install Debian's packages {', '.join(lacking)} and what they need" if lacking else None

    def do(self, record):
        before, quiet = self.installed(), os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "update", "--quiet=2", env=quiet)
        run("apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", *PACKAGES, env=quiet)
        record.note(packages=sorted({*record.get("packages", []), *self.installed() - before}))

    def undo(self, record):
        if names := [name for name in record.get("packages", []) if name in self.installed()]:
            run("apt-get", "purge", "--yes", "--quiet=2", *names, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
            shutil.rmtree("/var/log/slurm", ignore_errors=True)  # the package keeps it while a log is in it


class Programs:
    def __init__(self, given):
        self.folder = given.hub

    def plan(self, record):
        return f"install the hub, the course's package and PyTorch into {self.folder} (some GB)"

    def do(self, record):
        if not self.folder.exists():
            record.note(programs=str(self.folder))
        python = f"HUB_PYTHON={os.environ.get('HUB_PYTHON', '/usr/bin/python3')}"
        run("make", "--no-print-directory", f"HUB={self.folder}", python, f"{self.folder}/ready", cwd=CHECKOUT / "hub")

    def undo(self, record):
        if made := record.get("programs"):
            shutil.rmtree(made, ignore_errors=True)


class Accounts:
    def __init__(self, given):
        self.teacher = given.teacher

    def plan(self, record):
        wanted = [f"the group {name}" for name in (GROUP, *STAFF) if not _known("group", name)]
        wanted += [f"the user {name}" for name in (PROXY, self.teacher) if not _known("passwd", name)]
        made = [f"make {', '.join(wanted)}"] * bool(wanted)
        return " and ".join([*made, f"put the labs with their solutions into {self.teacher}'s home"])

    def do(self, record):
        if not _known("group", GROUP):
            run("groupadd", "--system", GROUP)
            record.note(group=GROUP)
        for name in STAFF:
            if not _known("group", name):
                run("groupadd", "--system", name)
                record.note(staff=[*record.get("staff", []), name])
        if not _known("passwd", PROXY):
            run("useradd", "--system", "--user-group", "--no-create-home", "--shell=/usr/sbin/nologin", PROXY)
            record.note(user=PROXY)
        if not _known("passwd", self.teacher):
            run("useradd", "--create-home", "--shell=/bin/bash", self.teacher)
            record.note(teacher=self.teacher)
            Path(f"~{self.teacher}").expanduser().chmod(0o700)
        run("usermod", "--append", f"--groups={GROUP}", self.teacher)
        layout.give_strangers(self.teacher)
        layout.give_labs(CHECKOUT / "labs", self.teacher)

    def undo(self, record):
        if record.get("teacher"):
            subprocess.run(["userdel", record["teacher"]], check=False)
        if record.get("user"):
            subprocess.run(["userdel", record["user"]], check=False)
        if record.get("group"):
            subprocess.run(["groupdel", record["group"]], check=False)
        for name in record.get("staff", []):
            subprocess.run(["groupdel", name], check=False)


def _known(database, name):
    return subprocess.run(["getent", database, name], check=False, capture_output=True).returncode == 0


class Slurm:
    """Its three files, and the folders that they name. Files that were there are kept beside them."""

    def __init__(self, given):
        self.given = given

    def plan(self, record):
        others = [name for name in machine.FILES if (SLURM / name).exists() and name not in record.get("slurm", [])]
        kept = f"; what is in {', '.join(others)} now is kept as {others[0]}.before-ringtree-hub, …" if others else ""
        address = machine.own_address()
        open_to = "" if address.startswith("127.") else ", which the network reaches"
        told = f"for {len(machine.find_gpus())} GPUs and two daemons at {address}{open_to}"
        return f"write {', '.join(machine.FILES)} into {SLURM} {told}{kept}"

    def do(self, record):
        SLURM.mkdir(exist_ok=True)
        for name in machine.FILES:
            if (SLURM / name).exists() and name not in record.get("slurm", []):
                (SLURM / name).rename(SLURM / f"{name}.before-ringtree-hub")
        for folder, owner in (
            ("/var/lib/slurm/controller", "slurm"),
            ("/var/lib/slurm/node", "root"),
            ("/var/log/slurm", "slurm"),
        ):
            made = not Path(folder).exists()
            Path(folder).mkdir(parents=True, exist_ok=True)
            if made:
                shutil.chown(folder, owner)
                Path(folder).chmod(0o700)
                record.note(folders=[*record.get("folders", []), folder])
        record.note(slurm=list(machine.FILES))
        machine.fill(
            SLURM,
            **machine.look_at_machine(),
            gpus=machine.find_gpus(),
            cards=machine.find_cards(),
            node="server",
            controller_port=6817,
            node_port=6818,
            slurm_user="slurm",
            munge_socket="/run/munge/munge.socket.2",
            state="/var/lib/slurm",
            logs="/var/log/slurm",
            programs=self.given.hub / "server",
            sharers=self.given.sharers,
            shared=self.given.shared,
            sharing=self.given.sharing,
            hours=self.given.hours,
        )

    def undo(self, record):
        for name in machine.FILES:
            if name in record.get("slurm", []):
                (SLURM / name).unlink(missing_ok=True)
            if (kept := SLURM / f"{name}.before-ringtree-hub").exists():  # also where `do` was cut off
                kept.rename(SLURM / name)
        for folder in record.get("folders", []):
            shutil.rmtree(folder, ignore_errors=True)


class Leave:
    """On Ubuntu: AppArmor's profile under which Slurm's jobs may make namespaces."""

    def __init__(self, given):
        pass

    def plan(self, record):
        made = namespaces.need_leave() and not (namespaces.KEPT.exists() and namespaces.KEPT.read_text() == namespaces.PROFILE)
        return f"let what Slurm starts make namespaces, by AppArmor's profile {namespaces.KEPT}" if made else None

    def do(self, record):
        namespaces.KEPT.write_text(namespaces.PROFILE)
        record.note(profile=str(namespaces.KEPT))
        namespaces.load()

    def undo(self, record):
        if record.get("profile"):
            namespaces.KEPT.unlink(missing_ok=True)
            if namespaces.loaded():
                namespaces.unload()


class Ssh:
    """Whoever is on this server by ssh is in no allotment, and can open every GPU: so learners get a tunnel to the hub at most."""

    TEXT = """\
# Made by `make hub` for the course "Rings and Trees": learners may have a tunnel to the hub, and nothing else.
Match Group {group} User *,!{teacher}
    ForceCommand /usr/sbin/nologin
    PermitTTY no
    AllowTcpForwarding local
    PermitOpen {host}:{port}
    AllowStreamLocalForwarding no
    AllowAgentForwarding no
    X11Forwarding no
    PermitTunnel no
    PermitUserRC no
Match all
"""

    def __init__(self, given):
        hub = urlsplit(given.address)
        port = hub.port or {"http": 80, "https": 443}[hub.scheme]
        self.text = self.TEXT.format(group=GROUP, teacher=given.teacher, host="127.0.0.1", port=port)
        self.wanted = given.ssh == "tunnel" and SSH.parent.is_dir()

    def plan(self, record):
        there = SSH.read_text() if SSH.exists() else ""
        if self.wanted and there != self.text:
            return f'let learners have a tunnel to the hub by ssh, and nothing else, by {SSH} (ARGS="--ssh all" leaves ssh as it is)'
        return f"take {SSH} away" if there and not self.wanted else None

    def do(self, record):
        if not self.wanted:
            return self.undo(record)
        SSH.write_text(self.text)
        record.note(ssh=str(SSH))
        _read_again()

    def undo(self, record):
        if record.get("ssh"):
            SSH.unlink(missing_ok=True)
            _read_again()


def _read_again():
    if has_systemd():
        subprocess.run(["systemctl", "try-reload-or-restart", "ssh"], check=False)


class State:
    """The hub's own folder, the course in it, and the settings."""

    def __init__(self, given):
        self.given = given

    def plan(self, record):
        return f"put the course and the hub's files into {STATE}, and settings into {SETTINGS}"

    def do(self, record):
        layout.make_folders(STATE, PROXY)
        layout.make_exchange(STATE, self.given.teacher)
        layout.publish_course(STATE, CHECKOUT / "tools" / "course.py")
        settings = layout.environment(
            STATE,
            self.given.hub / "python" / "bin",
            address=self.given.address,
            group=GROUP,
            proxy_group=PROXY,
            gpus=len(machine.find_gpus()),
            slurm_conf=SLURM / "slurm.conf",
        )
        settings |= {"RINGTREE_HUB_HOURS": str(self.given.hours), "RINGTREE_HUB_MORE": str(MORE)}
        write_settings(SETTINGS, settings)
        home, python = Path(f"~{self.given.teacher}").expanduser(), self.given.hub / "python" / "bin"
        marks = layout.grading_environment(STATE, python, hub=self.given.hub, home=home, slurm_conf=SLURM / "slurm.conf")
        write_settings(GRADING, marks)
        record.note(state=True)

    def undo(self, record):
        """An administrator's own file stays."""
        for path in (SETTINGS, GRADING):
            path.unlink(missing_ok=True)
        if SETTINGS.parent.is_dir() and not any(SETTINGS.parent.iterdir()):
            SETTINGS.parent.rmdir()


def write_settings(path, settings):
    """For systemd's EnvironmentFile; what an administrator wrote beside ours stays."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    known = path.read_text().splitlines(keepends=True) if path.exists() else []
    more = [line for line in known if line.partition("=")[0] not in settings]
    path.touch(0o600)
    path.write_text(layout.as_lines(settings) + "".join(more))


UNIT = """\
# Made by `make hub` for the course "Rings and Trees".
[Unit]
Description={what}
After=network.target {after}
{needs}
[Service]
EnvironmentFile={settings}
ExecStart={command}
Restart=always
RestartSec=2
LimitNOFILE=65536
{more}
[Install]
WantedBy=multi-user.target
"""


# Debian's own units leave a part dead that was killed. What stands here is read beside them.
AGAIN = """\
# Made by `make hub` for the course "Rings and Trees".
[Service]
Restart=always
RestartSec=2
"""
# slurmd ends where a GPU's device file is missing; the driver makes them when something first asks for it, and /dev/nvidia-uvm
# only for root, which nobody is in a learner's server.
GPUS_FIRST = """\
ExecStartPre=-nvidia-smi --list-gpus
ExecStartPre=-nvidia-modprobe -u -c=0
[Unit]
After=nvidia-persistenced.service nvidia-fabricmanager.service
"""
# A tunnel of ssh is a session, for which systemd starts the user's own manager, and that the services in the user's home: outside
# of every job. So a learner gets none.
NO_MANAGER = f"""\
# Made by `make hub` for the course "Rings and Trees": what is in a learner's home starts in the learner's server alone.
[Service]
ExecCondition=+/bin/sh -c "! id --groups --name %i | xargs --max-args=1 | grep --quiet --line-regexp {GROUP}"
"""


class Units:
    def __init__(self, given):
        self.given = given
        names = ("munge", "slurmctld", "slurmd", "user@")
        self.beside = [UNITS / f"{name}.service.d" / "ringtree-hub.conf" for name in names]

    def texts(self):
        python, hub = self.given.hub / "python" / "bin", self.given.hub / "server"
        proxy = layout.proxy_command(STATE, python, self.given.address, self.given.hub)
        more = [f"User={PROXY}", f"Group={PROXY}", "AmbientCapabilities=CAP_NET_BIND_SERVICE", "NoNewPrivileges=yes"]
        more += ["ProtectSystem=strict", f"ReadWritePaths={STATE / 'proxy'}", "ProtectHome=yes", "PrivateTmp=yes"]
        more.append(f"ExecStartPre=/bin/rm -f {STATE / 'proxy' / 'api.sock'}")
        if self.given.certificate:
            more += [f"LoadCredential=certificate:{self.given.certificate}", f"LoadCredential=key:{self.given.key}"]
            proxy += ["--ssl-cert=${CREDENTIALS_DIRECTORY}/certificate", "--ssl-key=${CREDENTIALS_DIRECTORY}/key"]
        parts = {"settings": SETTINGS, "command": " ".join(proxy), "more": "\n".join(more)}
        yield "ringtree-proxy", UNIT.format(what="The proxy of the labs' JupyterHub", after="", needs="", **parts)
        command = " ".join(layout.hub_command(python, hub / "jupyterhub_config.py"))
        # Servers are jobs of Slurm: they go on while the hub is restarted.
        more = f"KillMode=process\nExecStartPre=/bin/rm -f {STATE / 'sockets' / 'hub.sock'}"
        parts = {"settings": SETTINGS, "command": command, "more": more}
        after = "munge.service slurmctld.service ringtree-proxy.service"
        yield "ringtree-hub", UNIT.format(what="The labs' JupyterHub", after=after, needs=f"Wants={after}\n", **parts)
        command = f"{python / 'python'} {hub / 'grading.py'} serve"
        more = f"User={self.given.teacher}\nNoNewPrivileges=yes\nPrivateTmp=yes"
        parts = {"settings": GRADING, "command": command, "more": more}
        after = "munge.service slurmctld.service"
        yield "ringtree-grading", UNIT.format(what="Marks of the labs, for the teacher", after=after, needs="", **parts)

    def plan(self, record):
        started = f", and start {', '.join(SERVICES)}" if has_systemd() else " (no systemd runs here: nothing is started)"
        again = "let systemd start munge and Slurm again when they end"
        if self.given.ssh == "tunnel":
            again += ", start no manager (user@.service) for learners, and end their processes outside of Slurm's jobs"
        return f"write the units ringtree-proxy, ringtree-hub and ringtree-grading into {UNITS}, {again}{started}"

    def do(self, record):
        UNITS.mkdir(parents=True, exist_ok=True)
        for name, text in self.texts():
            (UNITS / f"{name}.service").write_text(text)
        for path in self.beside:
            path.parent.mkdir(exist_ok=True)
            more = ""
            if path.parent.name == "user@.service.d":
                path.write_text(NO_MANAGER) if self.given.ssh == "tunnel" else self.take_away(path)
                continue
            if path.parent.name == "slurmd.service.d":
                if self.given.ssh == "tunnel":  # for `mend`
                    more += f"Environment=RINGTREE_HUB_GROUP={GROUP} RINGTREE_HUB_TEACHER={self.given.teacher}\n"
                more += f"AppArmorProfile={namespaces.NAME}\n" if namespaces.need_leave() else ""
                more += GPUS_FIRST if machine.find_gpus() else ""
            path.write_text(AGAIN + more)
        record.note(units=["ringtree-proxy", "ringtree-hub", "ringtree-grading"])
        if has_systemd():
            run("systemctl", "daemon-reload")
            run("systemctl", "enable", *SERVICES)
            # A slurmd that still has the old files would tell the new controller of other GPUs, and it closes the node.
            run("systemctl", "stop", "slurmd")
            run("systemctl", "restart", *SERVICES)

    def undo(self, record):
        if has_systemd() and record.get("units"):
            for name in ("ringtree-hub", "ringtree-grading"):
                run("scancel", "--full", f"--name={name}")
            run("systemctl", "disable", "--now", *reversed(SERVICES))
            # What slurmd has jobs' processes run below, with control groups of version 2; it outlives slurmd.
            subprocess.run(["systemctl", "stop", "server_slurmstepd.scope"], check=False, capture_output=True)
        for name in record.get("units", []):
            (UNITS / f"{name}.service").unlink(missing_ok=True)
        for path in self.beside if record.get("units") else ():
            self.take_away(path)
        if has_systemd():
            run("systemctl", "daemon-reload")

    @staticmethod
    def take_away(path):
        path.unlink(missing_ok=True)
        if path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()


STEPS = (Packages, Programs, Accounts, Ssh, Slurm, Leave, State, Units)


def agreed(question, given):
    if given.yes:
        return True
    if not sys.stdin.isatty():
        sys.exit("Nobody is here to ask: say YES=1 if that is what you want.")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def install(given):
    if not shutil.which("apt-get"):
        sys.exit(
            "It is made for Debian 12 and Ubuntu 24.04: no apt-get was found here. README.md names the parts for elsewhere."
        )
    if sys.version_info < (3, 11):  # noqa: UP036 - HUB_PYTHON may be any
        here = ".".join(map(str, sys.version_info[:3]))
        sys.exit(
            f"This Python is {here}, and the hub needs 3.11 or newer: name one that every user may execute with HUB_PYTHON=…."
        )
    if given.address.startswith("https") != bool(given.certificate and given.key):
        sys.exit("An address that begins with https needs CERTIFICATE=… and KEY=…, and no other address takes them.")
    for path in filter(None, (given.certificate, given.key)):
        if not Path(path).is_file():
            sys.exit(f"There is no file {path}: name the certificate's and the key's.")
    if wrong := cannot_set_aside(given.shared, given.sharing):
        sys.exit(wrong)
    record, steps = Record(), [kind(given) for kind in STEPS]
    try:
        plans = [(step, step.plan(record)) for step in steps]
    except OSError as error:
        sys.exit(str(error))
    print("This will")
    for _, plan in plans:
        if plan:
            print(f"  - {plan}")
    told = ", ".join(f"{name} {value}" for name, value in given.options.items() if value is not None)
    print(f"Options: {told}. Each stays until `make hub` is told another.")
    for doubt in machine.doubts():
        print(f"Look first: {doubt}")
    print(f"It can be undone by `make hub-remove`; homes are not touched. Learners are the users in the group {GROUP}.")
    if not agreed("Go on?", given):
        sys.exit("Nothing was changed.")
    record.note(options=given.options)
    for step, plan in plans:
        if plan:
            print(f"… {plan}")
            step.do(record)
    if has_systemd():
        if told := not_yet(given.address, patience=300):
            sys.exit(f"All is written and started. {told}")
        for told in gpus_tried(given.hub, given.teacher, len(machine.find_gpus())):
            print(f"Look: {told}")
    address = spoken(given.address)
    print(f"Done. The hub answers at {address}; the course: {address}{layout.course_link(STATE)}")
    print(f"The teacher is {given.teacher}, who logs in as soon as there is a password: passwd {given.teacher}")
    print(f"A learner: useradd --create-home --groups={GROUP} --shell=/bin/bash NAME; passwd NAME")
    if not has_systemd():
        print(f"No systemd runs here: start {', '.join(SERVICES)} yourself, as their units say.")


def cannot_set_aside(shared, sharing):
    """Why so many GPUs cannot be set aside now, each for so many learners, in a sentence; None where they can."""
    there = len(machine.find_gpus())
    if not 0 <= shared <= there:
        return f"--shared {shared}: this server has {there} GPUs; give a number from 0 to {there}."
    if shared and sharing < 2:
        return f"--sharing {sharing}: one GPU is for 2 learners or more to share; give 2 or more, or --shared 0."
    last = machine.node_in(SLURM / "slurm.conf")
    if not last or not shutil.which("squeue") or (last["shared"], last["sharing"]) == (shared, sharing if shared else 0):
        return None
    held = subprocess.run(
        ["squeue", "--noheader", "--states=running"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if held:
        return (
            f"Slurm sets no GPUs aside under running jobs, and there are {len(held)}: stop the learners' servers first (Admin)."
        )


def not_yet(address, patience):
    """What does not answer after `patience` seconds, and where to look, in a sentence; None where all does."""
    parts = urlsplit(address)
    host = "127.0.0.1" if parts.hostname == "0.0.0.0" else parts.hostname
    asked = f"{parts.scheme}://{host}:{parts.port or {'http': 80, 'https': 443}[parts.scheme]}/hub/api/"
    anybodys = ssl._create_unverified_context()  # the certificate has a name, and this asks an address
    until = time.monotonic() + patience
    while True:
        slurm = subprocess.run(["sinfo", "--noheader", "--format=%T %E"], capture_output=True, text=True, check=False)
        # The node had fewer GPUs, or less memory, than was written before; if it has fewer now, Slurm closes it again.
        if re.match("drain.* (gres/|Low )", slurm.stdout):
            subprocess.run(["scontrol", "update", "nodename=server", "state=resume"], check=False)
        if not re.match("idle|mixed|allocated", slurm.stdout):
            told = f"Slurm has no node ready ({(slurm.stderr or slurm.stdout).strip()}): see /var/log/slurm."
        else:
            try:
                urllib.request.urlopen(asked, timeout=10, context=anybodys).close()
                return None
            except OSError as error:
                told = f"The hub does not answer at {asked} ({error}): see journalctl -u ringtree-hub -u ringtree-proxy."
        if time.monotonic() > until:
            return told
        time.sleep(1)


DOCTOR = "{hub}/server/enclosed {hub}/python/bin/python -m ringtree.doctor --ranks {gpus} --json"


def gpus_tried(hub, user, gpus, environment=None):
    """What is wrong with the GPUs as a learner has them who takes all, in sentences: one job of Slurm looks, as `user`.

    environment: more variables, as SLURM_CONF.
    """
    if not gpus:
        return []
    variables = os.environ | (environment or {})
    there = machine.node_in(variables.get("SLURM_CONF", SLURM / "slurm.conf"))["RealMemory"]
    asked = ["srun", f"--gres=gpu:{gpus}", f"--mem={min(1024 * GIB_A_GPU * gpus, there)}M", "--time=5", "--immediate=20"]
    asked = [
        "runuser",
        "-u",
        user,
        "--",
        *asked,
        "--job-name=ringtree-hub",
        "--chdir=/",
        *DOCTOR.format(hub=hub, gpus=gpus).split(),
    ]
    told = subprocess.run(asked, capture_output=True, text=True, check=False, env=variables)
    try:
        found = json.loads(told.stdout)
    except ValueError:
        said = (told.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return [f"the GPUs could not be tried as a learner would ({said}); once all are free, `make hub` again."]
    wrong = [each for each in found if each["state"] == "wrong"]
    return [f"to a learner's server {each['topic']}: {each['seen']}. What to do: {each['do']}." for each in wrong]


def spoken(address):
    """Where a browser finds what listens at `address`."""
    parts = urlsplit(address)
    host = socket.getfqdn() if parts.hostname in ("0.0.0.0", "::") else parts.hostname
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port not in (None, usual) else "")


def remove(given):
    record = Record()
    if not record:
        sys.exit(f"`make hub` has set nothing up here: there is no {RECORD}.")
    print("This will end every learner's server and remove")
    for what in ("units", "slurm", "ssh", "profile", "group", "staff", "user", "teacher", "programs", "packages"):
        if record.get(what):
            print(f"  - {what}: {record[what] if isinstance(record[what], str) else ', '.join(record[what])}")
    print(f"  - {STATE}, with the hub's database, {SETTINGS} and {GRADING}")
    print("Homes stay, with what learners have done.")
    if not agreed("Remove it?", given):
        sys.exit("Nothing was changed.")
    for kind in reversed(STEPS):
        kind(given).undo(record)
    shutil.rmtree(STATE, ignore_errors=True)
    print("Removed.")


# What `make hub` was told last holds until it is told otherwise: an upgrade repeats no option.
OPTIONS = {
    "hub": ("/opt/ringtree-hub", str, "where the programs go"),
    "address": ("http://127.0.0.1:8000", str, "at which the proxy listens"),
    "certificate": (None, str, "for an address that begins with https"),
    "key": (None, str, "the certificate's key"),
    "teacher": ("teacher", str, "who hands out the labs and marks them; made, if there is no such user"),
    "sharers": (4, int, "how many learners may share a core"),
    "shared": (0, int, "how many GPUs are set aside for learners to share"),
    "sharing": (4, int, "how many learners may share one of these"),
    "hours": (12, int, "the longest that a learner may ask for"),
    "ssh": ("tunnel", str, "what learners may have by ssh: a tunnel to the hub, or all"),
}


def options(words, record):
    """The command's words as a namespace: what they leave out is as it was last, and at first as OPTIONS has it."""
    asked = argparse.ArgumentParser(prog="make hub", description=__doc__.splitlines()[0], argument_default=argparse.SUPPRESS)
    asked.add_argument("what", choices=("install", "remove"))
    asked.add_argument("--yes", action="store_true", default=False, help="do not ask")
    for name, (usual, kind, what) in OPTIONS.items():
        choices = ["tunnel", "all"] if name == "ssh" else None
        asked.add_argument(f"--{name}", type=kind, choices=choices, help=f"{what} (at first {usual})" if usual else what)
    said, last = vars(asked.parse_args(words)), dict(record.get("options", {}))
    if not said.get("address", "https").startswith("https"):
        last |= {"certificate": None, "key": None}
    given = argparse.Namespace(**({name: usual for name, (usual, *_) in OPTIONS.items()} | last | said))
    for name in ("hub", "certificate", "key"):  # systemd wants whole paths, and the next `make hub` may be typed elsewhere
        setattr(given, name, getattr(given, name) and os.path.abspath(getattr(given, name)))
    given.options = {name: getattr(given, name) for name in OPTIONS}
    given.hub = Path(given.hub)
    return given


def main():
    sys.stdout.reconfigure(line_buffering=True)
    if os.geteuid() != 0:
        sys.exit("It changes the system, so it needs root: run it with sudo.")
    given = options(sys.argv[1:], Record())
    {"install": install, "remove": remove}[given.what](given)


if __name__ == "__main__":
    main()
