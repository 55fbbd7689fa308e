"""A learner's server as one job of Slurm: what was chosen, its place in the queue, and where it listens."""

import asyncio
import contextlib
import os
import pwd
import re
import shlex
import shutil
import stat
import time
from pathlib import Path
from urllib.parse import quote

from batchspawner import JobStatus, SlurmSpawner
from batchspawner.api import BatchSpawnerAPIHandler
from choices import Limits
from jupyterhub.apihandlers import default_handlers
from jupyterhub.utils import maybe_future
from machine import node_in
from members import account_in
from queue_place import ASK, spoken, tell_free, tell_place
from tornado.web import HTTPError
from traitlets import Float, Integer, List, Set, Unicode

# --export=ALL: the variables that the hub gives to sbatch. If --export named them, slurmd would add those of a login shell, which
# runs the learner's profile on the node, outside of the job.
SCRIPT = """#!/bin/bash
#SBATCH --job-name={{name}}
#SBATCH --output={{log}}
#SBATCH --chdir={{homedir}}
#SBATCH --export=ALL
#SBATCH --time={{hours * 60}}
#SBATCH --mem={{gib}}G
#SBATCH --cpus-per-task={{[cpus, ((gpus if gpus is number else 0) * cpus_a_gpu) | int] | max}}
#SBATCH --no-requeue
{% if gpus %}#SBATCH --gres={{"shard:1" if gpus == "part" else "%s:%s" % (gpu, gpus)}}
{% endif %}
umask 077
lost="/tmp/ringtree-$SLURMD_NODENAME-$SLURM_JOB_ID-lost"
[ -d "$lost" ] && [ ! -L "$lost" ] && [ "$(stat -c %u "$lost")" = 0 ] && exit 1
"""
# What follows on every node. Without the learner's own settings a server reads and writes nothing in the home by itself, so it
# also starts where the home is full. Of what a server says the end is kept: a learner's program may print without one. Slurm's
# first signal reaches the script alone, and is handed on: the server then stops its kernels itself.
RUN = """
ulimit -c 0 -u {{processes}}
export TMPDIR=$(mktemp -d "/tmp/ringtree-$SLURMD_NODENAME-$SLURM_JOB_ID-XXXXXX")
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-}
{% if settings == "clean" %}
export JUPYTER_CONFIG_DIR="$TMPDIR/jupyter" JUPYTER_DATA_DIR="$TMPDIR/data" JUPYTER_RUNTIME_DIR="$TMPDIR/runtime"
export IPYTHONDIR="$TMPDIR/ipython" PYTHONNOUSERSITE=1 GIT_CONFIG_GLOBAL=/dev/null
export XDG_CONFIG_HOME="$TMPDIR/config" XDG_CACHE_HOME="$TMPDIR/cache" XDG_DATA_HOME="$TMPDIR/data"
export JUPYTER_CONFIG_PATH="$JUPYTER_CONFIG_PATH:{{clean}}"
{% endif %}
keep() {
    trap '' TERM
    while stdbuf --output=0 head --bytes={{log_bytes}} >> "{{log}}" && [ "$(stat --format=%s "{{log}}")" -ge {{log_bytes}} ]; do
        mv --force "{{log}}" "{{log}}.1" || break
    done
    exec cat > /dev/null
}
exec {said}> >(keep)
keeper=$!
trap '[ -n "$server" ] || { rm -rf "$TMPDIR"; exit 1; }; kill "$server" 2>/dev/null' TERM
{{cmd}} >&$said 2>&1 {said}>&- & server=$!
until wait "$server" || ! kill -0 "$server" 2>/dev/null; do :; done
exec {said}>&-
timeout 2 tail --pid="$keeper" --follow /dev/null
rm -rf "$TMPDIR"
"""


HERE = Path(__file__).resolve().parent
PATIENCE = 60  # seconds for one of Slurm's commands
LINES = 3  # of a server's log, shown to its learner if it does not start
FULL = "No space left on device|Disk quota exceeded"
# Why Slurm says that a job ended, and what the learner reads.
ENDS = {
    "TIMEOUT": "its time was over",
    "OUT_OF_MEMORY": "it took more memory than you had asked for",
    "NODE_FAIL": "the machine that it ran on was lost",
    "CANCELLED": "it was stopped from outside",
}
IDLE = re.compile(r"No kernels for (\d+) seconds; shutting down")

# By this page of batchspawner's a server may set anything of its spawner: also the commands that the hub runs as root.
default_handlers.remove((r"/api/batchspawner", BatchSpawnerAPIHandler))


