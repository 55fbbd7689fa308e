"""A new version takes the place of the old one under a running hub, and each way to ask for it means the same folder."""

import os
import re
import subprocess
from pathlib import Path

import deploy
import pytest

ROOT = Path(__file__).resolve().parents[2]


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def files_in(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_new_version_replaces_the_old_one_and_nothing_is_missing_meanwhile(tmp_path, monkeypatch):
    old = write(tmp_path / "there", hub_py="old", gone_py="old", pages__a_html="old", pages__gone_html="old")
    new = write(tmp_path / "checkout", hub_py="new", more_py="new", pages__a_html="new", deep__er__b_txt="new")
    write(new, __pycache____hub_pyc="compiled here")
    before, lacking, moved = files_in(old), [], Path.replace

    def replace(path, place):
        lacking.extend(name for name in before if not (old / name).exists())
        return moved(path, place)

    monkeypatch.setattr(Path, "replace", replace)
    with (old / "hub.py").open() as held:
        deploy.replace(new, old)
        assert held.read() == "old", "whoever reads a program meanwhile reads all of the old one"
    assert not lacking, "what the new version lacks goes last, and the rest is never away"
    assert files_in(old) == dict.fromkeys(["hub.py", "more.py", "pages/a.html", "deep/er/b.txt"], "new")


def test_programs_can_be_run_by_all_and_written_by_their_owner_alone(tmp_path):
    new = write(tmp_path / "checkout", program="x", text_txt="x")
    (new / "program").chmod(0o775)
    (new / "text.txt").chmod(0o664)
    deploy.replace(new, tmp_path / "there")
    assert [(tmp_path / "there" / name).stat().st_mode & 0o777 for name in ("program", "text.txt")] == [0o755, 0o644]


def test_all_that_a_hub_runs_is_put_beside_its_python(tmp_path, monkeypatch):
    monkeypatch.setattr(deploy, "ROOT", ROOT)  # in `make test-hub` it is the hub's own copy that is tried
    monkeypatch.setattr(deploy, "install_packages", lambda: None)
    monkeypatch.setattr(deploy.sys, "argv", ["deploy.py", str(tmp_path)])
    deploy.main()
    assert {path.name for path in tmp_path.iterdir()} == {"jupyter", "server", "slurm"}
    for name in ("server/jupyterhub_config.py", "server/proxy/package.json", "slurm/prepare.py", "jupyter/labconfig"):
        assert (tmp_path / name).exists()
    assert os.access(tmp_path / "server" / "enclosed", os.X_OK)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hub", "CERTIFICATE=a.pem", "KEY=k.pem", "YES=1"], "cd {here} && .* install +--yes +--certificate a.pem --key k.pem"),
        (["hub-remove", "SERVER=srv"], "cd {here} && .*/install.py remove --hub srv"),
        (["hub-demo", "HUB=x", "ARGS=--gpus 8"], "{here}/x/server/demo.py --course {root}/tools/course.py --gpus 8"),
        (["test-hub", "HUB=x", "ARGS=tests/hub/test_lock.py"], "cd {root} && RINGTREE_HUB={here}/x .* tests/hub/test_lock.py"),
    ],
)
@pytest.mark.parametrize("folder", ["", "hub"])
def test_paths_are_those_of_the_folder_in_which_make_is_typed(folder, words, said):
    here = ROOT / folder
    alone = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "ARGS", "HUB", "FROM")
    }
    told = subprocess.run(["make", "-n", *words], cwd=here, env=alone, capture_output=True, text=True, check=True).stdout
    pattern = said.replace("{here}", str(here)).replace("{root}", str(ROOT))
    assert re.search(pattern, told), told
