"""A learner's server as one job of Slurm: what was chosen, where its socket lies, and its place in the queue. Run."""

import asyncio
import pwd
import shutil
from pathlib import Path
from urllib.parse import quote

from batchspawner import JobStatus, SlurmSpawner
from choices import Limits
from queue_place import ASK, tell_place
from traitlets import Integer, List, Unicode

# The server takes the place of the script's shell: so it hears Slurm's first signal, and stops its kernels itself.
SCRIPT = """#!/bin/bash
#SBATCH --job-name={{name}}
#SBATCH --output={{folder}}/server.log
#SBATCH --chdir={{homedir}}
#SBATCH --export={{keepvars}}
#SBATCH --time={{hours * 60}}
#SBATCH --mem={{gib}}G
#SBATCH --cpus-per-task={{cpus}}
#SBATCH --no-requeue
{% if gpus %}#SBATCH --gres=gpu:{{gpus}}
{% endif %}
umask 077
export TMPDIR=$(mktemp -d "/tmp/ringtree-$SLURMD_NODENAME-$SLURM_JOB_ID-XXXXXX")
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-}
exec {{cmd}}
"""


class Allotment(SlurmSpawner):
    """A server that only its learner, the proxy and the hub can reach: it listens at a Unix socket, not at a port."""

    batch_script = SCRIPT
    req_srun = ""
    exec_prefix = "/usr/sbin/runuser -u {username} --"

    folders = Unicode(help="the folder that holds one folder a learner, for the server's socket").tag(config=True)
    proxy_group = Unicode("root", help="the proxy's group, which may connect to the sockets").tag(config=True)
    wrapper = List(Unicode(), help="a command that the server's own command is given to").tag(config=True)
    total_gpus = Integer(0, help="GPUs that this server has").tag(config=True)
    most_hours = Integer(12, help="the most hours that a learner may ask for").tag(config=True)
    most_gib = Integer(64, help="the most memory that a learner may ask for, in GiB").tag(config=True)
    req_cpus = Integer(1, help="cores a learner").tag(config=True)
    req_name = Unicode("ringtree-hub", help="the jobs' name").tag(config=True)
    req_folder = Unicode()

    def limits_here(self):
        return Limits(self.total_gpus, self.most_hours, self.most_gib)

    # ------------------------------------------------------------ the page

    def _options_form_default(self):
        return self.limits_here().page()

    def options_from_form(self, form):
        return self.limits_here().checked(form)

    # ------------------------------------------------------------ the socket

    @property
    def folder(self):
        return Path(self.folders) / self.user.name

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

    def make_folder(self):
        """The learner's own folder, which the proxy's group may enter and nobody else; what lay there goes."""
        learner = pwd.getpwnam(self.user.name)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        shutil.chown(self.folder, learner.pw_uid, self.proxy_group)
        self.folder.chmod(0o2710)
        self.socket.unlink(missing_ok=True)
        self.req_folder = str(self.folder)

    def cmd_formatted_for_batch(self):
        listen = [f"--ServerApp.sock={self.socket}", "--ServerApp.sock_mode=0660"]
        return " ".join([*self.wrapper, *self.cmd, *self.get_args(), *listen])

    def get_env(self):
        env = super().get_env()
        if self.server:
            env["JUPYTERHUB_SERVICE_URL"] = f"http+unix://{self.server.base_url}"
        return env

    # ------------------------------------------------------------ the job

    async def start(self):
        """Submit the job and wait until it runs, however long the queue; returns the URL of the server's socket."""
        self.user_options = self.limits_here().checked(self.user_options)
        self.make_folder()
        await self.submit_batch_script()
        # A hub that dies while the job waits finds it again, and ends it.
        self.orm_spawner.state = self.get_state()
        self.user.db.commit()
        while (status := await self.query_job_status()) != JobStatus.RUNNING:
            if status == JobStatus.NOTFOUND:
                raise RuntimeError(f"Slurm no longer knows job {self.job_id}: {self.job_status or 'it has ended'}")
            await asyncio.sleep(self.startup_poll_interval)
        return f"http+unix://{quote(str(self.socket), safe='')}"

    async def progress(self):
        """What the waiting learner reads, whenever it changes."""
        told = None
        while True:
            if self.state_isrunning():
                yield {"progress": 80, "message": "Allotted. Your server is starting."}
                return
            listing = await self.run_command(ASK) if self.job_id else ""
            say = tell_place(listing, self.job_id, self.total_gpus)
            if say and say != told:
                told = say
                yield {"progress": 10, "message": say}
            await asyncio.sleep(1)
