"""The doctor: each ill is found and says what to do; what is well is called so; a healthy machine passes."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from ringtree import doctor
from ringtree.command.doctor import as_text, main
from ringtree.doctor import computer, gpus, looking, network, processes, slurm
from ringtree.doctor.finding import FINE, NOTE, WRONG, Finding, fine, note, wrong
from ringtree.errors import UsageError

GIB = 1 << 30


def test_a_finding_that_is_not_fine_says_what_to_do():
    with pytest.raises(AssertionError):
        Finding("x", WRONG, "bad")
    with pytest.raises(AssertionError):
        Finding("x", FINE, "good", "then why do anything?")


# ---------------------------------------------------------------- this computer


@pytest.mark.parametrize(
    ("found", "state", "seen", "do"),
    [
        (lambda: computer.memory(4, 8 * GIB), FINE, "8 GiB free", ""),
        (lambda: computer.memory(4, 0.2 * GIB), WRONG, "4 ranks take about 420 MiB", "fewer ranks"),
        (lambda: computer.cores_for(4, 8), FINE, "8 for 4 ranks", ""),
        (lambda: computer.cores_for(4, 1.5), NOTE, "1.5 for 4 ranks", "times are those of cores"),
        (lambda: computer.threads({}), FINE, "one a rank", ""),
        (lambda: computer.threads({"OMP_NUM_THREADS": "16"}), NOTE, "OMP_NUM_THREADS=16", "your own scripts"),
        (lambda: computer.open_files(65536), FINE, "65536", ""),
        (lambda: computer.open_files(256), WRONG, "256 allowed", "ulimit -n 1024"),
        (lambda: computer.processes_allowed(4, 4096, 100), FINE, "4096", ""),
        (lambda: computer.processes_allowed(4, 200, 100), WRONG, "200 allowed, 100 there", "ulimit -u"),
        (lambda: computer.shared_memory(0, 64 << 20, 64 << 20), FINE, "64 MiB", ""),
        (lambda: computer.shared_memory(4, 64 << 20, 64 << 20), NOTE, "64 MiB", "--shm-size=1g"),
        (lambda: computer.shared_memory(8, 64 << 20, 64 << 20), WRONG, "64 MiB free; NCCL takes", "--shm-size=1g"),
        (lambda: computer.shared_memory(8, 16 * GIB, 15 * GIB), FINE, "16 GiB", ""),
        (lambda: computer.locked_memory(8, ["mlx5_0"], 8 << 20), WRONG, "the cards mlx5_0", "ulimit -l unlimited"),
        (lambda: computer.locked_memory(8, [], 8 << 20), FINE, "no card here needs it", ""),
        (lambda: computer.locked_memory(0, ["mlx5_0"], 8 << 20), FINE, "no card here needs it", ""),
    ],
)
def test_of_the_computer(found, state, seen, do):
    finding = found()
    assert finding.state == state
    assert seen in finding.seen and do in finding.do


def test_a_temporary_folder_that_cannot_be_written_to_is_found(monkeypatch):
    monkeypatch.setattr(computer.sockets, "parent", lambda: "/proc/self")
    monkeypatch.setattr(computer.os, "access", lambda path, mode: path != "/proc/self")
    found = computer.folder()
    assert found.state == WRONG and "cannot be written to" in found.seen and "TMPDIR" in found.do


def test_cores_are_those_of_the_control_group(monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    monkeypatch.setattr(computer, "_control_groups", lambda: [tmp_path])
    assert computer.cores() == min(1.5, len(os.sched_getaffinity(0)))
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert computer.cores() == len(os.sched_getaffinity(0))


def test_memory_is_that_of_the_control_group(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 4}\n")
    monkeypatch.setattr(computer, "_control_groups", lambda: [tmp_path])
    assert computer._memory() == 3 * GIB // 4


# ---------------------------------------------------------------- GPUs

H100 = "NVIDIA H100 80GB HBM3"
TWO = dict(
    cuda="13.0",
    nccl="2.29.7",
    names=(H100, H100),
    free=(79 * GIB,) * 2,
    total=(80 * GIB,) * 2,
    peers=frozenset({(0, 1)}),
    driver=(H100, H100),
    modes=("Default",) * 2,
    codes=("NV18",),
)


def states(**more):
    return {found.topic: found for found in gpus.findings(gpus.Gpus(**{**TWO, **more}))}


def test_two_gpus_that_are_well():
    found = states()
    assert {each.state for each in found.values()} == {FINE}
    assert found["GPUs"].seen == f"2 × {H100}"
    assert found["CUDA and NCCL"].seen == "PyTorch for CUDA 13.0, NCCL 2.29.7"
    assert found["links"].seen == "NV18 between 1 pair"


@pytest.mark.parametrize(
    ("more", "topic", "state", "seen", "do"),
    [
        (dict(names=(), peers=frozenset(), cuda=None), "GPUs", WRONG, "2 GPUs here, and a PyTorch without CUDA", "install"),
        (dict(names=(), peers=frozenset()), "GPUs", WRONG, "PyTorch for CUDA 13.0 can open none", "driver"),
        (dict(names=(), driver=(), cuda=None), "GPUs", FINE, "over Gloo", ""),
        (dict(driver=(H100,) * 8), "GPUs seen", NOTE, "2 of the 8", "CUDA_VISIBLE_DEVICES"),
        (dict(free=(79 * GIB, 3 * GIB)), "memory of GPU 1", NOTE, "3 GiB of 80 GiB free", "nvidia-smi"),
        (dict(modes=("Exclusive_Process",) * 2), "compute mode", NOTE, "cannot share", "-c DEFAULT"),
        (dict(peers=frozenset()), "peer access", NOTE, "not between 0 and 1", "through the host's memory"),
    ],
)
def test_what_is_wrong_with_gpus(more, topic, state, seen, do):
    found = states(**more)[topic]
    assert found.state == state
    assert seen in found.seen and do in found.do


TOPOLOGY = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-31
GPU1\tNV18\t X \tSYS\tSYS\t0-31
GPU2\tSYS\tSYS\t X \tPIX\t32-63
NIC0\tPIX\tSYS\tPIX\t X

Legend:
  X    = Self
"""


