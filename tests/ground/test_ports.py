"""What starts beside another of its kind does not race it for a port."""

import importlib.metadata
import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import executed
import psutil
import pytest
from helpers.live import kernel
from jupyter_client import BlockingKernelClient

ROOT = Path(__file__).resolve().parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")


@pytest.mark.parametrize("engines", ["fork", "local"])
def test_on_one_host_nothing_listens_to_the_network(engines):
    if engines == "fork" and sys.platform != "linux":
        pytest.skip("ranks are forked on Linux only")
    with kernel() as live:
        live.run("import os; os.environ.pop('GLOO_SOCKET_IFNAME', None); import ringtree")
        assert live.run(f"ranks = ringtree.start(4, engines={engines!r})").error is None
        # more groups and links, whose ranks connect when they are first used
        cell = """%%px
pair = dist.new_group([0, 1])
dist.all_reduce(torch.ones(1, device=device))
from ringtree import Link, emulate
link = emulate(dist, Link(1e-3, 0))
link.barrier()
import os
print(os.environ['GLOO_SOCKET_IFNAME'])"""
        assert re.sub(r"\[rank .\] ", "", live.run(cell).text) in (4 * "lo\n", 4 * "lo0\n")
        listening = [
            (process.pid, port.laddr.ip)
            for process in live.descendants()
            for port in process.net_connections("inet")
            if port.status == psutil.CONN_LISTEN or port.type == socket.SOCK_DGRAM
        ]
        assert len({pid for pid, _ in listening}) == 4  # Gloo on each rank; neither the controller nor a store
        assert {address for _, address in listening} == {"127.0.0.1"}
        controller = live.run("print(ranks.cluster.controller.pid, ranks.started.folder)").text.split()
        assert int(controller[0]) not in {pid for pid, _ in listening}
        assert stat.S_IMODE(os.stat(controller[1]).st_mode) == 0o700


BARGE_IN = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
for path in sys.argv[1:]:
    for way in socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect, open, os.stat:
        try:
            way(path)
        except OSError as error:
            print(type(error).__name__)
"""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reaches_neither_the_ranks_nor_what_they_meet_at():
    with kernel() as live:
        live.run("import ringtree; ranks = ringtree.start(2)")
        folder = live.run("print(ranks.started.folder)").text.strip()
        files = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(("socket", "meeting"))]
        assert len(files) > 10
        for path in files:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as own:
                    own.connect(path)
        done = subprocess.run([sys.executable, "-c", BARGE_IN, *files], capture_output=True, text=True, timeout=60)
        assert done.stdout.split() == ["PermissionError"] * 3 * len(files), done.stderr


@linux
def test_the_store_listens_at_the_address_that_it_was_given_and_at_no_other():
    program = """
import psutil
from ringtree.live import joining
joining.open_store("127.0.0.2", 1)
print({each.laddr.ip for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90)
    assert done.stdout == "{'127.0.0.2'}\n", done.stderr


def test_a_temporary_folder_with_a_long_name_keeps_no_rank_from_starting(tmp_path):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with kernel(TMPDIR=str(long)) as live:
        assert live.run("import ringtree; ranks = ringtree.start(2)").error is None
        assert live.run("print(ranks.started.folder)").text.startswith("/tmp/ringtree-")


def test_a_kernel_of_the_suite_has_no_port_to_lose():
    with kernel() as live:
        assert live.run("print(6 * 7)").text == "42\n"
        live.manager.restart_kernel(now=True)
        live.client.wait_for_ready(timeout=60)
        assert live.run("print(6 * 7)").text == "42\n"
        folder = Path(live.manager.ip).parent
        assert [channel.is_socket() for channel in folder.iterdir()] == [True] * 5
    assert not folder.exists()


def test_kernels_do_without_ports_only_where_jupyter_finds_what_starts_them_so(monkeypatch):
    chosen = "JUPYTER_DEFAULT_PROVISIONER_NAME"
    monkeypatch.delenv(chosen)
    with monkeypatch.context() as patch:
        patch.setattr(executed, "entry_points", lambda group: importlib.metadata.EntryPoints())
        executed.start_without_ports()
        assert chosen not in os.environ, "a package that is only on PYTHONPATH has no entry points"
    executed.start_without_ports()
    assert os.environ[chosen] == "ringtree-unix-sockets"


def listens(address):
    with suppress(ConnectionRefusedError), socket.create_connection((address.hostname, address.port), timeout=10):
        return True
    return False


@contextmanager
def jupyterlab(home):
    """JupyterLab as `make lab` starts it, for someone whose home is `home`: its process, its address and its token."""
    said = subprocess.run(["make", "-np", "lab"], cwd=ROOT, capture_output=True, text=True).stdout
    (setting,) = re.findall(r"^lab: JUPYTER_CONFIG_PATH := (\S+?)/book/jupyter", said, re.MULTILINE)
    env = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")}
    env |= {"HOME": str(home), "JUPYTER_CONFIG_PATH": f"{setting}/book/jupyter"}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--port=0", f"--notebook-dir={home}"]
    with open(home / "log", "w+") as log, subprocess.Popen(command, env=env, cwd=home, stdout=log, stderr=log) as process:
        try:
            until = time.monotonic() + 90
            while not (told := re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)", (home / "log").read_text())):
                assert process.poll() is None and time.monotonic() < until, (home / "log").read_text()
                time.sleep(0.2)
            address, token = told.groups()
            while not listens(urllib.parse.urlsplit(address)):  # it tells its address a moment before that
                assert process.poll() is None and time.monotonic() < until, (home / "log").read_text()
                time.sleep(0.2)
            yield psutil.Process(process.pid), address, token
        finally:
            ours = [process, *psutil.Process(process.pid).children(recursive=True)]
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            for each in ours:
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def asked(url, token="", **what):
    """A JSON answer of JupyterLab's, or the number of its refusal."""
    try:
        request = urllib.request.Request(url, headers={"Authorization": f"token {token}"}, **what)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code


@linux
def test_a_neighbor_reaches_no_channel_of_a_kernel_of_make_lab(tmp_path):
    with jupyterlab(tmp_path) as (server, address, token):
        assert asked(f"{address}/api/kernels") == asked(f"{address}/api/kernels", "another") == 403
        number = asked(f"{address}/api/kernels", token, data=b"{}")["id"]
        (connection,) = tmp_path.rglob(f"kernel-{number}.json")
        client = BlockingKernelClient(connection_file=str(connection))
        client.load_connection_file()
        client.start_channels(hb=False)  # no beat is heard before the kernel is there, and that would count as death
        try:
            client.wait_for_ready(timeout=60)
            answer = client.execute_interactive("print(6 * 7)", timeout=60, output_hook=lambda message: None)
            assert answer["content"]["status"] == "ok"
            folder = Path(client.ip).parent
            channels = sorted(map(str, folder.iterdir()))
            assert [stat.S_ISSOCK(os.stat(path).st_mode) for path in channels] == [True] * 5
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE(connection.stat().st_mode) == 0o600
            if os.geteuid() == 0:  # who else could try it as somebody else
                done = subprocess.run([sys.executable, "-c", BARGE_IN, *channels], capture_output=True, text=True, timeout=60)
                assert done.stdout.split() == ["PermissionError"] * 3 * len(channels), done.stderr
            kernels = [port for each in server.children(recursive=True) for port in each.net_connections("inet")]
            # ipykernel's own, by which forked children print: it takes, gives nothing, and knows its children by a secret.
            assert sum(port.status == psutil.CONN_LISTEN for port in kernels) <= 1
        finally:
            client.stop_channels()
    assert not folder.exists()
