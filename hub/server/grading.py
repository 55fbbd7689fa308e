"""Submissions are collected and marked: each by a job of Slurm, and the learner's text in it as a stranger.

    grade 03-deadlock-clinic            what has not been marked yet, of everybody
    grade 03-deadlock-clinic ada --again

A teacher's own server has no network and knows no other user, so it can neither reach Slurm, nor see whose a submission is,
nor make a stranger: `grade` asks a part of the hub that runs as the teacher outside of it, at a socket that nobody else can
reach. `serve` is that part.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import socketserver
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
STATE = Path(os.environ["RINGTREE_HUB_STATE"])
SOCKET = STATE / "grading" / "socket"
AT_ONCE = int(os.environ.get("RINGTREE_GRADING_AT_ONCE", 2))
MINUTES = int(os.environ.get("RINGTREE_GRADING_MINUTES", 20))
GIB = int(os.environ.get("RINGTREE_GRADING_GIB", 3))

# The job is the teacher's. In its namespace the teacher is root over subordinate users: the strangers. What is left of
# temporary files ends with the job, in memory, and no stranger can make namespaces in turn.
SCRIPT = """#!/bin/bash
umask 077
export HOME={home} PATH={path} LANG=C.UTF-8 TMPDIR=$(mktemp -d "/tmp/ringtree-$SLURMD_NODENAME-$SLURM_JOB_ID-XXXXXX")
export RINGTREE_HUB_STATE={state} JUPYTER_CONFIG_PATH={config} JUPYTER_DEFAULT_PROVISIONER_NAME=ringtree-unix-sockets
unshare --user --map-root-user --map-auto --mount -- /bin/sh -c '
    mount -t tmpfs -o size=512m,mode=700 grading "$TMPDIR" || exit 1
    echo 0 > /proc/sys/user/max_user_namespaces || exit 1
    exec "$@"' grading \\
    {python} -m nbgrader autograde {assignment} --student={student} --force && cat {stamp} > {done}
