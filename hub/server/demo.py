"""A whole hub on loopback, with two accounts, until Ctrl-C.

python demo.py --course tools/course.py
"""

import argparse
import signal
import sys
import tempfile
import time

import machine
from parts import Hub, missing


def main():
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--course", required=True, help="the program that writes what learners get")
    asked.add_argument("--gpus", type=int, help="pretend this many GPUs (4 where the machine has none)")
    asked.add_argument("--shared", type=int, default=0, help="set this many of them aside, each for four learners to share")
    given = asked.parse_args()
    if reason := missing():
        sys.exit(f"make hub-demo: {reason}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gpus = given.gpus if given.gpus or machine.find_gpus() else 4
    hub = Hub(tempfile.mkdtemp(prefix="ringtree-hub-"), given.course, gpus=gpus, shared=given.shared)
    try:
        hub.start()
        tell(hub)
        while True:
            time.sleep(1)
            for part in hub.dead():
                print(f"{part} has ended; it is started again.", flush=True)
                hub.restart(part)
    except KeyboardInterrupt:
        print("\nEnding servers, hub and Slurm, and removing the accounts.", flush=True)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hub.end()


def tell(hub):
    kind = "pretended" if hub.pretended else "real"
    print(f"{hub.address}\n{len(hub.gpus)} GPUs ({kind})", flush=True)
    for _ in range(2):
        hub.accounts.add()
    for name, password in hub.accounts.made.items():
        print(f"user {name}   password {password}", flush=True)
    print(f"The course: {hub.address}{hub.course_link()}\nCtrl-C ends it all.", flush=True)


if __name__ == "__main__":
    main()
