"""Who gets in by the hub's form, who gets a server, and what somebody who guesses does to others: on the hub that runs."""

import itertools
import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import layout
import people
import pytest
import requests

pytest.importorskip("jupyterhub", reason="a hub is tried by `make test-hub`, in its own environment")

from log_in_limits import AT_ONCE, FEW, PAUSE, WRONG, WRONG_FROM_AN_ADDRESS, Limits
from members import REFUSED_AFTER
from traitlets.config.loader import PyFileConfigLoader

ASKED = re.compile(r"PAM Authentication failed \('([^']*)'@([^)]*)\)")


@pytest.fixture
def said(hub):
    """What the hub's log has said since the test began: a function."""
    log = hub.folder / "logs" / "hub.out"
    before = log.stat().st_size
    return lambda: log.read_bytes()[before:].decode()


def refused(hub, name, password="guessed", address="127.0.0.2"):
    """How many seconds the hub takes to refuse this."""
    begun = time.monotonic()
    _, answer = people.log_in(hub, name, password, address)
    assert answer.status_code == 403, (name, answer.status_code)
    return time.monotonic() - begun


@contextmanager
def also_in(group, name):
    subprocess.run(["gpasswd", "--add", name, group], check=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run(["gpasswd", "--delete", name, group], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.cut
def test_nobody_logs_in_without_the_password_or_from_outside_the_groups(hub, learners, said):
    learner = learners(1)
    with people.outsider(hub) as (name, password):
        refused(hub, name, password)
        for each in (learner.name, "nobody", "no-such-user", "a\0b", "x" * 300, f"{learner.name}/../root"):
            refused(hub, each)
        refused(hub, learner.name, "")
    assert {asked for asked, _ in ASKED.findall(said())} == {learner.name}
    session, answer = people.log_in(hub, learner.name, learner.password)
    assert answer.url.startswith(hub.address) and answer.status_code == 200
    assert session.get(f"{hub.address}/hub/home", timeout=30).url.endswith("/hub/home")


def test_the_password_of_root_cannot_be_tried_whatever_group_root_is_in(hub, learners, said):
    with people.in_group(hub, "root", "ADMINS"), also_in(hub.accounts.group, "root"):
        for name in ("root", "ROOT", " root "):
            refused(hub, name)
        refused(hub, learners(1).name)
    assert {asked for asked, _ in ASKED.findall(said())} == {learners(1).name}


def test_a_name_that_nobody_has_is_refused_as_late_as_a_wrong_password(hub, learners):
    names = [learners(1).name, "root", "no-such-user", "nobody"] * 2
    with ThreadPoolExecutor(len(names)) as pool:
        took = list(pool.map(lambda name: refused(hub, name), names))
    assert min(took) >= REFUSED_AFTER and max(took) - min(took) < 1.5, dict(zip(names, took))


def test_who_guesses_at_many_names_keeps_nobody_else_waiting(hub, learners, said):
    learner, others = learners(1), [learners(number).name for number in (2, 3)]
    names = [f"nobody-{number}" for number in range(100)] + others * 50
    over = threading.Event()

    def guess(number):
        for name in itertools.islice(itertools.cycle(names), number, None):
            if over.is_set():
                return
            people.log_in(hub, name, "guessed", "127.0.0.3")

    with ThreadPoolExecutor(32) as pool:
        for number in range(32):
            pool.submit(guess, number * 6)
        try:
            time.sleep(8)
            took = []
            for _ in range(5):
                begun = time.monotonic()
                _, answer = people.log_in(hub, learner.name, learner.password, "127.0.0.3")
                took.append(time.monotonic() - begun)
                assert answer.status_code == 200, answer.text
        finally:
            over.set()
    assert max(took) < 2 * REFUSED_AFTER, took
    tried = [name for name, _ in ASKED.findall(said())]
    assert {name: tried.count(name) for name in set(tried)}.keys() <= set(others)
    assert 0 < len(tried) <= len(others) * (WRONG + AT_ONCE), tried


def test_after_some_wrong_passwords_the_next_has_to_wait(hub, learners, said):
    learner = learners(4)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda _: refused(hub, learner.name, address="127.0.0.6"), range(WRONG)))
    before = len(ASKED.findall(said()))
    assert before == WRONG
    _, answer = people.log_in(hub, learner.name, learner.password, "127.0.0.6")
    assert answer.status_code == 429 and "Too many log-ins for this name. Try again in" in answer.text
    assert len(ASKED.findall(said())) == before, "PAM was asked"