def test_links_are_read_from_what_nvidia_smi_prints():
    assert gpus.codes_between(TOPOLOGY, 3) == ["NV18", "SYS", "SYS"]
    assert gpus.codes_between("", 3) == []
    found = states(names=(H100,) * 3, driver=(H100,) * 3, peers=frozenset(), codes=("NV18", "SYS", "SYS"))["links"]
    assert found.state == NOTE and found.seen == "NV18 between 1 pair, SYS between 2 pairs"


def test_a_driver_that_answers_is_asked(monkeypatch, tmp_path):
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho '{H100}, Default'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    import torch

    seen = gpus.seen(torch)
    assert seen.driver == (H100,) and seen.modes == ("Default",)
    command.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    assert gpus.seen(torch).driver == ()


# ---------------------------------------------------------------- network, Slurm


def test_interfaces_that_are_not_there_are_named():
    names = ["lo", "eth0"]
    assert list(network.interfaces({}, names)) == []
    for good in (
        {"GLOO_SOCKET_IFNAME": "eth0"},
        {"NCCL_SOCKET_IFNAME": "eth"},
        {"NCCL_SOCKET_IFNAME": "^docker"},
        {"NCCL_SOCKET_IFNAME": "=lo"},
    ):
        assert list(network.interfaces(good, names)) == []
    for bad in (
        {"GLOO_SOCKET_IFNAME": "eth"},
        {"NCCL_SOCKET_IFNAME": "ib"},
        {"NCCL_SOCKET_IFNAME": "=eth"},
        {"NCCL_SOCKET_IFNAME": "^lo,eth"},
    ):
        (found,) = network.interfaces(bad, names)
        assert found.state == WRONG and "this host has lo, eth0" in found.seen
    (found,) = network.interfaces({"NCCL_ALGO": "Ring"}, names)
    assert found.state == NOTE and "unset NCCL_ALGO" in found.do


def test_ports(monkeypatch):
    assert network.loopback().state == FINE

    class Refusing(network.socket.socket):
        def connect(self, address):
            raise ConnectionRefusedError("refused")

    monkeypatch.setattr(network.socket, "socket", Refusing)
    assert network.loopback().state == WRONG


def test_what_slurm_gave():
    given = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2", "SLURM_CPUS_ON_NODE": "8"}
    assert list(slurm.findings(2, 8, {})) == []
    (found,) = slurm.findings(2, 8, given)
    assert found.state == FINE and found.seen == "job 7: 2 GPUs and 8 cores on this node"
    (found,) = slurm.findings(1, 8, given)
    assert found.state == WRONG and "PyTorch sees 1 GPU" in found.seen
    (found,) = slurm.findings(8, 8, given)
    assert found.state == WRONG and "ConstrainDevices" in found.do
    assert [each.state for each in slurm.findings(2, 64, given)] == [FINE, NOTE]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93_784), ("03:04", 184), ("1:00:00", 3600), ("UNLIMITED", None), ("", None), ("NOT_SET", None)],
)
def test_slurms_times(text, seconds):
    assert slurm.seconds_in(text) == seconds


