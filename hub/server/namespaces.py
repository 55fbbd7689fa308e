"""Leave to make namespaces: on Ubuntu AppArmor refuses it to users' programs, and each learner's server needs one.

What Slurm starts gets that leave and nothing else does: slurmd runs under a profile of AppArmor that forbids nothing, and so
do its jobs. In a server no further namespace can be made (`enclosed`).
"""

import subprocess
from contextlib import contextmanager
from pathlib import Path

NAME = "ringtree-hub"
KEPT = Path("/etc/apparmor.d") / NAME  # what lies there is loaded when the machine starts
REFUSED = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
LOADED = Path("/sys/kernel/security/apparmor/profiles")
PROFILE = f"""\
# Made for the course "Rings and Trees": what runs under this name may do all that it might without AppArmor.
abi <abi/4.0>,
include <tunables/global>

profile {NAME} flags=(unconfined) {{
  userns,
}}
"""


def need_leave():
    """Whether this system refuses namespaces to whom no profile allows them."""
    return REFUSED.exists() and REFUSED.read_text().strip() != "0"


def under_leave():
    """The beginning of a command that is to run with that leave."""
    return ["aa-exec", f"--profile={NAME}", "--"] if need_leave() else []


def load():
    subprocess.run(["apparmor_parser", "--replace"], input=PROFILE, text=True, check=True)


def unload():
    """Whoever runs under it is left without."""
    subprocess.run(["apparmor_parser", "--remove"], input=PROFILE, text=True, check=True)


def loaded():
    return LOADED.exists() and f"{NAME} (" in LOADED.read_text()


@contextmanager
def leave():
    """As long as this lasts the profile is there; one that was there before stays."""
    ours = need_leave() and not loaded()
    if ours:
        load()
    try:
        yield
    finally:
        if ours:
            unload()
