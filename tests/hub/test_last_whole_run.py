"""When the whole of the hub's tests runs, and when the small cut does: no hub is needed."""

import os
import re
import subprocess
from pathlib import Path

import last_whole_run
import pytest

import conftest

pytestmark = pytest.mark.cut
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    """A tree with a file in each part that counts, where the whole has passed."""
    for part in last_whole_run.PARTS:
        path = tmp_path / part
        if (ROOT / part).is_dir():
            path = path / "deeper" / "program"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(part)
    last_whole_run.write(last_whole_run.fingerprint(tmp_path), tmp_path)
    return tmp_path


def test_where_nothing_has_changed_since_the_whole_passed_the_cut_is_enough(tree):
    assert last_whole_run.to_try(tree) == "cut"
    for name in ("hub/README.md", "ringtree/theory.py", "hub/deeper/__pycache__/program.pyc"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("changed")
    assert last_whole_run.to_try(tree) == "cut", "text for readers, another room, and what Python keeps for itself"


@pytest.mark.parametrize("part", last_whole_run.PARTS)
def test_where_a_part_has_changed_the_whole_is_tried(tree, part):
    path = tree / part if (tree / part).is_file() else tree / part / "deeper" / "program"
    path.write_text("changed")
    assert last_whole_run.to_try(tree) == "whole"


def test_a_file_that_is_new_gone_renamed_or_made_a_program_counts(tree):
    program = tree / "hub" / "deeper" / "program"
    (tree / "hub" / "new").touch()
    assert last_whole_run.to_try(tree) == "whole"
    (tree / "hub" / "new").unlink()
    assert last_whole_run.to_try(tree) == "cut"
    program.rename(program.with_name("other"))
    assert last_whole_run.to_try(tree) == "whole"
    program.with_name("other").rename(program)
    program.chmod(0o755)
    assert last_whole_run.to_try(tree) == "whole"


def test_without_a_record_the_whole_is_tried_and_a_part_that_is_missing_is_an_error(tree):
    (tree / last_whole_run.RECORD).unlink()
    assert last_whole_run.to_try(tree) == "whole"
    (tree / "requirements.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"requirements\.txt: expected a file"):
        last_whole_run.fingerprint(tree)


@pytest.mark.parametrize(
    "exitstatus, reasons, counts",
    [
        (0, [], True),
        (0, ["here AppArmor refuses nobody a namespace"], True),
        (0, ["no Chromium found"], False),
        (0, ["It needs root, since it makes users and starts their servers: run it with sudo."], False),
        (1, [], False),
        (2, [], False),
        (5, [], False),
    ],
)
def test_a_whole_run_counts_if_it_passed_and_skipped_nothing_that_the_machine_allows(exitstatus, reasons, counts):
    assert conftest.whole_run_counts(exitstatus, reasons) is counts


@pytest.fixture
def ci(tmp_path):
    """`ci(said, **variables)`: the words of make that .ci/run gives, where the rule says this and every program is there."""
    text = (ROOT / ".ci" / "run").read_text()
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text(text)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in (
        "slurmctld",
        "slurmd",
        "munged",
        "ip",
        "newuidmap",
        "git",
        "chromium",
        "apt-get",
        "setpriv",
        "timeout",
        "make",
    ):
        does = {"timeout": 'shift 3; exec "$@"', "make": f'echo "$@" >> {tmp_path}/asked'}.get(name, "exit 0")
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)

    def run(said, **variables):
        python = programs / "python3"
        python.write_text(f'#!/bin/sh\n[ "$1" = tests/hub/last_whole_run.py ] || exit 0\n{said}\n')
        python.chmod(0o755)
        given = {"PATH": f"{programs}:{os.environ['PATH']}", **variables}
        subprocess.run(["sh", tmp_path / ".ci" / "run"], env=given, check=True, capture_output=True)
        return (tmp_path / "asked").read_text().splitlines()

    return run


@pytest.mark.parametrize(
    "said, variables, cut",
    [
        ("echo cut", {}, "1"),
        ("echo whole", {}, ""),
        ("exit 1", {}, ""),
        ("echo cut", {"RINGTREE_HUB_WHOLE": "1"}, ""),
    ],
)
def test_ci_tries_the_cut_only_where_the_rule_says_so(ci, said, variables, cut):
    first, second = ci(said, **variables)
    assert first == "test" and second.startswith("test-hub HUB=") and second.endswith(f" CUT={cut}")


def test_each_night_the_whole_is_tried():
    said = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    assert 'RINGTREE_HUB_WHOLE: "1"' in said.partition("  bare:")[2].partition("steps:")[0]


@pytest.mark.parametrize(
    "words, has", [([], "--whole tests/hub"), (["CUT=1"], "--cut tests/hub"), (["ARGS=x"], "pytest .* x$")]
)
def test_make_runs_the_whole_unless_told_otherwise(words, has):
    alone = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "ARGS", "CUT")
    }
    told = subprocess.run(["make", "-n", "test-hub", *words], cwd=ROOT, env=alone, capture_output=True, text=True, check=True)
    assert re.search(has, told.stdout, re.MULTILINE), told.stdout