@pytest.mark.cut
def test_limits_are_of_a_name_and_of_an_address():
    now = [0.0]
    limits = Limits(lambda: now[0])

    def wrong(name, address):
        with limits.trying(name, address):
            pass

    for _ in range(WRONG):
        assert limits.seconds_to_wait("ada", "there") == 0
        wrong("ada", "there")
    assert limits.seconds_to_wait("ada", "there") == PAUSE
    assert limits.seconds_to_wait("ada", "elsewhere") == limits.seconds_to_wait("bob", "there") == 0
    now[0] += PAUSE
    assert limits.seconds_to_wait("ada", "there") == 0
    wrong("ada", "there")
    assert limits.seconds_to_wait("ada", "there") == PAUSE, "one more try, not five"
    for number in range(WRONG_FROM_AN_ADDRESS):
        wrong(f"name-{number}", "there")
    assert limits.seconds_to_wait("name-1", "there") == 0
    for _ in range(FEW - 1):
        wrong("name-1", "there")
    assert limits.seconds_to_wait("name-1", "there") == PAUSE and limits.seconds_to_wait("name-1", "elsewhere") == 0
    assert limits.seconds_to_wait("carol", "there") == 0, "who has not been wrong may try"
    now[0] += 3600
    assert limits.seconds_to_wait("ada", "there") == limits.seconds_to_wait("name-1", "there") == 0
    with limits.trying("ada", "there"), limits.trying("ada", "there") as tried:
        assert limits.seconds_to_wait("ada", "there") and not limits.seconds_to_wait("ada", "elsewhere")
        tried.succeeded()


def test_a_host_with_ipv6_has_the_limits_of_one_address():
    limits = Limits()
    for number in range(WRONG):
        with limits.trying("ada", f"2001:db8::{number}:1"):
            pass
    assert limits.seconds_to_wait("ada", "2001:db8::ffff:9") and limits.seconds_to_wait("ada", "2001:db8:0:0:7::1%eth0")
    assert limits.seconds_to_wait("ada", "2001:db8:0:1::1") == 0, "another network"
    for _ in range(WRONG):
        with limits.trying("bob", "::ffff:192.0.2.1"):
            pass
    assert limits.seconds_to_wait("bob", "192.0.2.1") and not limits.seconds_to_wait("bob", "::ffff:192.0.2.2")
    with limits.trying("bob", "user-1001"):
        assert limits.seconds_to_wait("bob", "user-1001") == 0


def test_limits_remember_so_many_names_and_no_more(monkeypatch):
    monkeypatch.setattr("log_in_limits.MOST", 10)
    limits = Limits()
    with limits.trying("held", "there"):
        for number in range(100):
            with limits.trying(f"name-{number}", f"there-{number}"):
                pass
        assert len(limits.pairs) <= 12 and len(limits.addresses) <= 12 and limits.pairs["held", "there"][0] == 1


def test_no_password_can_be_tried_at_another_door(hub, learners, said):
    """JupyterHub makes a token for whoever sends a password in the request for it."""
    learner = learners(1)
    people.log_in(hub, learner.name, learner.password, "127.0.0.7")  # known to the hub
    asked = len(ASKED.findall(said()))
    for name, password in ((learner.name, learner.password), (learner.name, "guessed"), ("root", "x"), (["a"], {})):
        body = {"auth": {"username": name, "password": password}}
        answer = requests.post(f"{hub.address}/hub/api/users/{learner.name}/tokens", json=body, timeout=60)
        assert answer.status_code == 403 and "token" not in answer.json(), answer.text
    assert len(ASKED.findall(said())) == asked, "PAM was asked"


def test_an_account_without_a_password_is_nobodys(hub, learners):
    learner = learners(6)
    subprocess.run(["passwd", "--quiet", "--delete", learner.name], check=True)
    refused(hub, learner.name, "", address="127.0.0.8")
    refused(hub, learner.name, "guessed", address="127.0.0.8")
    subprocess.run(["chpasswd"], input=f"{learner.name}:{learner.password}\n", text=True, check=True)
    assert people.log_in(hub, learner.name, learner.password, "127.0.0.8")[1].status_code == 200


def test_a_password_longer_than_any_is_not_computed_with(hub, learners, said):
    refused(hub, learners(1).name, "x" * 80_000, address="127.0.0.8")
    assert not ASKED.findall(said()), "PAM was asked"


FORGED = """
import re, socket, urllib.parse
def ask(lines, body=""):
    line = socket.socket(socket.AF_UNIX)
    line.connect({path!r})
    line.sendall(("\\r\\n".join([*lines, "Host: hub", "X-Forwarded-For: 203.0.113.9", "X-Real-Ip: 203.0.113.9", "Connection: close",
        f"Content-Length: {{len(body)}}", "", body])).encode())
    return line.makefile().read()
form = ask(["GET /hub/login HTTP/1.1"])
cookies = dict(re.findall(r"Set-Cookie: ([^=]+)=([^;]*)", form))
body = urllib.parse.urlencode(dict(username={name!r}, password="guessed", _xsrf=cookies["_xsrf"].strip('"')))
jar = "; ".join(f"{{name}}={{value}}" for name, value in cookies.items())
print(ask(["POST /hub/login HTTP/1.1", f"Cookie: {{jar}}", "Content-Type: application/x-www-form-urlencoded"], body).split()[1])
"""


def test_the_address_in_the_hubs_log_is_not_a_learners_to_choose(hub, learners, said):
    learner, other = learners(1), learners(2)
    learner.start(gpus=0)
    with learner.kernel() as run:
        told = run(FORGED.format(path=str(hub.folder / "sockets" / "hub.sock"), name=other.name))
    assert told == "403", told
    people.log_in(hub, other.name, "guessed", **{"X-Forwarded-For": "203.0.113.9", "X-Real-Ip": "203.0.113.9"})
    assert "203.0.113.9" not in said(), [line for line in said().splitlines() if "203.0.113.9" in line]
    assert {(name, address) for name, address in ASKED.findall(said())} == {
        (other.name, f"user-{learner.uid}"),
        (other.name, "127.0.0.1"),
    }


# ---------------------------------------------------------------- who gets a server


@pytest.mark.cut
def test_no_user_outside_of_the_learners_group_gets_a_server_whoever_asks(hub, said):
    with people.outsider(hub) as (name, _):
        for each in (name, "root", "nobody"):
            hub.admin.ask("POST", f"users/{each}")
            hub.admin.ask("POST", f"users/{each}/server", gpus=0)
            people.wait_for(lambda: f"{each} is not in the group {hub.accounts.group}" in said(), "the hub to refuse", 20)
            people.wait_for(lambda: not hub.admin.server(each).get("pending"), "the end of it", 20)
            assert not hub.admin.server(each).get("ready")
            assert not hub.admin.job(each) and not (hub.folder / "run" / each).exists()
            hub.admin.ask("DELETE", f"users/{each}")


def test_no_group_that_a_system_has_administers_the_hub(hub, learners, monkeypatch):
    """What is configured where the administrator says nothing."""
    for name, value in hub._environment().items():
        monkeypatch.setenv(name, value)
    for who in ("ADMINS", "ASSISTANTS"):
        monkeypatch.delenv(f"RINGTREE_HUB_{who}", raising=False)
    said = PyFileConfigLoader(str(layout.CONFIG)).load_config()
    door = said.JupyterHub.authenticator_class(config=said)
    assert door.admin_groups == {"ringtree-admins"} and door.assistant_groups == {"ringtree-assistants"}
    learner = learners(3)
    with also_in("root", learner.name):
        assert not door.is_admin(None, {"name": learner.name}) and not door.is_admin(None, {"name": "root"})


