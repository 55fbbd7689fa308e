"""The hub's requirements, their lock and what `make hub` has installed beside the course say the same."""

import os
import subprocess
import sys

import pytest
from helpers.requirements import BELOW, HUB, HUB_LOCKED, pulled_in, refused_by

reason = "the hub's packages are in its own environment: `make test-hub`"
pytestmark = pytest.mark.skipif("RINGTREE_HUB" not in os.environ, reason=reason)


def beside_the_course():
    return {name: version for name, version in pulled_in(HUB).items() if name not in BELOW}


def test_the_lock_pins_everything_below_the_hubs_requirements():
    found = beside_the_course()
    assert "jupyterhub" in found and "tornado" not in found
    missing = found.keys() - HUB_LOCKED.keys()
    other = {name: (HUB_LOCKED[name], version) for name, version in found.items() if HUB_LOCKED.get(name, version) != version}
    assert not missing, f"not in hub/server/requirements.lock: {sorted(missing)}; run make lock"
    assert not other, f"locked at one version, installed at another: {other}"
    unused = HUB_LOCKED.keys() - found.keys()
    assert not unused, f"locked, and nothing needs it: {sorted(unused)}; run make lock"


def test_every_locked_version_allows_the_pythons_that_the_readme_names():
    assert not refused_by(beside_the_course())


def test_what_is_installed_is_what_the_book_and_the_hub_declare():
    said = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout
    asked = subprocess.run([sys.executable, "-m", "pip", "show", "ringtree-hub"], capture_output=True, text=True).stdout
    assert "Requires: batchspawner, jupyter_server, jupyterhub" in asked
