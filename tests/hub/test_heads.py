"""One table says what of the hub was run, and no file of the hub says so of itself; no hub is needed."""

import contextlib
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADING = "## What was run"
RUN = re.compile(r"(?<![\w-])Run(\.|: )")  # the word that once stood at each file's head, with no subject


def tracked():
    """Return the hub's files that git keeps; without git or a checkout, all that lie there."""
    said = ""
    with contextlib.suppress(FileNotFoundError):
        said = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "hub"], capture_output=True, text=True).stdout
    names = [name for name in said.split("\0") if name and (ROOT / name).is_file()]
    return sorted(names) or sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "hub").rglob("*") if is_ours(path))


def is_ours(path):
    return path.is_file() and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)


def test_no_file_says_of_itself_that_it_was_run():
    assert len(tracked()) > 30
    saying = [name for name in tracked() if RUN.search("\n".join((ROOT / name).read_text().splitlines()[:10]))]
    assert not saying, f"say it in hub/README.md, under '{HEADING}'"


def test_the_readme_begins_with_its_title_and_ends_with_what_was_run():
    page = (ROOT / "hub" / "README.md").read_text()
    assert page.startswith("# ") and page.count(HEADING) == 1
    rows = [line for line in page.split(HEADING)[1].splitlines() if line.startswith("|")]
    assert len(rows) > 8 and all(line.count("|") == 4 for line in rows)
    assert "\n## " not in page.split(HEADING)[1]
    assert all(
        any(word in line for line in rows) for word in ("Debian 12", "Ubuntu 24.04", "`slurm/`", "Kubernetes", "real GPUs")
    )
