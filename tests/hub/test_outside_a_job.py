"""Nothing in a learner's home runs outside of the learner's job, and a process that a learner leaves outside is ended."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import people
import pytest
import requests
import strays
import websocket
from people import wait_for

# Says where it runs, by its own name; and starts a process that stays.
SHELL = """\
( echo "{name}|$(cat /proc/self/cgroup | tr '\\n' ' ')|$(readlink /proc/self/ns/net)" >> "{mark}" ) 2>/dev/null
export RINGTREE_FROM_HOME={name}
setsid sleep 98{number:02} </dev/null >/dev/null 2>&1 &
"""
PYTHON = """\
import os, subprocess
os.environ["RINGTREE_FROM_HOME"] = {name!r}
with open({mark!r}, "a") as told:
    told.write({name!r} + "|" + open("/proc/self/cgroup").read().replace("\\n", " ") + "|" + os.readlink("/proc/self/ns/net") + "\\n")
subprocess.Popen(["sleep", "98{number:02}"], start_new_session=True)
"""
UNIT = "[Service]\nExecStart=/bin/sh {home}/.bashrc\n[Install]\nWantedBy=default.target\n"
SITE = ".local/lib/python{version}/site-packages"
SHELLS = (".bash_profile", ".bash_login", ".profile", ".bashrc", ".bash_logout", ".zshenv", ".zprofile", ".xprofile", ".ssh/rc")
PYTHONS = (
    ".pythonrc",
    f"{SITE}/sitecustomize.py",
    f"{SITE}/usercustomize.py",
    ".jupyter/jupyter_config.py",
    ".jupyter/jupyter_server_config.py",
    ".jupyter/jupyterhub_config.py",
    ".jupyter/nbgrader_config.py",
    ".local/etc/jupyter/jupyter_server_config.py",
    ".ipython/profile_default/startup/00-first.py",
    ".ipython/profile_default/ipython_config.py",
)
# Files that are no programs: each names a variable, a program, or a library.
OTHERS = {
    ".pam_environment": "RINGTREE_FROM_HOME DEFAULT=.pam_environment\nBASH_ENV DEFAULT={home}/.bashrc\n",
    ".ssh/environment": "RINGTREE_FROM_HOME=.ssh/environment\nBASH_ENV={home}/.bashrc\n",
    ".config/environment.d/home.conf": "RINGTREE_FROM_HOME=environment.d\nLD_PRELOAD={home}/none.so\n",
    ".slurm/defaults": "get-user-env=10L\nexport=RINGTREE_FROM_HOME\n",
    ".config/systemd/user/default.target.wants/home.service": UNIT,
    f"{SITE}/home.pth": "import os; exec(open('{home}/.pythonrc').read())\n",
    ".forward": "|/bin/sh {home}/.bashrc\n",
    ".config/autostart/home.desktop": "[Desktop Entry]\nType=Application\nName=home\nExec=/bin/sh {home}/.bashrc\n",
}
RUNS_INSIDE = {".jupyter/jupyter_server_config.py", ".ipython/profile_default/startup/00-first.py"}
A_JOB = re.compile(r"/slurm_\w+/uid_\d+/job_\d+|slurmstepd\.scope/job_\d+")


def outside(learner):
    """{number: command line} of this learner's processes that are in no job."""
    found = {}
    for pid, line in learner.processes().items():
        with contextlib.suppress(OSError):  # one that has ended meanwhile
            if not A_JOB.search(Path(f"/proc/{pid}/cgroup").read_text()):
                found[pid] = line
    return found


def end(processes):
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def home(hub, learners):
    """A learner whose home holds each file that some program runs or reads when a session begins; gone after the test."""
    learner = learners(1)
    assert learner.write(".empty", "").exists(), "nothing can be written: then this test shows nothing"
    version = re.search(r"python(\d+\.\d+)", str(Path(os.__file__))).group(1)
    mark, written = Path(learner.home, "mark"), []
    for number, name in enumerate((*SHELLS, *PYTHONS)):
        text = (SHELL if name in SHELLS else PYTHON).format(name=name, mark=str(mark), number=number)
        written.append(learner.write(name.format(version=version), text))
    for name, text in OTHERS.items():
        written.append(learner.write(name.format(version=version), text.format(home=learner.home)))
    learner.marks = lambda: [line.split("|") for line in mark.read_text().splitlines()] if mark.exists() else []
    try:
        yield learner
    finally:
        hub.admin.stop(learner.name)
        end(outside(learner))
        for path in (*written, mark):
            path.unlink(missing_ok=True)


