"""A fence around this process and all that it starts: no rights of root's, few files, no TCP, no signals to others.

Linux's Landlock fences all but the first. It needs no rights and cannot be undone. Kernels before 5.13 lack it, and later
ones fence more: files from the first version on, TCP from 6.7, signals and abstract sockets from 6.12.
Source: https://docs.kernel.org/userspace-api/landlock.html
"""

import contextlib
import ctypes
import os
import stat
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, by the same numbers on every processor
VERSION, PATH_BENEATH, NO_NEW_PRIVS, CAPABILITIES = 1, 1, 38, 0x20080522

EXECUTE, WRITE, READ, LIST = (1 << bit for bit in range(4))
TRUNCATE, IOCTL = 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE | READ | TRUNCATE | IOCTL
BITS = {1: 13, 2: 14, 3: 15, 4: 15}  # by version, how many kinds of file access it fences; 16 from version 5 on
TCP, SIGNALS_AND_ABSTRACT_SOCKETS = 0b11, 0b11

SYSTEM = "/usr", "/bin", "/sbin", "/lib", "/lib64", "/proc"
ETC = "ld.so.cache", "localtime", "passwd", "group", "nsswitch.conf", "hosts", "fonts", "ssl", "alternatives"
DEVICES = "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Return which version of Landlock this kernel has, or 0 if it has none."""
    return max(0, _libc.syscall(CREATE_RULESET, None, 0, VERSION)) if sys.platform == "linux" else 0


def fence(folder) -> None:
    """Leave this process one folder to write in, and the system's programs, Python and this package to read.

    Without Landlock it only gives up the rights of root.
    """
    _checked(_libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_libc.capset(struct.pack("Ii", CAPABILITIES, 0), bytes(24)))
    if not (known := version()):
        return
    handled = (1 << BITS.get(known, 16)) - 1
    attributes = struct.pack("QQQ", handled, TCP, SIGNALS_AND_ABSTRACT_SOCKETS)[: 8 if known < 4 else 16 if known < 6 else 24]
    rules = _checked(_libc.syscall(CREATE_RULESET, attributes, len(attributes), 0))
    try:
        for path in _readable():
            _allow(rules, path, handled & (EXECUTE | READ | LIST))
        for path in DEVICES:
            _allow(rules, path, handled & (READ | WRITE))
        _allow(rules, folder, handled)
        _checked(_libc.syscall(RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)


def _readable():
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    beside = os.path.dirname(package)  # a checkout has much else, such as the hidden cases
    return [*SYSTEM, *(f"/etc/{name}" for name in ETC), sys.prefix, sys.base_prefix, package, *{*sys.path} - {beside, "", "/"}]


def _allow(rules, path, access):
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                access &= OF_FILES
            rule = struct.pack("=Qi", access, descriptor)
            _checked(_libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0))
        finally:
            os.close(descriptor)


def _checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "the fence of the sandbox cannot be made: " + os.strerror(ctypes.get_errno()))
    return result
