"""Start one ipyparallel engine whose id is the rank that Slurm or MPI gave this process.

srun python -m ringtree.live.processes.engine …      mpiexec python -m ringtree.live.processes.engine …
"""

import os
import sys

# What mpirun, another MPI's mpiexec and srun tell each process: which it is, and of how many. MPI's come first, since an
# mpirun inside an srun hands on what Slurm said of itself.
LAUNCHERS = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "PMIX_RANK": None,
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",
}


def rank_from(environment):
    """The rank that the launcher gave this process, or None."""
    return next((int(environment[name]) for name in LAUNCHERS if name in environment), None)


def main():
    from ipyparallel.engine.app import IPEngine

    rank = rank_from(os.environ)
    if rank is None:
        sys.exit(f"no rank in the environment: expected one of {', '.join(LAUNCHERS)}")
    IPEngine.launch_instance(argv=[*sys.argv[1:], f"--IPEngine.id={rank}"])


if __name__ == "__main__":
    main()
