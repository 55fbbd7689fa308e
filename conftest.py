"""What pytest needs to know about notebooks: pictures and HTML are not compared, their text is; kernels do without ports."""

import os

os.environ.setdefault("JUPYTER_DEFAULT_PROVISIONER_NAME", "ringtree-unix-sockets")  # see ringtree/live/kernels.py

PICTURES = ("text/html", "text/markdown", "image/svg+xml", "application/javascript")


def pytest_collectstart(collector):
    if hasattr(collector, "skip_compare"):  # a notebook, collected by nbval
        collector.skip_compare += PICTURES
