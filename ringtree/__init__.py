"""Rings and Trees: multi-GPU communication you can run.

In a notebook:

    import ringtree
    ranks = ringtree.start(4)

and then `%%px` cells run on every rank. The other rooms are imported by name:
`from ringtree import draw, cost`.
"""


def __getattr__(name):
    # Late, so that a rank that imports a room of this package pays for that room alone.
    if name in ("start", "Ranks"):
        from ringtree import cluster

        return getattr(cluster, name)
    if name in ("RankError", "RanksStuck", "RankDied"):
        from ringtree import deadline

        return getattr(deadline, name)
    raise AttributeError(f"module 'ringtree' has no attribute {name!r}")


def _readers_shell():
    """The IPython shell of the kernel that a reader types into; None in a script and on a rank."""
    import sys

    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel = getattr(shell, "kernel", None)
    return None if type(kernel).__module__.startswith("ipyparallel") else shell


if _readers_shell() is not None:
    from ringtree import cells

    cells.load(_readers_shell())
