"""Every file of the hub says at its head whether it was run, validated only, or not run; no hub is needed."""

import contextlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A sentence of its own, or the beginning of one that says where. "Run a command …", as scripts begin, says what they do.
SAYS = re.compile(r"(?<![\w-])(Run(\.|:| in | on )|Not run\b|Validated\b)")
HEAD = 10  # lines
# Who else speaks for these: npm's two files hold no comments, and the head of the lock is pip-compile's.
SILENT = {
    "hub/server/proxy/package.json": "hub/server/keep-alive.cjs",
    "hub/server/proxy/package-lock.json": "hub/server/keep-alive.cjs",
    "hub/server/requirements.lock": "hub/server/requirements.txt",
}


def tracked():
    """The hub's files that are kept in git; where there is no git or no checkout, all that lie there."""
    said = ""
    with contextlib.suppress(FileNotFoundError):
        said = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "hub"], capture_output=True, text=True).stdout
    names = [name for name in said.split("\0") if name and (ROOT / name).is_file()]
    return sorted(names) or sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "hub").rglob("*") if is_ours(path))


def is_ours(path):
    return path.is_file() and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)


def says(text):
    return SAYS.search("\n".join(text.splitlines()[:HEAD])) is not None


@pytest.mark.parametrize("name", [name for name in tracked() if name not in SILENT])
def test_it_says_whether_it_was_run(name):
    assert says((ROOT / name).read_text()), f"{name}: say 'Run.', 'Validated …' or 'Not run …' in its first {HEAD} lines"


def test_only_what_can_hold_no_words_of_ours_says_nothing_and_another_file_speaks_for_it():
    assert len(tracked()) > 30 and SILENT.keys() <= set(tracked())
    for name, other in SILENT.items():
        assert not says((ROOT / name).read_text()), f"{name} says it itself now"
        assert says((ROOT / other).read_text()), other
    assert "requirements.lock beside this file" in (ROOT / SILENT["hub/server/requirements.lock"]).read_text()


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("#!/bin/sh\n# Run a command in a network of its own.\n", False),
        ("#!/bin/sh\n# Run a command in a network of its own. Run.\n", True),
        ("*Run on Debian 12, as root.*\n", True),
        ("# Not run here: an image.\n", True),
        ("# Validated here, not run.\n", True),
        ("# It can be Run as it is\n", False),
        ('"""What a learner may ask for."""\n', False),
        ("\n" * HEAD + "# Run.\n", False),
    ],
)
def test_what_a_file_does_is_no_word_on_whether_it_was_run(head, said):
    assert says(head) is said
