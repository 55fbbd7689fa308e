"""For nbgrader's exchange: what learners have put there is taken over as plain files of their own, and as nothing else.

nbgrader's own `collect` follows links, so that a submission may have the teacher's files copied into it, which feedback
then gives away; it takes a submission for whoever its name says; and one bad name keeps it from collecting any.
"""

import os
import pwd
import re
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

from nbgrader.exchange.default import ExchangeCollect
from nbgrader.utils import parse_utc
from traitlets import Integer

TIME_OF = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ UTC"
NAME = re.compile(rf"(?P<who>[\w.@-]+)\+(?P<assignment>[^+]+)\+(?P<time>{TIME_OF})\+[\w-]+", re.ASCII)
TIME, SECRET = "timestamp.txt", "submission_secret.txt"


class Refused(Exception):
    """Why a submission is not taken."""


class CollectOwn(ExchangeCollect):
    """`nbgrader collect`, of what each learner has submitted as themselves: the notebooks of the assignment, as they are."""

    most = Integer(10_000_000, help="Bytes that a notebook may have.").tag(config=True)

    def start(self):
        if not _sees_all_users():
            self.fail("Here all other users look the same, so whose a submission is cannot be told: on a hub `grade` collects.")
        with tempfile.TemporaryDirectory(prefix="ringtree-collect-") as folder:
            inbound = Path(self.coursedir.course_id, "inbound")
            Path(folder, inbound).mkdir(parents=True)
            self._take_over(Path(self.root, inbound), Path(folder, inbound))
            self.root, self.check_owner = folder, False  # the owners were checked here
            super().start()

    def _take_over(self, inbound, into):
        release = Path(self.root, self.coursedir.course_id, "outbound", self.coursedir.assignment_id)
        wanted = [path.name for path in release.glob("*.ipynb")]
        for entry in sorted(os.scandir(inbound), key=lambda each: each.name):
            told = NAME.fullmatch(entry.name)
            if told and told["assignment"] == self.coursedir.assignment_id:
                try:
                    files = {name: data for name, data in self._read(entry.path, told, wanted)}
                except (Refused, OSError) as refused:
                    self.log.warning("%s is not collected: %s", entry.name, refused)
                    continue
                (into / entry.name).mkdir()
                for name, data in files.items():
                    (into / entry.name / name).write_bytes(data)

    def _read(self, path, told, wanted):
        """(name, bytes) of each file to take over. Raises Refused. Nothing is opened twice: its learner may change it."""
        try:
            parse_utc(told["time"])
        except ValueError:
            raise Refused(f"{told['time']} is no time") from None
        with _opened(path, os.O_DIRECTORY) as folder:
            owner = os.fstat(folder).st_uid
            if _name_of(owner) != told["who"]:
                raise Refused(f"it says that it is of {told['who']}, and is {_name_of(owner)}'s")
            yield TIME, told["time"].encode()
            secret = _content(folder, SECRET, owner, 1000)
            if not re.fullmatch(rb"[0-9a-f]{32,}", secret):
                raise Refused(f"its {SECRET} is not as `nbgrader submit` writes it")
            yield SECRET, secret
            present = [name for name in wanted if name in os.listdir(folder)]
            if not present:
                raise Refused(f"it has none of {', '.join(wanted)}")
            for name in present:
                yield name, _content(folder, name, owner, self.most)


def _sees_all_users():
    """Whether this process is in no namespace of users, as a server of the hub is: there everybody else is "nobody"."""
    first, _, count = Path("/proc/self/uid_map").read_text().split()[:3]
    return first == "0" and int(count) == 2**32 - 1


@contextmanager
def _opened(name, flags=0, folder=None):
    """A file's descriptor. A link is an error, and a pipe does not hold whoever opens it."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _content(folder, name, owner, most):
    with _opened(name, folder=folder) as file:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != owner:
            raise Refused(f"its {name} is no file of {_name_of(owner)}'s")
        with os.fdopen(os.dup(file), "rb") as text:
            data = text.read(most + 1)
        if len(data) > most:
            raise Refused(f"its {name} has more than {most} bytes")
        return data


def _name_of(user):
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
