"""What stands in the way of ranks on this machine, and what to do about it.

    python -m ringtree.doctor            # in full; exit status 1 where something must be mended
    python -m ringtree.doctor --json

    from ringtree import doctor
    doctor.look()                        # a list of `Finding`s
    doctor.in_a_line()                   # the first that is wrong, in one line, quickly: at the head of every lab

`finding` says what a finding is; `packages` looks at PyTorch and what else Python lacks; `computer` looks at memory, limits, threads and folders, `gpus` at GPUs and NCCL,
`network` at the loopback and the interfaces that were named, `processes` at what earlier ranks have left, `slurm` at what
a batch system gave. All of it needs the standard library alone; `system` asks /proc.
"""

from ringtree.doctor.finding import Finding
from ringtree.doctor.looking import in_a_line, look

__all__ = ["Finding", "in_a_line", "look"]