"""
WHY = {
    "TIMEOUT": f"it took more than {MINUTES} minute{'s' * (MINUTES != 1)}",
    "OUT_OF_MEMORY": f"it took more than {GIB} GiB",
    "CANCELLED": "its job was cancelled",
    "NODE_FAIL": "the server went down",
}


# ------------------------------------------------------------ outside: as the teacher, beside the hub


class Door(socketserver.StreamRequestHandler):
    """One request a connection, a line of JSON; the answer is what `grade` prints, line by line."""

    def handle(self):
        asked = json.loads(self.rfile.readline(10_000))
        try:
            for line in grade(Path(asked["course"]), asked["assignment"], asked["students"], asked["again"]):
                self.wfile.write(f"{line}\n".encode())
        except BrokenPipeError:  # whoever asked went away: jobs that were submitted go on
            pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def serve():
    SOCKET.unlink(missing_ok=True)
    os.umask(0o077)
    with Server(str(SOCKET), Door) as server:
        server.serve_forever()


def grade(course, assignment, students, again):
    """Collect submissions and mark them, some at a time; yields a sentence for each as it is done."""
    yield from _collected(course, assignment)
    collected = {path.parent.name: path for path in (course / "submitted").glob(f"*/{assignment}")}
    for name in students:
        if name not in collected:
            yield f"{name}: nothing was collected of {assignment}"
    wanted = [name for name in sorted(collected) if not students or name in students]
    if not wanted and not students:
        yield f"Nothing was submitted of {assignment}."
    fresh = [name for name in wanted if again or not _is_marked(course, assignment, name)]
    if len(fresh) < len(wanted):
        yield f"{len(wanted) - len(fresh)} marked before: --again marks them anew"
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in as_completed([pool.submit(_said_of, course, assignment, name) for name in fresh]):
            yield done.result()


def _collected(course, assignment):
    """What nbgrader says that is of interest: whose submission is taken, and whose is not."""
    command = [sys.executable, "-m", "nbgrader", "collect", assignment, "--update"]
    told = subprocess.run(command, cwd=course, capture_output=True, text=True)
    for level, said in re.findall(r"^\[CollectApp \| (\w+)\] (.*)", told.stderr, re.MULTILINE):
        if level != "INFO" or said.startswith(("Collecting", "Updating")):
            yield said


def _is_marked(course, assignment, student):
    """Whether a job has marked this very submission to its end, and so has left its time."""
    stamp, done = _stamp(course, assignment, student), _log(course, assignment, student).with_suffix(".done")
    return done.exists() and stamp.exists() and done.read_bytes() == stamp.read_bytes()


def _stamp(course, assignment, student):
    return course / "submitted" / student / assignment / "timestamp.txt"


def _log(course, assignment, student):
    return course / "grading" / assignment / f"{student}.log"


def _said_of(course, assignment, student):
    log, stamp = _log(course, assignment, student), _stamp(course, assignment, student)
    log.parent.mkdir(parents=True, exist_ok=True)
    done = log.with_suffix(".done")
    done.unlink(missing_ok=True)
    words = dict(
        home=Path.home(),
        path=os.environ["PATH"],
        state=STATE,
        config=os.environ["JUPYTER_CONFIG_PATH"],
        python=sys.executable,
        assignment=assignment,
        student=student,
        stamp=stamp,
        done=done,
    )
    script = SCRIPT.format(**{name: shlex.quote(str(word)) for name, word in words.items()})
    # Whoever waits for a job ends with this part; the job goes on.
    asked = ["setpriv", "--pdeathsig=TERM", "--", "sbatch", "--parsable", "--wait", "--job-name=ringtree-grading"]
    asked += [
        f"--time={MINUTES}",
        f"--mem={GIB}G",
        "--cpus-per-task=1",
        "--no-requeue",
        "--export=NIL",
        f"--chdir={course}",
        f"--output={log}",
    ]
    told = subprocess.run(asked, input=script, capture_output=True, text=True)
    if done.exists():
        earned, most = _marks(course, assignment, student)
        return f"{student}: {earned:g} of {most:g}"
    shutil.rmtree(course / "autograded" / student / assignment, ignore_errors=True)
    return f"{student}: no marks: {_why(told, log)}"


def _marks(course, assignment, student):
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        found = gradebook.find_submission(assignment, student)
        return found.score, found.max_score


def _why(told, log):
    job = told.stdout.partition(";")[0].strip()
    if not job.isdigit():
        return told.stderr.strip() or "Slurm takes no job"
    until = time.monotonic() + 60
    while (state := _state(job)) == "COMPLETING" and time.monotonic() < until:
        time.sleep(0.5)
    return WHY.get(state, f"see {log}")


def _state(job):
    """Slurm's word for it: COMPLETING until the last process has ended, and only then why; empty if it knows no such job."""
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True).stdout
    return "".join(re.findall(r"JobState=(\w+)", shown)[:1])


# ------------------------------------------------------------ inside: the teacher's terminal


def ask(given):
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(str(SOCKET))
    except PermissionError:
        sys.exit("Only the teacher can do this.")
    except OSError:
        sys.exit("The hub's part that marks does not answer: ask the administrator to start ringtree-grading.")
    asked = dict(course=os.getcwd(), assignment=given.assignment, students=given.students, again=given.again)
    line.sendall(json.dumps(asked).encode() + b"\n")
    with line.makefile() as answer, suppress(KeyboardInterrupt):
        for said in answer:
            print(said, end="", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="grade", description="Collect what was submitted of an assignment, and mark it.")
    parser.add_argument("assignment", help="its folder's name in source/, such as 03-deadlock-clinic")
    parser.add_argument("students", nargs="*", help="whose; left out, everybody's")
    parser.add_argument("--again", action="store_true", help="also what is marked already")
    ask(parser.parse_args())


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
