"""Ranks on a virtual clock: any number of them in one process, at any speed of link, always with the same result.

    run = ringtree.simulate(program, inputs, link)       # `clock` and the rest: run it
    ringtree.follow(program, inputs)                     # `following`: whose contributions are where, after every message
    ringtree.Sketch(1 << 30)                             # `sketch`: a tensor's size without its contents
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "clock": ["Deadlock", "ProgramError", "Simulation", "simulate"],
        "following": ["Followed", "follow"],
        "sketch": ["Sketch"],
    },
)
