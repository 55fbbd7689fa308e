"""Note every file of this project that a Python process opens, and every folder that it lists.

Python imports a module of this name as it starts, where its folder is on PYTHONPATH. `book/ext/executed.py` puts it there
for a notebook's kernel, from which its ranks and scripts have it too. RINGTREE_REACHED names the file to write to.
"""

import importlib.machinery
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE))) + os.sep
EVENTS = {"open": "file", "os.listdir": "folder", "os.scandir": "folder"}


def note_to(log):
    descriptor, seen = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), set()

    def note(event, arguments):
        kind = EVENTS.get(event)
        if kind and arguments and isinstance(arguments[0], str) and (kind, arguments[0]) not in seen:
            seen.add((kind, arguments[0]))
            path = os.path.abspath(arguments[0])
            if path.startswith(ROOT):
                os.write(descriptor, f"{kind} {path[len(ROOT) :]}\n".encode())

    sys.addaudithook(note)


if os.environ.get("RINGTREE_REACHED"):
    note_to(os.environ["RINGTREE_REACHED"])

# Whatever this machine would have loaded in our place.
others = [path for path in sys.path if os.path.abspath(path) != HERE]
if found := importlib.machinery.PathFinder.find_spec("sitecustomize", others):
    found.loader.exec_module(importlib.util.module_from_spec(found))
