"""Run a command on ranks that PyTorch's own launcher starts."""

import os
import sys


def under_torchrun(count, module, given) -> int:
    """Run `python -m module *given` on `count` ranks of this machine; return the exit code of the first that failed, or 0."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks that share cores must not fight for them
    config = LaunchConfig(1, 1, count, run_id=module, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", max_restarts=0)
    try:
        elastic_launch(config, sys.executable)("-m", module, *given)
    except ChildFailedError as error:
        return error.get_first_failure()[1].exitcode
    return 0
