"""`make hub-demo` from its first line to Ctrl-C; and where a hub cannot run, who is told."""

import contextlib
import fcntl
import grp
import inspect
import os
import pwd
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from people import wait_for
from test_security import logged_in

import conftest


@pytest.fixture
def demo(tmp_path):
    """The program as the Makefile runs it, once it has said all: the process, and the file that it speaks into."""
    if reason := conftest.reason_to_skip():
        pytest.skip(reason)
    command = [sys.executable, conftest.HUB / "server" / "demo.py", "--course", "tools/course.py"]
    said = tmp_path / "said"
    with open(said, "wb") as file:
        # Tests that a shell has sent to its background ignore an interrupt, and so would this; and it ends with them.
        command = ["env", "--default-signal=INT", "setpriv", "--pdeathsig=INT", "--", *map(str, command)]
        here = dict(cwd=conftest.ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **here)
    try:
        wait_for(lambda: "Ctrl-C ends it all" in said.read_text() or process.poll() is not None, "the demo")
        assert process.poll() is None, said.read_text()
        yield process, said
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


@contextlib.contextmanager
def nobody_else_makes_accounts():
    """Another hub of these tests would take a name that has just become free."""
    turn = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
    finally:
        os.close(turn)


def processes_of(folder):
    """Numbers of the processes that work in a folder or have it among their words or variables."""
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # one that has ended meanwhile
            told = (each / "cmdline").read_bytes() + (each / "environ").read_bytes() + os.fsencode(os.readlink(each / "cwd"))
            if os.fsencode(folder) in told:
                yield int(each.name)


def groups_of(hub):
    """What Slurm has made of control groups for a hub's node: of version 1, one for each kind, or of version 2."""
    groups = Path("/sys/fs/cgroup")
    return [*groups.glob(f"*/slurm_{hub}"), *groups.glob(f"**/{hub}_slurmstepd.scope")]


def test_the_demo_says_where_and_as_whom_and_an_interrupt_leaves_nothing(demo):
    process, said = demo
    told = said.read_text()
    address = told.splitlines()[0]
    assert re.search(r"^[1-9]\d* GPUs \((pretended|real)\)$", told, re.MULTILINE)
    accounts = dict(re.findall(r"^user (\S+) +password (\S+)$", told, re.MULTILINE))
    learners = [name for name in accounts if name.startswith("learner-")]
    assert len(learners) == 2 and len(accounts) == 3, accounts  # and the teacher

    link = re.search(r"^The course: (.+)$", told, re.MULTILINE)[1]
    course = Path(urlsplit(parse_qs(urlsplit(link).query)["repo"][0]).path)
    folder = course.parent
    assert link.startswith(f"{address}/hub/") and (course / "HEAD").is_file()
    for name in learners:
        session = logged_in(types.SimpleNamespace(address=address), types.SimpleNamespace(name=name, password=accounts[name]))
        page = session.get(link, timeout=30)
        assert page.status_code == 200 and "Choose your server" in page.text, page.url

    proxy = pwd.getpwuid((folder / "proxy").stat().st_uid).pw_name
    groups = {each.gr_name for each in grp.getgrall() if learners[0] in each.gr_mem}
    assert proxy.startswith("ringtree-proxy") and groups and len(list(processes_of(folder))) > 5
    hub = f"hub{urlsplit(address).port}"
    left = [Path(where, f"left-by-{learners[0]}", "deep", "file") for where in ("/tmp", "/var/tmp", "/dev/shm")]
    for path in left:
        as_one = ["setpriv", f"--reuid={learners[0]}", "--clear-groups", "sh", "-c"]
        subprocess.run([*as_one, f"mkdir -p {path.parent} && touch {path} && chmod 0 {path.parent}"], check=True)
    assert all(path.exists() for path in left)
    secret = [line for line in Path("/etc/shadow").read_text().splitlines() if line.split(":")[0] in accounts]
    assert len(secret) == 3
    with nobody_else_makes_accounts():
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, said.read_text()
        assert not {*accounts, proxy} & {each.pw_name for each in pwd.getpwall()}
        assert not {*accounts, proxy, *groups} & {each.gr_name for each in grp.getgrall()}
        backups = {path: path.read_text() for path in Path("/etc").glob("*-") if path.is_file()}
    assert not [path for path, text in backups.items() for line in secret if line in text]
    assert not [path for path in left if path.parents[1].exists()]
    assert said.read_text().endswith("Ending servers, hub and Slurm, and removing the accounts.\n")
    assert not folder.exists() and not Path("/run", hub).exists() and not list(processes_of(folder)) and not groups_of(hub)


