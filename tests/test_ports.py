"""What starts beside another of its kind does not race it for a port."""

import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import zmq
from live import kernel

from ringtree.live import forkserver

ROOT = Path(__file__).parent.parent
linux = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")

# Few enough to leave ports for what else runs, and enough to meet one of 200 among 28,000 many times over.
TAKE_PORTS = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
taken = [socket.socket() for _ in range(2000)]
for port in taken:
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", 0))
print(*[port.getsockname()[1] for port in taken])
"""


@pytest.fixture
def ports():
    yield forkserver.hold_ports(200)
    while forkserver.held:
        forkserver.held.pop().close()


@linux
def test_ports_that_a_controller_chose_are_given_to_no_other(ports):
    said = subprocess.run([sys.executable, "-c", TAKE_PORTS], capture_output=True, text=True, check=True).stdout
    taken = set(map(int, said.split()))
    assert len(taken) == 2000
    assert not taken & set(ports)
    with socket.socket() as other, pytest.raises(OSError) as refused:
        other.bind(("127.0.0.1", ports[0]))
    assert refused.value.errno == errno.EADDRINUSE


@linux
def test_the_controller_itself_can_listen_on_them(ports):
    assert len(set(ports)) == 200
    with zmq.Context() as context, context.socket(zmq.ROUTER) as there, context.socket(zmq.DEALER) as here:
        there.bind(f"tcp://127.0.0.1:{ports[0]}")
        here.connect(f"tcp://127.0.0.1:{ports[0]}")
        here.send(b"hello")
        assert there.poll(10_000)
        assert there.recv_multipart()[-1] == b"hello"


@linux
def test_a_live_controller_holds_the_ports_that_it_listens_on():
    with kernel() as live:
        answer = live.run("import ringtree; ranks = ringtree.start(2); print(ranks.cluster.controller.pid)")
        controller = psutil.Process(int(answer.text.split()[-1]))
        listening = [port for port in controller.net_connections("tcp") if port.status == psutil.CONN_LISTEN]
        assert listening
        assert len(sockets_that_only_hold_a_port(controller.pid)) >= len(listening)


def sockets_that_only_hold_a_port(pid):
    """Linux lists TCP sockets that listen or are connected, Unix sockets and others; not those only bound."""
    process = Path("/proc", str(pid))
    links = [os.readlink(descriptor) for descriptor in (process / "fd").iterdir()]
    numbers = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:")}
    listed = [line.split() for kind in ("tcp", "tcp6", "udp", "unix", "netlink") for line in (process / "net" / kind).open()]
    return {number for number in numbers if not any(number in words for words in listed)}


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
        listening = {
            (port.laddr.ip, process.pid)
            for process in live.descendants()
            for port in process.net_connections("inet")
            if port.status == psutil.CONN_LISTEN or port.type == socket.SOCK_DGRAM
        }
        assert len({process for _, process in listening}) >= 5  # the controller and all ranks
        assert {address for address, _ in listening} <= {"127.0.0.1", "::1"}


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


def test_a_kernel_of_the_suite_has_no_port_to_lose():
    with kernel() as live:
        assert live.run("print(6 * 7)").text == "42\n"
        live.manager.restart_kernel(now=True)
        live.client.wait_for_ready(timeout=60)
        assert live.run("print(6 * 7)").text == "42\n"
        folder = Path(live.manager.ip).parent
        assert [channel.is_socket() for channel in folder.iterdir()] == [True] * 5
    assert not folder.exists()


@pytest.mark.parametrize("target", ["test", "book", "notebooks"])
def test_make_starts_its_kernels_in_that_way_too(target):
    said = subprocess.run(["make", "-np", target], cwd=ROOT, capture_output=True, text=True).stdout
    assert f"{target}: JUPYTER_DEFAULT_PROVISIONER_NAME := ringtree-unix-sockets\n" in said
