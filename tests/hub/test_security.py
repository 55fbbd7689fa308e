"""hub/SECURITY.md, sentence by sentence: what one learner tries against another, both real users of the system."""

import ast
import contextlib
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import people
import pytest
import requests
import websocket
from helpers import foreign
from nbformat.v4 import new_code_cell, new_output
from people import CONNECT, attack, wait_for

PAGE = Path(__file__).resolve().parent.parent.parent / "hub" / "SECURITY.md"


def sentences(heading):
    """The page's sentences below a heading, each with the names of its tests."""
    below = PAGE.read_text().partition(f"## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in below.splitlines() if line.startswith(("- ", "| **"))]
    return {line: re.findall(r"`(test_\w+)`", line) for line in lines}


@pytest.mark.cut
def test_each_sentence_names_a_test_and_each_test_has_a_sentence():
    closed, opened = sentences("What is closed"), sentences("What is not closed")
    assert len(closed) > 20 and len(opened) > 8
    assert all([cell.strip() for cell in line.split(" | ")][1] for line in opened), "acceptable for somebody"
    assert not [line for line, tests in (closed | opened).items() if not tests]
    texts = {path.stem: path.read_text() for path in Path(__file__).parent.glob("test_*.py")}
    here = {stem: set(re.findall(r"^def (test_\w+)", text, re.MULTILINE)) for stem, text in texts.items()}
    named = {name for tests in (closed | opened).values() for name in tests}
    assert named <= set().union(*here.values()), named - set().union(*here.values())
    ours = here["test_security"] | here["test_what_stays_open"]
    assert ours - named == {"test_each_sentence_names_a_test_and_each_test_has_a_sentence"}
    assert here["test_what_stays_open"] <= {name for tests in opened.values() for name in tests}


@pytest.mark.cut
def test_homes_and_the_hubs_files_are_closed(hub, pair):
    victim, attacker, theirs, known = pair
    ours = [hub.folder / name for name in ("private", "proxy", "logs", "controller", f"run/{victim.name}")]
    for closed in (victim.home, known["folder"], *ours):
        assert attack(theirs, f"__import__('os').listdir({str(closed)!r})") == "PermissionError", closed
        assert attacker.as_user("ls", closed).returncode != 0
    for name in ("hub.sqlite", "cookie-secret", "munge.key", "proxy-token"):
        assert (hub.folder / "private" / name).exists()
        assert attacker.as_user("cat", hub.folder / "private" / name).returncode != 0
    spool = [path for path in (hub.folder / "node").glob("job*/*")]
    assert [path for path in spool if path.name == "slurm_script"]
    mine = hub.admin.job(attacker.name).split()[0]
    for path in spool:
        assert path.parent.name.endswith(mine) or attacker.as_user("cat", path).returncode != 0, path
    assert Path(known["connection"]).exists()
    assert attack(theirs, f"open({known['connection']!r}).read()") == "PermissionError"


@pytest.mark.cut
def test_no_socket_file_of_anothers_can_be_connected_to(hub, pair):
    victim, attacker, theirs, known = pair
    found = Path("/proc/net/unix").read_text() + known["run"]("print(open('/proc/net/unix').read())")
    mine = (known["folder"], str(hub.folder / "run" / victim.name), str(hub.folder / "proxy"))
    paths = {line.split()[-1] for line in found.splitlines() if line.split()[-1].startswith(mine)}
    assert any("server.sock" in path for path in paths) and any(path.startswith(known["folder"]) for path in paths)
    for path in paths:
        assert theirs(CONNECT.format(path=path)) == "Permission denied", path
        assert attacker.as_user(sys.executable, "-c", CONNECT.format(path=path)).stdout.strip() == "Permission denied", path


def test_no_abstract_socket_of_anothers_can_be_connected_to(hub, pair):
    victim, attacker, theirs, known = pair
    path = "\0ringtree-" + victim.name
    known["run"](f"import socket\nlistening = socket.socket(socket.AF_UNIX)\nlistening.bind({path!r})\nlistening.listen()")
    assert known["run"](CONNECT.format(path=path)) == "connected"
    assert theirs(CONNECT.format(path=path)) == "Connection refused"
    assert attacker.as_user(sys.executable, "-c", CONNECT.format(path=path)).stdout.strip() == "Connection refused"


@pytest.mark.cut
def test_ports_of_gloo_and_of_the_debugger_cannot_be_reached(hub, pair):
    victim, attacker, theirs, known = pair
    ports = listening_ports(known["run"])
    assert ports, "the ranks listen at no port: then this test shows nothing"
    with victim.kernel() as run:
        assert people.switch_debugger_on(run.line)
        debugger = listening_ports(run) - ports
        assert debugger, "the debugger listens at no port: then this test shows nothing"
        outside = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert not [line for line in outside if line[3] == "0A" and int(line[7]) == victim.uid]
        dial = "__import__('socket').create_connection(('127.0.0.1', {port}), 2)"
        for port in ports | debugger:
            assert known["run"](f"import socket\n{dial.format(port=port)}.close()\nprint('reached')") == "reached"
            assert attack(theirs, dial.format(port=port)) == "ConnectionRefusedError"


def listening_ports(run):
    told = [line.split() for line in run("print(open('/proc/net/tcp').read())").splitlines()[1:]]
    return {int(line[1].split(":")[1], 16) for line in told if line[3] == "0A"}


# (family, type), and a call of 32-bit programs, in machine code: socket(AF_VSOCK, SOCK_STREAM, 0), as they number it.
FAMILIES = {"AF_UNIX": 1, "AF_INET": 1, "AF_INET6": 1, "AF_NETLINK": 3, "AF_VSOCK": 1, "AF_ALG": 5, "AF_CAN": 3, "AF_TIPC": 1}
CALL_OF_32_BITS = """
import ctypes, mmap
code = bytes.fromhex("53 b867010000 bb28000000 b901000000 31d2 cd80 5b c3")
held = mmap.mmap(-1, 4096, prot=7)
held.write(code)
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(held)))())
"""


def test_a_server_opens_sockets_of_the_internet_and_of_files_and_no_others(hub, pair):
    """Others are not held by a network of one's own: by vsock a virtual machine's host can be asked."""
    victim, attacker, theirs, known = pair
    tried = f"""
import ctypes, socket, subprocess, sys
def opens(name, kind):
    try:
        socket.socket(getattr(socket, name), kind).close()
        return "opens"
    except OSError as error:
        return error.strerror
print({{name: opens(name, kind) for name, kind in {FAMILIES!r}.items()}})
"""
    said = ast.literal_eval(theirs(tried))
    assert {said.pop(name) for name in ("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK")} == {"opens"}
    assert set(said.values()) == {"Address family not supported by protocol"}, said
    assert "opens" in attacker.as_user(sys.executable, "-c", tried).stdout.partition("AF_VSOCK")[2], (
        "then this test shows little"
    )
    uring = "libc = ctypes.CDLL(None, use_errno=True); print(libc.syscall(425, 8, 0), ctypes.get_errno())"
    assert theirs(uring) == "-1 38"
    if platform.machine() == "x86_64":
        told = theirs(f"print(subprocess.run([sys.executable, '-c', {CALL_OF_32_BITS!r}], capture_output=True, text=True))")
        assert "returncode=0, stdout='-38" in told or "returncode=-11" in told, told


@pytest.mark.cut
def test_processes_can_be_neither_read_nor_signalled(hub, pair):
    victim, attacker, theirs, known = pair
    for what in ("environ", "mem", "maps"):
        assert attack(theirs, f"open('/proc/{known['pid']}/{what}', 'rb').read(1)") == "PermissionError", what
    assert attack(theirs, f"__import__('os').listdir('/proc/{known['pid']}/fd')") == "PermissionError"
    assert attack(theirs, f"__import__('os').kill({known['pid']}, {int(signal.SIGTERM)})") == "PermissionError"
    attach = f"__import__('ctypes').CDLL(None).ptrace(16, {known['pid']}, 0, 0)"  # PTRACE_ATTACH
    assert attack(theirs, attach) == "-1"
    assert attacker.as_user("kill", known["pid"]).returncode != 0


def test_anothers_terminal_can_be_neither_read_nor_written_to(hub, pair):
    victim, attacker, theirs, known = pair
    name = requests.post(f"{victim.url}/api/terminals", headers=victim.headers(), timeout=30).json()["name"]
    opened = [path for path in Path("/dev/pts").iterdir() if path.stat().st_uid == victim.uid]
    for path in opened:
        for mode in ("rb", "wb"):
            assert attack(theirs, f"open({str(path)!r}, {mode!r})") == "PermissionError"
            assert known["run"](f"open({str(path)!r}, {mode!r}, buffering=0)") == ""
    requests.delete(f"{victim.url}/api/terminals/{name}", headers=victim.headers(), timeout=30)
    assert opened, "no terminal: then this test shows nothing"


def test_nobody_enters_anothers_network(hub, pair):
    victim, attacker, theirs, known = pair
    entered = attacker.as_user("nsenter", f"--target={known['pid']}", "--user", "--net", "--preserve-credentials", "true")
    assert entered.returncode != 0
    mine = "print(__import__('os').readlink('/proc/self/ns/net'))"
    assert known["run"](mine) != theirs(mine)


def test_shared_memory_is_closed(hub, pair):
    victim, attacker, theirs, known = pair
    own = f"/dev/shm/{known['memory'].lstrip('/')}"
    assert known["run"](f"print(os.path.exists({own!r}))") == "True"
    assert attack(theirs, f"open({own!r}, 'rb').read(1)") == "FileNotFoundError" and not Path(own).exists()
    assert attack(theirs, f"open('/proc/{known['pid']}/root/dev/shm', 'rb').read(1)") == "PermissionError"
    made = known["run"]("import subprocess; print(subprocess.check_output(['ipcmk', '-M', '64'], text=True))")
    number = re.search(r"\d+$", made)[0]
    segments = "print(open('/proc/sysvipc/shm').read())"
    assert str(victim.uid) in known["run"](segments).split(), made
    assert str(victim.uid) not in theirs(segments).split()
    assert str(victim.uid) not in attacker.as_user("cat", "/proc/sysvipc/shm").stdout.split()
    known["run"](f"subprocess.run(['ipcrm', '-m', '{number}'])")


def test_a_crash_writes_no_memory_to_disk(hub, pair):
    victim, attacker, theirs, known = pair
    assert known["run"]("import resource; print(resource.getrlimit(resource.RLIMIT_CORE))") == "(0, 0)"
    crash = "print(os.WCOREDUMP(os.system('kill -SEGV $$')))"
    assert known["run"](f"import os\n{crash}") == "False"


def test_a_learner_starts_only_so_many_processes(hub, pair):
    victim, attacker, theirs, known = pair
    many = """
import os, threading, time
try:
    for _ in range(6000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    print("no more", flush=True)
os._exit(0)
"""
    theirs("import subprocess, sys")
    assert theirs(f"print(subprocess.check_output([sys.executable, '-c', {many!r}], text=True))") == "no more"
    assert known["run"]("import subprocess; print(subprocess.run(['true']).returncode)") == "0"


@pytest.mark.cut
def test_the_hub_and_other_servers_refuse_anothers_token(hub, pair):
    victim, attacker, theirs, known = pair
    at_server = theirs("print(__import__('os').environ['JUPYTERHUB_API_TOKEN'])")
    user = f"/hub/api/users/{victim.name}"
    asked = [("GET", user), ("PATCH", user), ("DELETE", f"{user}/server"), ("POST", f"{user}/servers/second")]
    asked += [("POST", f"{user}/tokens"), ("POST", f"{user}/activity"), ("GET", "/hub/api/users"), ("GET", "/hub/api/proxy")]
    asked += [("POST", "/hub/api/shutdown"), ("GET", "/hub/api/services"), ("GET", "/hub/metrics")]
    asked += [("POST", "/hub/api/groups/mine"), ("PATCH", f"/hub/api/users/{attacker.name}")]
    asked += [("POST", f"/hub/api/users/{attacker.name}/servers/second")]
    for method, path in asked:
        for headers in (attacker.headers(), {"Authorization": f"token {at_server}"}, {}):
            body = {"admin": True} if method == "PATCH" else None
            more = {"headers": headers, "json": body, "timeout": 30, "allow_redirects": False}
            answer = requests.request(method, hub.address + path, **more)
            assert answer.status_code in (400, 403, 404), (method, path, answer.status_code, answer.text)
    for path in ("api/kernels", "api/contents", "api/terminals"):
        assert requests.get(f"{victim.url}/{path}", headers=attacker.headers(), timeout=30).status_code in (403, 404)
        assert requests.get(f"{victim.url}/{path}", timeout=30, allow_redirects=False).status_code in (302, 403)
    assert victim.ready()


def ask_socket(path, asked, token):
    """Code that puts a request to a socket by hand and prints the answer's first line."""
    lines = f"GET {asked} HTTP/1.1\r\nHost: hub\r\nAuthorization: token {token}\r\nConnection: close\r\n\r\n"
    return f"""
import socket
line = socket.socket(socket.AF_UNIX)
line.connect({str(path)!r})
line.sendall({lines!r}.encode())
print(line.makefile().readline().strip())
"""


def test_the_hubs_own_socket_knows_who_asks(hub, pair):
    victim, attacker, theirs, known = pair
    token = theirs("print(__import__('os').environ['JUPYTERHUB_API_TOKEN'])")
    here = hub.folder / "sockets" / "hub.sock"
    assert theirs(ask_socket(here, "/hub/api/user", token)) == "HTTP/1.1 200 OK"
    for path in ("/hub/api/users", f"/hub/api/users/{victim.name}", "/hub/api/proxy"):
        assert re.match(r"HTTP/1.1 40[34]", theirs(ask_socket(here, path, token))), path
        assert re.match(r"HTTP/1.1 40[34]", theirs(ask_socket(here, path, "no"))), path


def logged_in(hub, learner):
    """A session of this learner's browser, after its form was sent."""
    session, _ = people.log_in(hub, learner.name, learner.password)
    home = session.get(f"{hub.address}/hub/home", timeout=30)
    assert home.url.endswith("/hub/home"), "not logged in: then this test shows nothing"
    return session


def test_a_link_starts_no_server(hub, everyone):
    """A page of another site may lead a browser to any link of the hub's; JupyterHub starts what a link asks for."""
    learner = everyone(3)
    session = logged_in(hub, learner)
    for link in ("/hub/spawn?gpus=4&hours=12", f"/hub/spawn/{learner.name}?gpus=1", "/hub/spawn?settings=clean&next=/hub/home"):
        page = session.get(f"{hub.address}{link}", timeout=60)
        assert "Choose your server" in page.text and "a link cannot choose" in page.text, (link, page.url)
        assert not hub.admin.job(learner.name) and not hub.admin.server(learner.name).get("pending"), link


@pytest.mark.cut
def test_a_forged_request_is_refused(hub, pair):
    victim, attacker, theirs, known = pair
    session = logged_in(hub, victim)
    elsewhere = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    api = f"{hub.address}/hub/api/users/{victim.name}"
    forged = {"headers": elsewhere, "timeout": 30}
    for method, path in (("DELETE", "server"), ("POST", "tokens"), ("POST", "server")):
        assert session.request(method, f"{api}/{path}", **forged).status_code == 403, path
    assert session.post(f"{hub.address}/hub/spawn", data={"gpus": "1"}, **forged).status_code == 403
    assert session.post(f"{victim.url}/api/kernels", json={}, **forged).status_code in (403, 404)
    kernel = known["connection"].partition("kernel-")[2].removesuffix(".json")
    line = f"{victim.url}/api/kernels/{kernel}/channels".replace("http", "ws", 1)
    cookies = "; ".join(f"{each.name}={each.value}" for each in session.cookies)
    try:
        websocket.create_connection(line, cookie=cookies, origin="https://elsewhere.example", timeout=30).close()
        raise AssertionError("another site's page speaks to the kernel")
    except websocket.WebSocketBadStatusException as refused:
        assert refused.status_code == 403
    assert victim.ready()


def test_a_login_leads_to_no_other_site(hub, pair):
    victim, attacker, theirs, known = pair
    session = logged_in(hub, victim)
    for where in ("https://elsewhere.example/", "//elsewhere.example/", "/\\elsewhere.example", "\thttps://elsewhere.example"):
        sent = session.get(f"{hub.address}/hub/login", params={"next": where}, timeout=30, allow_redirects=False)
        assert sent.status_code == 302 and re.match(r"/[^/\\]", sent.headers["Location"]), sent.headers["Location"]


def test_a_link_brings_the_course_and_nothing_else(hub, pair):
    victim, attacker, theirs, known = pair
    place = ".jupyter/more"
    make = f"""
import os, subprocess
os.makedirs("work", exist_ok=True)
open("work/first.py", "w").write("print('I am in')")
git = ["git", "-c", "user.name=a", "-c", "user.email=a@a", "-c", "init.defaultBranch=main"]
bundle = ["bundle", "create", "-q", "/tmp/{attacker.name}.bundle", "main"]
for more in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], bundle):
    subprocess.run([*git, *more], cwd="work", check=True)
os.chmod("/tmp/{attacker.name}.bundle", 0o644)
"""
    assert theirs(make) == ""
    course = f"file://{hub.folder / 'course.git'}"
    bundle = f"/tmp/{attacker.name}.bundle"
    try:
        links = (bundle, place), (f"file://{bundle}", "new"), (bundle, "course"), (course, place), (course, "../x")
        for repo, target in links:
            asked = {"repo": repo, "branch": "main", "targetpath": target}
            answer = requests.get(f"{victim.url}/git-pull/api", headers=victim.headers(), params=asked, timeout=60)
            assert answer.status_code == 403, answer.text
            assert not Path(victim.home, target, "first.py").exists() and not Path(victim.home, place, "README.md").exists()
        asked = {"repo": course, "branch": "main", "targetpath": "course"}
        answer = requests.get(f"{victim.url}/git-pull/api", headers=victim.headers(), params=asked, timeout=60)
        assert '"phase": "finished"' in answer.text and Path(victim.home, "course", "README.md").exists()
    finally:
        os.unlink(bundle)


OUTSIDE = (
    "../../user/{}/evil",
    "lab/tree/course/../../../{}/evil",
    "lab/tree/course/%2e%2e/%2E./evil",
    "lab/tree/course/..\\..\\{}",
    "lab/tree/course/.\t./evil",
    "lab/tree/coursework",
    "lab/tree/course?x",
    "//elsewhere.example",
    "/user/{}/lab",
    "javascript:alert(1)",
    "terminals/1",
    "<script>alert(1)</script>",
    "",
)


@pytest.mark.cut
def test_a_link_leads_to_the_course_and_nowhere_else(hub, pair):
    victim, attacker, theirs, known = pair
    link = dict(parse_qsl(urlsplit(hub.course_link()).query))

    def asked(**changed):
        given = {name: value for name, value in (link | changed).items() if value is not None}
        return requests.get(f"{victim.url}/git-pull", headers=victim.headers(), params=given, timeout=60)

    assert asked().status_code == 200, "the link of the hub's own page"
    assert asked(urlpath="lab/tree/course/notebooks/01-ranks.ipynb").status_code == 200, "the book's link"
    for path in OUTSIDE:
        for name in ("urlpath", "urlPath"):
            answer = asked(**{"urlpath": None, name: path.format(attacker.name)})
            assert answer.status_code == 403 and "lab/tree/course" in answer.text, (name, path, answer.text)
            assert "<script>alert" not in answer.text
    assert asked(urlpath=None, subPath="../x", app="lab").status_code == 403
    for changed in ({"repo": "javascript:alert(1)"}, {"targetPath": ".jupyter"}, {"targetpath": "x"}):
        assert asked(**changed).status_code == 403, changed


def test_a_link_in_place_of_ones_own_socket_leads_nowhere(hub, pair):
    victim, attacker, theirs, known = pair
    mine = hub.folder / "run" / attacker.name / "server.sock"
    anothers, proxys = hub.folder / "run" / victim.name / "server.sock", hub.folder / "proxy" / "api.sock"
    theirs(f"import os; os.rename('{mine}', '{mine}.kept')")
    try:
        for aim, paths in ((anothers, (f"/user/{victim.name}/api/kernels", "/api/kernels")), (proxys, ("/api/routes",))):
            theirs(f"os.symlink('{aim}', '{mine}')")
            for path in (f"/user/{attacker.name}{up}{each}" for each in paths for up in ("", "/../..")):
                alone = {"Connection": "Upgrade", "Upgrade": "websocket"}  # over a connection that was not there before
                asked = requests.Request("GET", hub.address, headers=attacker.headers() | alone).prepare()
                asked.url = hub.address + path  # as it stands: the dots go over the wire
                answer = requests.Session().send(asked, timeout=30, allow_redirects=False)
                assert answer.status_code in (302, 403, 404, 503), (aim, path, answer.text)
            theirs(f"os.unlink('{mine}')")
    finally:
        theirs(f"os.rename('{mine}.kept', '{mine}')")
    assert requests.get(f"{attacker.url}/api/kernels", headers=attacker.headers(), timeout=30).status_code == 200


# What answers at the attacker's socket: a page, and a script that would answer for the whole site.
WORKER = """
import os, socket, threading
def serve():
    while True:
        line, _ = trap.accept()
        line.recv(65536)
        line.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/javascript\\r\\nService-Worker-Allowed: /\\r\\nX-Of-Hers: 1\\r\\n"
            b"Connection: close\\r\\n\\r\\nself.addEventListener('fetch', (asked) => asked.respondWith(new Response('taken')))")
        line.close()
os.rename(place, place + ".kept")
trap = socket.socket(socket.AF_UNIX); trap.bind(place); os.chmod(place, 0o660); trap.listen()
threading.Thread(target=serve, daemon=True).start()
"""
REGISTER = "navigator.serviceWorker.register('/user/{}/worker.js', {{scope: '{}'}}).then(() => 'yes', (error) => String(error))"


def test_a_script_of_a_neighbors_server_answers_for_no_other_page(hub, chromium, pair):
    """A browser lets a script answer for a whole site if the script's own server says so."""
    victim, attacker, theirs, known = pair
    place = str(hub.folder / "run" / attacker.name / "server.sock")
    assert theirs(f"place = {place!r}\n{WORKER}") == ""
    try:
        with people.at_the_hub(chromium, victim) as page:
            page.wait_for_selector("#logout")
            time.sleep(3.0)  # the proxy keeps connections to what listened there before: hub/server/connections.cjs
            answer = page.goto(f"{attacker.url}/look")
            assert answer.headers["x-of-hers"] == "1" and "service-worker-allowed" not in answer.headers
            assert "SecurityError" in page.evaluate(REGISTER.format(attacker.name, "/"))
            assert page.evaluate(REGISTER.format(attacker.name, f"/user/{attacker.name}/")) == "yes", "then this shows nothing"
            page.wait_for_timeout(1000)
            page.goto(f"{hub.address}/hub/home")
            assert page.locator("#logout").count()
    finally:
        theirs("os.unlink(place); os.rename(place + '.kept', place)")


def test_a_notebook_that_nobody_here_has_run_brings_no_rich_results_and_is_not_signed(hub, pair):
    """JupyterLab shows some of them as trusted: see tests/labs/test_somebody_elses_notebook.py."""
    victim, attacker, theirs, known = pair
    contents = f"{victim.url}/api/contents"
    for way, notebook in foreign.stored().items():
        victim.write("again.ipynb", json.dumps(notebook))
        for _ in range(2):
            told = requests.get(f"{contents}/again.ipynb", headers=victim.headers(), timeout=60).json()
            *_, cell = told["content"]["cells"]
            assert cell["metadata"]["trusted"] is False, way
            for each in cell["metadata"].get("user_expressions", []):
                assert each["result"]["data"] == {"text/plain": "the result"}
            saved = requests.put(f"{contents}/again.ipynb", headers=victim.headers(), json=told, timeout=60)
            assert saved.status_code == 200, saved.text
    plain = json.dumps(foreign.stored()[way] | {"cells": [new_code_cell("1", outputs=[new_output("stream", text="1")])]})
    victim.write("again.ipynb", plain)
    told = requests.get(f"{contents}/again.ipynb", headers=victim.headers(), timeout=60).json()
    requests.put(f"{contents}/again.ipynb", headers=victim.headers(), json=told, timeout=60)
    told = requests.get(f"{contents}/again.ipynb", headers=victim.headers(), timeout=60).json()
    assert told["content"]["cells"][0]["metadata"]["trusted"] is True, "what is harmless is signed as ever"


@pytest.mark.parametrize("method", ["DELETE", "OPTIONS", "POST"])
def test_a_request_hidden_in_anothers_body_is_asked_of_nobody(hub, method):
    """Its answer would be given to the next who asks: http-proxy says of some bodies that there are none, and sends them."""
    hidden = "GET /hub/hidden HTTP/1.1\r\nHost: hub\r\n\r\n"
    body = f"{len(hidden):x}\r\n{hidden}\r\n0\r\n\r\n"
    asked = f"{method} /hub/api/ HTTP/1.1\r\nHost: hub\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", hub.port), 10) as line:
            line.sendall(asked.encode())
            assert line.recv(100).startswith(b"HTTP/1.1 ")
            after = [requests.get(f"{hub.address}/hub/api/", timeout=30) for _ in range(4)]
        assert [each.status_code for each in after] == [200] * 4 and all(each.json()["version"] for each in after)


