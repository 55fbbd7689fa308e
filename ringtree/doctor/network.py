"""The network, as far as ranks of one host need it: the loopback, and the interfaces that somebody has named."""

import os
import socket

from ringtree.doctor.finding import fine, note, wrong


def loopback():
    """Ranks of one host connect to each other at 127.0.0.1, on ports that the system chooses."""
    try:
        with socket.socket() as here, socket.socket() as there:
            here.bind(("127.0.0.1", 0))
            here.listen()
            there.settimeout(5)
            there.connect(here.getsockname())
    except OSError as error:
        return wrong(
            "ports",
            f"no connection at 127.0.0.1: {error}",
            "bring the loopback up (`ip link set lo up`), or let a firewall pass it",
        )
    return fine("ports", "a connection at 127.0.0.1 works")


def interfaces(environment=os.environ, names=None):
    names = [name for _, name in socket.if_nameindex()] if names is None else names
    for variable, reads in (("GLOO_SOCKET_IFNAME", _exactly), ("NCCL_SOCKET_IFNAME", _as_nccl)):
        if (given := environment.get(variable)) and not any(reads(given, name) for name in names):
            yield wrong(variable, f"{given}, and this host has {', '.join(names)}", f"unset {variable}, or name one of these")
    for variable in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_ALGO", "NCCL_PROTO"):
        if (given := environment.get(variable)) not in (None, "", "0"):
            yield note(variable, given, f"times are those of NCCL with this setting: unset {variable} if you do not mean it")


def _exactly(given, name):
    return name in given.split(",")


def _as_nccl(given, name):
    """By NCCL's rule: names are beginnings, "=" asks for the whole name, "^" for all others."""
    others = given.startswith("^")
    listed = given.lstrip("^")
    whole = listed.startswith("=")
    met = any(name == each if whole else name.startswith(each) for each in listed.lstrip("=").split(","))
    return met != others
