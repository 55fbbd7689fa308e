"""One clear sentence for input that cannot work."""


class UsageError(ValueError):
    """Says what was given, what was expected and what to do; a notebook shows that sentence alone."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]
