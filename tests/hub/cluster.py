"""A cluster on one machine: a head and two nodes, Slurm between them, and a home that all three share.

Each is a host of its own as far as programs see: a network, a name, a /tmp and a /dev/shm apart, on one wire. They are namespaces
that nobody outside sees: they end with the process that made them, and no address or name of the real machine changes.
"""

import ctypes
import os
import pwd
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import parts

CONFIG = """\
ClusterName=ringtree
SlurmctldHost={head}(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/node/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/logs/slurmctld.log
SlurmdLogFile={folder}/logs/%n.log
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=5,batch_sched_delay=1,sched_interval=5
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MpiDefault=none
JobRequeue=0
KillWait=5
MinJobAge=300
ReturnToService=2
SlurmdTimeout=10
Epilog={programs}/clear-away
{nodes}
PartitionName=nodes Nodes={names} Default=YES State=UP MaxTime=1:00:00 DefaultTime=0:10:00 DefMemPerCPU=1000
"""
NODE = "NodeName={name} NodeAddr={address} CPUs=12 RealMemory=20000 Gres=gpu:2 State=UNKNOWN"
# A private /tmp would hide what is shared: the cluster's folder must lie elsewhere.
SET_UP = """\
hostname {name} && mount --bind {hosts} /etc/hosts && mount -t tmpfs -o mode=1777 tmpfs /tmp \
&& mount -t tmpfs -o mode=1777 tmpfs /dev/shm && ip link set lo up {wire}"""
WIRE = "&& ip link add name wire type bridge && ip addr add {address}/24 dev wire && ip link set wire up"
CARD = "&& ip addr add {address}/24 dev eth0 && ip link set eth0 up"
CLONE_NEWNET = 0x40000000


def missing():
    """What keeps such a cluster from running here, in one sentence, or None."""
    wires = "ip link add name wire type bridge && ip link add name one type veth peer name other"
    tried = subprocess.run(["unshare", "--net", "--", "sh", "-c", wires], capture_output=True, text=True)
    return f"This kernel joins no networks by a bridge: {tried.stderr.strip()}." if tried.returncode else None


