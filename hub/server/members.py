"""Who may log in: the system's users in some groups, by their passwords, and so many tries at a time."""

import asyncio
import os
import pwd
import time
from contextlib import suppress
from grp import getgrnam

from jupyterhub.auth import PAMAuthenticator
from log_in_limits import Limits
from tornado.web import HTTPError
from traitlets import Instance, Set, Unicode

# A refusal is given at a multiple of this many seconds. PAM takes less for a wrong password, and a random time.
REFUSED_AFTER = 5
LONGEST = 512  # letters of a password, as PAM has it: the time to compute with one grows with it


def account_in(username, groups):
    """The account of this name, if it is not root's and one of these groups has it; None if not. Groups may be missing."""
    with suppress(KeyError, ValueError):  # a name that no account can have
        account = pwd.getpwnam(username)
        theirs = os.getgrouplist(username, account.pw_gid)
        for group in groups if account.pw_uid else ():
            with suppress(KeyError):
                if getgrnam(group).gr_gid in theirs:
                    return account
    return None


async def has_no_password(username):
    """Whether this system's own list has the account with an empty password: PAM then takes any."""
    asked = ["passwd", "--status", username]
    told = await asyncio.create_subprocess_exec(*asked, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL)
    said, _ = await told.communicate()
    return said.split()[1:2] == [b"NP"]


class Members(PAMAuthenticator):
    """Ask PAM about members of the groups alone: nobody tries the password of root, or of another user, by the hub's form."""

    assistant_groups = Set(
        Unicode(), help="groups whose users may see and stop servers: in the hub they are the group ASSISTANTS"
    ).tag(config=True)
    limits = Instance(Limits, args=())

    async def authenticate(self, handler, data):
        """Return the user's name and groups, or None. An unknown name is refused as late as a wrong password.

        Raises HTTPError 429 for more tries than `limits` allows.
        """
        begun = time.monotonic()
        name = self.normalize_username(data.get("username", ""))
        address = handler.request.remote_ip if handler else ""
        if seconds := self.limits.seconds_to_wait(name, address):
            self.log.warning("Too many log-ins for %.32r from %s", name, address)
            raise HTTPError(429, f"Too many log-ins for this name. Try again in {seconds} seconds.")
        with self.limits.trying(name, address) as tried:
            known = self.is_known(name) and len(data.get("password", "")) <= LONGEST
            let_in = known and await super().authenticate(handler, {**data, "username": name})
            if let_in and await has_no_password(name):
                self.log.warning("%s has no password, by which anybody would get in: set one", name)
            elif let_in:
                tried.succeeded()
                return self.about(name)
            if not known:
                self.log.warning("No member of the hub's groups: %.32r@%s", name, address)
            await asyncio.sleep(REFUSED_AFTER - (time.monotonic() - begun) % REFUSED_AFTER)
        return None

    async def refresh_user(self, user, handler=None):
        """Return what the system's groups say of a user now, or None if they let the user in no more.

        Whoever is taken out of a group would otherwise keep its rights until the next log-in, and tokens need none.
        """
        return (
            {**self.about(user.name), "admin": self.is_admin(handler, {"name": user.name})}
            if self.is_known(user.name)
            else None
        )

    def is_known(self, name):
        return account_in(name, self.allowed_groups | self.admin_groups | self.assistant_groups) is not None

    def about(self, name):
        return {"name": name, "groups": [ASSISTANTS] if account_in(name, self.assistant_groups) else []}

    def check_allowed(self, username, authentication=None):
        """An administrator or an assistant needs no server, and so need not be a learner."""
        if account_in(username, self.admin_groups | self.assistant_groups):
            return True
        return super().check_allowed(username, authentication)

    def is_admin(self, handler, authentication):
        name = authentication["name"]
        return name in self.admin_users or account_in(name, self.admin_groups) is not None


ASSISTANTS = "assistants"
MAY = {
    "name": "assistant",
    "description": "See who has a server, and stop it; enter none",
    "scopes": ["admin-ui", "list:users", "read:servers", "delete:servers"],
    "groups": [ASSISTANTS],
}
