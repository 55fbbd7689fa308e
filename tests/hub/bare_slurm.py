"""Whether Slurm itself works on this machine: one node, one job, nothing of ours. Where it does not, no hub can be tried."""

import contextlib
import functools
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import parts

CONFIG = """\
ClusterName=bare
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
MpiDefault=none
NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=1 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes={name} Default=YES State=UP DefMemPerCPU=200
"""
SECONDS = 90


@functools.cache
def missing():
    """What keeps a job of one core from running here and ending, in one sentence, or None."""
    with tempfile.TemporaryDirectory(prefix="bare-slurm-") as name:
        folder, daemons, node = Path(name), [], f"bare{secrets.token_hex(4)}"
        folder.chmod(0o755)
        try:
            return _tried(folder, daemons, node)
        finally:
            for each in reversed(daemons):
                each.send_signal(signal.SIGTERM)
                try:
                    each.wait(10)
                except subprocess.TimeoutExpired:
                    each.kill()
                    each.wait()
            for path in sorted(Path("/sys/fs/cgroup").glob(f"*/slurm_{node}/**/"), reverse=True):
                with contextlib.suppress(OSError):  # a job is in it still
                    path.rmdir()


def _tried(folder, daemons, name):
    until = time.monotonic() + SECONDS
    controller, node = parts.free_ports(2)
    config = CONFIG.format(folder=folder, name=name, host=socket.gethostname().split(".")[0], controller=controller, node=node)
    (folder / "slurm.conf").write_text(config)
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\nConstrainRAMSpace=yes\n")
    (folder / "key").write_bytes(secrets.token_bytes(128))
    (folder / "key").chmod(0o400)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    files = {"socket": "munge.sock", "key-file": "key", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "seed"}
    for command in (
        ["munged", "--foreground", "--force", *(f"--{option}={folder / file}" for option, file in files.items())],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", name],
    ):
        with open(folder / "said", "ab") as said:
            command = ["setpriv", "--pdeathsig=TERM", "--", *command]
            daemons.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said))
        while not (folder / "munge.sock").exists() and time.monotonic() < until:
            time.sleep(0.05)

    def ask(*command):
        left = until - time.monotonic()
        if left <= 0:
            raise subprocess.TimeoutExpired(command, SECONDS)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=left)

    job = None
    try:
        while not (
            job := ask("sbatch", "--parsable", "--output", folder / "out", "--wrap", "cat /proc/self/cgroup").stdout.strip()
        ):
            time.sleep(0.2)
        while ask("squeue", "--noheader", "--job", job).stdout.strip():
            time.sleep(0.2)
        if f"job_{job}" in (folder / "out").read_text():
            return None
        why = "the job was in no control group"
    except (subprocess.TimeoutExpired, OSError) as error:
        why = f"no job had ended after {SECONDS} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
    last = [line for line in (folder / "said").read_text(errors="replace").splitlines() if "error" in line][-3:]
    return f"Slurm alone, with one node and one job, does not work on this machine: {why}. {' / '.join(last)}"