class Machine:
    """One host: `command` goes before what is to run there."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        hold = ["setpriv", "--pdeathsig=KILL", "--", "unshare", "--net", "--uts", "--mount", "--"]
        hold += ["sh", "-c", "echo made; exec sleep infinity"]
        self.holder = subprocess.Popen(hold, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.holder.stdout.readline()
        self.command = ["nsenter", f"--target={self.holder.pid}", "--net", "--uts", "--mount", "--"]

    def connect(self, head, hosts):
        """To the head's wire; the head itself makes the wire."""
        wire = WIRE if head is self else CARD
        if head is not self:
            port = f"to-{self.address.rpartition('.')[2]}"
            pair = ["ip", "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid)]
            self.check(*head.command, *pair)
            self.check(*head.command, "ip", "link", "set", port, "master", "wire", "up")
        script = SET_UP.format(name=self.name, hosts=hosts, wire=wire.format(address=self.address))
        self.check(*self.command, "sh", "-c", script)

    @staticmethod
    def check(*command):
        subprocess.run(command, check=True)

    def end(self):
        self.holder.kill()
        self.holder.wait()


class Cluster(parts.Hub):
    """Slurm over a head and nodes; its parts are "munge", "slurmctld" and the nodes' names."""

    def __init__(self, folder, course, **options):
        super().__init__(folder, course, gpus=4, **options)
        del self.sockets["hub"]
        self.munge = self.folder / "munge"  # which all machines see
        self.sockets["munge"] = self.munge / "socket"
        self.head, *self.nodes = [
            Machine(f"{name}-{self.port}", f"10.77.0.{number}") for name, number in (("head", 1), ("node1", 11), ("node2", 12))
        ]

    def start(self):
        closed, open_ = dict.fromkeys(("logs", "controller", "private"), 0o700), dict.fromkeys(("node", "munge", "gpus"), 0o755)
        for name, mode in (closed | open_ | {"homes": 0o711}).items():
            (self.folder / name).mkdir()
            (self.folder / name).chmod(mode)
        self.folder.chmod(0o711)
        machines = [self.head, *self.nodes]
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{each.address} {each.name}\n" for each in machines))
        for each in machines:
            each.connect(self.head, hosts)
        names, folder = ",".join(each.name for each in self.nodes), self.folder
        nodes = "\n".join(NODE.format(name=each.name, address=each.address) for each in self.nodes)
        self._pretend_gpus()
        gpus = zip(self.nodes, (self.gpus[:2], self.gpus[2:]))
        lines = [f"NodeName={node.name} Name=gpu File={path}\n" for node, paths in gpus for path in paths]
        (self.folder / "gres.conf").write_text("".join(lines))
        (folder / "slurm.conf").write_text(
            CONFIG.format(head=self.head.name, folder=folder, nodes=nodes, names=names, programs=parts.HERE)
        )
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\nConstrainRAMSpace=yes\nConstrainDevices=yes\n")
        self.accounts = parts.Accounts(self.folder / "homes")
        for part in ("munge", "slurmctld", *names.split(",")):
            self.restart(part)
        self._wait(lambda: self.slurm("sinfo", "--noheader", "--format=%T %D") == "idle 2", 60, "Slurm's nodes to be ready")

    def start_hub(self):
        """The hub of hub/slurm and its proxy, on the head. Its addresses are in the head's network: see `network`."""
        sys.path.insert(0, str(parts.HERE.parent / "slurm"))
        import prepare

        slurm = {"gpus": 2, "slurm_conf": self.folder / "slurm.conf"}
        here = {"name": self.head.name, "address": self.address}
        who = {"proxy_user": self.accounts.proxy, "group": self.accounts.group}
        with self.network():
            self.variables, self.proxy = prepare.prepare(self.folder, self.course, **here, **slurm, **who)
            for part in ("proxy", "hub"):
                self.restart(part)
            self._wait(self.answers, 60, "the hub to answer")

    def end(self):
        if self._alive("slurmctld"):
            self.slurm("scancel", *self.slurm("squeue", "--noheader", "--format=%i").split())
            self._wait(lambda: not self.slurm("squeue", "--noheader"), 30, "jobs to end", fatal=False)
        for node in self.nodes:
            self.kill(node.name, signal.SIGTERM, patience=10)
        super().end()
        for node in self.nodes:
            for path in Path("/sys/fs/cgroup").glob(f"*/slurm_{node.name}"):
                for each in [*sorted(path.rglob("*/"), reverse=True), path]:
                    each.rmdir()
        for each in [*self.nodes, self.head]:
            each.end()

    # ------------------------------------------------------------ the parts

    def slurm(self, *command):
        return super().slurm(*self.head.command, *command)

    def _slurmctld(self):
        command, environment = super()._slurmctld()
        return [*self.head.command, *command], environment

    def _proxy(self):
        command, environment = super()._proxy()
        return [*self.head.command, *command, *(option for option in self.proxy if option not in command)], environment

    def _hub(self):
        command, environment = super()._hub()
        return [*self.head.command, *command], environment

    def _environment(self):
        return self.variables

    def __getattr__(self, name):
        """The command of a node's daemon, by the node's name."""
        node = next((each for each in self.__dict__.get("nodes", ()) if name == f"_{each.name}"), None)
        if node is None:
            raise AttributeError(name)
        return lambda: ([*node.command, "slurmd", "-D", "-N", node.name], self._slurm_conf())

    @contextmanager
    def network(self):
        """This thread's sockets are the head's meanwhile: what the head listens at can be reached."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        head = os.open(f"/proc/{self.head.holder.pid}/ns/net", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            assert libc.setns(head, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            yield
        finally:
            libc.setns(before, CLONE_NEWNET)
            os.close(before)
            os.close(head)

    def run_as(self, name, *command, machine=None, **options):
        """Start a command as a user in the home, on the head or another machine; returns a subprocess.Popen."""
        account = pwd.getpwnam(name)
        heard = ["env", "--default-signal=INT"]  # tests that a shell has sent to its background ignore it, and so would this
        drop = [*heard, "setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups", "--"]
        environment = {"HOME": account.pw_dir, "USER": name, "PATH": f"{parts.PYTHON}:/usr/bin:/bin", "LANG": "C.UTF-8"}
        return subprocess.Popen(
            [*(machine or self.head).command, *drop, "sh", "-c", 'cd && exec "$@"', "at-home", *map(str, command)],
            env=environment | self._slurm_conf(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )
