"""What Slurm is told of a machine; no hub is needed."""

import http.server
import re
import socket
import threading
import types

import install
import machine
import namespaces
import pytest

LOOKED_UP = dict(host="server", cpus="2", sockets="1", cores="2", threads="1", memory="8000")
REST = dict(node="server", controller_port=1, node_port=2, slurm_user="slurm", munge_socket="socket", state="/s", logs="/l", programs="/p")


@pytest.mark.parametrize("address", ["127.0.1.1", "10.0.0.5"])
def test_slurm_is_spoken_to_where_it_listens(tmp_path, monkeypatch, address):
    """It listens at the address of the machine's own name, which Debian makes 127.0.1.1, and at no other."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))])
    machine.fill(tmp_path, **LOOKED_UP, address=machine.own_address(), gpus=[], sharers=4, hours=1, **REST)
    written = (tmp_path / "slurm.conf").read_text()
    assert f"SlurmctldHost=server({address})" in written and f"NodeAddr={address} " in written
    assert "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" in written


def test_a_machine_whose_name_has_no_address_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "nobody-knows.invalid")
    with pytest.raises(OSError, match="nobody-knows.invalid, has no address: write '127.0.1.1 nobody-knows.invalid' into /etc/hosts"):
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
    monkeypatch.setattr(install.subprocess, "run", lambda *_, **__: told)
    assert re.match("Slurm has no node ready .*Unable to contact.*: see /var/log/slurm", install.not_yet(answers, 0))
    told.stdout = "down"
    assert install.not_yet(answers, 0).startswith("Slurm has no node ready")
    told.stdout = "mixed"
    assert install.not_yet(answers, 0) is None
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
    units = install.Units(None)
    units.do(install.Record())
    return {path.parent.name: path.read_text() for path in units.beside}


def test_where_namespaces_are_refused_slurmd_alone_gets_a_profile_which_is_taken_away_again(pretended, monkeypatch):
    namespaces.REFUSED.write_text("1\n")
    step = install.Leave(None)
    assert str(namespaces.KEPT) in step.plan(install.Record())
    step.do(install.Record())
    assert namespaces.KEPT.read_text() == namespaces.PROFILE and step.plan(install.Record()) is None
    assert [name for name, text in write_units(monkeypatch).items() if "AppArmorProfile=ringtree-hub\n" in text] == ["slurmd.service.d"]
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
