"""Build the book: `python tools/build.py` runs every notebook on live ranks and writes _build/html.

Exits with 0 when the book was built without a single warning, with 1 otherwise.
Setting RINGTREE_SHARE_GPUS=1 lets several ranks share one GPU, RINGTREE_SOLUTIONS=0 leaves out the labs' solutions.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
STAMP = BUILD / "built-from"
sys.path[:0] = [str(ROOT / "book" / "ext"), str(ROOT / "tools")]

import executed
import run_notebooks
import solutions

from ringtree.watching import without_colors


def sources():
    """Every file that the book is made from."""
    for folder in ("book", "notebooks", "labs/release", "labs/source", "ringtree", "trials"):
        for path in sorted((ROOT / folder).rglob("*")):
            hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)
            if path.is_file() and not hidden:
                yield path
    yield from (ROOT / "_config.yml", ROOT / "_toc.yml", *sorted(ROOT.glob("requirements*")))


def fingerprint():
    """A hash of all sources and of what else the pages depend on."""
    found = hashlib.sha256(f"{executed.of_the_machine()} {solutions.are_shown()}".encode())
    for path in sources():
        found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def chapters():
    """The notebooks of the table of contents whose cells are run for the book; a lab's are the reader's to run."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [ROOT / f"{entry['file']}.ipynb" for part in toc["parts"] for entry in part["chapters"]]
    found = [path for path in files if path.is_file() and path.parent.name == "notebooks"]
    run = [solutions.source_of(path) if path.name.startswith("00-") else path for path in found]
    return [path for path in run if path.is_file()]  # a learner's copy of the course has no sources


def judge_answers():
    """Judge the answers to the labs that the page of verdicts lists; a learner's copy of the course has none."""
    if not (ROOT / "trials").is_dir():
        return True
    return subprocess.run([sys.executable, str(ROOT / "trials" / "verdicts.py")], cwd=ROOT).returncode == 0


def remove_old_pages():
    """Pages of what is no longer in the table of contents stay where they were built: nobody must find them."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    wanted = {toc["root"], *(entry["file"] for part in toc["parts"] for entry in part["chapters"])}
    html = BUILD / "html"
    for folder in ("book", "notebooks", "labs"):
        for page in (html / folder).rglob("*.html"):
            if page.relative_to(html).with_suffix("").as_posix() not in wanted:
                page.unlink()


def where_to_open():
    page = (BUILD / "html" / "book" / "welcome.html").as_uri()
    return f"Open it in a browser: {page}"


def run_jupyter_book():
    """Build with warnings as errors, passing its progress on; return its exit status."""
    jupyter_book = [sys.executable, "-u", "-c", "from jupyter_book.cli.main import main; main()"]
    command = [*jupyter_book, "build", str(ROOT), "-W", "--keep-going"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            print(line if sys.stdout.isatty() else without_colors(line), end="", flush=True)
    return process.returncode


def main():
    before = fingerprint()
    if STAMP.is_file() and STAMP.read_text() == before:
        print(f"The book is up to date. {where_to_open()}")
        return 0
    STAMP.unlink(missing_ok=True)
    print("Building the book. The first time, every notebook runs on four live ranks: some minutes.", flush=True)
    started = time.monotonic()
    if not run_notebooks.run(chapters()) or not judge_answers():
        print("The book did not build: something did not run, as said above.", file=sys.stderr)
        return 1
    if run_jupyter_book() != 0:
        # Sphinx warns about a page only when it reads it: without this, a second try would hide the warning.
        shutil.rmtree(BUILD / ".doctrees", ignore_errors=True)
        print("The book did not build: the warnings and errors above say why.", file=sys.stderr)
        return 1
    remove_old_pages()
    STAMP.write_text(before)
    print(f"The book was built in {time.monotonic() - started:.0f} s. {where_to_open()}")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
