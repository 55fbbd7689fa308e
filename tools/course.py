"""Write what learners may have into a folder of its own: `python tools/course.py [FOLDER]`, by default _build/course.

The labs' notebooks without solutions, the chapters, the package, and the pages and settings that these name. No solution of a
lab, no hidden case, no test and no history. Written again, the folder has what a fresh one would have, and what others put
into it stays.
"""

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ROOT / "_build" / "course"
LIST = ".course-files"  # of what was written: what is in it and not written any more is removed
README = """# Rings and Trees: multi-GPU communication you can run

The course's chapters are in `notebooks`, its labs in `labs/release`. Where somebody has set the course up for you, on a hub
or a cluster, open a notebook and run it from the top. On a machine of your own make the environment first:

```sh
python3 -m venv .venv
.venv/bin/pip install -r requirements.txt -c requirements.lock -c requirements-cuda.lock
JUPYTER_CONFIG_PATH=book/jupyter .venv/bin/jupyter lab
```

`make lab` does the same. What you write into a lab's notebook stays yours, and how far you have come is kept beside it.
`.venv/bin/python tools/build.py` makes a book of all pages, with every chapter run on four live ranks.
"""
# What is taken, by folder; of everything else, and of what is made while one works, nothing.
TAKEN = {
    ".": ["_config.yml", "_toc.yml", "Makefile", "pyproject.toml", "requirements.txt", "requirements*.lock", "LICENSE*"],
    "book": ["**/*"],
    "tools": ["build.py", "normalise.py", "run_notebooks.py"],
    "notebooks": ["*.ipynb", "scripts/*.py"],
    "labs/release": ["*/*.ipynb"],
    "ringtree": ["**/*"],
}


def wanted():
    """The files of this tree that learners may have, by their names in it."""
    for folder, patterns in TAKEN.items():
        for pattern in patterns:
            for path in (ROOT / folder).glob(pattern):
                name = path.relative_to(ROOT)
                made = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
                if path.is_file() and not made:
                    yield name


def write(folder):
    """Write the course; returns the names of its files. Raises ValueError where the folder has something else in it."""
    kept = folder / LIST
    if folder.is_dir() and any(folder.iterdir()) and not kept.is_file():
        raise ValueError(f"{folder} is not empty and no course was written there: name a new folder, or an empty one")
    before = kept.read_text(encoding="utf-8").splitlines() if kept.is_file() else []
    names = sorted(name.as_posix() for name in wanted())
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "README.md").write_text(README, encoding="utf-8")
    names = sorted([*names, "README.md", LIST])
    kept.write_text("\n".join(names) + "\n", encoding="utf-8")
    for name in set(before) - set(names):
        remove(folder, name)
    return names


def remove(folder, name):
    """A file that belongs to the course no more, and the folders that it leaves empty."""
    (folder / name).unlink(missing_ok=True)
    for parent in Path(name).parents:
        if parent.name and (folder / parent).is_dir() and not any((folder / parent).iterdir()):
            (folder / parent).rmdir()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT)
    folder = parser.parse_args().folder
    try:
        names = write(folder)
    except ValueError as error:
        parser.error(str(error))
    print(f"{len(names)} files for learners: {folder}")


if __name__ == "__main__":
    sys.exit(main())