def test_removing_what_learners_left_follows_no_link_that_is_laid_meanwhile(tmp_path):
    """Whoever owns the folder swaps it after root has looked at what lies in it."""
    import parts

    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "folder").mkdir(parents=True)
    for place in ("file", "folder/file"):
        (elsewhere / place).touch()
    shared = tmp_path / "tmp" / "shared"
    for name in ("file", "folder"):
        shared.mkdir(parents=True)
        shared.chmod(0o777)
        (shared / name).mkdir() if name == "folder" else (shared / name).touch()

        def is_theirs(uid):
            swapped = shared.is_symlink()
            if not swapped and seen.pop() == name:
                shared.rename(tmp_path / f"swapped-{name}")
                shared.symlink_to(elsewhere)
            return shared.is_symlink()

        seen = [name, "shared"]
        parts.remove_below(tmp_path / "tmp", is_theirs)
        assert shared.is_symlink() and not (tmp_path / f"swapped-{name}" / name).exists(), "what was looked at is removed"
        assert (elsewhere / "file").exists() and (elsewhere / "folder" / "file").exists()
        shared.unlink()


# ------------------------------------------------------------ where none can run

NOT_ROOT = "It needs root, since it makes users and starts their servers: run it with sudo."
NO_GROUPS = "No control groups are mounted at /sys/fs/cgroup, by which Slurm holds a job to its GPUs."
NO_NAMESPACE = "A user may not make a network namespace of its own here: unshare: unshare failed: Operation not permitted."
NO_SLURM = "slurmctld, slurmd: not found; on Debian and Ubuntu: apt install slurm-wlm munge git."
NO_JOB = "Slurm alone, with one node and one job, does not work on this machine: the job was in no control group."


@pytest.fixture
def lacking(monkeypatch):
    """`lacking(must, reason, job)`: what a hub's tests do where that is in the way, of a hub and of a job of Slurm's."""
    import bare_slurm
    import parts

    def told(must, reason, job=None):
        monkeypatch.setenv("RINGTREE_HUB", str(conftest.HUB))
        monkeypatch.setenv("RINGTREE_HUB_MUST", must)
        monkeypatch.setattr(conftest.importlib.util, "find_spec", lambda name: name)
        monkeypatch.setattr(parts, "missing", lambda: reason)
        monkeypatch.setattr(bare_slurm, "missing", lambda: job)
        return conftest.reason_to_skip()

    return told


@pytest.mark.parametrize("reason", [NOT_ROOT, NO_GROUPS, NO_NAMESPACE, NO_SLURM, None])
def test_where_a_hub_cannot_run_its_tests_are_skipped_with_the_reason(lacking, reason):
    assert lacking("", reason) == reason
    assert lacking("", None, NO_JOB) == NO_JOB


def test_where_a_hub_must_be_tried_what_can_be_mended_is_a_failure(lacking):
    with pytest.raises(pytest.fail.Exception, match=re.escape(NO_SLURM)):
        lacking("1", NO_SLURM)


def test_the_whole_proof_has_a_hub_tried_as_root():
    said = (conftest.ROOT / ".ci" / "run").read_text()
    assert '[ "$(id -u)" != 0 ] || export RINGTREE_HUB_MUST=1\n' in said.partition("make test-hub HUB=")[0]


def test_what_a_machine_does_not_allow_is_said_in_the_hubs_own_words():
    import bare_slurm
    import parts

    said = inspect.getsource(parts.missing) + inspect.getsource(bare_slurm)
    assert [words for words in conftest.NOT_ALLOWED if words not in said] == []


@pytest.mark.parametrize("reason", [NOT_ROOT, NO_GROUPS, NO_NAMESPACE, None])
def test_where_a_hub_must_be_tried_what_a_machine_does_not_allow_is_skipped_still(lacking, reason):
    assert lacking("1", reason) == reason
    assert lacking("1", None, NO_JOB) == NO_JOB
