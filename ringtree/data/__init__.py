"""Published measurements of real machines, and recordings of this book on a GPU, each with its source.

n, t = data.sweep("h200_p8")          # bytes and seconds of one published run
data.run("h200_p8").source            # who measured it
data.recording("order")               # what a GPU showed, or that nothing is recorded yet
data.prose()                          # a text to train on
"""

from ringtree import late

__getattr__, __dir__, __all__ = late.names(__name__)
