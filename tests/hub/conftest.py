"""A real hub for these tests: `make test-hub`. Where one cannot run, they are skipped, each by its name and with the reason."""

import contextlib
import importlib.util
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path

import last_whole_run
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
HUB = Path(os.environ.get("RINGTREE_HUB", ROOT / "hub"))
sys.path[:0] = [str(HUB / "server"), str(ROOT / "tests"), str(Path(__file__).resolve().parent)]
# Whatever a page might ask from the network fails, as it does where a hub stands alone.
ONLY_HERE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


# Minutes each, most of them waiting: what begins with them is done soonest.
LONG = ("test_grading.py", "test_two_nodes.py", "test_parts_killed.py", "test_controller_killed.py", "test_allotments.py")


# A whole run counts where these alone were skipped, each for what the machine is.
MAY_BE_SKIPPED = ("here AppArmor refuses nobody a namespace", "no systemd-analyze here")


def pytest_addoption(parser):
    parser.addoption("--cut", action="store_true", help="run only the tests marked `cut`, with fewer submissions")
    parser.addoption("--whole", action="store_true", help="note in tests/hub/last-whole-run that all of them passed")


def pytest_configure(config):
    """What Ubuntu wants before a hub can run is there for all workers, from before the first to after the last."""
    config.addinivalue_line("markers", "cut: runs in every .ci/run, from the log-in to a mark, with one attack of each kind")
    if "RINGTREE_HUB" in os.environ and os.geteuid() == 0 and not hasattr(config, "workerinput"):
        import namespaces

        leave = contextlib.ExitStack()
        leave.enter_context(namespaces.leave())
        config.add_cleanup(leave.close)
        config.tried = last_whole_run.fingerprint() if config.getoption("--whole", False) else None


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
    if config.getoption("--cut", False):
        left_out = [item for item in items if not item.get_closest_marker("cut")]
        items[:] = [item for item in items if item.get_closest_marker("cut")]
        config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session, exitstatus):
    """Note a whole run that passed, of files that stayed the same meanwhile."""
    if not (tried := getattr(session.config, "tried", None)):
        return
    skipped = session.config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    reasons = [str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped]
    if whole_run_counts(exitstatus, reasons) and tried == last_whole_run.fingerprint():
        last_whole_run.write(tried)


def whole_run_counts(exitstatus, reasons):
    """Whether a run ended well, and skipped nothing but what MAY_BE_SKIPPED has."""
    return exitstatus == 0 and all(reason.startswith(MAY_BE_SKIPPED) for reason in reasons)


# What no package mends: where a machine does not allow it, no hub can be tried.
NOT_ALLOWED = ("It needs root", "No control groups", "A user may not make a network namespace", "Slurm alone")


def reason_to_skip():
    """Why no hub can be tried here, in a sentence, or None.

    With RINGTREE_HUB_MUST=1, as .ci/run has it, only what a machine does not allow is such a reason, and all else a failure.
    """
    if "RINGTREE_HUB" not in os.environ:
        return "a hub is tried by `make test-hub`, in its own environment"
    reason = _missing()
    if reason and os.environ.get("RINGTREE_HUB_MUST") and not reason.startswith(NOT_ALLOWED):
        pytest.fail(f"A hub must be tried here, and cannot be: {reason}")
    return reason


def _missing():
    if not importlib.util.find_spec("jupyterhub"):
        return f"{sys.executable} has no jupyterhub: `make test-hub` has its own environment."
    import bare_slurm
    import parts

    return parts.missing() or bare_slurm.missing()


@pytest.fixture(scope="session")
def hub():
    """A hub with four pretended GPUs and one for two to share, as `make hub-demo` starts it; the tests are a service of it."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    import parts
    import people
    import sampling

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside, nothing is left either
    token = secrets.token_hex(32)
    hub = parts.Hub(
        tempfile.mkdtemp(prefix="ringtree-hub-"),
        ROOT / "tools" / "course.py",
        gpus=5,
        sharers=8,
        shared=1,
        sharing=2,
        config=Path(people.__file__).with_name("hub_config.py"),
        settings={"RINGTREE_HUB_TESTS": token},
    )
    hub.admin = people.Administrator(hub, token)
    # Groups that a test makes for a while: see `people.in_group`.
    hub.settings |= {f"RINGTREE_HUB_{who}": f"{hub.name}-{who.lower()}" for who in ("ADMINS", "ASSISTANTS")}
    try:
        hub.start()
        with sampling.Sampled(hub) as seen:
            people.try_out(hub)
            yield hub
        assert not seen.twice, f"GPUs that two had at once, of {seen.looks} looks: {seen.twice}"
    finally:
        hub.end()
    assert not (left := people.left_by(hub)), f"users who could not be removed, since they still have processes: {left}"


@pytest.fixture(scope="session")
def chromium(hub):
    from helpers import browser
    from playwright.sync_api import sync_playwright

    if not browser.find_chromium():
        pytest.skip("no Chromium found")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=browser.find_chromium(), args=["--no-sandbox", ONLY_HERE])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def everyone(hub):
    """Learners by number: `everyone(1)` is the first, made when first asked for."""
    from people import Learner

    made = []

    def number(which):
        while len(made) < which:
            made.append(Learner(hub, *hub.accounts.add()))
        return made[which - 1]

    return number


@pytest.fixture(scope="module")
def pair(hub, everyone):
    """Two learners with a server and a kernel each: a victim with ranks, what is known of the victim, and the attacker.

    (victim, attacker, the attacker's kernel, {"run": the victim's kernel, "pid", "memory", "folder", "connection"}).
    """
    from people import UNTRUE, VICTIM, wait_for

    victim, attacker = everyone(1), everyone(2)
    attacker.write(".jupyter/jupyter_server_config.py", UNTRUE)
    os.chmod(victim.home, 0o755)  # as useradd makes it
    for learner in (victim, attacker):
        hub.admin.start(learner.name, gpus=1, gib=4)
    for learner in (victim, attacker):
        wait_for(learner.ready, f"{learner.name}'s server")
    with victim.kernel() as run, attacker.kernel() as theirs:
        pid, memory, folder, connection = run(VICTIM).split()
        yield victim, attacker, theirs, dict(pid=int(pid), memory=memory, folder=folder, connection=connection, run=run)
    for learner in (victim, attacker):
        hub.admin.stop(learner.name)


@pytest.fixture
def learners(hub, everyone):
    """The same, and whatever servers a test leaves are stopped after it."""
    yield everyone
    for name in hub.accounts.made:
        hub.admin.stop(name)
