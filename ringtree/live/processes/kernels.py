"""Notebook kernels that no port can keep from starting, and no neighbor overhears.

Jupyter chooses five TCP ports for a kernel, lets them go, and the kernel binds them when it has
started. On a machine where ranks start meanwhile, one of the ports may be taken by then; where it
is the iopub port, ipykernel does not even end, and whoever asked for the kernel waits a minute
in vain. Unix sockets in a folder of the kernel's own have no such gap. Nor can other users of the
machine connect to them, as they can to the ports, where whoever listens reads all outputs.
JupyterLab is told of them by book/jupyter/jupyter_server_config.json; what starts kernels without
it, by JUPYTER_DEFAULT_PROVISIONER_NAME=ringtree-unix-sockets, which `start_without_ports` in
book/ext/executed.py sets.
"""

import os
import shutil
import sys
import tempfile

from jupyter_client.provisioning import LocalProvisioner

from ringtree.live.processes import sockets, warm


class UnixSocketProvisioner(LocalProvisioner):
    """A kernel process of this machine whose channels are Unix sockets, not TCP ports."""

    folder = None

    async def pre_launch(self, **options):
        manager = self.parent
        if manager.transport == "tcp":
            self.folder = tempfile.mkdtemp(prefix="kernel-", dir=sockets.parent())
            manager.transport = "ipc"
            manager.cache_ports = False
            manager.ip = os.path.join(self.folder, "channel")
        return await super().pre_launch(**options)

    async def launch_kernel(self, cmd, **options):
        """Started as always, or forked where `ringtree.live.processes.warm` is at work and the kernel is one of this Python's."""
        if not warm.address() or cmd[:2] != [sys.executable, "-m"]:  # other options of Python would be lost
            return await super().launch_kernel(cmd, **options)
        streams = {name: options.get(name) for name in ("stdout", "stderr", "cwd")}
        try:
            self.process = warm.Kernel(cmd[2:], env=options["env"], **streams)
        except (OSError, RuntimeError):  # what kernels are forked from did not begin, and has said why, or has ended
            return await super().launch_kernel(cmd, **options)
        self.pid = self.pgid = self.process.pid
        return self.connection_info

    async def cleanup(self, restart=False):
        await super().cleanup(restart)
        if self.folder and not restart:
            shutil.rmtree(self.folder, ignore_errors=True)
