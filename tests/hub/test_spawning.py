"""How the hub starts a server and looks after it: nothing of that is the learner's to change, or to read."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import layout
import parts
import people
import psutil
import requests
from traitlets.config.loader import PyFileConfigLoader


def test_commands_in_a_learners_name_have_none_of_the_hubs_variables(hub, monkeypatch):
    from allotments import Allotment

    monkeypatch.setenv("CONFIGPROXY_AUTH_TOKEN", "secret")
    with ThreadPoolExecutor() as aside:  # a browser of another test has a loop of its own in this thread
        said = aside.submit(asyncio.run, Allotment().run_command("env")).result()
    assert "PATH=" in said and "secret" not in said


def test_slurm_is_asked_for_its_queue_once_a_second_however_many_wait(hub, monkeypatch):
    from allotments import Allotment

    asked, now = [], 100.0

    class Counted(Allotment):
        async def run_command(self, cmd, **_):
            asked.append(cmd)
            await asyncio.sleep(0)
            if len(asked) == 2:
                raise RuntimeError("away")
            return f"listing {len(asked)}"

    async def twenty_ask():
        return await asyncio.gather(*(Counted().listing() for _ in range(20)), return_exceptions=True)

    def ask():
        monkeypatch.setattr(Allotment, "_turn", asyncio.Lock())  # each loop has its own
        with ThreadPoolExecutor() as aside:
            return [str(each) for each in aside.submit(asyncio.run, twenty_ask()).result()]

    for name, value in (("_asked", float("-inf")), ("_listing", None)):
        monkeypatch.setattr(Allotment, name, value)
    monkeypatch.setattr("allotments.time", SimpleNamespace(monotonic=lambda: now))
    assert ask() == ["listing 1"] * 20 and len(asked) == 1
    now += 1.5
    assert ask() == ["away", *["Slurm did not answer"] * 19] and len(asked) == 2  # nor more often when it does not answer
    now += 1.5
    assert ask() == ["listing 3"] * 20 and len(asked) == 3


def test_who_cancels_before_slurm_has_answered_leaves_no_job(hub, learners):
    learner = learners(1)
    controller = psutil.Process(hub.parts["slurmctld"].pid)
    controller.suspend()
    try:
        hub.admin.start(learner.name, gpus=1)
        people.wait_for(lambda: learner.runs("sbatch\0--parsable"), "the submission")
        cancelled = hub.admin.ask("DELETE", f"users/{learner.name}/server")
        assert cancelled.status_code in (202, 204), cancelled.text
    finally:
        controller.resume()
    people.wait_for(lambda: not hub.admin.server(learner.name).get("pending"), "the end of it")
    time.sleep(3)
    try:
        people.wait_for(lambda: not hub.admin.job(learner.name), "the end of a server that nobody waits for", 30)
    finally:
        hub.slurm("scancel", f"--user={learner.name}")


def test_an_account_that_could_not_be_removed_is_named(hub, tmp_path, capfd):
    accounts = parts.Accounts(tmp_path)
    accounts.made["who-never-was"] = ""
    accounts.remove()
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith("userdel --remove who-never-was failed, do it yourself: "), told
    groups = [line.split(":")[0] for line in Path("/etc/group").read_text().splitlines()]
    assert accounts.group not in groups and accounts.proxy not in groups


MORE = """
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.allow_all = True
c.Allotment.req_cpus = 3
"""


def test_what_an_administrator_says_otherwise_holds_another_authenticator_too(hub, monkeypatch, tmp_path):
    from jupyterhub.app import JupyterHub

    more = tmp_path / "jupyterhub_config.py"
    more.write_text(MORE)
    for name, value in (hub._environment() | {"RINGTREE_HUB_MORE": str(more)}).items():
        monkeypatch.setenv(name, value)
    said = PyFileConfigLoader(str(layout.CONFIG)).load_config()
    assert said.Allotment.req_cpus == 3
    door = JupyterHub(config=said).authenticator_class(config=said)
    with ThreadPoolExecutor() as aside:
        logged_in = aside.submit(
            asyncio.run, door.get_authenticated_user(None, {"username": "anybody", "password": ""})
        ).result()
    assert logged_in["name"] == "anybody"
    monkeypatch.delenv("RINGTREE_HUB_MORE")
    usual = PyFileConfigLoader(str(layout.CONFIG)).load_config()
    assert usual.JupyterHub.authenticator_class.__name__ == "Members" and "3" not in str(usual.Allotment.req_cpus)


def test_a_server_cannot_change_the_commands_by_which_the_hub_looks_after_it(hub, learners):
    learner = learners(1)
    learner.start(gpus=0)
    with learner.kernel() as run:
        token = run("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])")
    # batchspawner's own page set whatever it was told, and the hub then ran it as root.
    wish = {"exec_prefix": "", "batch_query_cmd": "touch /var/tmp/ringtree-mark"}
    headers = {"Authorization": f"token {token}"}
    assert requests.get(f"{hub.address}/hub/api/user", headers=headers, timeout=30).json()["name"] == learner.name

    def asked():
        answer = requests.post(f"{hub.address}/hub/api/batchspawner", json=wish, headers=headers, timeout=30)
        return answer.status_code != 503 and [
            answer
        ]  # the proxy's own: the hub has closed the connection, whatever it answered

    (answer,) = people.wait_for(asked, "the hub's answer", 30)
    assert answer.status_code == 404, answer.text


def test_who_ends_ones_own_commands_keeps_ones_server_and_its_allotment(hub, learners):
    """The hub asked Slurm in the learner's name: a command that was ended told it that the job had, and it gave another."""
    learner = learners(1)
    learner.start(gpus=1)
    with learner.kernel() as run:
        ended = "until=$(($(date +%s) + 14)); while [ $(date +%s) -lt $until ]; do pkill -KILL -u $(id -u) -x 'squeue|runuser'; done"
        run(f"import subprocess; subprocess.run(['sh', '-c', {ended!r}])")
        assert learner.ready() and "RUNNING" in hub.admin.job(learner.name)
