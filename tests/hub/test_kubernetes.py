"""The values for Kubernetes: by the chart's schema, by KubeSpawner's traits and by their authenticator; and what the image names."""

import asyncio
import copy
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "hub" / "kubernetes"
CHART = Path(__file__).parent / "chart" / "jupyterhub"
VALUES = yaml.safe_load((KUBERNETES / "values.yaml").read_text())
PROFILES = {each["slug"]: each for each in VALUES["singleuser"]["profileList"]}
GPU = "nvidia.com/gpu"


def merged(under, over):
    """As helm merges values: dicts into dicts, everything else replaced."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return {**under, **{key: merged(under.get(key), value) for key, value in over.items()}}


def complaints(values):
    validator = pytest.importorskip("jsonschema").Draft7Validator
    schema = yaml.safe_load((CHART / "values.schema.yaml").read_text())
    whole = merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
    return [f"{'/'.join(map(str, error.path))}: {error.message}" for error in validator(schema).iter_errors(whole)]


def test_the_values_hold_against_the_charts_schema():
    assert complaints(VALUES) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("singleuser", "storage", "capacity"), 5),
        (("singleuser", "memory", "limits"), "4G"),
        (("cull", "timeout"), "an hour"),
        (("proxy", "https", "host"), ["labs.example.org"]),
        (("hub", "concurrentSpawnLimits"), 3),
    ],
)
def test_the_schema_would_find_a_slip(path, value):
    broken = copy.deepcopy(VALUES)
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert complaints(broken)


def test_a_learner_logs_in_and_no_other_pod_reaches_their_server():
    whole = merged(yaml.safe_load((CHART / "values.yaml").read_text()), VALUES)
    assert whole["hub"]["config"]["JupyterHub"]["authenticator_class"] != "dummy"
    assert whole["singleuser"]["networkPolicy"]["enabled"] and whole["singleuser"]["networkPolicy"]["ingress"] == []
    assert whole["cull"]["enabled"] and whole["cull"]["maxAge"] == 28800


# ---------------------------------------------------------------- who gets in, who waits, and who is idle


@pytest.fixture
def configured(monkeypatch):
    """`configured(values)`: JupyterHub's configuration, as the chart's hub makes it of the values."""
    config = pytest.importorskip("traitlets.config")
    pytest.importorskip("nativeauthenticator", reason="the chart's authenticator is in the hub's environment: make test-hub")
    monkeypatch.setenv("TEACHER_PASSWORD", "plain-as-day-3")

    def configure(values):
        c, said = config.Config(), values["hub"]
        for name, settings in said["config"].items():
            c[name].update(copy.deepcopy(settings))
        for _, code in sorted(said.get("extraConfig", {}).items()):
            exec(code, {"c": c, "get_config": lambda: c})
        return c

    return configure


@pytest.fixture
def door(configured):
    """`door(values)`: the authenticator that the hub would ask, with accounts of its own in memory."""
    from jupyterhub import orm
    from traitlets import import_item

    def make(values=VALUES):
        c = configured(values)
        kind = c.JupyterHub.authenticator_class
        kind = import_item(kind) if isinstance(kind, str) else kind
        return kind(config=c, _deprecated_db_session=orm.new_session_factory("sqlite:///:memory:")())

    return make


def admitted(door, name, password):
    """(name, whether an administrator) of somebody who gets in with this password, or None."""
    with ThreadPoolExecutor() as aside:  # a browser's tests may have a loop in this thread
        told = {"username": name, "password": password}
        found = aside.submit(asyncio.run, door.get_authenticated_user(None, told)).result()
    return found and (found["name"], bool(found["admin"]))


def test_the_teacher_gets_in_and_who_was_let_in_and_nobody_else(door):
    door = door()
    assert admitted(door, "teacher", "plain-as-day-3") == ("teacher", True)
    assert not admitted(door, "teacher", "guessed") and not admitted(door, "root", "") and not admitted(door, "ada", "")
    for name in ("ada", "bob"):
        assert door.create_user(name, f"as {name} signs up")
        assert not admitted(door, name, f"as {name} signs up"), "signed up, and not let in yet"
    door.get_user("ada").is_authorized = True  # what the teacher's page does
    assert admitted(door, "ada", "as ada signs up") == ("ada", False)
    assert not admitted(door, "ada", "guessed") and not admitted(door, "bob", "as bob signs up")
    assert not door.create_user("teacher", "whoever comes first"), "signed up before anybody could"
    assert not door.create_user("Teacher", "whoever comes first") and not door.create_user("carol", "short")
    assert admitted(door, "teacher", "plain-as-day-3") and not admitted(door, "teacher", "whoever comes first")


def test_after_some_wrong_passwords_the_next_has_to_wait(door):
    door = door()
    for _ in range(VALUES["hub"]["config"]["NativeAuthenticator"]["allowed_failed_logins"]):
        assert not admitted(door, "teacher", "guessed")
    assert not admitted(door, "teacher", "plain-as-day-3")


@pytest.mark.parametrize("password", ["", "short", "123456789"])
def test_without_a_password_for_the_teacher_the_hub_does_not_start(door, monkeypatch, password):
    monkeypatch.setenv("TEACHER_PASSWORD", password)
    with pytest.raises(ValueError, match="the password of teacher: expected 12 letters or more"):
        door()


def test_without_leave_for_all_of_the_authenticators_own_list_nobody_would_get_in(door):
    values = copy.deepcopy(VALUES)
    del values["hub"]["config"]["Authenticator"]["allow_all"]
    without = door(values)
    without.create_user("ada", "as ada signs up")
    without.get_user("ada").is_authorized = True
    assert not admitted(without, "ada", "as ada signs up"), "then the test above shows nothing"


def test_a_page_that_says_how_long_one_waits_says_it_as_the_hub_does():
    assert VALUES["singleuser"]["startTimeout"] == 3600
    for slug, profile in PROFILES.items():
        assert ("you wait up to an hour" in profile["description"]) == (slug != "cpu"), slug


def test_an_idle_server_ends_as_on_the_hubs_own_server(configured, monkeypatch, tmp_path):
    from tornado import httpserver
    from traitlets.config.loader import PyFileConfigLoader

    monkeypatch.setattr(httpserver, "_HTTPRequestContext", httpserver._HTTPRequestContext)  # which the configuration sets
    here = {"STATE": tmp_path, "GROUP": "root", "PROXY_GROUP": "root", "GPUS": "0", "ADDRESS": "http://127.0.0.1"}
    for name, value in here.items():
        monkeypatch.setenv(f"RINGTREE_HUB_{name}", str(value))
    monkeypatch.delenv("RINGTREE_HUB_IDLE_SECONDS", raising=False)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    ours = PyFileConfigLoader(str(ROOT / "hub" / "server" / "jupyterhub_config.py")).load_config()
    args = configured(VALUES).KubeSpawner.args
    assert args == ours.Spawner.args and f"--ServerApp.shutdown_no_activity_timeout={VALUES['cull']['timeout']}" in args


def test_profiles_override_what_kubespawner_has():
    """The chart's schema takes anything in a profile, so a slip there would show when a learner starts a server."""
    kind = pytest.importorskip("kubespawner").KubeSpawner
    spawner = kind.__new__(kind)  # its traits alone: made in full it looks for a cluster
    for profile in PROFILES.values():
        assert set(profile) <= {"display_name", "slug", "description", "default", "kubespawner_override", "profile_options"}
        for name, value in profile.get("kubespawner_override", {}).items():
            assert spawner.has_trait(name), f"{profile['slug']}: KubeSpawner has no {name}"
            setattr(spawner, name, value)  # raises where it is of another kind
    spawner.profile_list = VALUES["singleuser"]["profileList"]


