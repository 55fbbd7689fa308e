"""Who may log in: the system's users in one group, by their passwords."""

import grp
import pwd

from jupyterhub.auth import PAMAuthenticator


class Members(PAMAuthenticator):
    """PAM is asked of the groups' members alone, so that nobody tries root's password by the hub's form."""

    def authenticate(self, handler, data):
        return super().authenticate(handler, data) if self.may_try(data["username"]) else None

    def may_try(self, username):
        try:
            account = pwd.getpwnam(username)
        except KeyError:
            return False
        own = grp.getgrgid(account.pw_gid).gr_name
        members = {group.gr_name for group in grp.getgrall() if username in group.gr_mem} | {own}
        return bool(members & (self.allowed_groups | self.admin_groups))