@pytest.mark.cut
def test_nothing_in_a_home_runs_outside_of_the_job_or_reaches_a_servers_variables(hub, home):
    """A server is started, stopped and started again, as by a learner who leaves something for the next start."""
    host = os.readlink("/proc/self/ns/net")

    def marks_outside():
        return [each for each in home.marks() if not A_JOB.search(each[1]) or each[2] == host]

    for _ in range(2):
        home.start(gpus=1)
        with home.kernel() as run:
            assert "HOME" in run("import os; print(*os.environ)")
        server = next(pid for pid, line in home.processes().items() if "jupyterhub-singleuser" in line)
        variables = Path(f"/proc/{server}/environ").read_text()
        assert "JUPYTERHUB_API_TOKEN" in variables
        words = ("RINGTREE_FROM_HOME", "SLURM_GET_USER_ENV", "BASH_ENV", "LD_PRELOAD")
        assert not (marks_outside() or [word for word in words if word in variables] or outside(home))
        hub.admin.stop(home.name)
    home.start(gpus=1)
    requests.post(f"{home.url}/api/terminals", headers=home.headers(), timeout=30)
    wait_for(lambda: ".bash_profile" in [name for name, *_ in home.marks()], "the terminal's shell", 30)
    names = {name for name, *_ in home.marks()}
    assert RUNS_INSIDE < names, f"only {names} ran: then this test shows nothing"
    assert not marks_outside() and not outside(home)


@pytest.mark.parametrize("text", ["sleep 900\n", "exit 3\n", "read -r answer < /dev/tty\n", "exec cat /dev/zero > /dev/null\n"])
def test_a_profile_that_is_slow_or_fails_stops_no_server(hub, learners, text):
    learner = learners(1)
    written = [learner.write(name, text) for name in (".bash_profile", ".profile")]
    try:
        learner.start(gpus=0)
    finally:
        hub.admin.stop(learner.name)
        end(outside(learner))
        for path in written:
            path.unlink()


@pytest.mark.parametrize("asked", [["--get-user-env"], ["--get-user-env=30L"], ["--export=HOME"]])
def test_whoever_may_submit_a_job_has_no_profile_run_outside_of_it(hub, home, asked):
    """By ssh, where the administrator allows more than a tunnel."""
    done = home.by_slurm("sbatch", "--parsable", "--mem=100M", *asked, "--wrap=touch ran")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not hub.admin.job(home.name), "the job to end", 60)
    ran = Path(home.home, "ran")
    assert ran.exists(), "the job did not run: then this test shows nothing"
    ran.unlink()
    assert not home.marks() and not outside(home)


def test_nothing_can_be_submitted_from_inside_a_server(hub, learners):
    learner = learners(1)
    learner.start(gpus=0)
    submit = "import subprocess; print(subprocess.run(['timeout', '30', *{!r}], capture_output=True, text=True).returncode)"
    with learner.kernel() as run:
        for command in (["sbatch", "--wrap=true"], ["srun", "true"], ["scontrol", "ping"]):
            told = run(submit.format(command))
            assert told.isdigit() and int(told), (command, told)
    assert len(hub.admin.job(learner.name).splitlines()) == 1, "its server alone"


STAYS = "import time; time.sleep(600)"
MOVES = """
import os, time
os.setsid()
while True:
    time.sleep(0.2)
    if os.fork():
        os._exit(0)
"""


