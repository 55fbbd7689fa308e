"""Whatever a cell does to sys.stdout, sys.stderr or descriptors 1 and 2, a rank speaks again in the next cell."""

import os
import sys
import threading

from IPython import get_ipython


def keep_speech():
    """Put back the streams of this rank before and after all that runs on it; an answer waits for their flush."""
    shell = get_ipython()
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    # 1 and 2 lead into pipes, from which a thread of each stream takes what is not Python's; the copies lead to the log.
    descriptors = {each: os.dup(each) for each in (1, 2, *map(_copy, streams.values())) if each is not None}
    for stream in streams.values():
        stream.close = stream.flush  # one that is closed could not be opened again

    def speak_again():
        for name, stream in streams.items():
            setattr(sys, name, stream)
        for descriptor, kept in descriptors.items():
            if not _same(descriptor, kept):
                os.dup2(kept, descriptor)
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


def _copy(stream):
    return getattr(stream, "_original_stdstream_copy", None)


def _same(descriptor, kept):
    try:
        return os.path.samestat(os.fstat(descriptor), os.fstat(kept))
    except OSError:  # closed
        return False


def _listen_again(stream):
    """Start the thread that reads the stream's pipe anew, where an error of the cell's making has ended it."""
    thread = getattr(stream, "watch_fd_thread", None)
    if thread is not None and not thread.is_alive():
        stream.watch_fd_thread = threading.Thread(target=stream._watch_pipe_fd, daemon=True)
        stream.watch_fd_thread.start()