class Allotment(SlurmSpawner):
    """What all servers share, wherever they listen: the page that asks, the queue, and commands in the learner's name."""

    req_srun = ""
    exec_prefix = "/usr/sbin/runuser -u {username} --"
    silent = ("None",)

    total_gpus = Integer(0, help="GPUs that are given whole").tag(config=True)
    total_parts = Integer(0, help="parts of the GPUs beside them, which are set aside for learners to share").tag(config=True)
    sharing = Integer(0, help="how many learners share one of these GPUs").tag(config=True)
    most_hours = Integer(12, help="the most hours that a learner may ask for").tag(config=True)
    most_gib = Integer(64, help="the most memory that a learner may ask for, in GiB").tag(config=True)
    req_cpus = Integer(1, help="CPUs of a learner without a GPU, as Slurm counts them").tag(config=True)
    req_cpus_a_gpu = Float(0, help="CPUs for each GPU of one who has some").tag(config=True)
    req_gpu = Unicode("gpu", help="Slurm's name of a GPU that is given whole").tag(config=True)
    req_processes = Integer(4096, help="processes and threads a learner may have").tag(config=True)
    req_log = Unicode(help="where Slurm writes what the server says")
    req_name = Unicode("ringtree-hub", help="the jobs' name").tag(config=True)

    req_clean = Unicode(str(HERE / "clean"), help="the folder of settings of a server without the learner's own")
    req_log_bytes = Integer(1_000_000, help="a server's log has twice as many at most").tag(config=True)

    folders = Unicode(help="the folder that holds one folder a learner, for the server's socket and log").tag(config=True)
    proxy_group = Unicode("root", help="the group that may enter these folders beside their learners").tag(config=True)
    ends = Unicode(help="the folder that keeps why each learner's last server ended; root's").tag(config=True)

    groups = Set(Unicode(), help="the system's groups whose users get servers, whoever asks for them").tag(config=True)

    def limits_here(self):
        there = node_in(os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")).get("RealMemory", 1024 * self.most_gib)
        return Limits(self.total_gpus, self.most_hours, min(self.most_gib, there // 1024), self.sharing)

    # ------------------------------------------------------------ the learner's folder

    @property
    def folder(self):
        return Path(self.folders) / self.user.name

    def _req_log_default(self):
        return str(self.folder / "server.log")

    def make_folder(self):
        """Make the learner's own folder, which only the proxy's group may also enter. What an earlier server left there goes.

        A folder of the learner's is moved aside: while the hub removes a million files, it answers nobody.
        """
        learner = pwd.getpwnam(self.user.name)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        shutil.chown(self.folder, learner.pw_uid, self.proxy_group)
        self.folder.chmod(0o2710)
        for left in (self.folder / name for name in ("server.sock", "server.log", "server.log.1")):
            if left.is_dir() and not left.is_symlink():
                left.rename(left.with_name(f"{left.name}.{time.time_ns()}"))
            else:
                left.unlink(missing_ok=True)
        self.end_file.unlink(missing_ok=True)

    # ------------------------------------------------------------ the page

    def _options_form_default(self):
        return type(self).page_now

    async def page_now(self):
        """The page to choose, with what is free when it is asked for."""
        try:
            now = tell_free(await self.listing(), self.total_gpus, self.total_parts)
        except RuntimeError:
            now = "Slurm does not answer at the moment: no server can be started."
        last = self.end_file.read_text() if self.end_file.exists() else ""
        return self.limits_here().page(now, last)

    def options_from_form(self, form):
        return self.limits_here().checked(form)

    def options_from_query(self, query):
        """Another site's page can lead a learner's browser to a link. Raises HTTPError, and the page to choose says why."""
        raise HTTPError(400, "a link cannot choose for you: choose on this page")

    # ------------------------------------------------------------ the job

    async def run_command(self, cmd, input=None, env=None):
        """Without the hub's own variables: where the command runs as the learner, they can read them in /proc.

        Raises RuntimeError where it fails, or says nothing for a minute: the learner can stop it.
        """
        given = {name: os.environ[name] for name in ("PATH", "SLURM_CONF", "LANG") if name in os.environ}
        try:
            return await asyncio.wait_for(super().run_command(cmd, input=input, env=given if env is None else env), PATIENCE)
        except TimeoutError:
            raise RuntimeError(f"no answer within {PATIENCE} s") from None

    async def query_job_status(self):
        """Asked as root, of this learner's jobs: a command in their own name they could end or stop.

        A job has ended only if Slurm says so; where Slurm cannot be asked nothing is known.
        """
        if not self.job_id:
            self.job_status = ""
            return JobStatus.NOTFOUND
        try:
            self.job_status = await self.run_command(f"squeue -h -j {self.job_id} -u {self.user.name} -o '%T %B'")
        except RuntimeError as error:
            self.job_status = str(error)
            return JobStatus.NOTFOUND if "Invalid job id" in self.job_status else JobStatus.UNKNOWN
        states = {self.state_isrunning: JobStatus.RUNNING, self.state_ispending: JobStatus.PENDING}
        return next((status for holds, status in states.items() if holds()), JobStatus.NOTFOUND)

    async def cancel_batch_job(self):
        await self.run_command(f"scancel -u {self.user.name} {self.job_id}")

    _asked, _listing, _turn = float("-inf"), None, asyncio.Lock()

    async def listing(self):
        """Slurm's queue, asked once a second at most, however many pages show a place in it. Raises RuntimeError."""
        async with Allotment._turn:
            if time.monotonic() - Allotment._asked > 1:
                Allotment._listing = None
                try:
                    Allotment._listing = await self.run_command(ASK)
                finally:
                    Allotment._asked = time.monotonic()
        if Allotment._listing is None:
            raise RuntimeError("Slurm did not answer")
        return Allotment._listing

    async def start(self):
        """Submit the job and wait until its server answers, however long the queue. Raises PermissionError for no learner."""
        self.check_learner()
        self.user_options = self.limits_here().checked(self.user_options)
        return await self.start_job()

    def check_learner(self):
        """An administrator of the hub may ask for anybody's server, and would get the account of whoever has one."""
        if not account_in(self.user.name, self.groups):
            told = f"{self.user.name} is not in the group {' or '.join(sorted(self.groups))}, whose users get servers here."
            raise PermissionError(f"{told} Ask the administrator of this machine to add the user to the group.")

    async def submit_batch_script(self):
        """The home is closed first, by its owner: whoever made the account may have left it open."""
        prefix = self.exec_prefix.format(username=self.user.name)
        await self.run_command(f"{prefix} chmod u+rwx,go-rwx {shlex.quote(pwd.getpwnam(self.user.name).pw_dir)}")
        submission = asyncio.ensure_future(super().submit_batch_script())
        try:
            job = await asyncio.shield(submission)
        except asyncio.CancelledError:
            self._taken_out = asyncio.ensure_future(self.take_out(submission))  # kept: a loop forgets what nobody holds
            raise
        except RuntimeError as error:
            why = str(error).strip().splitlines()[-1]
            raise RuntimeError(
                f"Slurm takes no server now. Ask again in a minute, or tell your administrator: {why}"
            ) from error
        # A hub that dies while the job waits finds it again, and ends it.
        self.orm_spawner.state = self.get_state()
        self.user.db.commit()
        return job

    async def take_out(self, submission):
        """Who cancels before Slurm has answered is let go at once; the job leaves the queue when it has got its number."""
        with contextlib.suppress(RuntimeError):
            if number := await submission:  # without one, all of the learner's jobs would be meant
                await self.run_command(f"scancel -u {self.user.name} {number}")
                self.job_id = "" if self.job_id == number else self.job_id

    async def wait_until(self, answers):
        """Wait until the job runs and `answers()` is true, or what it waits for is. Raises RuntimeError, which says why, if the job ends before."""
        while (status := await self.query_job_status()) != JobStatus.RUNNING or not await maybe_future(answers()):
            if status == JobStatus.NOTFOUND:
                raise RuntimeError(await self.why_not())
            await asyncio.sleep(self.startup_poll_interval)

    async def last_words(self, lines=LINES):
        """The last lines of the server's log, which say why it did not start or why it ended."""
        logs = [shlex.quote(path) for path in (f"{self.req_log}.1", self.req_log)]
        read = f"for log in {' '.join(logs)}; do tail -c 4000 $log 2>/dev/null; done; true"  # by their owner: they may lead anywhere
        with contextlib.suppress(RuntimeError):
            prefix = self.exec_prefix.format(username=self.user.name)
            told = await self.run_command(f"{prefix} timeout 5 sh -c {shlex.quote(read)}")
            found = ["".join(filter(str.isprintable, line)).strip()[:300] for line in told.splitlines()]
            return "\n".join(list(filter(None, found))[-lines:])
        return ""

    async def why_not(self):
        """What the learner reads whose server has ended before it answered."""
        told = await self.last_words()
        again = 'Choose again, with "Settings: none of your own", and'
        if re.search(FULL, told):
            return f"Your home is full, so your server cannot start. {again} delete something. Its last lines: {told}"
        if told:
            ended = "Your server ended before it answered. If this happens again, a file in your home may be the reason"
            return f"{ended}. {again} repair or rename it. The server's last lines: {told}"
        return f"Slurm no longer knows job {self.job_id}: {self.job_status or 'it has ended'}. Ask again in a minute."

    # ------------------------------------------------------------ its end

    @property
    def end_file(self):
        return Path(self.ends) / quote(self.user.name, safe="")

    async def note_end(self, job):
        """Keep why a server ended by itself, for the page on which its learner asks for the next."""
        state = ""
        with contextlib.suppress(RuntimeError):  # Slurm forgets a job after a minute
            state = "".join(re.findall(r"JobState=(\w+)", await self.run_command(f"scontrol show job {job}"))[:1])
        why = why_ended(state, await self.last_words(lines=40))
        with contextlib.suppress(OSError):  # the hub's own disk is full: the job's end is noticed all the same
            self.end_file.parent.mkdir(mode=0o700, exist_ok=True)
            self.end_file.write_text(f"Your last server ended on {time.strftime('%d %B at %H:%M')}: {why}")

    async def poll(self):
        """Also asked by a hub that was started anew. It cannot go on waiting for a job: one in the queue leaves it at once."""
        job, ran = self.job_id, self.state_isrunning()
        status = await super().poll()
        if status is not None and ran and not self._spawn_pending:
            await self.note_end(job)
        if status is None and self.state_ispending() and not self._spawn_pending:
            await self.cancel_batch_job()
            self.clear_state()
            return 1
        return status

    async def progress(self):
        """What the waiting learner reads, whenever it changes."""
        told = None
        while True:
            if self.state_isrunning():
                yield {"progress": 80, "message": "Allotted. Your server is starting."}
                return
            listing = ""
            with contextlib.suppress(RuntimeError):  # a controller that is away for a while: the place is told when it is back
                listing = await self.listing() if self.job_id else ""
            say = tell_place(listing, self.job_id, self.total_gpus, self.silent, self.total_parts)
            if say and say != told:
                told = say
                yield {"progress": 10, "message": say}
            await asyncio.sleep(1)


def why_ended(state, told):
    """Why a server ended, as a sentence's end. state: Slurm's word. told: the last lines that the server said."""
    if idle := IDLE.search(told):
        return f"it had no work for {spoken(int(idle[1]))}."
    if state in ENDS:
        return f"{ENDS[state]}."
    last = "\n".join(told.splitlines()[-LINES:])
    return f"by itself. Its last lines: {last}" if last else "by itself."


class Enclosed(Allotment):
    """A server that only its learner, the proxy and the hub can reach: it listens at a Unix socket, not at a port."""

    batch_script = SCRIPT + RUN
    # Slurm 23.11 says the second of whoever waits, where it keeps no accounts, as this server's does not.
    silent = ("None", "InvalidAccount")

    wrapper = List(Unicode(), help="a command that the server's own command is given to").tag(config=True)

    @property
    def socket(self):
        return self.folder / "server.sock"

    def _get_server(self):
        """The hub keeps address and port of a server, from which no Unix socket's URL can be made."""
        server = super().server
        if server and server.proto == "http+unix":
            server.connect_url = f"http+unix://{quote(str(self.socket), safe='')}{server.base_url}"
        return server

    server = property(_get_server, SlurmSpawner.server.fset)

    def cmd_formatted_for_batch(self):
        listen = [f"--ServerApp.sock={self.socket}", "--ServerApp.sock_mode=0660"]
        return " ".join([*self.wrapper, *self.cmd, *self.get_args(), *listen])

    def get_env(self):
        env = super().get_env()
        if self.server:
            env["JUPYTERHUB_SERVICE_URL"] = f"http+unix://{self.server.base_url}"
        return env

    def listens(self):
        """Whether a socket of the learner's own lies there, and no link to somebody else's."""
        try:
            there = self.socket.lstat()
        except OSError:
            return False
        return stat.S_ISSOCK(there.st_mode) and there.st_uid == pwd.getpwnam(self.user.name).pw_uid

    async def start_job(self):
        """Returns the URL of the server's socket."""
        self.make_folder()
        await self.submit_batch_script()
        await self.wait_until(self.listens)
        return f"http+unix://{quote(str(self.socket), safe='')}"