@pytest.mark.parametrize("what", ["ADMINS", "ASSISTANTS"])
def test_who_is_taken_out_of_a_group_loses_its_rights_also_by_token(hub, learners, what):
    """In the tests the hub looks into the groups every two seconds: hub_config.py."""
    other = learners(1).name
    hub.admin.ask("POST", f"users/{other}")

    def by_token(path):
        return requests.get(f"{hub.address}/hub/api/{path}", headers={"Authorization": f"token {token}"}, timeout=30)

    def seen(answer):
        return {each["name"] for each in answer.json()} if answer.status_code == 200 else set()

    with people.outsider(hub) as (name, password):
        with people.in_group(hub, name, what):
            session, _ = people.log_in(hub, name, password, "127.0.0.11")
            token = api(hub, session, "POST", f"users/{name}/tokens", note="mine").json()["token"]
            time.sleep(3)
            assert seen(by_token("users")) >= {name, other} and seen(api(hub, session, "GET", "users")) >= {name, other}
        with also_in(hub.accounts.group, name):  # a learner, and no more
            time.sleep(3)
            assert seen(by_token("users")) <= {name} and seen(api(hub, session, "GET", "users")) <= {name}
            assert hub.admin.ask("GET", f"users/{name}").json()["admin"] is False
            assert by_token("user").status_code == 200
        time.sleep(3)
        assert by_token("user").status_code == 403, "in none of the hub's groups"
        assert "/hub/login" in session.get(f"{hub.address}/hub/home", timeout=30).url
        hub.admin.ask("DELETE", f"users/{name}")


def api(hub, session, method, path, **body):
    headers = {"X-XSRFToken": session.cookies.get("_xsrf", path="/hub/"), "Referer": f"{hub.address}/hub/admin"}
    return session.request(method, f"{hub.address}/hub/api/{path}", headers=headers, json=body or None, timeout=30)


def test_an_assistant_sees_and_stops_servers_and_enters_none(hub, learners):
    learner = learners(1)
    learner.start(gpus=0)
    with people.outsider(hub) as (name, password), people.in_group(hub, name, "ASSISTANTS"):
        session, _ = people.log_in(hub, name, password)
        assert session.get(f"{hub.address}/hub/admin", timeout=30).status_code == 200
        seen = {each["name"]: each for each in api(hub, session, "GET", "users").json()}
        server = seen[learner.name]["servers"][""]
        assert server["ready"] and not server.get("state") and seen.keys() >= {learner.name, name}
        for path in ("lab", "api/kernels", "api/contents"):
            answer = session.get(f"{learner.url}/{path}", timeout=30)
            assert answer.status_code in (403, 404), (path, answer.status_code, answer.url)
        user = f"users/{learner.name}"
        asked = [("POST", f"{user}/tokens"), ("POST", f"{user}/servers/second"), ("PATCH", user), ("DELETE", user)]
        asked += [("POST", "users/root"), ("POST", f"users/{name}/server"), ("POST", "shutdown"), ("GET", "proxy")]
        for method, path in asked:
            answer = api(hub, session, method, path, **({"admin": True} if method == "PATCH" else {}))
            if path == f"users/{name}/server":
                assert not hub.admin.job(name)
            else:
                assert answer.status_code in (403, 404), (method, path, answer.status_code, answer.text)
        assert learner.ready()
        assert api(hub, session, "DELETE", f"{user}/server").status_code in (202, 204)
        people.wait_for(lambda: not hub.admin.job(learner.name), "the server to stop", 60)
        hub.admin.ask("DELETE", f"users/{name}")