def test_a_profile_for_each_number_of_gpus():
    assert list(PROFILES) == ["cpu", "gpu-1", "gpu-2", "gpu-4", "gpu-8"]
    assert [each["slug"] for each in PROFILES.values() if each.get("default")] == ["cpu"]
    assert "kubespawner_override" not in PROFILES["cpu"]
    for slug, profile in list(PROFILES.items())[1:]:
        given = profile["kubespawner_override"]
        # Kubernetes gives out whole GPUs, and wants as many guaranteed as allowed.
        assert given["extra_resource_limits"] == given["extra_resource_guarantees"] == {GPU: slug.removeprefix("gpu-")}
        assert given["cpu_guarantee"] <= given["cpu_limit"] and int(given["mem_guarantee"][:-1]) <= int(given["mem_limit"][:-1])


def test_shared_memory_is_memory_and_limited():
    storage = VALUES["singleuser"]["storage"]
    assert storage["extraVolumes"]["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert storage["extraVolumeMounts"]["shm"]["mountPath"] == "/dev/shm"


# ---------------------------------------------------------------- the course


def test_each_start_brings_what_is_new_in_the_course_and_keeps_a_learners_changes(tmp_path):
    """The command is the values' own; repository and home are here."""
    pytest.importorskip("nbgitpuller", reason="nbgitpuller is not in this environment, but in the hub's: make test-hub")
    course, home = tmp_path / "course", tmp_path / "home"
    home.mkdir()
    git = ["git", "-c", "user.name=teacher", "-c", "user.email=teacher@example.org", "-C", str(course)]

    def publish(**files):
        for name, text in files.items():
            (course / name).write_text(text)
        subprocess.run([*git, "add", "--all"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", "The course"], check=True)

    def start(repository=course):
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "RINGTREE_COURSE": str(repository),
        }
        return subprocess.run(VALUES["singleuser"]["lifecycleHooks"]["postStart"]["exec"]["command"], env=env).returncode

    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(course)], check=True)
    publish(lab="a task", chapter="text")
    assert start() == 0 and (home / "course" / "lab").read_text() == "a task"
    (home / "course" / "lab").write_text("an answer")
    publish(chapter="a better text", lab="another task")
    assert start() == 0
    assert (home / "course" / "lab").read_text() == "an answer"
    assert (home / "course" / "chapter").read_text() == "a better text"
    assert start(tmp_path / "nowhere") == 0  # a pod whose hook fails would be ended