def test_the_proxys_own_interface_is_closed(hub, pair):
    victim, attacker, theirs, known = pair
    assert theirs(CONNECT.format(path=str(hub.folder / "proxy" / "api.sock"))) == "Permission denied"
    assert requests.get(f"{hub.address}/api/routes", timeout=30).status_code in (403, 404)


def test_a_learner_makes_no_device_and_changes_no_control_group(hub, pair):
    victim, attacker, theirs, known = pair
    assert attack(theirs, "__import__('os').mknod('gpu', 0o20666, __import__('os').makedev(195, 0))") == "PermissionError"
    groups = [line.split(":")[2] for line in theirs("print(open('/proc/self/cgroup').read())").splitlines()]
    roots = [*Path("/sys/fs/cgroup").iterdir(), Path("/sys/fs/cgroup")]  # of version 1, one for each kind, or of version 2
    found = [path for group in groups if "slurm" in group for root in roots for path in root.glob(f"{group[1:]}/*")]
    limits = [path for path in found if path.is_file()]
    assert [path for path in limits if path.name.startswith(("devices", "memory"))], "no limits: then this test shows nothing"
    assert not [path for path in limits if attacker.as_user("test", "-w", path).returncode == 0]


@pytest.mark.cut
def test_the_systems_own_services_cannot_be_asked_from_a_server(hub, pair):
    """systemd starts a program outside of the allotment for whoever asks it by D-Bus; munge is busy with whoever connects."""
    victim, attacker, theirs, known = pair
    listening = Path("/run") / f"ringtree-{hub.name}"
    with socket.socket(socket.AF_UNIX) as service:
        try:
            service.bind(str(listening))
            listening.chmod(0o666)
            service.listen()
            connect = CONNECT.format(path=str(listening))
            assert attacker.as_user(sys.executable, "-c", connect).stdout.strip() == "connected", "then this test shows nothing"
            for path in (listening, Path("/var/run") / listening.name):
                assert theirs(CONNECT.format(path=str(path))) == "No such file or directory"
        finally:
            listening.unlink(missing_ok=True)
    for where in ("/run", "/dev/shm"):
        tried = (
            f"import subprocess; print(subprocess.run(['umount', {where!r}], capture_output=True, text=True).returncode != 0)"
        )
        assert theirs(tried) == "True"
    # Whatever else listens at a path: the hub's own socket; in these tests Slurm's, and other tests' hubs.
    paths = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "/" in line.split()[-1]}
    scan = f"""
import socket
for path in {sorted(paths)!r}:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print(path)
    except OSError:
        pass
"""
    answers = set(theirs(scan).split())
    assert str(hub.folder / "sockets" / "hub.sock") in answers, answers
    of_hubs = str(hub.folder.parent / "ringtree-hub-")
    assert not [path for path in answers if not path.startswith(of_hubs)], answers
    own = f"{hub.folder}/run/{attacker.name}/"
    mine = {
        path.removeprefix(f"{hub.folder}/") for path in answers if path.startswith(str(hub.folder)) and not path.startswith(own)
    }
    assert {path.partition("/")[0] for path in mine} <= {"sockets", "node"}, answers  # Slurm's asks the kernel who is there
    assert attacker.as_user("munge", f"--socket={hub.munge / 'socket'}", "--no-input").returncode == 0, (
        "then this shows nothing"
    )
    assert "No such file" in theirs(CONNECT.format(path=str(hub.munge / "socket")))


