"""Whatever a cell does to print, sys.stdout, sys.stderr or descriptors 1 and 2, a rank speaks again in the next cell."""

import builtins
import os
import sys
from os import dup2, fstat  # a cell may replace what the modules have
from os.path import samestat
from threading import Thread

from IPython import get_ipython

NOT_OURS = "_", "display", "exit", "get_ipython", "input", "quit"  # builtins that IPython sets for each cell
FIXED = "close", "pub_thread", "session"  # of a stream: attributes that nothing changes but a cell


def keep_speech():
    """Put back the streams of this rank before and after all that runs on it; an answer waits for their flush."""
    shell = get_ipython()
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    # 1 and 2 lead into pipes, from which a thread of each stream takes what is not Python's; the copies lead to the log.
    descriptors = {each: os.dup(each) for each in (1, 2, *map(_copy, streams.values())) if each is not None}
    for stream in streams.values():
        stream.close = stream.flush  # one that is closed could not be opened again
    attributes = {
        name: {each: vars(stream)[each] for each in FIXED if each in vars(stream)} for name, stream in streams.items()
    }
    functions = {name: value for name, value in vars(builtins).items() if name not in NOT_OURS}
    names, of_cells, of_sys = vars(builtins), shell.user_ns, vars(sys)

    def speak_again():
        names.update(functions)  # first: all that follows needs them
        if not callable(of_cells.get("print", print)):
            del of_cells["print"]
        of_sys.update(streams)
        for name, stream in streams.items():
            _undo_changes(stream, attributes[name])
        for descriptor, kept in descriptors.items():
            if not _same(descriptor, kept):
                dup2(kept, descriptor)
        for stream in streams.values():
            _listen_again(stream)

    for moment in ("pre_execute", "post_execute"):
        shell.events.register(moment, speak_again)
    apply = shell.kernel.do_apply

    def do_apply(*arguments):
        try:
            return apply(*arguments)
        finally:
            speak_again()

    shell.kernel.do_apply = do_apply


def _undo_changes(stream, attributes):
    """Take away what hides a method of the stream, and put back its attributes."""
    own, methods = vars(stream), type(stream)
    for name in [name for name in own if name not in attributes and callable(getattr(methods, name, None))]:
        del own[name]
    own.update(attributes)


def _copy(stream):
    return getattr(stream, "_original_stdstream_copy", None)


def _same(descriptor, kept):
    try:
        return samestat(fstat(descriptor), fstat(kept))
    except OSError:  # closed
        return False


def _listen_again(stream):
    """Start the thread that reads the stream's pipe anew, where an error of the cell's making has ended it."""
    thread = getattr(stream, "watch_fd_thread", None)
    if thread is not None and not thread.is_alive():
        stream.watch_fd_thread = Thread(target=stream._watch_pipe_fd, daemon=True)
        stream.watch_fd_thread.start()
