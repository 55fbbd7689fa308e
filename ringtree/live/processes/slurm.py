"""Ranks as one job of Slurm: submitted, waited for in the queue, and what Slurm says when it ends.

`ringtree.live.processes.launchers` chooses it for `engines="slurm"`. Source of the states and reasons: the manual page of squeue,
"Job State Codes" and "Job Reason Codes".
"""

import contextlib
import functools
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

from ipyparallel.cluster import launcher

from ringtree.errors import UsageError
from ringtree.live.processes.slurm_words import gpus_in, reason

HERE = pathlib.Path(__file__).parent
ENGINE_MODULE = [sys.executable, "-m", "ringtree.live.processes.engine"]
LOOK = 2.0  # seconds between two questions to Slurm's controller, which serves everybody
SLOWEST_LOOK = 15.0  # in a long queue
PATIENCE = 5.0  # seconds in the queue that need no word
ASK_SECONDS = 5.0  # that a question to Slurm may take

ENDED = {
    "TIMEOUT": "its time limit of {TimeLimit} is over; ask for more by options={{'SlurmEngineSet': {{'timelimit': '2:00:00'}}}}",
    "NODE_FAIL": "node {lost} was lost",
    "OUT_OF_MEMORY": "its ranks took more memory than was allotted",
    "PREEMPTED": "its nodes were needed for a job of higher priority",
    "CANCELLED": "it was cancelled, by scancel or by an administrator",
    "FAILED": "its script ended with {ExitCode}, and its last words were {words!r}",
    "COMPLETED": "its ranks have ended",
}
# A kernel may be in a job itself, whose variables would speak to this one; and what opens its server is no rank's business.
NOT_INHERITED = ("SLURM_", "SLURMD_", "SBATCH_", "PMI_", "JUPYTERHUB_", "JPY_", "TMPDIR", "CUDA_VISIBLE_DEVICES")


class SlurmEngineSet(launcher.SlurmEngineSetLauncher):
    """One job with a task for each rank, on nodes that no other user shares.

    Of ipyparallel's traits `queue` (Slurm's partition), `account`, `qos` and `timelimit` are an option of the script each.
    """

    default_template = """#!/bin/sh
#SBATCH --job-name=ringtree
#SBATCH --export=ALL
#SBATCH --exclusive=user
#SBATCH --open-mode=append{more}
exec {lifeline} srun {program_and_args}
"""
    _looked, _found = float("-inf"), None

    @property
    def program(self):
        # The job's own lifeline ends the ranks; a busy controller is no reason to.
        patient = ["--IPEngine.timeout=60", "--IPEngine.max_heartbeat_misses=0", "--IPEngine.enable_nanny=False"]
        return [*ENGINE_MODULE, *patient]

    def _run_command(self, command, env=None, **options):
        """Slurm's own words become the error's."""
        env = {
            name: value
            for name, value in (env or os.environ).items()
            if name == "SLURM_CONF" or not name.startswith(NOT_INHERITED)
        }
        ran = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
        if ran.returncode:
            said = re.sub(r"\w+: (error|fatal): ", "", ran.stderr.strip()) or f"it exited with code {ran.returncode}"
            refused = f"Slurm's {command[0]} refused: {' '.join(said.split())}"
            raise UsageError(f"{refused}; ask for something else, or leave engines= out")
        return ran.stdout

    def stop(self):
        # A rank that hangs does not hear Slurm's first signal, and its nodes would be held until the second.
        with contextlib.suppress(UsageError):
            self.signal("KILL")
        return super().stop()

    def look(self):
        """Return what Slurm's controller says of the job now, by `scontrol show job`'s names; empty where it does not answer."""
        try:
            asked = ["scontrol", "--oneliner", "show", "job", self.job_id]
            said = subprocess.run(asked, capture_output=True, text=True, timeout=ASK_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        if "Invalid job id" in said.stderr:
            return {"JobState": "COMPLETED"}  # so long ago that it is forgotten
        return dict(re.findall(r"(\w+)=(\S+)", said.stdout))

    def wait_until_allotted(self, tell=functools.partial(print, flush=True)):  # noqa: B008
        """Wait in the queue, however long, and tell why whenever that changes. Raises UsageError where the job ends there.

        Interrupted, the job is taken out of the queue.
        """
        began, told, pause = time.monotonic(), None, LOOK / 4
        try:
            while (found := self.look()).get("JobState") in ("PENDING", "CONFIGURING", None):
                if time.monotonic() - began > PATIENCE and (say := self._waiting(found)) != told and say:
                    told = say
                    tell(say)
                time.sleep(pause)
                pause = min(1.5 * pause, SLOWEST_LOOK)
        except KeyboardInterrupt:
            raise UsageError(
                f"interrupted: Slurm's job {self.job_id} was taken out of the queue: call ringtree.start to ask for it again"
            ) from None
        if why := self._ended(found):
            raise UsageError(why)

    def _waiting(self, found):
        if found.get("JobState") != "PENDING" or found["Reason"] in ("None", "BeginTime"):
            return None
        start = re.match(r"(\S+)T(\d\d:\d\d)", found.get("StartTime", ""))
        expected = f" Slurm expects it to start at {start[2]} on {start[1]}." if start else ""
        why = reason(found["Reason"])
        return f"Slurm's job {self.job_id} is in the queue: {why}.{expected} Interrupt the kernel to take it out."

    def ended(self):
        """Return why the job is over, in one sentence; None while it runs. As Slurm said when it was last asked."""
        return self._ended(self._fresh()[0])

    def dead_ranks(self):
        """{rank: exit code, minus its signal's number, or None} of those that have ended, as last looked at."""
        found, dead = self._fresh()
        return dict.fromkeys(range(self.n)) if self._ended(found) else dead

    def _fresh(self):
        """Return what Slurm says and srun has told, not older than `LOOK`: ranks are asked for many times a second."""
        if time.monotonic() - self._looked >= LOOK:
            self._found = self.look(), self._told_dead()
            # A controller that does not answer is not waited for again and again.
            self._looked = time.monotonic() + (0 if self._found[0] else SLOWEST_LOOK)
        return self._found

    def _ended(self, found):
        state = found.get("JobState")
        if state in ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", None):
            return None
        found = {"TimeLimit": "?", "ExitCode": "?", "words": self._log().strip().rpartition("\n")[2], "lost": ""} | found
        if state == "NODE_FAIL":
            found["lost"] = _down_among(found.get("NodeList", ""))
        why = ENDED.get(state, f"its state is {state}").format_map(found)
        return f"Slurm has ended job {self.job_id} and its ranks: {why}. ringtree.start asks for a new one"

    def _log(self):
        try:
            return pathlib.Path(self.output_file).read_text(errors="replace")
        except OSError:
            return ""

    def _told_dead(self):
        """Those ranks whose end srun has told in the job's log."""
        found = {}
        for ranks, how in re.findall(r"^srun: error: \S+: tasks? ([\d,-]+): (.*)$", self._log(), re.MULTILINE):
            code = _exit_code(how)
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranks):
                found |= dict.fromkeys(range(int(first), int(last or first) + 1), code)
        return found


