"""Ranks and learners' servers on a cluster of two nodes with Slurm on one machine."""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import requests
from people import Administrator, Learner, left_by, wait_for

import conftest

ROOT = Path(__file__).resolve().parent.parent.parent
START = """
import os, signal, sys, time
import ringtree
{before}
ranks = ringtree.start({size}, engines="slurm", {more})
print("started", *sorted({{place.host for place in ranks.places}}), flush=True)
"""


@pytest.fixture(scope="module")
def cluster():
    """Slurm on a head and two nodes, and the hub of hub/slurm; this thread's network is the head's."""
    if reason := conftest.reason_to_skip():
        pytest.skip(reason)
    import cluster
    import layout

    if reason := cluster.missing():
        pytest.skip(reason)

    token = secrets.token_hex(32)
    here = cluster.Cluster(
        tempfile.mkdtemp(prefix="ringtree-cluster-", dir="/var/tmp"),
        ROOT / "tools" / "course.py",
        config=Path(__file__).with_name("hub_config.py"),
        settings={
            "RINGTREE_HUB_TESTS": token,
            "RINGTREE_HUB_CONFIG": str(layout.HERE.parent / "slurm" / "jupyterhub_config.py"),
            "RINGTREE_HUB": str(layout.HERE.parent),
        },
    )
    here.admin = Administrator(here, token)
    try:
        here.start()
        here.start_hub()
        with here.network():
            yield here
    finally:
        here.end()
    assert not (left := left_by(here)), f"users who could not be removed, since they still have processes: {left}"


@pytest.fixture(scope="module")
def learner(cluster):
    return Learner(cluster, *cluster.accounts.add())


@pytest.fixture(scope="module")
def other(cluster):
    return Learner(cluster, *cluster.accounts.add())


@pytest.fixture
def program(cluster, learner):
    """Start a learner's program on the head, which starts ranks: `program(size, more, then)`; ended after the test."""
    started = []

    def start(size=4, more="", then="", before=""):
        code = START.format(size=size, more=more, before=before) + then
        started.append(cluster.run_as(learner.name, "python", "-c", code))
        return started[-1]

    yield start
    for each in started:
        end(each.pid)
        each.stdout.close()
        each.wait()
    cluster.slurm("scancel", f"--user={learner.name}")
    wait_for(lambda: not cluster.slurm("squeue", "--noheader"), "the jobs to end", 60)


def folders(learner):
    """What ranks have left in the home."""
    return [name for name in os.listdir(learner.home) if name.startswith(".ringtree-")]


def end(pid):
    """Kill a process and all that it started."""
    for each in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        each.kill()


def test_sixteen_ranks_on_two_nodes_from_a_learners_server(cluster, learner, other):
    learner.start(gib=2)
    with learner.kernel() as run:
        started = run(START.format(size=16, more="ranks_per_node=8, timeout=200", before=""))
        assert started.endswith("started " + " ".join(node.name for node in cluster.nodes)), started
        assert run("%%px\nx = torch.tensor([1.0 + rank])\ndist.all_reduce(x)\nprint(x.item())").count("136.0") == 16
        told = run("print(ranks.call(lambda: type(torch.distributed.distributed_c10d._get_default_store().underlying_store)))")
        assert told.count("FileStore") == 16, told  # in a folder that nobody else can open
        server = cluster.slurm("squeue", "--noheader", "--name=ringtree-hub", "--format=%N")
        both = cluster.slurm("squeue", "--noheader", "--name=ringtree", "--format=%D %N")
        assert both.startswith("2 ") and server in [node.name for node in cluster.nodes]
        # No other user's job gets onto these nodes, the hub's own included.
        cluster.admin.start(other.name, gpus=1)
        told = next(each["message"] for each in cluster.admin.progress(other.name) if "queue" in each.get("message", ""))
        assert told.startswith("In the queue: place 1 of 1. You asked for 1 GPU; 4 of 4 are free."), told
    cluster.admin.stop(learner.name)
    ended = (cluster.folder / "run" / learner.name / "server.log").read_text()
    assert "received signal 15, stopping" in ended, ended  # by itself: its kernels are stopped, and its folder removed
    wait_for(lambda: not cluster.admin.job(learner.name), "the ranks to end with the server that they belong to", 60)
    wait_for(other.ready, "the other to get a server, once a node is free")
    cluster.admin.stop(other.name)
    cluster.admin.ask("POST", f"users/{other.name}/server", gpus=4)  # a node has two
    wait_for(lambda: not cluster.admin.server(other.name).get("pending"), "the refusal")
    assert not other.ready() and not cluster.admin.job(other.name)
    assert not folders(learner)


def test_who_waits_is_told_and_an_interrupt_takes_the_job_out(cluster, learner, other, program):
    cluster.run_as(other.name, "sbatch", "--exclusive", "-N2", "--output=/dev/null", "--wrap=sleep 600").wait()
    wait_for(lambda: "RUNNING" in cluster.admin.job(other.name), "the other's job", 30)
    try:
        waits = program()
        told = waits.stdout.readline()
        waiting = "waiting until enough is free|it waits, or, where Slurm keeps accounts"  # the second of Slurm 23.11, which keeps none
        assert re.match(rf"Slurm's job \d+ is in the queue: ({waiting})", told), told
        waits.send_signal(signal.SIGINT)
        assert "taken out of the queue: call ringtree.start to ask for it again" in waits.stdout.read()
        wait_for(lambda: not cluster.admin.job(learner.name), "the job to leave the queue", 10)
    finally:
        cluster.slurm("scancel", f"--user={other.name}")


@pytest.mark.parametrize("end_it, cause", [("node", "was lost"), ("cancel", "it was cancelled")])
def test_why_slurm_ended_the_ranks_is_told_and_they_are_stopped(cluster, learner, program, end_it, cause):
    asleep = "try:\n    ranks.call(time.sleep, 300, timeout=400)\nexcept Exception as error:\n"
    runs = program(then=f"{asleep}    print(type(error).__name__, error)\nprint(ranks)\n")
    assert runs.stdout.readline() == f"started {' '.join(node.name for node in cluster.nodes)}\n"
    lost = cluster.nodes[1]
    try:
        if end_it == "node":
            subprocess.run([*lost.command, "ip", "link", "set", "eth0", "down"], check=True)
        else:
            cluster.slurm("scancel", cluster.admin.job(learner.name).split()[0])
        told = runs.stdout.readline()
        assert re.match(rf"RankDied Slurm has ended job \d+ and its ranks: .*{cause}.*start asks for a new one", told), told
        assert end_it != "node" or f"node {lost.name} was lost" in told
        assert runs.stdout.readline() == "4 ranks, stopped\n"
    finally:
        subprocess.run([*lost.command, "ip", "link", "set", "eth0", "up"], check=True)
    cluster.slurm("scontrol", "reconfigure")  # nodes register anew: by itself the lost one would in half a minute
    wait_for(lambda: cluster.slurm("sinfo", "--noheader", "--format=%T %D") == "idle 2", "both nodes", 60)


def test_a_rank_that_dies_is_named_and_new_ones_start(cluster, program):
    dies = "try:\n    ranks.call(lambda: __import__('os')._exit(7) if rank == 2 else dist.barrier())\n"
    dies += "except Exception as error:\n    print(error, flush=True)\n"
    dies += "print(ranks.call(lambda: (rank, __import__('os').environ['CUDA_VISIBLE_DEVICES'])), flush=True)\n"
    said = program(then=dies).stdout.read()
    assert "rank 2 died: its process exited with code 7" in said, said
    # Nobody said how many ranks a node takes: as many as it has GPUs.
    assert said.endswith("[(0, '0,1'), (1, '0,1'), (2, '0,1'), (3, '0,1')]\n"), said


def test_ranks_end_when_their_kernel_is_killed_with_all_that_it_started(cluster, learner, program):
    runs = program(then="time.sleep(600)")
    assert runs.stdout.readline().startswith("started")
    end(runs.pid)
    wait_for(lambda: not cluster.admin.job(learner.name), "the job to end", 60)
    wait_for(lambda: not folders(learner), "the ranks' folder to go", 10)


def test_what_slurm_refuses_is_said_in_its_words(cluster, program):
    said = program(more="options={'SlurmEngineSet': {'queue': 'nowhere'}}").stdout.read()
    assert "UsageError: Slurm's sbatch refused: invalid partition specified: nowhere" in said, said


def test_a_server_takes_in_nobody_without_the_hubs_certificate(cluster, learner, other):
    for each in (learner, other):
        cluster.admin.start(each.name, gib=2)
    for each in (learner, other):
        wait_for(each.ready, f"{each.name}'s server")
    try:
        with learner.kernel() as run:
            url = run("import os; print(os.environ['JUPYTERHUB_SERVICE_URL'])")
            token = run("print(os.environ['JUPYTERHUB_API_TOKEN'])")
        node = next(each for each in cluster.nodes if each.address in url)  # its own address, and no other of the node's
        certificates = cluster.folder / "private" / "certificates"
        theirs = [cluster.folder / "run" / other.name / f"{name}.pem" for name in ("certfile", "keyfile")]
        hubs = [certificates / "hub-internal" / f"hub-internal.{kind}" for kind in ("crt", "key")]
        url = f"{url.replace(node.address, node.name)}api"
        names = {"verify": certificates / "hub-ca_trust.crt", "headers": {"Authorization": f"token {token}"}, "timeout": 30}
        assert ask(cluster, url, cert=hubs, **names) == "200"
        for cert in (None, theirs):
            assert "SSL" in ask(cluster, url, cert=cert, **names), cert
    finally:
        for each in (learner, other):
            cluster.admin.stop(each.name)


