"""What Slurm is told of a machine; no hub is needed."""

import http.server
import os
import re
import socket
import threading
import types

import install
import machine
import namespaces
import pytest

LOOKED_UP = dict(host="server", cpus="2", sockets="1", cores="2", threads="1", memory="8000")
NONE = {"shared": 0, "sharing": 0}
REST = dict(
    node="server",
    controller_port=1,
    node_port=2,
    slurm_user="slurm",
    munge_socket="socket",
    state="/s",
    logs="/l",
    programs="/p",
)


@pytest.mark.parametrize("address", ["127.0.1.1", "10.0.0.5"])
def test_slurm_is_spoken_to_where_it_listens(tmp_path, monkeypatch, address):
    """It listens at the address of the machine's own name, which Debian makes 127.0.1.1, and at no other."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))])
    machine.fill(tmp_path, **LOOKED_UP, address=machine.own_address(), gpus=[], sharers=4, hours=1, **REST)
    written = (tmp_path / "slurm.conf").read_text()
    assert f"SlurmctldHost=server({address})" in written and f"NodeAddr={address} " in written
    assert "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" in written


def test_what_slurm_was_told_of_a_node_is_read_again(tmp_path):
    assert machine.node_in(tmp_path / "slurm.conf") == {}
    gpus, cards = ["/dev/nvidia0", "/dev/nvidia1"], ["/dev/infiniband/uverbs0"]
    machine.fill(tmp_path, **LOOKED_UP, address="127.0.1.1", gpus=gpus, cards=cards, sharers=4, hours=1, **REST)
    assert machine.node_in(tmp_path / "slurm.conf") == {"CPUs": 2, "RealMemory": 8000 - 1024, "gpus": 2, "sharers": 4} | NONE
    assert " Gres=gpu:2,nic:1 " in (tmp_path / "slurm.conf").read_text()
    wanted = [f"Name=gpu File={path}" for path in gpus] + ["Name=nic File=/dev/infiniband/uverbs0"]
    assert (tmp_path / "gres.conf").read_text().splitlines()[-3:] == wanted
    conf = tmp_path / "slurm.conf"
    conf.write_text("# NodeName=x RealMemory=1\nNodeName=a CPUs=8 RealMemory=21503 State=UNKNOWN\nNodeName=b RealMemory=4096\n")
    assert machine.node_in(conf) == {"CPUs": 8, "RealMemory": 21503, "gpus": 0, "sharers": 1} | NONE


def test_gpus_that_are_set_aside_have_a_type_and_parts_of_their_own(tmp_path):
    gpus = [f"/dev/nvidia{number}" for number in range(3)]
    machine.fill(tmp_path, **LOOKED_UP, address="127.0.1.1", gpus=gpus, shared=2, sharing=3, sharers=4, hours=1, **REST)
    found = machine.node_in(tmp_path / "slurm.conf")
    assert (found["gpus"], found["shared"], found["sharing"]) == (3, 2, 3)
    assert " Gres=gpu:whole:1,gpu:shared:2,shard:6 " in (tmp_path / "slurm.conf").read_text()
    kinds = ["gpu Type=whole", "gpu Type=shared", "gpu Type=shared", "shard Count=3", "shard Count=3"]
    wanted = [f"Name={kind} File={path}" for kind, path in zip(kinds, [*gpus, *gpus[1:]])]
    assert (tmp_path / "gres.conf").read_text().splitlines()[-5:] == wanted


@pytest.mark.parametrize(
    ("shared", "sharing", "jobs", "told"),
    [
        (3, 4, "", "has 2 GPUs; give a number from 0 to 2"),
        (-1, 4, "", "from 0 to 2"),
        (1, 1, "", "give 2 or more, or --shared 0"),
        (1, 4, "7\n8\n", "under running jobs, and there are 2"),
        (1, 4, "", None),
        (0, 4, "7\n", None),
    ],
)
def test_what_cannot_be_set_aside_is_said(tmp_path, monkeypatch, shared, sharing, jobs, told):
    gpus = ["/dev/nvidia0", "/dev/nvidia1"]
    monkeypatch.setattr(install, "SLURM", tmp_path)
    monkeypatch.setattr(machine, "find_gpus", lambda: gpus)
    # Not the function of the module itself: the thread of sampling.py calls it too.
    slurm = types.SimpleNamespace(run=lambda *_, **__: types.SimpleNamespace(stdout=jobs))
    monkeypatch.setattr(install, "subprocess", slurm)
    machine.fill(tmp_path, **LOOKED_UP, address="127.0.1.1", gpus=gpus, sharers=4, hours=1, **REST)
    found = install.cannot_set_aside(shared, sharing)
    assert found is None if told is None else told in found


@pytest.mark.parametrize(
    ("cpus", "gpus", "offered"),
    [(2, 4, (1, 0.25)), (2, 0, (1, 1)), (16, 0, (2, 8)), (64, 4, (4, 8)), (256, 8, (4, 16))],
)
def test_cpus_grow_with_the_machine_and_with_the_gpus(cpus, gpus, offered):
    assert machine.cpus_offered({"CPUs": cpus, "gpus": gpus, "sharers": 4}) == offered


def card(folder, vendor, kind):
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


def test_gpus_without_a_device_file_and_an_old_driver_are_doubted(tmp_path, monkeypatch):
    for number, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x10de", "0x068000"), ("0x1a03", "0x030000")]):
        card(tmp_path / "pci" / str(number), vendor, kind)  # a GPU, a switch between GPUs, another maker's screen
    for name, there in dict(PCI="pci", DRIVER="version").items():
        monkeypatch.setattr(machine, name, tmp_path / there)
    monkeypatch.setattr(machine, "find_gpus", lambda: [])
    assert [re.search("has 1 of NVIDIA's GPUs, and 0 device files", each) is not None for each in machine.doubts()] == [True]
    monkeypatch.setattr(machine, "find_gpus", lambda: ["/dev/nvidia0"])
    (tmp_path / "version").write_text("580.65.06\n")
    assert not list(machine.doubts())
    (tmp_path / "version").write_text("570.124.06\n")
    assert ["needs 580 or newer" in each for each in machine.doubts()] == [True]


def test_a_machine_whose_name_has_no_address_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "nobody-knows.invalid")
    with pytest.raises(
        OSError, match="nobody-knows.invalid, has no address: write '127.0.1.1 nobody-knows.invalid' into /etc/hosts"
    ):
        machine.own_address()


@pytest.mark.parametrize(
    ("listens", "told"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://0.0.0.0:443", "https://labs.example"),
        ("https://0.0.0.0:8443", "https://labs.example:8443"),
        ("https://labs.example", "https://labs.example"),
    ],
)
def test_the_address_that_is_told_is_one_for_a_browser(monkeypatch, listens, told):
    monkeypatch.setattr(socket, "getfqdn", lambda: "labs.example")
    assert install.spoken(listens) == told


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/hub/api/" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def answers():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_does_not_answer_yet_is_said_and_where_to_look(monkeypatch, answers):
    told = types.SimpleNamespace(stdout="", stderr="slurm_load_partitions: Unable to contact slurm controller")
    monkeypatch.setattr(install, "subprocess", types.SimpleNamespace(run=lambda *_, **__: told))
    assert re.match("Slurm has no node ready .*Unable to contact.*: see /var/log/slurm", install.not_yet(answers, 0))
    told.stdout = "down"
    assert install.not_yet(answers, 0).startswith("Slurm has no node ready")
    told.stdout = "mixed none"
    assert install.not_yet(answers, 0) is None
    asked = []
    slurm = types.SimpleNamespace(run=lambda command, **_: asked.append(command) or told)
    monkeypatch.setattr(install, "subprocess", slurm)
    reasons = {"gres/gpu count reported lower than configured (0 < 4)": True, "Low RealMemory": True, "by hand": False}
    for reason, opens in reasons.items():
        told.stdout = f"drained {reason}"
        asked.clear()
        assert install.not_yet(answers, 0).startswith("Slurm has no node ready")
        assert (["scontrol", "update", "nodename=server", "state=resume"] in asked) == opens
    told.stdout = "idle none"
    assert "The hub does not answer at http://127.0.0.1:1/hub/api/" in install.not_yet("http://127.0.0.1:1", 0)


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """Where AppArmor says whether it refuses namespaces, and where profiles lie; what is loaded is noted, not done."""
    done = []
    for name in ("REFUSED", "KEPT", "LOADED"):
        monkeypatch.setattr(namespaces, name, tmp_path / name)
    monkeypatch.setattr(namespaces, "load", lambda: done.append("loaded"))
    monkeypatch.setattr(namespaces, "unload", lambda: done.append("unloaded"))
    monkeypatch.setattr(install, "RECORD", tmp_path / "record" / "made.json")
    monkeypatch.setattr(install, "UNITS", tmp_path / "units")
    monkeypatch.setattr(install, "has_systemd", lambda: False)
    return done


def write_units(monkeypatch):
    monkeypatch.setattr(install.Units, "texts", lambda self: ())
    units = install.Units(types.SimpleNamespace(ssh="tunnel", teacher="teacher"))
    units.do(install.Record())
    return {path.parent.name: path.read_text() for path in units.beside}


def test_where_namespaces_are_refused_slurmd_alone_gets_a_profile_which_is_taken_away_again(pretended, monkeypatch):
    namespaces.REFUSED.write_text("1\n")
    step = install.Leave(None)
    assert str(namespaces.KEPT) in step.plan(install.Record())
    step.do(install.Record())
    assert namespaces.KEPT.read_text() == namespaces.PROFILE and step.plan(install.Record()) is None
    assert [name for name, text in write_units(monkeypatch).items() if "AppArmorProfile=ringtree-hub\n" in text] == [
        "slurmd.service.d"
    ]
    assert namespaces.under_leave() == ["aa-exec", "--profile=ringtree-hub", "--"]
    namespaces.LOADED.write_text("ringtree-hub (unconfined)\n")
    step.undo(install.Record())
    assert not namespaces.KEPT.exists() and pretended == ["loaded", "unloaded"]


@pytest.mark.parametrize("said", [None, "0\n"])
def test_where_nobody_is_refused_namespaces_nothing_is_changed_for_them(pretended, monkeypatch, said):
    if said:
        namespaces.REFUSED.write_text(said)
    step = install.Leave(None)
    assert step.plan(install.Record()) is None and namespaces.under_leave() == []
    with namespaces.leave():
        step.undo(install.Record())
    assert not any("AppArmorProfile" in text for text in write_units(monkeypatch).values()) and pretended == []


def test_a_profile_that_was_loaded_before_stays(pretended):
    namespaces.REFUSED.write_text("1\n")
    with namespaces.leave():
        assert pretended == ["loaded"]
    assert pretended == ["loaded", "unloaded"]
    namespaces.LOADED.write_text("firefox (enforce)\nringtree-hub (unconfined)\n")
    with namespaces.leave():
        pass
    assert pretended == ["loaded", "unloaded"]


# ------------------------------------------------------------ options

SAID = ["--address", "https://0.0.0.0:443", "--certificate", "a.pem", "--key", "b.pem", "--teacher", "prof", "--sharers", "8"]


def test_an_upgrade_repeats_no_option(monkeypatch, tmp_path):
    monkeypatch.setattr(install, "RECORD", tmp_path / "record" / "made.json")
    first = install.options(["install", *SAID], install.Record())
    assert (first.certificate, first.key) == (os.path.abspath("a.pem"), os.path.abspath("b.pem")), "systemd wants whole paths"
    install.Record().note(options=first.options)
    again = install.options(["install", "--yes"], install.Record())
    assert (again.options, again.yes) == (first.options, True)
    assert (again.address, again.teacher, again.sharers, again.hours) == ("https://0.0.0.0:443", "prof", 8, 12)
    plain = install.options(["install", "--address", "http://127.0.0.1:8000"], install.Record())
    assert (plain.certificate, plain.key, plain.teacher) == (None, None, "prof")


def test_a_first_time_has_the_usual_options(monkeypatch, tmp_path):
    monkeypatch.setattr(install, "RECORD", tmp_path / "none.json")
    given = install.options(["install"], install.Record())
    assert given.options == {name: usual for name, (usual, *_) in install.OPTIONS.items()} and not given.yes
