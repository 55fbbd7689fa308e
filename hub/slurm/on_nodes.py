"""A learner's server as a job on a node of a cluster, reached over the network with TLS in both directions."""

import asyncio
from pathlib import Path

from allotments import RUN, Allotment
from choices import Limits
from jupyterhub.apihandlers import APIHandler, default_handlers
from traitlets import Integer

# --exclusive=user: no other user has a job on the node meanwhile. Ports of Gloo and NCCL know no password.
SCRIPT = """#!/bin/bash
#SBATCH --job-name={{name}}
#SBATCH --output={{log}}
#SBATCH --chdir={{homedir}}
#SBATCH --export=ALL
#SBATCH --time={{hours * 60}}
#SBATCH --mem={{gib}}G
#SBATCH --cpus-per-task={{[cpus, (gpus * cpus_a_gpu) | int] | max}}
#SBATCH --exclusive=user
#SBATCH --no-requeue
{% if partition %}#SBATCH --partition={{partition}}
{% endif %}{% if gpus %}#SBATCH --gres=gpu:{{gpus}}
{% endif %}{% if options %}#SBATCH {{options}}
{% endif %}
umask 077
address=$(getent ahostsv4 "$SLURMD_NODENAME" | { read -r first rest; echo "$first"; })
export JUPYTERHUB_SERVICE_URL=${JUPYTERHUB_SERVICE_URL/0.0.0.0/$address}
"""


class Port(APIHandler):
    """A server tells at which port it listens, which it chose on its node, and nothing else of its spawner."""

    def post(self):
        told, token = self.get_json_body(), self.get_auth_token()
        spawners = self.current_user.spawners.values() if self.current_user else ()
        mine = [each for each in spawners if each.api_token == token]
        port = told.get("port") if isinstance(told, dict) else None
        if mine and set(told) == {"port"} and type(port) is int and 1024 <= port < 65536:
            mine[0].port = port
            self.set_status(201)
        else:
            self.set_status(400)
            self.finish({"message": 'expected {"port": number}, and the server\'s own token'})


default_handlers.append((r"/api/batchspawner", Port))


class OnNode(Allotment):
    """A server at its node's address, which takes in only who shows a certificate of the hub or its proxy."""

    batch_script = SCRIPT + RUN
    node_gpus = Integer(0, help="GPUs of a node: the most that one server can have").tag(config=True)

    def limits_here(self):
        return Limits(self.node_gpus, self.most_hours, self.most_gib)

    async def start_job(self):
        """Returns the node and the port at which its server listens."""
        self.port = 0
        if self.server:
            self.server.port = self.port
        await self.submit_batch_script()
        await self.wait_until(self.listens)
        self.ip = self.state_gethost()
        self.user.db.commit()
        return self.ip, self.port

    async def listens(self):
        """Whether something listens at the port that the server has told: it tells it before it reads the learner's files."""
        if not self.port:
            return False
        try:
            _, line = await asyncio.wait_for(asyncio.open_connection(self.state_gethost(), self.port), 2)
        except (OSError, TimeoutError):
            return False
        line.close()
        return True

    async def certified_names(self):
        """The nodes' names, of which one will be the server's."""
        listing = await self.run_command("sinfo --noheader --Node --format=%N")
        return sorted({f"DNS:{name}" for name in listing.split()})

    async def move_certs(self, paths):
        """Into the learner's folder, which the nodes share, by a process of the learner: what is there may lead anywhere."""
        self.check_learner()  # this comes before `start`
        self.make_folder()
        prefix = self.exec_prefix.format(username=self.user.name)
        moved = {}
        for name, path in paths.items():
            moved[name] = f"{self.folder}/{name}.pem"
            write = f"umask 077; rm -f {moved[name]} && cat > {moved[name]}"
            await self.run_command(f"{prefix} /bin/sh -c '{write}'", input=Path(path).read_text())
        return moved