def ask(cluster, url, **how):
    """What a request from the head gets: its status, or the error's name and words."""
    code = "import sys, requests\ntry:\n    print(requests.get({url!r}, **{how!r}).status_code)\n"
    code += "except requests.RequestException as error:\n    print(type(error).__name__, error)\n"
    how |= {"verify": str(how["verify"]), "cert": how["cert"] and tuple(map(str, how["cert"]))}
    asked = [*cluster.head.command, sys.executable, "-c", code.format(url=url, how=how)]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()


def test_a_server_may_tell_its_port_and_nothing_else_and_a_killed_one_leaves_no_folder(cluster, learner):
    learner.start(gib=2)
    with learner.kernel() as run:
        token = run("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])")
    for body in ({"exec_prefix": ""}, {"port": 8080, "exec_prefix": ""}, {"port": "8080; id"}, {"port": 80}, ["port"]):
        headers = {"Authorization": f"token {token}"}
        answer = requests.post(f"{cluster.address}/hub/api/batchspawner", json=body, headers=headers, timeout=30)
        assert answer.status_code == 400, (body, answer.text)
    assert learner.ready()
    there = [name for node in cluster.nodes for name in in_tmp(node)]
    assert there, "the server has no temporary folder: then the rest shows nothing"
    cluster.slurm("scancel", "--signal=KILL", "--full", cluster.admin.job(learner.name).split()[0])
    wait_for(lambda: not cluster.admin.job(learner.name), "the job to end")
    wait_for(lambda: not [name for node in cluster.nodes for name in in_tmp(node)], "all folders of jobs to go", 20)
    cluster.admin.stop(learner.name)


def test_no_profile_runs_on_a_node_and_only_learners_get_servers(cluster, learner):
    mark = Path(learner.home, "mark")
    profiles = [learner.write(name, f"touch {mark}\nsleep 900\n") for name in (".bash_profile", ".profile")]
    try:
        learner.start(gib=2)
        assert not mark.exists()
        cluster.admin.ask("POST", "users/root")
        cluster.admin.ask("POST", "users/root/server", gib=2)
        log = cluster.folder / "logs" / "hub.out"
        wait_for(lambda: f"root is not in the group {cluster.accounts.group}" in log.read_text(), "the hub to refuse", 30)
        assert not cluster.admin.job("root") and not (cluster.folder / "run" / "root").exists()
    finally:
        cluster.admin.stop(learner.name)
        for path in profiles:
            path.unlink(missing_ok=True)


def test_where_something_in_the_home_stops_a_server_on_a_node_its_page_says_what(cluster, learner):
    wrong = learner.write(".jupyter/jupyter_server_config.py", "raise SystemExit('this is a mistake in my own file')\n")
    try:
        begun = time.monotonic()
        cluster.admin.start(learner.name, gib=2)
        *_, told = cluster.admin.progress(learner.name)
        assert told.get("failed") and "this is a mistake" in told["message"], told
        assert "Settings: none of your own" in told["message"] and time.monotonic() - begun < 120
        learner.start(gib=2, settings="clean")
    finally:
        wrong.unlink()
        cluster.admin.stop(learner.name)


def test_a_full_home_keeps_no_learner_from_a_server_on_a_node(cluster, learner):
    limit = f"size=64k,uid={learner.uid},mode=700"
    machines = [[], *(each.command for each in (cluster.head, *cluster.nodes))]
    for command in machines:
        subprocess.run([*command, "mount", "-t", "tmpfs", "-o", limit, "home", learner.home], check=True)
    try:
        for command in machines[1:]:
            subprocess.run([*command, "dd", "if=/dev/zero", f"of={learner.home}/fills"], capture_output=True)
        cluster.admin.start(learner.name, gib=2)
        *_, told = cluster.admin.progress(learner.name)
        assert told.get("failed") and "Your home is full" in told["message"], told
        learner.start(gib=2, settings="clean")
    finally:
        cluster.admin.stop(learner.name)
        for command in machines:
            subprocess.run([*command, "umount", "--lazy", learner.home], check=True)


def in_tmp(node):
    """Folders of jobs in a node's /tmp."""
    listed = subprocess.run([*node.command, "ls", "/tmp"], capture_output=True, text=True, check=True).stdout.split()
    return [name for name in listed if name.startswith("ringtree-")]
