"""Ranks on a virtual clock: any number of them in one process, at any speed of link, always with the same result.

    run = ringtree.simulate(program, inputs, link)       # `simulation`: run it
    ringtree.follow(program, inputs)                     # `following`: whose contributions are where, after every message
    ringtree.Sketch(1 << 30)                             # `sketch`: a tensor's size without its contents

Who does what in a run:

    clock, agenda        which rank goes on next
    threads              ranks that call backward()
    dist, streams        torch.distributed, as a program sees it; collectives that run beside their rank
    messages, network    when two halves of a message meet; from when to when it moves
    notes                what is noted of it
    guard, torch_modes   buffers in flight; what a program does to its tensors
    sweep, lengths       one run for many sizes and links
    faults, deadline     what is wrong, in words; a program that does not end
    nccl_calls, nccl_rules      what a program issued; whether it would end under NCCL's rules too
    sketches             steps of training as rank programs
"""

from ringtree import late

__getattr__, __dir__, __all__ = late.names(__name__)