# ---------------------------------------------------------------- the image


def test_the_image_takes_what_there_is():
    text = (KUBERNETES / "Dockerfile").read_text()
    rules = "hub/server/jupyter_server_config.py"  # for links, and for what is work
    assert re.findall(r"^COPY (\S+) (\S+)", text, re.MULTILINE) == [("_build/course", "/opt/course"), (rules, "/opt/hub/")]
    assert (ROOT / rules).exists()
    needed = set(re.findall(r'os\.environ\["(\w+)"\]', (ROOT / rules).read_text()))
    assert needed and needed <= VALUES["singleuser"]["extraEnv"].keys()
    assert f"jupyterhub=={yaml.safe_load((CHART / 'Chart.yaml').read_text())['appVersion']}" in text
    hub = (ROOT / "hub" / "server" / "requirements.txt").read_text()
    assert re.search(r"nbgitpuller==\S+", text)[0] in hub.split()
    settings = re.search("JUPYTER_CONFIG_PATH=/opt/course/(.*):/opt/hub$", text, re.MULTILINE)[1]
    assert (ROOT / settings / "jupyter_server_config.py").exists()
    for lock in re.findall(r"-[rc] (\S+)", text):
        assert (ROOT / lock).exists()
    assert VALUES["singleuser"]["extraEnv"]["JUPYTER_DEFAULT_PROVISIONER_NAME"] in (ROOT / "pyproject.toml").read_text()
