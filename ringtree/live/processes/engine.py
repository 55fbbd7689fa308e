"""Start one ipyparallel engine whose id is the rank that Slurm or MPI gave this process.

srun python -m ringtree.live.processes.engine …      mpiexec python -m ringtree.live.processes.engine …
"""

import os
import sys

RANK_VARIABLES = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def rank_from(environment):
    """The rank that the launcher gave this process, or None."""
    return next((int(environment[name]) for name in RANK_VARIABLES if name in environment), None)


def main():
    from ipyparallel.engine.app import IPEngine

    rank = rank_from(os.environ)
    if rank is None:
        sys.exit(f"no rank in the environment: expected one of {', '.join(RANK_VARIABLES)}")
    IPEngine.launch_instance(argv=[*sys.argv[1:], f"--IPEngine.id={rank}"])


if __name__ == "__main__":
    main()
