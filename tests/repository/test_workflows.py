"""The workflows, what dependabot and people fill in, and the script that runs each job's steps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import run_workflows
import yaml

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
SCHEMAS = {
    **{f".github/workflows/{path.name}": "vendor.github-workflows" for path in sorted((GITHUB / "workflows").glob("*.yml"))},
    **{
        f".github/ISSUE_TEMPLATE/{path.name}": "vendor.github-issue-forms"
        for path in sorted(GITHUB.glob("ISSUE_TEMPLATE/*.yml"))
    },
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    ".github/dependabot.yml": "vendor.dependabot",
    "CITATION.cff": "vendor.citation-file-format",
}


def tool(name, *arguments):
    """Run a program of this environment; returns its exit status and what it said."""
    done = subprocess.run([Path(sys.executable).parent / name, *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("path", SCHEMAS)
def test_a_file_for_github_holds_its_schema(path):
    rc, said = tool("check-jsonschema", "--builtin-schema", SCHEMAS[path], path)
    assert rc == 0, said


def test_every_job_has_a_time_limit():
    paths = sorted(path for path in SCHEMAS if "/workflows/" in path)
    assert len(paths) == 3
    rc, said = tool("check-jsonschema", "--builtin-schema", "custom.github-workflows-require-timeout", *paths)
    assert rc == 0, said


def test_zizmor_finds_no_hole():
    rc, said = tool("zizmor", "--offline", "--no-progress", ".github")
    assert rc == 0 and "No findings" in said, said


def test_zizmor_notices_an_action_that_is_not_pinned(tmp_path):
    text = (GITHUB / "workflows" / "check.yml").read_text()
    (tmp_path / "loose.yml").write_text(re.sub(r"@[0-9a-f]{40} # v\S+", "@v7", text))
    rc, said = tool("zizmor", "--offline", "--no-progress", tmp_path / "loose.yml")
    assert rc != 0 and "unpinned-uses" in said, said


@pytest.mark.parametrize("path", [path for path in SCHEMAS if "/workflows/" in path])
def test_an_action_is_pinned_by_its_commit_and_names_its_version(path):
    used = re.findall(r"uses: (.*)", (ROOT / path).read_text())
    assert used
    assert [each for each in used if not re.match(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+( .*)?$", each)] == []


def test_one_action_has_one_version():
    used = {each for path in SCHEMAS if "/workflows/" in path for each in re.findall(r"uses: (\S+)", (ROOT / path).read_text())}
    assert len(used) == len({each.split("@")[0] for each in used})


def test_a_job_may_do_only_what_it_says():
    for name, (workflow, job) in run_workflows.jobs().items():
        assert workflow["permissions"] == {}, name
        assert job["permissions"].keys() <= {"contents", "pages", "id-token"}, name
        assert job["permissions"].get("contents") in (None, "read"), name


def test_a_make_target_that_a_job_names_is_there():
    commands = [command for _, job in run_workflows.jobs().values() for command in run_workflows.commands(job)]
    targets = {each for command in commands for each in re.findall(r"^make ([\w-]+)", command, re.MULTILINE)}
    assert targets == {"check", "test", "book", "nightly"} and ".ci/run" in commands
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^([\w-]+ )*{target}( [\w-]+)*:", makefile, re.MULTILINE) for target in targets)


# -- The script, on small workflows ---------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Returns what makes a repository with one workflow of these jobs and runs it: its exit status."""
    root = tmp_path / "repository"
    (root / ".github" / "workflows").mkdir(parents=True)
    monkeypatch.setattr(run_workflows, "ROOT", root)
    monkeypatch.setattr(run_workflows, "WORKFLOWS", root / ".github" / "workflows")

    def make_and_run(jobs, *names):
        text = yaml.safe_dump({"env": {"LEVEL": "workflow", "OUTER": "workflow"}, "jobs": jobs})
        (root / ".github" / "workflows" / "small.yml").write_text(text)
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        for command in (["init", "--quiet"], ["add", "-A"], [*who, "commit", "--quiet", "--message", "all"]):
            subprocess.run(["git", *command], cwd=root, check=True)
        (root / "uncommitted").touch()
        monkeypatch.setattr(sys, "argv", ["run_workflows.py", *names])
        return run_workflows.main()

    return make_and_run


CHECKOUT = {"uses": "actions/checkout@0000"}


def test_steps_run_in_order_in_a_clone_of_what_is_committed(repository, capfd, monkeypatch):
    monkeypatch.setenv("RINGTREE_LABS", "all")
    steps = [
        CHECKOUT,
        {"run": "test ! -e uncommitted\ntest -d .git\necho made > made"},
        {"run": 'cat made; echo "$LEVEL $OUTER $CI [$RINGTREE_LABS]"', "env": {"LEVEL": "step"}},
    ]
    assert not repository({"one": {"steps": steps}})
    assert "made\nstep workflow true []\n" in capfd.readouterr().out


def test_a_step_that_fails_ends_its_job_and_those_that_need_it_and_no_other(repository, capfd):
    jobs = {
        "after": {"needs": "first", "steps": [CHECKOUT, {"run": "echo never after"}]},
        "first": {"steps": [CHECKOUT, {"run": "false\necho never in a step"}, {"run": "echo never in a job"}]},
        "other": {"steps": [CHECKOUT, {"run": "echo other ran"}]},
    }
    assert repository(jobs)
    said = capfd.readouterr()
    assert "\nnever" not in said.out and "\nother ran\n" in said.out
    assert "small.first: `false\necho never in a step` ended with 1" in said.err
    assert "small.after: skipped, because small.first failed" in said.out


def test_the_python_that_a_job_asks_for_is_first_on_the_path(repository, capfd):
    version = ".".join(map(str, sys.version_info[:2]))
    setup = {"uses": "actions/setup-python@0000", "with": {"python-version": version}}
    assert not repository({"one": {"steps": [CHECKOUT, setup, {"run": "python3 --version; command -v python3"}]}})
    said = capfd.readouterr().out
    assert f"Python {version}." in said and "ringtree-job-" in said
    assert repository({"one": {"steps": [{**setup, "with": {"python-version": "2.0"}}, {"run": "true"}]}})
    assert "no Python 2.0" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"uses": "somebody/else@0000"}, "does not know that action"),
        ({"uses": "actions/upload-pages-artifact@0000", "with": {"path": "_build/html"}}, "no index.html in _build/html"),
        ({"run": "echo ${{ github.ref }}"}, "give a command its values by env"),
        ({"run": "true", "env": {"REF": "${{ github.ref }}"}}, "does not know ${{ github.ref }}"),
        ({"run": "true", "if": "always()"}, "does not know ['if'] of a step"),
    ],
)
def test_what_the_script_cannot_stand_in_for_is_a_failure(repository, capfd, step, said):
    assert repository({"one": {"steps": [CHECKOUT, step, {"run": "true"}]}})
    assert said in capfd.readouterr().err


def test_the_job_that_runs_this_script_is_skipped_and_a_name_chooses(repository, capfd):
    jobs = {
        "all": {"steps": [CHECKOUT, {"run": "make nightly"}]},
        "one": {"steps": [CHECKOUT, {"run": "echo one ran"}]},
        "two": {"steps": [CHECKOUT, {"run": "echo two ran"}]},
    }
    assert not repository(jobs, "small.all", "small.two")
    said = capfd.readouterr().out
    assert "small.all: skipped, because `make nightly` runs this script" in said
    assert "\ntwo ran\n" in said and "one ran" not in said
