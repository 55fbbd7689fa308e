"""GPUs: what PyTorch sees, what the driver says, how they are wired, and NCCL."""

import itertools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ringtree.doctor import packages
from ringtree.doctor.finding import fine, note, wrong
from ringtree.units import binary_text, count_text
from ringtree.watching import without_colors

BUSY = 0.5  # of its memory: less free than so much, and a rank may not find enough


@dataclass(frozen=True)
class Gpus:
    """What PyTorch and the driver say.

    cuda: the CUDA version that PyTorch was built for, None for a build without; nccl: NCCL's version, None without. names,
    free, total: by GPU that PyTorch sees; bytes. peers: pairs that can read each other's memory. driver: names of the GPUs
    that nvidia-smi lists. modes: their compute modes. codes: of `nvidia-smi topo -m` between GPUs, by pair.
    """

    cuda: str | None = None
    nccl: str | None = None
    names: tuple = ()
    free: tuple = ()
    total: tuple = ()
    peers: frozenset = frozenset()
    driver: tuple = ()
    modes: tuple = ()
    codes: tuple = ()

    @property
    def pairs(self):
        return list(itertools.combinations(range(len(self.names)), 2))


def seen(torch) -> Gpus:
    """Return what is there. It asks PyTorch and nvidia-smi, and opens each GPU for a moment."""
    driver = _asked("--query-gpu=name,compute_mode")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    memory = [torch.cuda.mem_get_info(number) for number in range(count)]
    return Gpus(
        cuda=torch.version.cuda,
        nccl=".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda and count else None,
        names=tuple(torch.cuda.get_device_name(number) for number in range(count)),
        free=tuple(free for free, _ in memory),
        total=tuple(total for _, total in memory),
        peers=frozenset(pair for pair in itertools.combinations(range(count), 2) if torch.cuda.can_device_access_peer(*pair)),
        driver=tuple(line.rpartition(", ")[0] for line in driver),
        modes=tuple(line.rpartition(", ")[2] for line in driver),
        codes=tuple(codes_between(_said("topo", "-m"), count)),
    )


def inspect():
    """(how many GPUs PyTorch sees, None without PyTorch; the findings)."""
    torch, lacking = packages.torch()
    if torch is None:
        return None, [lacking, *_listed()]
    there = seen(torch)
    return len(there.names), findings(there)


def glance():
    """The same, and quickly: no memory of a GPU is taken, and the driver is asked only where PyTorch sees none of its GPUs."""
    torch, lacking = packages.torch()
    if torch is None:
        return None, [lacking]
    # A driver lists GPUs that CUDA cannot use: one too old, or one whose fabric manager does not run. CUDA is asked to begin.
    if (count := torch.cuda.device_count()) and torch.cuda.is_available():
        return count, [fine("GPUs", f"{count}, not opened")]
    driver = _asked("--query-gpu=name") if _devices() else []
    return 0, [_none(Gpus(cuda=torch.version.cuda, driver=tuple(driver)))]


def _listed():
    """Yield what nvidia-smi says of this host's GPUs where PyTorch cannot be asked."""
    names = tuple(_asked("--query-gpu=name"))
    yield fine("GPUs", ", ".join(f"{count} × {name}" for name, count in _counted(names)) or "none that nvidia-smi lists")


def _devices():
    """Files of the driver, one for each GPU of this host; whether this process may open them is not said."""
    return [*Path("/dev").glob("nvidia[0-9]*")]


def findings(gpus: Gpus):
    """Yield what is to be said of them."""
    if not gpus.names:
        yield _none(gpus)
        return
    yield fine("GPUs", ", ".join(f"{count} × {name}" for name, count in _counted(gpus.names)))
    if len(gpus.driver) > len(gpus.names):
        do = "a batch system or CUDA_VISIBLE_DEVICES keeps the others from this process: that is right where they belong to other jobs"
        yield note("GPUs seen", f"{len(gpus.names)} of the {len(gpus.driver)} of this host", do)
    for number, (free, total) in enumerate(zip(gpus.free, gpus.total)):
        if free < BUSY * total:
            do = f"see who uses it (`nvidia-smi`), and end it, or take other GPUs (CUDA_VISIBLE_DEVICES without {number})"
            yield note(f"memory of GPU {number}", f"{binary_text(free)} of {binary_text(total)} free", do)
    if any("Exclusive" in mode or "Prohibited" in mode for mode in gpus.modes):
        do = "leave share_gpus= out, or have an administrator set `nvidia-smi -c DEFAULT`"
        yield note("compute mode", f"{', '.join(sorted(set(gpus.modes)))}: ranks cannot share a GPU", do)
    yield fine("CUDA and NCCL", f"PyTorch for CUDA {gpus.cuda}, NCCL {gpus.nccl}")
    if gpus.pairs:
        yield _peers(gpus)
        if gpus.codes:
            yield _links(gpus.codes)


def _none(gpus):
    if gpus.driver and gpus.cuda is None:
        return wrong(
            "GPUs",
            f"{count_text(len(gpus.driver), 'GPU')} here, and a PyTorch without CUDA",
            "install PyTorch for CUDA into this environment: `pip install --force-reinstall torch` from its usual index",
        )
    if gpus.driver:
        do = (
            "`python -c 'import torch; torch.cuda.init()'` says what is wrong: a driver too old (CUDA 13 needs 580), "
            "no nvidia-fabricmanager where there is an NVSwitch, or CUDA_VISIBLE_DEVICES"
        )
        return wrong("GPUs", f"nvidia-smi lists {len(gpus.driver)}, and PyTorch for CUDA {gpus.cuda} can open none", do)
    return fine("GPUs", "none: ranks run on the CPU, over Gloo")


def _peers(gpus):
    lacking = [pair for pair in gpus.pairs if pair not in gpus.peers]
    if not lacking:
        return fine("peer access", "every GPU reads every other's memory")
    seen = f"not between {', '.join(f'{a} and {b}' for a, b in lacking[:4])}{' …' if len(lacking) > 4 else ''}"
    return note(
        "peer access", seen, "NCCL goes through the host's memory there: that is normal in a virtual machine or with ACS on"
    )


def _links(codes):
    kinds = dict(_counted(codes))
    seen = ", ".join(f"{code} between {count_text(count, 'pair')}" for code, count in kinds.items())
    if "SYS" in kinds and len(kinds) > 1:
        return note(
            "links", seen, "pairs marked SYS talk through the processors' own link: put the ranks that talk most on the others"
        )
    return fine("links", seen)


def codes_between(text: str, count: int) -> list[str]:
    """The codes of `nvidia-smi topo -m` between GPUs, each pair once: NV18, PIX, SYS, …"""
    rows = [without_colors(line).split() for line in text.splitlines()]
    rows = [row[1 : count + 1] for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and "X" in row]
    return [row[other] for number, row in enumerate(rows) for other in range(number + 1, len(row))]


def _counted(things):
    return [(thing, things.count(thing)) for thing in dict.fromkeys(things)]


def _asked(query):
    return [line.strip() for line in _said(query, "--format=csv,noheader").splitlines() if line.strip()]


def _said(*arguments):
    """Return what nvidia-smi prints, or "" where it is not there or fails."""
    if (command := shutil.which("nvidia-smi")) is None:
        return ""
    try:
        done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
