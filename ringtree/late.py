"""Load the names of a package when they are first asked for (PEP 562).

    __getattr__, __dir__, __all__ = late.names(__name__)

The stub beside the package, `__init__.pyi`, is the one list of its names. Editors and type checkers read it too. A rank that
imports one room of this package pays for that room alone.
"""

import importlib
import re
import sys
from types import ModuleType

from ringtree.errors import MissingPackage

# What the extras of pyproject.toml bring that a room may lack: {module: extra}.
EXTRAS = {
    "torch": "sim",
    "greenlet": "sim",
    "IPython": "live",
    "ipykernel": "live",
    "ipyparallel": "live",
    "jupyter_client": "live",
    "matplotlib": "live",
    "tqdm": "live",
    "cloudpickle": "labs",
    "nbconvert": "labs",
    "nbformat": "labs",
    "nbgrader": "labs",
    "traitlets": "labs",
}
IMPORT = re.compile(r"^from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)


class Package(ModuleType):
    """A package whose late names win over its files: `draw.timeline` stays the function when `draw/timeline.py` loads."""

    def __setattr__(self, name, value):
        if not (name in self.__late__ and value is sys.modules.get(f"{self.__name__}.{name}")):
            super().__setattr__(name, value)


def names(package: str):
    """Return `__getattr__`, `__dir__` and `__all__` for a package, from its stub."""
    module = sys.modules[package]
    spec = vars(module)["__spec__"]
    places = read(spec.loader.get_data(spec.origin + "i").decode())
    vars(module)["__late__"] = {name for name, place in places.items() if place != package}
    module.__class__ = Package

    def __getattr__(name):
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            if places[name] == package:
                value = importlib.import_module(f"{package}.{name}")
            else:
                value = getattr(importlib.import_module(places[name]), name)
        except ModuleNotFoundError as error:
            raise missing(f"{package}.{name}", error) from error
        vars(module)[name] = value
        return value

    return __getattr__, lambda: sorted(places), sorted(places)


def read(stub: str) -> dict[str, str]:
    """Return {name: the module that has it} for a stub's lines `from module import name as name, …`."""
    return {
        part.partition(" as ")[0].strip(): module
        for module, parts in IMPORT.findall(stub)
        for part in parts.strip("()").split(",")
        if part.strip()
    }


def need(what: str, *packages: str):
    """Raise an error that says which `pip install` brings a package that `what` needs and does not find."""
    from importlib.util import find_spec  # most packages never ask

    for package in packages:
        if find_spec(package) is None:
            raise MissingPackage(what, package, EXTRAS[package])


def missing(what: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return an error that says which `pip install` brings the package that `what` lacks, or `error` for any other package."""
    lacking = (error.name or "").partition(".")[0]
    return (
        error if isinstance(error, MissingPackage) or lacking not in EXTRAS else MissingPackage(what, lacking, EXTRAS[lacking])
    )
