"""Your cluster on one page, from a log.

    python -m ringtree.explain all_reduce_8.log all_reduce_64.log --html cluster.html

From logs of nccl-tests, rccl-tests or OSU of one or several world sizes: the fitted machine, what NCCL expects, where the
library took a slow way, what busbw is on each wire, the nearest published machine, and what more nodes will do, each
with an interval or with the reason why it cannot be said. In Python:

    report = explain.explain("all_reduce_8.log", "all_reduce_64.log", nics=4)
    print(report)
    open("cluster.html", "w").write(report.page())
"""

from ringtree import late

__getattr__, __dir__, __all__ = late.names(__name__)
