"""hub/SECURITY.md, sentence by sentence: what one learner tries against another, both real users of the system."""

import re
import signal
import sys
from pathlib import Path

import pytest
import requests
from people import wait_for

PAGE = Path(__file__).resolve().parent.parent.parent / "hub" / "SECURITY.md"
CONNECT = """
import socket
try:
    socket.socket(socket.AF_UNIX).connect({path!r}); print("connected")
except OSError as error:
    print(error.strerror)
"""
VICTIM = """
import os, glob, ringtree
from multiprocessing import shared_memory
ranks = ringtree.start(2)
memory = shared_memory.SharedMemory(create=True, size=8)
print(os.getpid(), memory._name, os.environ["TMPDIR"])
"""


def test_each_sentence_names_a_test():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    here = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    closed = PAGE.read_text().partition("## What is closed")[2].partition("\n## ")[0]
    lines = [line for line in closed.splitlines() if line.startswith("- ")]
    assert lines and all(re.search(r"\(`test_\w+`\)$", line) for line in lines)
    assert named <= here, named - here


@pytest.fixture(scope="module")
def pair(hub, everyone):
    """Two learners with a server and ranks: a victim, what is known of the victim, and the attacker."""
    victim, attacker = everyone(1), everyone(2)
    for learner in (victim, attacker):
        hub.admin.start(learner.name, gpus=1, gib=4)
    for learner in (victim, attacker):
        wait_for(learner.ready, f"{learner.name}'s server")
    with victim.kernel() as run, attacker.kernel() as theirs:
        pid, memory, folder = run(VICTIM).split()
        yield victim, attacker, theirs, dict(pid=int(pid), memory=memory, folder=folder, run=run)
    for learner in (victim, attacker):
        hub.admin.stop(learner.name)


def attack(theirs, code):
    """What happens to the attacker's code in their own notebook: its output, or the error's own words."""
    return theirs(f"try:\n    print({code})\nexcept Exception as error:\n    print(type(error).__name__)")


def test_homes_and_the_hubs_files_are_closed(hub, pair):
    victim, attacker, theirs, known = pair
    ours = [hub.folder / name for name in ("private", "proxy", "logs", f"run/{victim.name}")]
    for closed in (victim.home, known["folder"], *ours):
        assert attack(theirs, f"__import__('os').listdir({str(closed)!r})") == "PermissionError", closed
        assert attacker.as_user("ls", closed).returncode != 0
    for name in ("hub.sqlite", "cookie-secret", "munge.key", "proxy-token"):
        assert (hub.folder / "private" / name).exists()
        assert attacker.as_user("cat", hub.folder / "private" / name).returncode != 0


def test_no_socket_file_of_anothers_can_be_connected_to(hub, pair):
    victim, attacker, theirs, known = pair
    found = Path("/proc/net/unix").read_text() + known["run"]("print(open('/proc/net/unix').read())")
    mine = (known["folder"], str(hub.folder / "run" / victim.name), str(hub.folder / "proxy"))
    paths = {line.split()[-1] for line in found.splitlines() if line.split()[-1].startswith(mine)}
    assert any("server.sock" in path for path in paths) and any(path.startswith(known["folder"]) for path in paths)
    for path in paths:
        assert theirs(CONNECT.format(path=path)) == "Permission denied", path
        assert attacker.as_user(sys.executable, "-c", CONNECT.format(path=path)).stdout.strip() == "Permission denied", path


def test_ports_of_gloo_cannot_be_reached(hub, pair):
    victim, attacker, theirs, known = pair
    listening = [line.split() for line in known["run"]("print(open('/proc/net/tcp').read())").splitlines()[1:]]
    ports = [int(line[1].split(":")[1], 16) for line in listening if line[3] == "0A"]
    assert ports, "the ranks listen at no port: then this test shows nothing"
    outside = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert not [line for line in outside if line[3] == "0A" and int(line[7]) == victim.uid]
    dial = "__import__('socket').create_connection(('127.0.0.1', {port}), 2)"
    for port in ports:
        assert known["run"](f"import socket\n{dial.format(port=port)}.close()\nprint('reached')") == "reached"
        assert attack(theirs, dial.format(port=port)) == "ConnectionRefusedError"


def test_processes_can_be_neither_read_nor_signalled(hub, pair):
    victim, attacker, theirs, known = pair
    for what in ("environ", "mem", "maps"):
        assert attack(theirs, f"open('/proc/{known['pid']}/{what}', 'rb').read(1)") == "PermissionError", what
    assert attack(theirs, f"__import__('os').listdir('/proc/{known['pid']}/fd')") == "PermissionError"
    assert attack(theirs, f"__import__('os').kill({known['pid']}, {int(signal.SIGTERM)})") == "PermissionError"


def test_nobody_enters_anothers_network(hub, pair):
    victim, attacker, theirs, known = pair
    entered = attacker.as_user("nsenter", f"--target={known['pid']}", "--user", "--net", "--preserve-credentials", "true")
    assert entered.returncode != 0
    mine = "print(__import__('os').readlink('/proc/self/ns/net'))"
    assert known["run"](mine) != theirs(mine)


def test_shared_memory_is_closed(hub, pair):
    victim, attacker, theirs, known = pair
    assert attack(theirs, f"open('/dev/shm/{known['memory'].lstrip('/')}', 'rb').read(1)") == "PermissionError"


def test_the_hub_and_other_servers_refuse_anothers_token(hub, pair):
    victim, attacker, theirs, known = pair
    theirs_to_see = f"/hub/api/users/{victim.name}"
    for method, path in (("GET", theirs_to_see), ("DELETE", f"{theirs_to_see}/server"), ("GET", "/hub/api/users")):
        answer = requests.request(method, hub.address + path, headers=attacker.headers(), timeout=30)
        assert answer.status_code in (403, 404), path
    for path in ("api/kernels", "api/contents", "api/terminals"):
        assert requests.get(f"{victim.url}/{path}", headers=attacker.headers(), timeout=30).status_code in (403, 404)
        assert requests.get(f"{victim.url}/{path}", timeout=30, allow_redirects=False).status_code in (302, 403)
    assert victim.ready()


def test_a_forged_request_is_refused(hub, pair):
    victim, attacker, theirs, known = pair
    session = requests.Session()
    login = session.get(f"{hub.address}/hub/login", timeout=30)
    token = login.cookies.get("_xsrf") or session.cookies.get("_xsrf")
    form = {"username": victim.name, "password": victim.password, "_xsrf": token}
    session.post(f"{hub.address}/hub/login", data=form, timeout=30)
    home = session.get(f"{hub.address}/hub/home", timeout=30)
    assert home.url.endswith("/hub/home"), "not logged in: then this test shows nothing"
    elsewhere = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert session.delete(f"{hub.address}/hub/api/users/{victim.name}/server", headers=elsewhere, timeout=30).status_code == 403
    assert session.post(f"{victim.url}/api/kernels", headers=elsewhere, json={}, timeout=30).status_code in (403, 404)
    assert victim.ready()


def test_the_proxys_own_interface_is_closed(hub, pair):
    victim, attacker, theirs, known = pair
    assert theirs(CONNECT.format(path=str(hub.folder / "proxy" / "api.sock"))) == "Permission denied"
    assert requests.get(f"{hub.address}/api/routes", timeout=30).status_code in (403, 404)
