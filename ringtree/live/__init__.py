"""Live ranks: processes that hold one rank each, what starts and watches them, and what is put between them.

ranks = ringtree.start(4)              # `cluster`: engines and process group; `placement`: backend and devices
%%px                                   # `cells`: output by rank, a deadline, a report of who waits for whom
dist = ringtree.emulate(dist, link)    # `emulated`: a link of your choice between the ranks of one host
dist = ringtree.traced(dist)           # `tracing`: note every message
"""

from ringtree import late

__getattr__, __dir__, __all__ = late.names(__name__)
