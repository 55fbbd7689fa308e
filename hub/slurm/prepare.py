"""Prepare the hub of a cluster that has Slurm: its folder, course, certificates, settings and two units of systemd.

    python prepare.py --state /shared/ringtree-state --course tools/course.py --gpus 8

As root on the hub's host, by the Python that `make HUB=/shared/ringtree-hub /shared/ringtree-hub/ready` has installed. Run again,
it makes what is missing and writes settings and units anew; what an administrator wrote into the settings stays.
"""

import argparse
import os
import pwd
import shutil
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "server"))

import install
import layout

CONFIG = HERE / "jupyterhub_config.py"
PYTHON = Path(sys.executable).parent
OF_THE_PROXY = {
    "key": "proxy-client/proxy-client.key",
    "cert": "proxy-client/proxy-client.crt",
    "ca": "proxy-client-ca_trust.crt",
}


def prepare(state, course, *, name, proxy_user, **settings):
    """Make folders, course and certificates; returns (the hub's variables, the proxy's command).

    state: the hub's folder, which all nodes see. course: the program that writes what learners get. name: by which nodes
    reach this host. settings: what `layout.environment` takes.
    """
    state = Path(state)
    layout.make_folders(state, proxy_user)
    layout.publish_course(state, course)
    variables = layout.environment(state, PYTHON, proxy_group=proxy_user, **settings) | {"RINGTREE_HUB_NAME": name}
    make = [*layout.hub_command(PYTHON, CONFIG), "--generate-certs", "--log-level=WARN"]
    subprocess.run(make, env=os.environ | variables, check=True)
    command = layout.proxy_command(state, PYTHON, variables["RINGTREE_HUB_ADDRESS"])
    for kind, path in OF_THE_PROXY.items():
        mine = state / "proxy" / f"hub.{kind}"
        mine.unlink(missing_ok=True)
        new = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)  # in a folder that is the proxy's
        with os.fdopen(new, "wb") as file:
            file.write((state / "private" / "certificates" / path).read_bytes())
            os.fchown(new, pwd.getpwnam(proxy_user).pw_uid, -1)
        command.append(f"--client-ssl-{kind}={mine}")
    return variables, [*command, "--client-ssl-request-cert", "--client-ssl-reject-unauthorized"]


def main():
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--state", type=Path, required=True, help="the hub's folder, on a file system that all nodes see")
    asked.add_argument("--course", type=Path, required=True, help="the program that writes what learners get")
    asked.add_argument("--gpus", type=int, required=True, help="how many a node has")
    asked.add_argument("--name", default=socket.gethostname(), help="by which nodes reach this host")
    asked.add_argument("--address", default="http://127.0.0.1:8000", help="at which the proxy listens")
    asked.add_argument("--group", default=install.GROUP, help="whose users are learners")
    asked.add_argument("--proxy-user", default=install.PROXY, help="as whom the proxy runs")
    asked.add_argument("--slurm-conf", type=Path, default=install.SLURM / "slurm.conf")
    asked.add_argument("--units", type=Path, default=install.UNITS, help="where systemd's units go")
    given = asked.parse_args()
    for command in ("sbatch", "squeue", "sinfo", "scancel"):
        if not shutil.which(command):
            sys.exit(f"{command} was not found: prepare the hub where jobs are submitted, or install slurm-client here.")
    variables, proxy = prepare(
        given.state,
        given.course,
        name=given.name,
        proxy_user=given.proxy_user,
        address=given.address,
        group=given.group,
        gpus=given.gpus,
        slurm_conf=given.slurm_conf,
    )
    settings = given.state / "private" / "environment"
    install.write_settings(settings, variables | {"RINGTREE_HUB_MORE": str(settings.with_name("jupyterhub_config.py"))})
    for name, text in units(given, settings, proxy):
        (given.units / f"{name}.service").write_text(text)
    print(f"Settings: {settings}. Start it: systemctl daemon-reload && systemctl enable --now ringtree-proxy ringtree-hub")
    print(f"The hub will answer at {given.address}; the course: {given.address}{layout.course_link(given.state)}")


def units(given, settings, proxy):
    """(name, text) of each unit."""
    more = f"User={given.proxy_user}\nGroup={given.proxy_user}\nNoNewPrivileges=yes\n"
    more += f"ExecStartPre=/bin/rm -f {given.state / 'proxy' / 'api.sock'}"
    parts = {"settings": settings, "command": " ".join(proxy), "more": more, "after": "", "needs": ""}
    yield "ringtree-proxy", install.UNIT.format(what="The proxy of the labs' JupyterHub", **parts)
    after = "munge.service ringtree-proxy.service"
    parts |= {"command": " ".join(layout.hub_command(PYTHON, CONFIG)), "more": "KillMode=process", "after": after}
    yield "ringtree-hub", install.UNIT.format(what="The labs' JupyterHub", **parts | {"needs": f"Wants={after}\n"})


if __name__ == "__main__":
    main()
