"""For nbgrader's exchange: of what learners have put there, their own notebooks' code is taken over, and nothing else.

nbgrader's own `collect` follows symbolic links, so that a submission may have the teacher's files copied into it, which feedback
then gives away; it takes a submission for whoever its name says; and one bad name keeps it from collecting any.
"""

import os
import pwd
import re
import shutil
import stat
import tempfile
from collections import defaultdict
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.exchange.default import ExchangeCollect
from nbgrader.utils import parse_utc
from traitlets import Integer

from ringtree.labs.marking.rebuilding import rebuilt

TIME_OF = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ UTC"
NAME = re.compile(rf"(?P<who>[\w.@-]+)\+(?P<assignment>[^+]+)\+(?P<time>{TIME_OF})\+[\w-]+", re.ASCII)
TIME, SECRET = "timestamp.txt", "submission_secret.txt"


class Refused(Exception):
    """Why a submission is not taken."""


class CollectOwn(ExchangeCollect):
    """`nbgrader collect`, of what each learner has submitted as themselves: the assignment's notebooks, with their code."""

    most = Integer(10_000_000, help="Bytes that a notebook may have.").tag(config=True)
    most_tried = Integer(20, help="How many of one learner's submissions are looked at, from the newest on.").tag(config=True)
    most_told = Integer(10, help="How many of one learner's rejected submissions are named; the others are counted.").tag(
        config=True
    )

    def start(self):
        if not _sees_all_users():
            self.fail(
                "Here all other users look the same, so the owner of a submission cannot be told: on a hub `grade` collects."
            )
        with tempfile.TemporaryDirectory(prefix="ringtree-collect-") as folder:
            inbound = Path(self.coursedir.course_id, "inbound")
            Path(folder, inbound).mkdir(parents=True)
            self._take_over(Path(self.root, inbound), Path(folder, inbound))
            self.root, self.check_owner = folder, False  # the owners were checked here
            super().start()

    def _take_over(self, inbound, into):
        """One submission of each learner: who submits ten thousand has one copied, and fills nobody's disk."""
        release = Path(self.root, self.coursedir.course_id, "outbound", self.coursedir.assignment_id)
        wanted = {path.name: nbformat.read(path, as_version=4) for path in release.glob("*.ipynb")}
        due = self._due()
        for owner, found in _by_owner(inbound, self.coursedir.assignment_id).items():
            # Newest first; and where nbgrader is to prefer what came in time, whatever came late after that.
            found.sort(key=lambda told: (due is None or told["time"] <= due, told["time"]), reverse=True)
            self._take_first(owner, found, inbound, wanted, into)

    def _due(self):
        """The time until which a submission counts before later ones, as names have it; None where it does not matter."""
        if not self.before_duedate:
            return None
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as gradebook:
            try:
                date = gradebook.find_assignment(self.coursedir.assignment_id).duedate
            except MissingEntry:
                return None
        return date and f"{date:%Y-%m-%d %H:%M:%S.%f} UTC"

    def _take_first(self, owner, found, inbound, wanted, into):
        """Take the first of an owner's submissions that can be taken, and look at none after it.

        A notebook that cannot be read may take a second to refuse, and thousands of submissions may be links to one of these.
        """
        refused = 0
        for told in found[: self.most_tried]:
            name = told[0]
            try:
                files = dict(self._read(inbound / name, told, wanted))
            except (Refused, OSError) as why:
                refused += 1
                if refused <= self.most_told:
                    self.log.warning("%s is not collected: %s", name, why)
                continue
            try:
                (into / name).mkdir()
                for file, data in files.items():
                    (into / name / file).write_bytes(data)
            except OSError as why:  # the disk's trouble: an older one would not be what this learner has handed in
                shutil.rmtree(into / name, ignore_errors=True)
                self.log.warning("%s is not collected: it could not be copied: %s", name, why)
            break
        else:
            refused += max(0, len(found) - self.most_tried)
        if refused > self.most_told:
            self.log.warning("Of %s %d more are not collected", _name_of(owner), refused - self.most_told)

    def _read(self, path, told, wanted):
        """(name, bytes) of each file to take over. Raises Refused. Nothing is opened twice: its learner may change it."""
        try:
            parse_utc(told["time"])
        except ValueError:
            raise Refused(f"{told['time']} is not a time") from None
        with _opened(path, os.O_DIRECTORY) as folder:
            owner = os.fstat(folder).st_uid
            if _name_of(owner) != told["who"]:
                raise Refused(f"it claims to come from {told['who']}, but belongs to {_name_of(owner)}")
            yield TIME, told["time"].encode()
            secret = _content(folder, SECRET, owner, 1000)
            if not re.fullmatch(rb"[0-9a-f]{32,}", secret):
                raise Refused(f"its {SECRET} is not as `nbgrader submit` writes it")
            yield SECRET, secret
            present = [name for name in wanted if name in os.listdir(folder)]
            if not present:
                raise Refused(f"it has none of {', '.join(wanted)}")
            for name in present:
                yield name, _rebuilt(name, _content(folder, name, owner, self.most), wanted[name])


def _by_owner(inbound, assignment):
    """Return what is said to be of an assignment, by who owns it, whoever its name says: {user: [its name, taken apart]}.

    So what others lay under a learner's name counts among theirs.
    """
    found = defaultdict(list)
    for entry in os.scandir(inbound):
        told = NAME.fullmatch(entry.name)
        if told and told["assignment"] == assignment:
            with suppress(OSError):  # taken back meanwhile
                found[entry.stat(follow_symlinks=False).st_uid].append(told)
    return found


def _sees_all_users():
    """Return whether this process is in no namespace of users, as a server of the hub is: there everybody else is "nobody"."""
    first, _, count = Path("/proc/self/uid_map").read_text().split()[:3]
    return first == "0" and int(count) == 2**32 - 1


@contextmanager
def _opened(name, flags=0, folder=None):
    """A file's descriptor. A symbolic link is an error, and a pipe does not hold whoever opens it."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _content(folder, name, owner, most):
    with _opened(name, folder=folder) as file:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != owner:
            raise Refused(f"its {name} is not a file of {_name_of(owner)}'s")
        if about.st_size <= most:  # thousands that are too large cost no reading
            with os.fdopen(os.dup(file), "rb") as text:
                data = text.read(most + 1)
            if len(data) <= most:  # it may have grown
                return data
        raise Refused(f"its {name} has more than {most} bytes")


def _rebuilt(name, data, release):
    try:
        return nbformat.writes(rebuilt(nbformat.reads(data.decode(), as_version=4), release)).encode()
    except Exception as error:  # any that nbformat has for text that is not a notebook
        raise Refused(f"its {name} cannot be read as a notebook ({type(error).__name__})") from None


def _name_of(user):
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