def test_a_job_that_ends_soon_is_told(monkeypatch, tmp_path):
    command = tmp_path / "squeue"
    command.write_text("#!/bin/sh\necho 4:30\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = list(slurm.findings(0, 8, {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "8"}))
    assert [each.seen for each in found if each.state == NOTE] == ["4 min left of this job"]


# ---------------------------------------------------------------- what was left behind


@pytest.mark.skipif(sys.platform != "linux", reason="a process's words are set by an exec of this kind on Linux")
@pytest.mark.parametrize("words", [("/x/ringtree/live/processes/forks.py",), ("-m", "ringtree.live.processes.nanny")])
def test_a_rank_whose_kernel_is_gone_is_found_and_its_number_named(words):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    program = "import time; time.sleep(60)"
    stale = subprocess.Popen([sys.executable, "-c", program, *words, str(dead.pid)])
    alive = subprocess.Popen([sys.executable, "-c", program, *words, str(os.getpid())])
    try:
        until = time.monotonic() + 10
        while len(psutil.Process(stale.pid).cmdline()) < 4 and time.monotonic() < until:
            time.sleep(0.01)
        found = processes.left_behind()
        assert found.state == WRONG and str(stale.pid) in found.do.split() and str(alive.pid) not in found.do.split()
    finally:
        for process in (stale, alive):
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_a_folder_of_ranks_that_are_gone_is_found_and_one_in_use_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr(processes.sockets, "parent", lambda: str(tmp_path))
    monkeypatch.setattr(processes.Path, "home", lambda: tmp_path / "home")
    assert processes.folders().state == FINE
    for name in ("gone", "used"):
        (tmp_path / f"ringtree-{name}" / "security").mkdir(parents=True)
    (tmp_path / "ringtree-other").mkdir()
    with open(tmp_path / "ringtree-used" / "log", "w"):
        found = processes.folders()
    assert found.state == NOTE
    assert found.do == f"remove: rm -r {tmp_path / 'ringtree-gone'}"


# ---------------------------------------------------------------- as a whole


def test_it_looks_at_everything_and_this_machine_can_run_the_suite():
    found = doctor.look()
    assert {
        "GPUs",
        "memory",
        "cores",
        "threads",
        "shared memory",
        "open files",
        "ports",
        "stale ranks",
        "temporary folder",
    } <= {each.topic for each in found}
    for bad in (0, -1, 2.5, True, "four"):
        with pytest.raises(UsageError, match="a whole number, 1 or more"):
            doctor.look(bad)


def test_one_line(monkeypatch):
    monkeypatch.setattr(looking, "look", lambda ranks, **_: [fine("a", "well"), note("b", "so-so", "look")])
    assert doctor.in_a_line(2) == "This machine: ready for 2 ranks."
    monkeypatch.setattr(looking, "look", lambda ranks, **_: [wrong("b", "bad", "mend it"), wrong("c", "bad", "mend it too")])
    told = "This machine: b: bad. What to do: mend it (1 more: run `python -m ringtree.doctor` in a terminal)"
    assert doctor.in_a_line() == told


def test_the_line_is_quick_and_opens_no_gpu_and_asks_no_other_program(monkeypatch):
    """A lab's first cell says it, in a kernel that has PyTorch already."""
    import torch

    def opened(*_, **__):
        raise AssertionError("a GPU was opened, or another program started")

    monkeypatch.setattr(subprocess, "Popen", opened)
    for name in ("is_available", "init", "mem_get_info", "get_device_name"):
        monkeypatch.setattr(torch.cuda, name, opened)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with monkeypatch.context() as begun:  # CUDA only begins, which takes no memory of a GPU's
        begun.setattr(torch.cuda, "is_available", lambda: True)
        assert gpus.glance() == (2, [fine("GPUs", "2, not opened")])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(gpus, "_devices", lambda: [])
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        assert doctor.in_a_line().startswith("This machine: ")
        taken.append(time.perf_counter() - began)
    assert min(taken) < 0.3, taken


def test_ranks_that_run_already_need_no_more_memory(monkeypatch):
    monkeypatch.setattr(computer, "_memory", lambda: 200 << 20)
    assert doctor.in_a_line().startswith("This machine: memory: 200 MiB free, and 4 ranks take about 420 MiB. What to do: ")
    assert "memory" not in doctor.in_a_line(running=4)


@pytest.mark.parametrize("listed", [0, 1])
def test_a_gpu_that_pytorch_cannot_open_is_in_the_line(monkeypatch, listed):
    """A driver that is too old lists its GPUs all the same."""
    monkeypatch.setattr(gpus, "_devices", lambda: ["/dev/nvidia0"])
    monkeypatch.setattr(gpus, "_asked", lambda *_: [H100])
    monkeypatch.setattr("torch.cuda.device_count", lambda: listed)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    count, (found,) = gpus.glance()
    assert count == 0 and found.state == WRONG
    assert doctor.in_a_line().startswith(f"This machine: GPUs: {found.seen}. What to do: {found.do}")


def test_the_command(monkeypatch, capsys):
    from ringtree.command import doctor as command

    monkeypatch.setattr(command, "look", lambda ranks: [fine("memory", "8 GiB"), note("cores", "2", "see")])
    assert main([]) == 0
    assert capsys.readouterr().out == "  memory  8 GiB\n· cores   2\n          → see\n"
    monkeypatch.setattr(command, "look", lambda ranks: [wrong("ports", "none", "mend")])
    assert main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [{"topic": "ports", "state": "wrong", "seen": "none", "do": "mend"}]
    assert as_text([wrong("ports", "none", "mend")]).startswith("✗ ports")


def test_the_command_in_a_terminal():
    done = subprocess.run(
        [sys.executable, "-m", "ringtree.doctor", "--ranks", "0"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and "a whole number, 1 or more" in done.stderr and "Traceback" not in done.stderr
