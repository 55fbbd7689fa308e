"""How much one caller may keep of the hub: bytes of a request, seconds to send it, connections, and letters in the log.

A learner reaches the hub through the proxy, and from a server at the hub's own socket. JupyterHub takes 100 MB a request by itself,
waits for its end forever, and writes it into the log in full.
"""

from collections import defaultdict

from jupyterhub.apihandlers.users import UserTokenListAPIHandler
from jupyterhub.log import CoroutineLogFormatter
from jupyterhub.oauth.provider import JupyterHubRequestValidator
from jupyterhub.orm import APIToken, OAuthClient
from tornado import httpserver
from tornado.web import HTTPError

BODY = 100_000  # bytes; the longest that the hub's own pages send are lists of names
HEADER = 20_000  # bytes: as many as Node takes in the proxy, and what the proxy adds
SECONDS = 30  # for the lines before a body, and as many for the body
CONNECTIONS = 100  # of one user, or of one address, who is not the proxy
LETTERS = 4000  # of one entry in the log
TOKENS = 100  # that a user makes, beside those of servers; and as many of log-ins at one server
NOTE = 200  # letters of a token's note


class Held(defaultdict):
    """{caller: connections that are open}."""

    def __init__(self):
        super().__init__(list)

    def too_many(self, caller, stream):
        """Whether this connection is one too many for the caller. If not, it counts."""
        still = [each for each in self.pop(caller, []) if not each.closed()]
        if len(still) < CONNECTIONS:
            self[caller] = [*still, stream]
            return False
        self[caller] = still
        return True


def shortened(text):
    """The text, or its two ends."""
    left_out = len(text) - LETTERS
    if left_out <= 0:
        return text
    return f"{text[: LETTERS // 2]} … {left_out} letters … {text[-LETTERS // 2 :]}"


make_token = UserTokenListAPIHandler.post


async def make_token_within_bounds(self, user_name):
    """Answer a request for a token. JupyterHub also takes a password in it: here the log-in is the one door."""
    asked = self.get_json_body() or {}
    if self.current_user is None:
        raise HTTPError(403)
    if isinstance(asked, dict) and len(str(asked.get("note", ""))) > NOTE:
        raise HTTPError(400, f"the note has more than {NOTE} letters: give a shorter one")
    if len(getattr(self.current_user, "api_tokens", ())) >= TOKENS:
        raise HTTPError(403, f"you have {TOKENS} tokens or more: revoke some first")
    await make_token(self, user_name)


save_token = JupyterHubRequestValidator.save_bearer_token


def save_token_within_bounds(self, token, request, *given, **more):
    """Save the token of a log-in at a server. Of each user and server the newest stay: a learner's program logs in in a loop."""
    client = self.db.query(OAuthClient).filter_by(identifier=request.client.client_id).first()
    theirs = self.db.query(APIToken).filter_by(user=request.user, oauth_client=client).order_by(APIToken.id.desc())
    for older in theirs.offset(TOKENS - 1).all():
        self.db.delete(older)
    return save_token(self, token, request, *given, **more)


def set_for_the_hub():
    """From now on each server of tornado has these limits, each line of JupyterHub's log, and each token."""
    UserTokenListAPIHandler.post = make_token_within_bounds
    JupyterHubRequestValidator.save_bearer_token = save_token_within_bounds
    initialize, write = httpserver.HTTPServer.initialize, CoroutineLogFormatter.format
    limits = dict(max_body_size=BODY, max_header_size=HEADER, idle_connection_timeout=SECONDS, body_timeout=SECONDS)
    httpserver.HTTPServer.initialize = lambda self, *given, **more: initialize(self, *given, **limits | more)
    CoroutineLogFormatter.format = lambda self, record: shortened(write(self, record))
