"""How to make the logs that a report needs: command lines to copy, for one, two and four nodes."""

from __future__ import annotations

from ringtree.explain.blocks import Code, Paragraph, Section

__all__ = ["sections"]

_BUILD = """\
git clone https://github.com/NVIDIA/nccl-tests && cd nccl-tests
make MPI=1 MPI_HOME=/path/to/mpi CUDA_HOME=/usr/local/cuda NCCL_HOME=/path/to/nccl"""
_MPIRUN = """\
SWEEP="./build/all_reduce_perf -b 8 -e 4G -f 2 -g 1 -w 5 -n 20"
mpirun -np 8  -H host1:8 $SWEEP | tee all_reduce_n1.log
mpirun -np 16 -H host1:8,host2:8 $SWEEP | tee all_reduce_n2.log
mpirun -np 32 -H host1:8,host2:8,host3:8,host4:8 $SWEEP | tee all_reduce_n4.log"""
_SRUN = """\
SWEEP="./build/all_reduce_perf -b 8 -e 4G -f 2 -g 1 -w 5 -n 20"
srun -N 1 --ntasks-per-node 8 --gpus-per-node 8 $SWEEP | tee all_reduce_n1.log
srun -N 2 --ntasks-per-node 8 --gpus-per-node 8 $SWEEP | tee all_reduce_n2.log
srun -N 4 --ntasks-per-node 8 --gpus-per-node 8 $SWEEP | tee all_reduce_n4.log"""
_NCCL = """\
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING
srun -N 4 --ntasks-per-node 8 --gpus-per-node 8 ./build/all_reduce_perf -b 8 -e 4G -f 2 -g 1 \\
  -w 0 -n 1 > nccl_n4.log"""
_OSU = """\
HOSTS=host1:8,host2:8,host3:8,host4:8
mpirun -np 32 -H $HOSTS osu_allreduce -m 4:268435456 -f | tee osu_allreduce_n4.log
python -m ringtree.explain osu_allreduce_n4.log --ranks 32 --nodes 4"""
_EXPLAIN = """\
python -m ringtree.explain all_reduce_n1.log all_reduce_n2.log all_reduce_n4.log \\
  --nccl-log nccl_n4.log --nics 8 --html cluster.html"""
_PUBLISHED = """\
python -m ringtree.explain v100_n1_p4 v100_n2_p8 v100_n4_p16 v100_n8_p32 v100_n16_p64 \\
  --nics 2 --html v100.html"""


def sections() -> tuple[Section, ...]:
    """Return what to type, from nothing to a report."""
    return (
        Section(
            "why",
            "What logs are needed",
            (
                Paragraph(
                    "Three sweeps of one collective: on one node, on two, and on as many as you can get for five minutes. One "
                    "node gives the links inside it, and nothing of the network; two worlds on several nodes tell the start of a "
                    "call from its hops; a world between others is predicted best. The gap between messages is in none of these sweeps: "
                    "for it, add alltoall_perf on three numbers of ranks, or give it with --gap. On AMD GPUs take rccl-tests, "
                    "which are built and called in the same way."
                ),
            ),
        ),
        Section("build", "Build nccl-tests", (Code(_BUILD),)),
        Section("mpirun", "With mpirun, on one, two and four nodes of 8 GPUs", (Code(_MPIRUN),)),
        Section("srun", "The same under Slurm", (Code(_SRUN),)),
        Section(
            "nccl",
            "NCCL's own model of your machine, in a run that is not timed",
            (
                Code(_NCCL),
                Paragraph("NCCL prints a line at each call, which takes microseconds of that call: do not time with it."),
            ),
        ),
        Section(
            "osu",
            "With OSU's micro-benchmarks, which do not say how many ranks ran",
            (
                Code(_OSU),
                Paragraph("With -d cuda, OSU's benchmarks time the memory of GPUs; without it, that of their hosts."),
            ),
        ),
        Section("explain", "Then", (Code(_EXPLAIN),)),
        Section("published", "Without a cluster at hand: a published one, by the names of its runs", (Code(_PUBLISHED),)),
    )
