"""Pin everything that requirements.txt pulls in: `python book/lock.py` rewrites requirements.lock.

Run it in an environment that was made from requirements.txt. CUDA's packages are not
written here: only some machines have them (see requirements-cuda.lock).
"""

import importlib.metadata
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Everything below requirements.txt, pinned. Written by `python book/lock.py`.
# Constraints only: pip installs what is asked for, in these versions.
"""


def pins(path):
    """The `name==version` lines of a requirements file, as {canonical name: version}."""
    found = {}
    for line in Path(path).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line and not line.startswith("-"):
            name, version = line.split("==")
            found[canonicalize_name(name)] = version
    return found


def pulled_in(names):
    """What the distributions `names` need, directly or not, on this machine: {name: version}."""
    found, waiting, seen = {}, [(name, "") for name in names], set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        distribution = importlib.metadata.distribution(name)
        found[name] = distribution.version.split("+")[0]
        for line in distribution.requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                below = canonicalize_name(needed.name)
                waiting += [(below, wanted) for wanted in ("", *needed.extras)]
    return found


def main():
    direct = pins(ROOT / "requirements.txt")
    cuda = pins(ROOT / "requirements-cuda.lock")
    below = {
        name: version
        for name, version in sorted(pulled_in(direct).items())
        if name not in direct and name not in cuda
    }
    lines = "".join(f"{name}=={version}\n" for name, version in below.items())
    (ROOT / "requirements.lock").write_text(HEADER + lines)
    print(f"requirements.lock: {len(below)} packages below {len(direct)} direct ones")


if __name__ == "__main__":
    sys.exit(main())
