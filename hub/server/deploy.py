"""Put this checkout's package and the hub's programs where a hub runs: `python deploy.py FOLDER`, by that hub's own Python.

They are copied, not linked to, because learners may not be able to enter the checkout. The hub may be running: a program is
moved into its predecessor's place, so that it is never missing, and what the new version lacks is removed last.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ("book/jupyter", "hub/server", "hub/slurm")  # each a folder of the same name in the hub's
CACHES = "__pycache__"


def main():
    folder = Path(sys.argv[1])
    install_packages()
    for part in PARTS:
        replace(ROOT / part, folder / Path(part).name)


def install_packages():
    """Install `ringtree` and what `hub/pyproject.toml` asks for. setuptools builds beside what it reads: so both are copied."""
    with tempfile.TemporaryDirectory(prefix="ringtree-deploy-") as made:
        package, hub = Path(made) / "ringtree", Path(made) / "hub"
        hub.mkdir()
        shutil.copytree(ROOT / "ringtree", package / "ringtree", ignore=shutil.ignore_patterns(CACHES))
        for path in (ROOT / "pyproject.toml", ROOT / "README.md", *ROOT.glob("LICENSE*")):
            shutil.copy(path, package)
        shutil.copy(ROOT / "hub" / "pyproject.toml", hub)
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--force-reinstall"]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, str(package), str(hub)], check=True)


def replace(source, target):
    """Make `target` have the files of `source`, and no others. Nobody but their owner may write to them."""
    there = [path for path in target.rglob("*") if not path.is_dir()]
    wanted = [path.relative_to(source) for path in source.rglob("*") if path.is_file() and CACHES not in path.parts]
    for name in wanted:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(f".{place.name}.new")
        shutil.copyfile(source / name, new)
        new.chmod((source / name).stat().st_mode & 0o755)
        new.replace(place)
    for path in there:
        if path.relative_to(target) not in wanted:
            path.unlink()


if __name__ == "__main__":
    main()