@pytest.mark.cut
def test_what_a_learner_leaves_outside_of_every_job_is_ended(hub, learners):
    learner, other = learners(1), learners(2)
    learner.start(gpus=0)
    inside = set(learner.processes())
    drop = ["setpriv", f"--reuid={learner.uid}", f"--regid={learner.gid}", "--init-groups", "--"]
    for code in (STAYS, MOVES):
        for who in (drop, [*drop[:1], f"--reuid={other.uid}", *drop[2:]]):
            subprocess.Popen([*who, sys.executable, "-c", f"import os\nos.fork() and os._exit(0)\n{code}"]).wait()
    for each in (learner, other):
        assert len(outside(each)) == 2, "nothing was left: then this test shows nothing"
    teacher = people.Learner(hub, hub.teacher, "")
    marks = set(teacher.processes())
    try:
        wait_for(lambda: not outside(learner) and not outside(other), "what was left to end", 60)
        time.sleep(1)
        assert not outside(learner) and not outside(other)
    finally:
        for each in (learner, other):
            end(outside(each))
    assert inside <= set(learner.processes()) and learner.ready()
    assert marks and marks <= set(teacher.processes()), "the part that marks is the teacher's, and in no job"


BROKEN = {
    ".jupyter/jupyter_server_config.py": "raise SystemExit('this is a mistake in my own file')\n",
    ".ipython/profile_default/startup/00-first.py": "import os; os._exit(3)\n",
    ".ipython/profile_default/ipython_config.py": "raise SystemExit('another')\n",
    ".local/share/jupyter/kernels/python3/kernel.json": '{"argv": ["/bin/false"], "display_name": "none", "language": "python"}',
    ".bash_profile": "exit 3\n",
    ".bashrc": "exit 3\n",
}


def refused(hub, learner, **asked):
    """What the page says to a learner whose server does not start."""
    hub.admin.start(learner.name, **asked)
    *_, told = hub.admin.progress(learner.name)
    assert told.get("failed"), told
    return told["message"]


def in_a_terminal(learner, line):
    """Type a line into a new terminal of the learner's server."""
    name = requests.post(f"{learner.url}/api/terminals", headers=learner.headers(), timeout=30).json()["name"]
    url = f"{learner.url}/terminals/websocket/{name}".replace("http", "ws", 1)
    terminal = websocket.create_connection(url, header=learner.headers(), timeout=30)
    terminal.send(json.dumps(["stdin", f"{line}\r"]))
    return terminal


@pytest.mark.cut
def test_where_something_in_the_home_stops_a_server_its_page_says_what_and_its_learner_mends_it(hub, learners):
    learner = learners(1)
    written = [learner.write(name, text) for name, text in BROKEN.items()]
    try:
        told = refused(hub, learner, gpus=0)
        assert "this is a mistake" in told and "home" in told and "Settings: none of your own" in told, told
        learner.start(gpus=0, settings="clean")
        with learner.kernel() as run:
            assert run("import os; print(os.getcwd())") == learner.home
        mended = "; ".join(f"mv {name} {name}.old" for name in BROKEN)
        terminal = in_a_terminal(learner, f"cd && {mended.replace('; ', ' && ')}")
        wait_for(lambda: not any(path.exists() for path in written), "what is typed to be done", 30)
        terminal.close()
        hub.admin.stop(learner.name)
        learner.start(gpus=0)
    finally:
        hub.admin.stop(learner.name)
        for path in written:
            for each in (path, path.with_name(f"{path.name}.old")):
                each.unlink(missing_ok=True)


def test_a_full_home_is_named_as_such_and_its_learner_makes_room(hub, learners):
    learner = learners(1)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=64k,uid={learner.uid},mode=700", "home", learner.home], check=True)
    try:
        fills = Path(learner.home, "fills")
        learner.as_user("dd", "if=/dev/zero", f"of={fills}")
        assert "Your home is full" in refused(hub, learner, gpus=0)
        learner.start(gpus=0, settings="clean")
        terminal = in_a_terminal(learner, f"rm {fills}")
        wait_for(lambda: not fills.exists(), "what is typed to be done", 30)
        terminal.close()
        with learner.kernel() as run:
            assert run("print('still here')") == "still here"
    finally:
        hub.admin.stop(learner.name)
        subprocess.run(["umount", "--lazy", learner.home], check=True)