def test_a_server_makes_no_namespace_and_gets_no_rights(hub, pair):
    victim, attacker, theirs, known = pair
    tried = "import subprocess; print(subprocess.run(['unshare', *{}, 'true'], capture_output=True, text=True).stderr)"
    assert "No space left on device" in theirs(tried.format(["--user", "--map-root-user"]))
    assert "Operation not permitted" in theirs(tried.format(["--mount"]))
    rights = theirs("print([line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')])")
    assert set(ast.literal_eval(rights)) == {"0" * 16}


def test_the_course_and_the_hubs_programs_can_be_changed_by_no_learner(hub, pair):
    victim, attacker, theirs, known = pair
    programs = Path(sys.executable).parent.parent.parent
    for where in (programs, hub.folder / "course.git", hub.folder / "gitconfig", hub.folder / "slurm.conf"):
        assert where.exists()
        found = attacker.as_user("find", where, "-writable", "-not", "-type", "l")
        assert not found.stdout, found.stdout[:200]


def test_a_root_that_gives_folders_away_follows_no_link(hub, pair):
    """The teacher's folders are made again at each upgrade; what lies there may lead anywhere by then."""
    victim, attacker, theirs, known = pair
    import layout

    state = hub.folder / "another"
    state.mkdir()
    kept = state / "kept"
    kept.mkdir(mode=0o700)
    layout.make_exchange(state, attacker.name)
    course = state / "exchange" / "rings-and-trees"
    modes = {each.name: each.stat().st_mode & 0o7777 for each in course.iterdir()}
    assert modes == {"outbound": 0o755, "inbound": 0o3733, "feedback": 0o711}
    for laid in (course / "outbound", course):
        moved = attacker.as_user("sh", "-c", f"mv {laid} {laid}-before && ln -s {kept} {laid}")
        assert moved.returncode == 0, moved.stderr
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            layout.make_exchange(state, attacker.name)
        assert (kept.stat().st_uid, kept.stat().st_mode & 0o7777) == (0, 0o700) and not list(kept.iterdir())
        attacker.as_user("sh", "-c", f"rm {laid} && mv {laid}-before {laid}")


