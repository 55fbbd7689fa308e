"""The hub of a cluster that has Slurm already: hub/server's, but its servers are on the nodes.

What differs between clusters comes from the environment: what ../server/jupyterhub_config.py reads, and

    RINGTREE_HUB_NAME        the name by which nodes reach this host
    RINGTREE_HUB_PORT        where the hub listens for them (default 8081)
    RINGTREE_HUB_PARTITION   Slurm's partition for servers (default: Slurm's own default)
    RINGTREE_HUB_OPTIONS     more options of sbatch, such as --account=course
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "server")]

load_subconfig(str(HERE.parent / "server" / "jupyterhub_config.py"))  # noqa: F821

from machine import cpus_offered
from on_nodes import OnNode

from ringtree.live.processes.slurm_words import gpus_in

STATE = Path(os.environ["RINGTREE_HUB_STATE"])
NAME = os.environ["RINGTREE_HUB_NAME"]
PORT = os.environ.get("RINGTREE_HUB_PORT", "8081")

c = get_config()  # noqa: F821

# ------------------------------------------------------------ where it listens
# Everything between proxy, hub and servers is TLS, and each shows a certificate that the hub made.
c.JupyterHub.internal_ssl = True
c.JupyterHub.internal_certs_location = str(STATE / "private" / "certificates")
c.JupyterHub.trusted_alt_names = [f"DNS:{NAME}"]
c.JupyterHub.hub_bind_url = c.JupyterHub.hub_connect_url = f"https://{NAME}:{PORT}"

# ------------------------------------------------------------ what a learner gets
c.JupyterHub.spawner_class = OnNode
# The page offers what one node has, and the queue tells of all.
asked = subprocess.run(["sinfo", "--noheader", "--format=%D|%G|%c"], capture_output=True, text=True, check=True).stdout
kinds = [
    (int(nodes), gpus_in(gpus), int(cpus.rstrip("+"))) for nodes, gpus, cpus in (line.split("|") for line in asked.splitlines())
]
gpus = int(os.environ["RINGTREE_HUB_GPUS"])
c.OnNode.node_gpus = gpus
c.OnNode.total_gpus = sum(nodes * each for nodes, each, _ in kinds)
alone, a_gpu = cpus_offered({"CPUs": min((cpus for _, each, cpus in kinds if each or not gpus), default=1), "gpus": gpus})
c.OnNode.req_cpus = int(os.environ.get("RINGTREE_HUB_CPUS", alone))
c.OnNode.req_cpus_a_gpu = float(os.environ.get("RINGTREE_HUB_CPUS_A_GPU", a_gpu))
c.OnNode.ssl_alt_names = OnNode.certified_names
c.OnNode.req_partition = os.environ.get("RINGTREE_HUB_PARTITION", "")
c.OnNode.req_options = os.environ.get("RINGTREE_HUB_OPTIONS", "")