def test_without_settings_of_the_learners_the_hubs_own_hold(hub, learners):
    """They say what a link may bring, and what a notebook may do."""
    learner = learners(1)
    learner.start(gpus=0, settings="clean")
    page = requests.get(f"{learner.url}/lab", headers=learner.headers(), timeout=60)
    assert "script-src 'nonce-" in page.headers["Content-Security-Policy"]
    asked = {"repo": "file:///tmp/x", "branch": "main", "targetpath": "x"}
    assert requests.get(f"{learner.url}/git-pull/api", headers=learner.headers(), params=asked, timeout=60).status_code == 403


def test_what_lies_in_place_of_a_servers_log_and_socket_keeps_no_server_from_starting(hub, learners):
    """Their learner may lay anything there; root takes it away, and follows no link."""
    learner = learners(1)
    learner.start(gpus=0)
    folder, kept = hub.folder / "run" / learner.name, learner.write("kept/file", "whole")
    hub.admin.stop(learner.name)
    lay = f"cd {folder} && rm -rf server.* && mkdir server.log && ln -s {kept.parent} server.log/link && mkdir server.sock"
    for more in ("mkfifo server.log.1", f"ln -s {kept.parent} server.log.1"):
        assert learner.as_user("sh", "-c", f"{lay} && {more}").returncode == 0
        learner.start(gpus=0)
        hub.admin.stop(learner.name)
    assert kept.read_text() == "whole"


def test_a_folder_that_a_learner_lays_holds_up_nobody_else(hub, learners):
    """The hub does one thing at a time: while it removed 300,000 files of a learner's, nobody was answered for 14 seconds."""
    learner = learners(1)
    folder = hub.folder / "run" / learner.name
    learner.start(gpus=0)
    hub.admin.stop(learner.name)
    lay = f"cd {folder} && rm -rf server.sock && mkdir server.sock && cd server.sock && seq 1000 | xargs touch"
    assert learner.as_user("sh", "-c", lay).returncode == 0
    learner.start(gpus=0)
    aside = max(folder.glob("server.sock.*"))
    assert len(list(aside.iterdir())) == 1000, "moved away as it was: that takes as long however much is in it"
    assert learner.as_user("rm", "-r", aside).returncode == 0, "it is still the learner's"


PRINTS = """
import os
with open(f"/proc/{os.getppid()}/fd/1", "w") as said:
    for number in range(100_000):
        print(number, "x" * 100, file=said)
    print("the last", file=said)
"""


def test_of_a_servers_log_the_end_is_kept_and_no_more(hub, learners):
    learner = learners(1)
    learner.start(gpus=0)
    folder = hub.folder / "run" / learner.name
    with learner.kernel() as run:
        assert run(PRINTS) == ""
    logs = [folder / "server.log.1", folder / "server.log"]
    wait_for(lambda: "the last" in logs[1].read_text(), "the log to be written", 30)
    assert 1_000_000 < sum(path.stat().st_size for path in logs) < 2_100_000 and "99999 xxx" in logs[1].read_text()
    assert learner.ready()


@pytest.mark.parametrize(
    "group, is_job",
    [
        ("5:devices:/slurm_hub8000/uid_1001/job_7/step_batch/task_0", True),
        ("8:freezer:/slurm/uid_1001/job_7/step_0", True),
        ("6:freezer:/docker/4f2a/slurm_server/uid_1001/job_7/step_batch", True),
        ("0::/system.slice/server_slurmstepd.scope/job_7/step_batch/user/task_0", True),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user", True),
        ("0::/user.slice/user-1001.slice/session-3.scope", False),
        ("0::/user.slice/user-1001.slice/user@1001.service/slurmstepd.scope/job_7", False),
        ("1:name=systemd:/user.slice/user-1001.slice/slurm_server/uid_1001/job_7", False),
        ("0::/system.slice/slurmd.service", False),
        ("0::/", False),
    ],
)
def test_a_job_is_told_by_its_control_group_and_not_by_one_that_a_learner_makes(group, is_job):
    assert bool(strays.IN_A_JOB.search(f"11:cpu:/\n{group}\n")) is is_job
