"""A learner's whole way: log in, choose GPUs, get the course, do a lab, log out."""

import json
import os
import re
import shutil
from pathlib import Path

import nbformat
import people
import pytest
import requests

HUB = Path(os.environ.get("RINGTREE_HUB", "hub"))
ROOT = Path(__file__).resolve().parent.parent.parent
LAB = "labs/release/01-ranks-and-groups/ranks-and-groups.ipynb"
ANSWERED = ROOT / LAB.replace("release", "source")

SEEN = "lambda: __import__('os').environ['CUDA_VISIBLE_DEVICES']"
CHECKS = ("group_mean is right, and at the bound", "edges is right, and at the bound")


def written(learner):
    return (Path(learner.home) / "course" / LAB).read_text()


def answer(learner):
    """What the learner would write into the notebook that the link brought: our answers, through their own account."""
    theirs = Path(learner.home) / "course" / LAB
    assert theirs.stat().st_uid == learner.uid and "NotImplementedError" in theirs.read_text()
    shutil.copyfile(ANSWERED, theirs)  # the owner stays who it was


@pytest.mark.cut
def test_a_learner_logs_in_chooses_two_gpus_does_a_lab_and_logs_out(hub, chromium, learners):
    learner = learners(1)
    with people.at_the_hub(chromium, learner, hub.course_link()) as page:
        people.choose(page, gpus=2, hours=1, gib=4)
        page.wait_for_url(re.compile("/user/.*/lab/tree/course"))
        answer(learner)
        page.goto(f"{learner.url}/lab/tree/course/{LAB}?reset")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        page.wait_for_selector("text=/Python 3 .* Idle/")  # who runs cells before that is asked for a kernel
        page.click("text=Run >> nth=0")
        page.click("text=Run All Cells")
        page.wait_for_selector("text=Ranks and groups: 2 of 2")
        page.keyboard.press("Control+s")
        people.wait_for(lambda: all(check in written(learner) for check in CHECKS), "the checks in the saved notebook")
        figure = page.locator("figure[data-step]").first
        page.hover(".jp-Notebook .jp-CodeCell >> nth=-1")
        for _ in range(60):  # JupyterLab draws what is in view, and a learner scrolls
            if figure.count():
                break
            page.mouse.wheel(0, -400)
            page.wait_for_timeout(100)
        figure.scroll_into_view_if_needed()
        before = figure.get_attribute("data-step")
        figure.locator("[data-do=forward], [data-do=next]").first.click()
        people.wait_for(lambda: figure.get_attribute("data-step") != before, "the player to move", 10)

        page.goto(f"{hub.address}/hub/home")
        page.click("#stop")
        page.wait_for_selector("#start:has-text('Start My Server')")
        page.click("#logout")
        page.wait_for_selector("text=/Successfully logged out|Sign in/")
    people.wait_for(lambda: not hub.admin.job(learner.name), "the job to end")


def test_the_page_offers_what_the_server_has_and_nothing_else(hub, chromium, learners):
    learner = learners(1)
    with people.at_the_hub(chromium, learner, "/hub/spawn") as page:
        page.wait_for_selector("#gpus")
        assert page.locator("#gpus option").evaluate_all("all => all.map(each => each.value)") == ["0", "part", "1", "2", "4"]
    refused = hub.admin.ask("POST", f"users/{learner.name}/server", gpus=3)
    people.wait_for(lambda: not hub.admin.server(learner.name).get("pending"), "the refusal")
    assert not hub.admin.server(learner.name).get("ready") and not hub.admin.job(learner.name), refused.text


def test_the_ranks_use_exactly_what_was_allotted(hub, learners):
    learner = learners(1)
    learner.start(gpus=2)
    with learner.kernel() as run:
        assert run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])") == "0,1"
        told = run(f"import ringtree; ranks = ringtree.start(2); print(ranks.call({SEEN}))")
        assert told == "['0,1', '0,1']"


DOCTOR = """
import json, subprocess, sys
asked = subprocess.run([sys.executable, "-m", "ringtree.doctor", "--json"], capture_output=True, text=True)
print(json.dumps([asked.returncode, json.loads(asked.stdout)]))
"""