def _down_among(nodes):
    """Those of a job's nodes that Slurm calls down; all of them where it does not say."""
    try:
        asked = ["sinfo", "--noheader", f"--nodes={nodes}", "--states=down", "--format=%N"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=ASK_SECONDS).stdout.strip() or nodes
    except (OSError, subprocess.TimeoutExpired):
        return nodes


def _exit_code(how):
    if code := re.search(r"exit code (\d+)", how):
        return int(code[1])
    words = how.partition(" (")[0]
    return next((-number for number in signal.valid_signals() if signal.strsignal(number) == words), None)


def namespace(folder, size, ranks_per_node=None, partition=None):
    """Return what the script's template names: more options, and the program that ends the job with its notebook.

    Where the nodes have GPUs enough for a rank each, they are asked for.
    """
    gpus = _gpus_a_node(size, partition)
    each = ranks_per_node or next((count for count in range(gpus, 0, -1) if size % count == 0), None)
    more = [f"--ntasks-per-node={each}"] * bool(each) + [f"--gres=gpu:{min(each or 0, gpus)}"] * bool(gpus)
    return {
        "more": "".join(f"\n#SBATCH {option}" for option in more),
        "lifeline": shlex.join([sys.executable, str(HERE / "lifeline.py"), folder]),
    }


def _gpus_a_node(size, partition):
    """GPUs of a node that has some, in the partition (without a name, Slurm's default one); 0 where they do not suffice."""
    asked = ["sinfo", "--noheader", "--format=%D|%G|%P", *([f"--partition={partition}"] if partition else [])]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=ASK_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    rows = [line.split("|") for line in told.splitlines() if line.count("|") == 2 and (partition or line.endswith("*"))]
    nodes = [(int(count), gpus_in(gres)) for count, gres, _ in rows if gpus_in(gres)]
    each = min((gpus for _, gpus in nodes), default=0)
    return each if each * sum(count for count, _ in nodes) >= size else 0