@pytest.mark.cut
def test_anothers_job_can_be_neither_seen_nor_touched_through_slurm(hub, pair):
    victim, attacker, theirs, known = pair
    job = hub.admin.job(victim.name).split()[0]
    mine = hub.admin.job(attacker.name).split()[0]
    seen = attacker.by_slurm("squeue", "--noheader", "--all", "--states=all", "--format=%i").stdout.split()
    assert mine in seen and job not in seen
    for command in (
        ("scontrol", "show", "job", "-dd", job),
        ("scontrol", "write", "batch_script", job, "-"),
        ("scontrol", "update", f"jobid={job}", "timelimit=1"),
        ("scontrol", "suspend", job),
        ("scontrol", "requeue", job),
        ("scancel", job),
        ("scancel", "--signal=KILL", "--full", job),
        ("srun", f"--jobid={job}", "--overlap", "id"),
        ("sattach", f"{job}.0"),
        ("sstat", job),
        ("scontrol", "update", "nodename=ALL", "state=drain", "reason=mine"),
        ("scontrol", "shutdown"),
        ("scontrol", "reconfigure"),
    ):
        asked = attacker.by_slurm("timeout", "20", *command)
        told = asked.stdout + asked.stderr
        # Two of them say that there is nothing for this user, and call that a success.
        refused = asked.returncode != 0 or "Invalid user id" in told or "No steps running" in told
        assert refused and victim.name not in told and "server.sock" not in told, (command, told)
    assert "RUNNING" in hub.admin.job(victim.name) and victim.ready()


def test_nobody_is_another_for_slurm(hub, pair):
    victim, attacker, theirs, known = pair
    of_munge = f"--socket={hub.munge / 'socket'}"
    for asked in ([], [f"--restrict-uid={victim.uid}"]):
        made = attacker.as_user("munge", of_munge, "--no-input", *asked)
        read = victim.as_user("unmunge", of_munge, "--keys=UID", input=made.stdout)
        assert f"({attacker.uid})" in read.stdout and str(victim.uid) not in read.stdout, read.stdout + read.stderr
    as_another = attacker.by_slurm("sbatch", f"--uid={victim.uid}", "--wrap=true")
    assert as_another.returncode != 0 and not hub.slurm("squeue", "--noheader", "--states=PENDING"), as_another.stderr


# ---------------------------------------------------------------- what one caller may keep of the hub


def grown(hub):
    """A function that says by how many bytes the hub's log and database have grown since now."""
    files = [hub.folder / "logs" / "hub.out", hub.folder / "private" / "hub.sqlite"]
    before = sum(each.stat().st_size for each in files)
    return lambda: sum(each.stat().st_size for each in files) - before


def test_a_large_request_is_refused_and_a_long_value_fills_no_log(hub, everyone):
    from bounds import LETTERS

    attacker, grew, log = everyone(3), grown(hub), hub.folder / "logs" / "hub.out"
    written = log.stat().st_size
    hub.admin.ask("POST", f"users/{attacker.name}")
    asked = {"headers": attacker.headers(), "timeout": 60}
    server, form = f"{hub.address}/hub/api/users/{attacker.name}/server", f"{hub.address}/hub/login"
    for size in (8_000_000, 200_000):
        with contextlib.suppress(requests.ConnectionError):  # it may be cut off before it was sent
            assert requests.post(server, json={"gpus": "x" * size}, **asked).status_code in (400, 413, 503)
        with contextlib.suppress(requests.ConnectionError):
            assert requests.post(form, data={"username": "x" * size}, timeout=60).status_code in (400, 403, 413, 503)
    for _ in range(3):
        answer = requests.post(server, json={"gpus": "y" * 50_000, "more": "z" * 40_000}, **asked)
        assert len(answer.text) < 1000, answer.text
        wait_for(lambda: not hub.admin.server(attacker.name).get("pending"), "the refusal")
    people.log_in(hub, "z" * 90_000, "z")
    with contextlib.suppress(requests.ConnectionError):
        requests.get(f"{hub.address}/hub/spawn?gpus={'q' * 15_000}", timeout=30)
    assert grew() < 400_000, grew()
    lines = log.read_bytes()[written:].decode(errors="replace").splitlines()
    assert LETTERS - 200 < max(map(len, lines)) < LETTERS + 200, "the longest line is one that was cut"
    assert requests.get(f"{hub.address}/hub/api/", timeout=30).status_code == 200


def test_a_learner_keeps_so_many_tokens_with_short_notes(hub, everyone):
    from bounds import NOTE, TOKENS

    learner, grew = everyone(3), grown(hub)
    hub.admin.ask("POST", f"users/{learner.name}")
    asked = {"headers": learner.headers(), "timeout": 60}
    url = f"{hub.address}/hub/api/users/{learner.name}/tokens"
    answer = requests.post(url, json={"note": "n" * 50_000}, **asked)
    assert answer.status_code == 400 and str(NOTE) in answer.json()["message"], answer.text
    codes = [requests.post(url, json={"note": "n" * NOTE}, **asked).status_code for _ in range(TOKENS + 20)]
    refused = codes.index(403)
    assert TOKENS - 10 < refused <= TOKENS and set(codes[:refused]) == {201} and set(codes[refused:]) == {403}, codes
    assert grew() < 400_000, grew()
    learner.start(gpus=0)  # which makes tokens itself
    assert "learner" in logged_in(hub, learner).get(f"{hub.address}/hub/home", timeout=30).text
    hub.admin.stop(learner.name)


def test_log_ins_at_a_server_leave_so_many_tokens(hub, learners):
    """Each makes one in the hub's database, and whoever has a server knows the secret by which it asks for them."""
    from bounds import TOKENS

    learner = learners(3)
    learner.start(gpus=0)
    with learner.kernel() as run:
        names = ("JUPYTERHUB_CLIENT_ID", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_OAUTH_CALLBACK_URL")
        client, secret, back = ast.literal_eval(run(f"import os; print([os.environ[name] for name in {names!r}])"))
    session, oauth = logged_in(hub, learner), f"{hub.address}/hub/api/oauth2"
    made = []
    for _ in range(TOKENS + 5):
        asked = {"client_id": client, "redirect_uri": back, "response_type": "code", "state": "x"}
        leads = session.get(f"{oauth}/authorize", params=asked, timeout=30, allow_redirects=False).headers["Location"]
        asked |= {
            "client_secret": secret,
            "grant_type": "authorization_code",
            "code": dict(parse_qsl(urlsplit(leads).query))["code"],
        }
        answer = requests.post(f"{oauth}/token", data=asked, timeout=30)
        assert answer.status_code == 200, answer.text
        made.append(answer.json()["access_token"])
    asked = [
        requests.get(f"{hub.address}/hub/api/user", headers={"Authorization": f"token {each}"}, timeout=30) for each in made
    ]
    assert [each.status_code for each in asked] == [403] * 5 + [200] * TOKENS


# ---------------------------------------------------------------- what root runs

TELLS = "#!/bin/sh\nid -u >> {mark}\n"


def test_what_root_runs_takes_nothing_from_a_learners_environment_or_home(hub, pair):
    victim, attacker, theirs, known = pair
    mark = attacker.write("mark", "")
    for name in ("sed", "scontrol", "squeue", "grep", "sleep", "mktemp", "rm", "stat", "sinfo"):
        attacker.as_user("chmod", "700", attacker.write(f"bin/{name}", TELLS.format(mark=mark)))
    settings = attacker.write("settings", TELLS.format(mark=mark))
    script = attacker.write("job.sh", "#!/bin/sh\nrm -f nothing\n")
    output = Path(attacker.home, "output")
    key = hub.folder / "private" / "munge.key"
    attacker.as_user("ln", "-s", key, output)
    before = key.read_bytes()
    theirs_to_set = [f"PATH={attacker.home}/bin:/usr/bin:/bin", f"SPANK_PATH={attacker.home}/bin"]
    theirs_to_set += [f"{name}={settings}" for name in ("ENV", "BASH_ENV", "PYTHONSTARTUP", "SLURM_PROLOG")]
    asked = attacker.by_slurm("env", *theirs_to_set, "/usr/bin/sbatch", "--mem=100M", "--export=ALL", "--no-requeue", script)
    linked = attacker.by_slurm("sbatch", "--mem=100M", f"--output={output}", "--wrap=echo overwritten")
    assert not asked.returncode and not linked.returncode, asked.stderr + linked.stderr
    jobs = [each.stdout.split()[-1] for each in (asked, linked)]
    wait_for(lambda: not set(hub.slurm("squeue", "--noheader", "--format=%i").split()) & set(jobs), "the jobs to end")
    assert set(mark.read_text().split()) == {str(attacker.uid)}
    assert key.read_bytes() == before
    assert set(Path(attacker.home, ".jupyter", "who-reads").read_text().split()) == {str(attacker.uid)}


def test_a_link_in_tmp_makes_root_write_to_no_other_file(hub, tmp_path):
    """The attacker wins the race: whenever root's script removes what is in its way, there is a link again."""
    kept = tmp_path / "kept"
    kept.write_text("whole")
    lost = Path(f"/tmp/ringtree-{hub.name}-0-lost")
    fakes = {"scontrol": "echo is UP", "squeue": "echo PENDING", "sleep": f"touch -d tomorrow {tmp_path}/job_state"}
    fakes["rm"] = f'/bin/rm "$@"; [ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; ln -s {kept} {lost}; }}'
    (tmp_path / "slurm.conf").write_text(f"StateSaveLocation={tmp_path}\n")
    given = {"SLURM_JOB_ID": "0", "SLURMD_NODENAME": hub.name, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    given["PATH"] = people.in_place_of(tmp_path, fakes)
    lost.unlink(missing_ok=True)
    lost.symlink_to(kept)
    try:
        subprocess.run([Path(os.environ["RINGTREE_HUB"]) / "server" / "wait-until-saved"], env=given, check=True, timeout=30)
        assert kept.read_text() == "whole" and lost.stat(follow_symlinks=False).st_uid == 0 and not lost.is_symlink()
    finally:
        subprocess.run(["rm", "-rf", lost])


def test_a_file_of_roots_under_the_name_of_a_jobs_mark_ends_no_server(hub, learners):
    """A learner may move a file of root's out of a folder of their own, and the number of the next job is known."""
    learner, attacker = learners(3), learners(4)
    roots = attacker.write("roots", "")
    os.chown(roots, 0, 0)
    number = re.search(r"^NEXT_JOB_ID\s*=\s*(\d+)", hub.slurm("scontrol", "show", "config"), re.MULTILINE)[1]
    marks = [Path(f"/tmp/ringtree-{hub.name}-{int(number) + more}-lost") for more in range(3)]
    try:
        for mark in marks:  # all of them links to one file would do; the system may allow none to a file of root's
            os.link(roots, Path(attacker.home, mark.name))
            assert attacker.as_user("mv", Path(attacker.home, mark.name), mark).returncode == 0 and mark.stat().st_uid == 0
        learner.start(gpus=0)
        assert hub.admin.job(learner.name).split()[0] in [mark.name.split("-")[2] for mark in marks], "then this shows nothing"
    finally:
        roots.unlink()
        for mark in marks:
            mark.unlink(missing_ok=True)


def test_clearing_a_folder_away_follows_no_link(hub, tmp_path):
    (tmp_path / "kept").touch()
    folder = Path(f"/tmp/ringtree-{hub.name}-0-xxxxxx")
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    given = {"SLURM_JOB_ID": "0", "SLURMD_NODENAME": hub.name, "PATH": os.environ["PATH"]}
    Path(f"{folder}-too").symlink_to(tmp_path)
    subprocess.run([Path(os.environ["RINGTREE_HUB"]) / "server" / "clear-away"], env=given, check=True, timeout=30)
    assert not folder.exists() and not Path(f"{folder}-too").is_symlink() and (tmp_path / "kept").exists()