def test_the_doctor_tells_what_slurm_gave(hub, learners):
    learner = learners(1)
    learner.start(gpus=1, gib=4)
    with learner.kernel() as run:
        status, found = json.loads(run(DOCTOR))
    told = {each["topic"]: each for each in found}
    # A pretended GPU is allotted and answers to nobody: that is wrong, and said with what to do.
    assert told["Slurm"]["state"] == "wrong" and "1 GPU and 1 core" in told["Slurm"]["seen"] and told["Slurm"]["do"], told
    assert status == 1
    for topic in ("memory", "cores", "threads", "shared memory", "open files", "processes", "ports", "stale ranks"):
        assert told[topic]["state"] != "wrong", told[topic]
    assert "4096 allowed" in told["processes"]["seen"], told["processes"]


def test_a_job_that_takes_all_gpus_says_what_is_wrong_with_them(hub, learners):
    """`make hub` ends with it. Pretended GPUs are allotted, and PyTorch opens none."""
    import install

    told = install.gpus_tried(HUB, learners(1).name, len(hub.gpus), {"SLURM_CONF": str(hub.folder / "slurm.conf")})
    assert [each for each in told if re.search(r"Slurm: job \d+: 5 GPUs .*PyTorch sees 0 GPUs", each)], told
    learners(2).start(gpus=1)
    (told,) = install.gpus_tried(HUB, learners(1).name, len(hub.gpus), {"SLURM_CONF": str(hub.folder / "slurm.conf")})
    assert "could not be tried" in told, told


WRITER = """
import pathlib, subprocess, sys
subprocess.run([sys.executable, {course!r}, sys.argv[1]], check=True)
for name, begins, instead in {changes!r}:
    path = pathlib.Path(sys.argv[1], name)
    text = path.read_text() if path.exists() else ""
    path.write_text(text.replace(begins, instead, 1) if begins else instead)
"""


def test_what_a_learner_changed_stays_when_the_course_changes(hub, learners, tmp_path):
    import layout

    learner, course = learners(3), Path(learners(3).home, "course")  # who has no course yet
    learner.start()

    def follow():
        asked = {"repo": f"file://{hub.folder / 'course.git'}", "branch": "main", "targetpath": "course"}
        answer = requests.get(f"{learner.url}/git-pull/api", headers=learner.headers(), params=asked, timeout=120)
        assert '"phase": "finished"' in answer.text, answer.text

    follow()
    stub = "raise NotImplementedError"
    gone = next(each.relative_to(course) for each in sorted(course.glob("labs/release/*/*.ipynb")) if each.name not in LAB)
    for name, begins, instead in (
        ("README.md", "# ", "# Mine: "),
        (LAB, stub, "answer = 41; raise NotImplementedError"),
        ("new.md", "", "mine"),
    ):
        text = (course / name).read_text() if begins else ""
        learner.write(f"course/{name}", text.replace(begins, instead, 1) if begins else instead)
    learner.as_user("rm", course / gone)
    changes = [
        ("README.md", "# ", "# Theirs: "),
        (LAB, stub, "theirs = 1; raise NotImplementedError"),
        ("new.md", "", "theirs"),
    ]
    changes.append(("Makefile", "", "# new"))
    writer = tmp_path / "writer.py"
    writer.write_text(WRITER.format(course=str(ROOT / "tools" / "course.py"), changes=changes))
    try:
        layout.publish_course(hub.folder, writer)
        follow()
        assert (course / "README.md").read_text().startswith("# Mine: ")
        assert "answer = 41" in (course / LAB).read_text() and nbformat.read(course / LAB, 4).cells
        assert "mine" in {path.read_text() for path in course.glob("new*.md")}, list(course.glob("new*"))
        assert "theirs" == (course / "new.md").read_text() and (course / "Makefile").read_text() == "# new", (
            "nothing new has come"
        )
        assert (course / gone).exists()  # what was removed is brought again: so a learner begins anew
    finally:
        layout.publish_course(hub.folder, ROOT / "tools" / "course.py")
