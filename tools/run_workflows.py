"""Run the `run:` steps of each job in .github/workflows, in order, in a fresh clone for each job.

    python tools/run_workflows.py                  # every job
    python tools/run_workflows.py check book.build   # the jobs of check.yml, and one job of book.yml

It stands in for what GitHub does around the steps: actions/checkout is the clone, of what is committed here;
actions/setup-python puts the Python that it asks for first on the path; actions/upload-pages-artifact needs a folder with
an index.html. Every step has GitHub's shell, `bash -e`. A job in a container runs on this machine itself, so it needs
root and the container's distribution. A job that runs `make nightly` is skipped, because `make nightly` runs this.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
NOT_HERE = {"actions/deploy-pages"}  # they need GitHub itself
# A job sees the machine's settings, such as pip's, and none of this checkout's.
OURS = re.compile(r"RINGTREE|PYTHON|JUPYTER|PYTEST|MAKE|MFLAGS|VIRTUAL_ENV|GIT_|VENV$|WORKFLOWS$|ARGS$")
# What the values of a step may ask of GitHub; the shell sees none of them.
EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


class Failed(Exception):
    """A step failed, or asks for something that this script cannot stand in for."""


def jobs():
    """Return {"workflow.job": (its workflow, its job)}, a job after those that it needs."""
    found = {}
    for path in sorted(WORKFLOWS.glob("*.yml")):
        workflow = yaml.safe_load(path.read_text())
        waiting = dict(workflow["jobs"])
        while waiting:
            ready = [name for name, job in waiting.items() if not waiting.keys() & set(needed_by(job))]
            if not ready:
                raise Failed(f"{path.name}: jobs that need each other: {sorted(waiting)}")
            found |= {f"{path.stem}.{name}": (workflow, waiting.pop(name)) for name in ready}
    return found


def needed_by(job):
    """Return the names of the jobs that `job` waits for."""
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else needs


def commands(job):
    """Return the commands of the job's `run:` steps, in order."""
    return [step["run"] for step in job["steps"] if "run" in step]


def reason_to_skip(job):
    """Return why this machine cannot run the job, or None."""
    if any("make nightly" in command for command in commands(job)):
        return "`make nightly` runs this script"
    if not commands(job):
        return "it has no step of its own"
    if "container" in job:
        image = job["container"]["image"]
        if os.geteuid() != 0:
            return f"the container {image} has root, and this user is not root"
        if ":".join(distribution()) != image:
            return f"the container is {image}, and this machine is {' '.join(distribution())}"
    return None


def distribution():
    """Return the name and the version of this machine's Linux, as images spell them."""
    text = Path("/etc/os-release").read_text()
    return tuple(re.search(rf'^{key}="?([^"\n]*)', text, re.MULTILINE)[1] for key in ("ID", "VERSION_ID"))


def python_at(version, folder):
    """Make a folder whose `python3` is Python `version`; returns it."""
    for name in (f"python{version}", "python3"):
        path = shutil.which(name)
        asked = [path, "-c", "import sys; print('{}.{}'.format(*sys.version_info), sys._base_executable)"]
        said = subprocess.run(asked, capture_output=True, text=True).stdout.split() if path else []
        if said[:1] == [version]:
            folder.mkdir(exist_ok=True)
            for link in ("python3", "python", f"python{version}"):
                (folder / link).symlink_to(said[1])
            return folder
    raise Failed(f"actions/setup-python: no Python {version} on the path")


def environment(*levels):
    """Return the environment of a step: the machine's, GitHub's CI, and `env` of workflow, job and step."""
    env = {name: value for name, value in os.environ.items() if not OURS.match(name)} | {"CI": "true"}
    venv = os.environ.get("VIRTUAL_ENV") or sys.prefix
    env["PATH"] = os.pathsep.join(part for part in env["PATH"].split(os.pathsep) if not part.startswith(venv))
    for level in levels:
        for name, value in level.get("env", {}).items():
            if EXPRESSION.search(str(value)):
                raise Failed(f"env {name}: this script does not know {value}")
            env[name] = str(value)
    return env


def stand_in(step, clone, made):
    """Do here what an action does at GitHub; returns what it adds to the path, or None."""
    action, given = step["uses"].split("@")[0], step.get("with", {})
    if action == "actions/checkout":
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    elif action == "actions/setup-python":
        return python_at(given["python-version"], made)
    elif action == "actions/upload-pages-artifact":
        if not (clone / given["path"] / "index.html").is_file():
            raise Failed(f"{action}: no index.html in {given['path']}")
    elif action not in NOT_HERE:
        raise Failed(f"{action}: this script does not know that action")
    return None


def run(name, workflow, job):
    """Run a job's steps in a clone, which is removed afterwards. Raises Failed at the first step that fails."""
    with tempfile.TemporaryDirectory(prefix="ringtree-job-") as folder:
        folder = Path(folder)
        folder.chmod(0o755)  # the hub's users go through it
        clone, made, paths = folder / "clone", folder / "python", []
        for step in job["steps"]:
            if unknown := step.keys() - {"uses", "run", "with", "env", "name", "id", "working-directory"}:
                raise Failed(f"{name}: this script does not know {sorted(unknown)} of a step")
            if "uses" in step:
                if (added := stand_in(step, clone, made)) is not None:
                    paths.append(str(added))
                continue
            if EXPRESSION.search(step["run"]):
                raise Failed(f"{name}: give a command its values by env: {step['run']}")
            env = environment(workflow, job, step)
            env["PATH"] = os.pathsep.join([*paths, env["PATH"]])
            where = clone / step.get("working-directory", "") if clone.exists() else folder
            print(f"{name}: {step['run'].strip()}", flush=True)
            began = time.monotonic()
            rc = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=where, env=env, stdin=subprocess.DEVNULL).returncode
            print(f"{name}: exit {rc} after {time.monotonic() - began:.0f} s", flush=True)
            if rc:
                raise Failed(f"{name}: `{step['run'].strip()}` ended with {rc}")


def chosen(names):
    """Return the jobs of these names, `workflow` or `workflow.job`; without names, all."""
    found = jobs()
    unknown = [name for name in names if not any(name in (job, job.split(".")[0]) for job in found)]
    if unknown:
        raise Failed(f"no such workflow or job: {', '.join(unknown)}; there are {', '.join(found)}")
    return {job: value for job, value in found.items() if not names or {job, job.split(".")[0]} & set(names)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="WORKFLOW[.JOB]")
    try:
        todo = chosen(parser.parse_args().names)
    except Failed as error:
        parser.error(str(error))
    failed = set()
    for name, (workflow, job) in todo.items():
        before = {f"{name.split('.')[0]}.{needed}" for needed in needed_by(job)} & failed
        reason = f"{', '.join(sorted(before))} failed" if before else reason_to_skip(job)
        if reason:
            print(f"{name}: skipped, because {reason}")
            failed |= {name} if before else set()
            continue
        try:
            run(name, workflow, job)
        except (Failed, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr, flush=True)
            failed.add(name)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
