"""One clear sentence for input that cannot work, and for a package that is not installed."""


class UsageError(ValueError):
    """Says what was given, what was expected and what to do; a notebook shows that sentence alone."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


class MissingPackage(UsageError, ModuleNotFoundError):
    """Says which package is missing, and which `pip install` brings it."""

    def __init__(self, what: str, package: str, extra: str):
        super().__init__(f"{what} needs {package}, which is not installed: run `pip install 'ringtree[{extra}]'`")
        self.name = package


def a_kind(value) -> str:
    """The type of a value, as a sentence names it: "a list", "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
