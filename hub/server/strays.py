"""End the processes of learners that are in no job of Slurm: `strays.py GROUP [TEACHER]`, as root.

A learner's programs belong into the job of the learner's server, which holds them to what was allotted. A program that was started
in another way, as by a session of ssh, opens every GPU and has the host's network. `mend` calls this every 20 seconds.
"""

import grp
import os
import pwd
import re
import signal
import sys
import syslog
from contextlib import suppress
from pathlib import Path

# Control groups of a job, of version 1 and 2. Learners can make some of their own below /user.slice alone.
IN_A_JOB = re.compile(r"^\d+:[^:]*:(?!/user\.slice/)(/.*)?/(slurm(_[^/]+)?/uid_\d+|([^/]+_)?slurmstepd\.scope)/job_\d+", re.M)
# Programs of root that start others as a learner: the hub's commands, a tunnel of ssh, and a job before it is in its group.
ALLOWED = ("runuser", "sshd", "sshd-session", "slurmstepd")
ROUNDS = 50  # against programs that start others while they are ended


def owner(uid):
    """The name of the user of this number, or of the one to whom it is subordinate; None if there is neither."""
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    with suppress(OSError):
        for name, first, count in (line.split(":") for line in Path("/etc/subuid").read_text().split()):
            if int(first) <= uid < int(first) + int(count):
                return name
    return None


def members(group, but=()):
    """A function that says whether the user of a number is in this group, and none of `but`, a list of names."""
    number, known = grp.getgrnam(group).gr_gid, {}

    def is_member(uid):
        if uid not in known:
            name, known[uid] = owner(uid), False
            if uid and name and name not in but:
                with suppress(KeyError):
                    known[uid] = number in os.getgrouplist(name, pwd.getpwnam(name).pw_gid)
        return known[uid]

    return is_member


def about(pid):
    """(the parent's number, the real user's number) of a process. Raises OSError if it has ended, also if nobody has noted that."""
    told = dict(re.findall(r"^(State|PPid|Uid):\t(\S+)", Path(f"/proc/{pid}/status").read_text(), re.M))
    if told["State"] in "ZX":
        raise ProcessLookupError(pid)
    return int(told["PPid"]), int(told["Uid"])


def is_stray(pid, is_ours):
    """Whether this process belongs to one of our users, is in no job, and no program of root's in ALLOWED has started it."""
    parent, uid = about(pid)
    if not is_ours(uid) or IN_A_JOB.search(Path(f"/proc/{pid}/cgroup").read_text()):
        return False
    while uid and parent:
        pid = parent
        parent, uid = about(pid)
    return program(pid) not in ALLOWED


def program(pid):
    """The name of a process's program; "" if it may not be read, as that of process 1 in some containers."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)")
    except OSError:
        return ""


def strays(is_ours):
    """The numbers of those processes."""
    for pid in processes(is_ours):
        with suppress(OSError):  # one that has ended meanwhile
            if is_stray(pid, is_ours):
                yield pid


def processes(is_ours):
    """The numbers of all processes of our users."""
    for each in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if is_ours(about(each)[1]):
                yield int(each)


def send(pid, sent, is_ours):
    """Send a signal to a process, and to no other that has got its number meanwhile; returns its user's number if it was there."""
    with suppress(OSError):
        held = os.pidfd_open(pid)
        try:
            uid = about(pid)[1]
            if is_ours(uid):
                signal.pidfd_send_signal(held, sent)
                return uid
        finally:
            os.close(held)
    return None


def end(is_ours, found=strays):
    """End what `found` finds, however often it starts more; returns the users' numbers."""
    ended = set()
    for _ in range(ROUNDS):
        if not (left := list(found(is_ours))):
            break
        for pid in left:
            ended.add(send(pid, signal.SIGSTOP, is_ours))
        for pid in left:
            send(pid, signal.SIGKILL, is_ours)
    return ended - {None}


def main():
    group, *but = sys.argv[1:]
    syslog.openlog("ringtree-hub", facility=syslog.LOG_AUTH)
    for uid in end(members(group, but)):
        syslog.syslog(f"ended processes of {owner(uid)} that were in no job of Slurm")


if __name__ == "__main__":
    main()
