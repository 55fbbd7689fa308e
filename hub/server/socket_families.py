"""Run a command that opens sockets of a few families only: `socket_families.py COMMAND …`.

A network namespace holds the internet's families, and leaves others open: by vsock a program reaches services of the virtual
machine's host. The kernel asks this filter at each call, also of what the command starts. What could make a socket past it, 32-bit
calls and io_uring, is not there.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

ALLOWED = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
# Numbers of linux/audit.h and of the two tables of calls: (the machine, socket, socketpair, io_uring_setup, seccomp).
MACHINES = {"x86_64": (0xC000003E, 41, 53, 425, 317), "aarch64": (0xC00000B7, 198, 199, 425, 277)}
X32 = 0x40000000  # calls of x86_64 with 32-bit addresses begin here
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # of a classic BPF program
CALL, MACHINE, FIRST = 0, 4, 16  # bytes into struct seccomp_data; FIRST: the lower half of the first argument
PASS, REFUSE = 0x7FFF0000, 0x00050000
NO_NEW_PRIVS, FILTER, NO_SLOWER = 38, 1, 4  # NO_SLOWER: no mitigations for programs that are not asked to have them


def program(machine):
    """The filter, as bytes: a list of struct sock_filter."""
    number, *making, uring, _ = MACHINES[machine]
    refused = [(RETURN, REFUSE | error) for error in (errno.ENOSYS, errno.EAFNOSUPPORT)]
    checks = [(LOAD, FIRST), *((EQUAL, family) for family in ALLOWED)]
    # (what, number, where to go on if so, if not); places are names until all are known.
    lines = [(LOAD, MACHINE, 0, 0), (EQUAL, number, 0, "absent"), (LOAD, CALL, 0, 0)]
    lines += [(AT_LEAST, X32, "absent", 0), (EQUAL, uring, "absent", 0)]
    lines += [(EQUAL, making[0], 1, 0), (EQUAL, making[1], 0, "pass")]
    lines += [(code, value, "pass" if code == EQUAL else 0, 0) for code, value in checks]
    ends = {"unknown": len(lines), "absent": len(lines) + 1, "pass": len(lines) + 2}
    lines += [(*refused[1], 0, 0), (*refused[0], 0, 0), (RETURN, PASS, 0, 0)]
    made = b""
    for place, (code, value, *jumps) in enumerate(lines):
        jumps = [ends[each] - place - 1 if each in ends else each for each in jumps]
        made += struct.pack("HBBI", code, *jumps, value)
    return made


def hold():
    """Hold this process and all that it starts to ALLOWED. Raises OSError where the kernel has no such filters."""
    machine = platform.machine()
    if machine not in MACHINES:
        raise OSError(f"this machine is {machine}, and the filter of sockets knows {', '.join(MACHINES)}")
    libc = ctypes.CDLL(None, use_errno=True)
    text = program(machine)
    held = ctypes.create_string_buffer(text, len(text))
    given = struct.pack("HxxxxxxQ", len(text) // 8, ctypes.addressof(held))
    for call in (
        lambda: libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0),
        lambda: libc.syscall(MACHINES[machine][-1], FILTER, NO_SLOWER, given),
    ):
        if call():
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    hold()
    os.execvp(sys.argv[1], sys.argv[1:])
