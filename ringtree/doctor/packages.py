"""Python packages: PyTorch, and what the extras of this package bring."""

import importlib
from importlib.util import find_spec

from ringtree.doctor.finding import fine, note, wrong
from ringtree.late import EXTRAS


def torch():
    """Return (PyTorch or None, the finding where it cannot be used)."""
    if find_spec("torch") is None:
        return None, wrong("PyTorch", "not installed, and ranks need it", "run `pip install 'ringtree[sim]'`")
    try:
        return importlib.import_module("torch"), None
    except (ImportError, OSError) as error:
        do = "install PyTorch again: `pip install --force-reinstall torch` from its usual index"
        return None, wrong("PyTorch", f"installed, and importing it fails: {' '.join(str(error).split())}", do)


def of_extras():
    """Say which extras of this package are installed: `sim` to simulate and measure, `live` for ranks in a notebook."""
    lacking = {
        extra: [name for name, its in EXTRAS.items() if its == extra and name != "torch" and find_spec(name) is None]
        for extra in ("sim", "live")
    }
    missing = [name for names in lacking.values() for name in names]
    if missing:
        last = [extra for extra, names in lacking.items() if names][-1]
        return note("packages", f"not installed: {', '.join(missing)}", f"run `pip install 'ringtree[{last}]'`")
    return fine("packages", "everything for simulating, for measuring, and for ranks in a notebook")
