"""What the requirements and the locks say."""

import importlib.metadata
import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def pins(name):
    """The `name==version` lines of a requirements file, as {canonical name: version}."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line and not line.startswith("-"):
            pinned, version = line.split("==")
            assert canonicalize_name(pinned) not in found, f"{name} pins {pinned} twice"
            found[canonicalize_name(pinned)] = version
    return found


def pulled_in(names):
    """What the distributions `names` need, directly or not, on this machine: {name: version}."""
    found, waiting, seen = {}, [(name, "") for name in names], set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) not in seen:
            seen.add((name, extra))
            distribution = importlib.metadata.distribution(name)
            found[name] = distribution.version.split("+")[0]
            for needed in map(Requirement, distribution.requires or []):
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting += [(canonicalize_name(needed.name), wanted) for wanted in ("", *needed.extras)]
    return found


DIRECT = pins("requirements.txt")


HUB = pins("hub/server/requirements.txt")


HUB_LOCKED = pins("hub/server/requirements.lock")  # tests/hub/test_lock.py holds it against what is installed


LOCKED = pins("requirements.lock")


BELOW = pulled_in(DIRECT)


def refused_by(versions):
    """Those of the installed {name: version} that are not for every Python that README.md names, with what they want."""
    named = re.findall(r"\b3\.\d+\.\d+\b", (ROOT / "README.md").read_text())
    assert len(named) > 1
    return {
        f"{name} {version}": wanted
        for name, version in versions.items()
        if (wanted := importlib.metadata.metadata(name).get("Requires-Python"))
        and not all(map(SpecifierSet(wanted).contains, named))
    }
