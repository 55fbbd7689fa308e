"""nbgrader on the hub: a lab goes out and comes back marked, and a bad submission harms nobody else's.

One run of the whole way serves all tests here: two learners' submissions by the exchange, and beside them, as if collected,
bad ones of each kind. It takes some minutes, for nine kernels and eight judges on two cores.
"""

import importlib.util
import re
import shutil
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import layout
import nbformat
import people
import pytest
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).resolve().parent.parent.parent

from helpers import foreign

GRADING = Path(layout.__file__).with_name("grading.py")
LABS = ROOT / "labs"
LAB, ASSIGNMENT, COURSE = "deadlock-clinic", "clinic", "rings-and-trees"
# The assignment is two of the lab's exercises. Everybody's `hand_out` is right; `shift` is right, or this.
WRONG = "def shift(x, dist):\n    return x.clone()"

RANKS = """
import ringtree
ranks = ringtree.start(2)
print("ranks", ranks.call(lambda: __import__("os").getuid()))
"""
BAD = {  # a cell that comes before the answers, whether `shift` is right, and the points (None: as many as survive it)
    "hangs": (
        """
        while True:
            try:
                while True: pass
            except BaseException: pass
    """,
        True,
        None,
    ),
    "forks": (
        """
        import os
        started = []
        try:
            for _ in range(700): started.append(os.posix_spawn("/bin/sleep", ["sleep", "300"], {}))
        except OSError as error: print(error.strerror)
        print("had", len(started), "at once")
    """,
        True,
        None,
    ),
    "prints": (
        """
        import os, sys
        print("y" * 10**8)
        for _ in range(100): os.write(1, b"z" * 10**6)
        sys.__stderr__.write("z" * 10**7)
    """,
        True,
        2,
    ),
    "eats": (
        """
        kept = []
        while len(kept) < 48:
            kept.append(b"x" * 2**27)
            print("has", 128 * len(kept), "MiB", flush=True)
    """,
        True,
        None,
    ),
    "reads": (
        """
        import glob, os, resource
        def tried(path):
            try: return len(os.listdir(path) if os.path.isdir(path) else open(path).read())
            except OSError as error: return error.strerror
        for each in {places!r}:
            print("tried", each, tried(each), "end")
        seen = [path for where in ("/home/*", "/tmp/*", "/proc/[0-9]*") for path in glob.glob(where)]
        print("seen", sorted(seen), os.getuid(), os.getgroups())
        print("limits", *map(resource.getrlimit, (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)))
    """,
        True,
        2,
    ),
    "patches": (
        """
        import os, signal
        from ringtree.labs import exercise, judging
        judging.judge = lambda *_, **__: judging.Verdict("", 99, 9)
        exercise.Program.levels = ()
        for path in (judging.__file__, {gradebook!r}):
            try: open(path, "a").write("raise SystemExit")
            except OSError as error: print(error.strerror)
        os.kill(1, signal.SIGKILL)  # the process from which exercises are forked, or the kernel
    """,
        False,
        1,
    ),
    "cheats": (
        """
        import json, os, sys
        if isinstance(get_ipython, type):  # not in a kernel: beside the check
            seen = sorted(sys.modules["hidden_deadlock_clinic"].EXTRA)
            said = json.dumps(dict(points=1, says=f"<b>hidden cases of {seen}</b>")).encode()
            for each in os.listdir("/proc/self/fd"):
                if os.path.exists("/proc/self/fd/" + each) and "socket" in os.readlink("/proc/self/fd/" + each):
                    os.write(int(each), said + bytes([10]))
            os._exit(0)
    """,
        False,
        2,
    ),
}
# The others take minutes.
IN_THE_CUT = ("reads", "patches")
# Each such cell ends by an interrupt when its time is over: a few take minutes, and what asks to end is not heard.
STAYS = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass"


def start_part(hub, **settings):
    """Start the part that marks; what runs of it still does what it was asked to, and is asked no more."""
    socket = hub.folder / "grading" / "socket"
    socket.unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(f"RINGTREE_GRADING_{name}", str(value))
        hub.restart("grading")
    people.wait_for(socket.exists, "the part that marks")


@pytest.fixture(scope="module")
def way(hub, everyone, request):
    """The whole way of one assignment; what was seen on it, by name."""
    cut = request.config.getoption("--cut", False)
    if not shutil.which("newuidmap"):
        pytest.skip("no newuidmap found, by which a submission runs as a user of its own: apt install uidmap")
    teacher = people.Learner(hub, hub.teacher, hub.accounts.made[hub.teacher])
    honest, attacker, course = everyone(1), everyone(2), Path(teacher.home, "teaching")
    seen = dict(teacher=teacher, honest=honest, attacker=attacker, course=course)
    for learner in (teacher, honest):
        hub.admin.start(learner.name, gib=2)
    for learner in (teacher, honest):
        people.wait_for(learner.ready, f"{learner.name}'s server")
    before = leftovers(hub, teacher)
    write(teacher, course / "source" / ASSIGNMENT / f"{LAB}.ipynb", short_lab())
    config = course / "nbgrader_config.py"
    write(teacher, config, config.read_text() + IMPATIENT)
    released = command(
        teacher, course, f"nbgrader generate_assignment {ASSIGNMENT} && nbgrader release_assignment {ASSIGNMENT}"
    )
    assert "Released as" in released, released

    fetched = command(honest, honest.home, f"nbgrader fetch_assignment {ASSIGNMENT}")
    release = Path(honest.home, ASSIGNMENT, f"{LAB}.ipynb")
    assert release.exists(), fetched
    stub = release.read_text()
    write(honest, release, with_ways_in(handed_in(stub, RANKS)))
    submitted = command(honest, honest.home, f"nbgrader submit {ASSIGNMENT}")
    assert "Submitted as" in submitted, submitted
    attack(hub, attacker, honest, course)

    seen["collected inside"] = command(teacher, course, f"nbgrader collect {ASSIGNMENT}")
    hidden = course / "hidden" / "deadlock_clinic.py"
    places = [hub.folder, hub.folder / "exchange", course, hidden, teacher.home, honest.home, "/var/lib"]
    told = dict(places=[str(each) for each in places], gradebook=str(course / "gradebook.db"))
    for who, (cell, right, _) in BAD.items():
        if cut and who not in IN_THE_CUT:
            continue
        cell = textwrap.dedent(cell).format(**told) if "!r}" in cell else textwrap.dedent(cell)
        as_if_collected(teacher, course, who, handed_in(stub, cell, right=right))
    if cut:
        seen["graded"] = command(teacher, course, f"grade {ASSIGNMENT}")
    else:
        seen |= mark_and_interrupt(hub, teacher, course, stub, honest)
    returned = command(teacher, course, f"nbgrader generate_feedback {ASSIGNMENT} && nbgrader release_feedback {ASSIGNMENT}")
    seen["fetched"] = command(honest, honest.home, f"nbgrader fetch_feedback {ASSIGNMENT}")
    assert "Fetched feedback" in seen["fetched"], returned + seen["fetched"]
    with suppress(AssertionError):
        people.wait_for(lambda: leftovers(hub, teacher) <= before, "Slurm to clear the last job away", 20)
    yield seen | dict(left=leftovers(hub, teacher) - before)
    for learner in (teacher, honest):
        hub.admin.stop(learner.name)


def mark_and_interrupt(hub, teacher, course, stub, honest):
    """Mark all that is there, while the part that marks ends and begins; what was said, by name."""
    seen = {}
    as_if_collected(teacher, course, "unreadable", "no notebook")
    hub.kill("grading")
    seen["no part"] = command(teacher, course, f"grade {ASSIGNMENT}")
    start_part(hub, AT_ONCE=4)  # most of a job is waiting, and there are many
    with ThreadPoolExecutor(1) as aside:
        graded = aside.submit(command, teacher, course, f"grade {ASSIGNMENT}")
        people.wait_for(lambda: "ringtree-grading" in hub.slurm("squeue", "--format=%j"), "the first job")
        as_if_collected(teacher, course, "stays", handed_in(stub, *[STAYS] * 5))
        first = hub.parts["grading"]
        start_part(hub, MINUTES=1)
        seen["stays"] = command(teacher, course, f"grade {ASSIGNMENT} stays")
        seen["graded"] = graded.result()
    first.kill()
    first.wait()
    hub.kill("grading")
    start_part(hub)
    seen["direct"] = command(teacher, course, f"nbgrader autograde {ASSIGNMENT} --student=hangs --force")
    seen["again"] = command(teacher, course, f"grade {ASSIGNMENT} {honest.name} nobody")
    return seen


IMPATIENT = "\nc.ExecuteForFeedback.timeout = 40\n"


def short_lab():
    """Two exercises of a lab, as a teacher would cut them out, and no ranks."""
    notebook = nbformat.read(LABS / "source" / "03-deadlock-clinic" / f"{LAB}.ipynb", 4)
    kept = [cell for cell in notebook.cells if re.fullmatch("(shift|hand_out)-(repair|check)", cell.id)]
    notebook.cells = [new_code_cell("import torch", id="begin"), *kept]
    return nbformat.writes(notebook)


def handed_in(stub, *cells, right=True):
    notebook = nbformat.reads(stub, 4)
    solutions = {each.id: each.source for each in nbformat.reads(short_lab(), 4).cells}
    for each in notebook.cells:
        if each.id.endswith("-repair"):
            each.source = WRONG if each.id == "shift-repair" and not right else solutions[each.id]
    notebook.cells[1:1] = [new_code_cell(each) for each in cells]
    return nbformat.writes(notebook)


def with_ways_in(text):
    """The same code, and around it all that the author of a notebook can try on its reader."""
    notebook, ways = nbformat.reads(text, 4), foreign.notebook()
    for cell in notebook.cells:
        cell.metadata["tags"] = [foreign.image("tag of a given cell")]
        cell.source += "" if cell.cell_type == "code" else f"\n\n{foreign.TEXTS[0]}"
    notebook.cells += [*ways.cells, new_code_cell(SHOWS)]
    notebook.metadata = ways.metadata
    return nbformat.writes(notebook)


# Run when it is marked: its outputs are new.
SHOWS = """
from IPython.display import HTML, Javascript, Markdown, display
display(HTML("<script>shown by html</script>"), Javascript("shown.by.javascript"), Markdown(":::{iframe} javascript:shown"))
print("plain text of", "the end")
"""


def as_if_collected(teacher, course, who, text):
    files = {f"{LAB}.ipynb": text, "timestamp.txt": "2026-01-01 00:00:00.000001 UTC", "submission_secret.txt": who}
    for name, text in files.items():
        write(teacher, course / "submitted" / who / ASSIGNMENT / name, text)


def write(who, path, text):
    """As the user who owns it."""
    done = who.as_user("sh", "-c", 'umask 077; mkdir -p "$(dirname "$1")"; rm -f "$1"; cat > "$1"', "sh", path, input=text)
    assert done.returncode == 0, done.stderr


def command(who, folder, line):
    """What a command prints on this user's server."""
    with who.kernel(patience=900) as run:
        return run(f"""
import subprocess
with subprocess.Popen({line!r}, shell=True, cwd={str(folder)!r}, stdout=-1, stderr=-2, text=True) as done:
    for line in done.stdout:
        print(line, end="", flush=True)
""")


# ------------------------------------------------------------ on the way to the teacher

SUBMISSIONS = """
cd "$1" && shift
new() {
    mkdir "$1" && printf '%s' "$secret" > "$1/submission_secret.txt" && echo "2026-01-01 00:00:00.0 UTC" > "$1/timestamp.txt"
    cd "$1"
}
secret=$(printf '%064d' 7)
me=$1 other=$2 notebook=$3 theirs=$4 hidden=$5
(new "$me+clinic+2026-01-01 00:00:00.000001 UTC+link" && ln -s "$theirs" "$notebook" && ln -s "$hidden" x.html)
(new "$me+clinic+2026-01-01 00:00:00.000002 UTC+pipe" && mkfifo "$notebook")
(new "$me+clinic+2026-01-01 00:00:00.000003 UTC+large" && truncate --size=1G "$notebook")
(new "$me+clinic+2026-99-01 00:00:00.000004 UTC+time" && echo '{}' > "$notebook")
(new "$me+clinic+yesterday+time" && echo '{}' > "$notebook")
(secret=../../x new "$me+clinic+2026-01-01 00:00:00.000006 UTC+secret" && echo '{}' > "$notebook")
(new "$me+clinic+2026-01-01 00:00:00.000007 UTC+empty")
(new "$other+clinic+2099-01-01 00:00:00.000008 UTC+forged" && echo '{}' > "$notebook")
chmod -R a+rX .
"""
REFUSED = {
    "link": "Too many levels of symbolic links",
    "pipe": "is not a file of",
    "large": "has more than 10000000 bytes",
    "time": "is not a time",
    "secret": "is not as `nbgrader submit` writes it",
    "empty": "it has none of deadlock-clinic.ipynb",
    "forged": "it claims to come from",
}


def attack(hub, attacker, honest, course):
    theirs = course / "submitted" / honest.name / ASSIGNMENT / f"{LAB}.ipynb"
    words = [attacker.name, honest.name, f"{LAB}.ipynb", theirs, course / "hidden" / "deadlock_clinic.py"]
    attacker.as_user("sh", "-c", SUBMISSIONS, "sh", hub.folder / "exchange" / COURSE / "inbound", *words)


@pytest.mark.cut
def test_nothing_is_collected_but_what_learners_have_submitted_as_themselves(way):
    assert "on a hub `grade` collects" in way["collected inside"]
    said = way["graded"]
    for end, reason in REFUSED.items():
        assert re.search(rf"UTC\+{end} is not collected: .*{reason}", said), (end, said)
    assert f"Collecting submission: {way['honest'].name} " in said and said.count("Collecting") == 1
    assert not (way["course"] / "submitted" / way["attacker"].name).exists()


@pytest.mark.cut
def test_the_exchange_shows_no_learner_anothers_submission_or_feedback(hub, way):
    course, attacker = hub.folder / "exchange" / COURSE, way["attacker"]
    theirs = next((course / "inbound").glob(f"{way['honest'].name}+*+*+[!f]*"))
    page = next((course / "feedback").iterdir())
    assert attacker.as_user("ls", course / "outbound" / ASSIGNMENT).returncode == 0, "then this test shows nothing"
    for folder in ("inbound", "feedback"):
        assert "Permission denied" in attacker.as_user("ls", course / folder).stderr, folder
    for path, into in ((theirs, theirs.with_name("mine")), (course, course.with_name("mine")), (page, page.with_name("mine"))):
        assert attacker.as_user("mv", path, into).returncode != 0 and path.exists(), path
    assert attacker.as_user("sh", "-c", f"echo > {course / 'feedback' / 'x.html'}").returncode != 0
    for path in (way["course"], way["course"] / "gradebook.db", hub.folder / "grading"):
        assert attacker.as_user("ls", path).returncode != 0
    refused = attacker.as_user("sh", "-c", f"{sys.executable} {GRADING} clinic", env={"RINGTREE_HUB_STATE": str(hub.folder)})
    assert "Only the teacher can do this" in refused.stderr


# ------------------------------------------------------------ marks


@pytest.mark.cut
def test_a_lab_goes_out_and_comes_back_marked(way):
    honest = way["honest"]
    assert f"\n{honest.name}: 2 of 2\n" in f"\n{way['graded']}\n", way["graded"]
    (page,) = Path(honest.home, ASSIGNMENT, "feedback").glob(f"*/{LAB}.html")
    told = page.read_text()
    assert "shift is right." in told and "hand_out is right." in told
    assert "ranks [1, 1]" in told, outputs(way["course"], honest.name)  # the submission's own ranks ran, as the stranger


@pytest.mark.parametrize("who", [pytest.param(who, marks=[pytest.mark.cut] * (who in IN_THE_CUT)) for who in BAD])
def test_a_bad_submission_gets_what_its_functions_earn(way, who):
    points = BAD[who][2]
    wanted = r"(\d of 2|no marks: it took more than 3 GiB)" if points is None else f"{points} of 2"
    assert re.search(rf"^{who}: {wanted}$", way["graded"], re.MULTILINE), way["graded"]
    written = [path for kind in ("autograded", "grading") for path in (way["course"] / kind).rglob("*") if who in str(path)]
    assert all(path.stat().st_size < 10**6 for path in written if path.is_file())


def test_a_submission_has_fewer_than_512_processes_at_once(way):
    told = outputs(way["course"], "forks")
    had = re.search(r"^had (\d+) at once$", told, re.MULTILINE)
    assert had and 100 < int(had[1]) < 512 and "Resource temporarily unavailable" in told, told


def test_a_submission_that_takes_all_memory_has_no_more_than_its_job(way):
    most = max(map(int, re.findall(r"^has (\d+) MiB$", outputs(way["course"], "eats"), re.MULTILINE)))
    assert 1024 < most < 3 * 1024, most


def test_a_submission_has_a_limit_of_processor_time_and_of_a_file(way):
    assert "limits (900, 900) (67108864, 67108864) (0, 0)" in outputs(way["course"], "reads")


def test_a_submission_that_goes_on_is_ended_when_its_jobs_time_is_over(way):
    assert way["stays"].splitlines()[-1] == "stays: no marks: it took more than 1 minute", way["stays"]
    assert not (way["course"] / "autograded" / "stays" / ASSIGNMENT).exists()


def test_why_a_job_was_ended_is_asked_for_until_its_last_process_has(monkeypatch, tmp_path):
    says = "[ $(wc -l < asked) -ge 3 ] && echo JobState=TIMEOUT || echo JobState=COMPLETING"
    path = people.in_place_of(tmp_path, {"scontrol": f"cd {tmp_path}\necho >> asked\n{says}"})
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("RINGTREE_HUB_STATE", str(tmp_path))
    spec = importlib.util.spec_from_file_location("grading_alone", GRADING)
    grading = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grading)
    assert grading._why(SimpleNamespace(stdout="7\n", stderr=""), "its log") == "it took more than 20 minutes"


def test_grade_says_that_the_part_that_marks_is_gone(way):
    assert way["no part"].startswith("The hub's part that marks does not answer: ask the administrator")


def test_what_cannot_be_marked_is_told_with_the_place_to_look_at(way):
    assert re.search(r"^unreadable: no marks: see .*/grading/clinic/unreadable.log$", way["graded"], re.MULTILINE), way[
        "graded"
    ]
    assert not (way["course"] / "autograded" / "unreadable" / ASSIGNMENT).exists()


@pytest.mark.cut
def test_a_submission_sees_neither_the_exchange_nor_the_teachers_files_nor_other_processes(way):
    told = outputs(way["course"], "reads")
    tried = re.findall("^tried (.*) (.*) end$", told, re.MULTILINE)
    found = re.findall(r"^tried (\S+) (.*) end$", told, re.MULTILINE)
    assert len(tried) == len(found) >= 6 and {said for _, said in found} == {"No such file or directory"}, told
    seen = re.search(r"^seen \[(.*)\] 1 \[\]$", told, re.MULTILINE)
    assert seen and "/home" not in seen[1] and "'/proc/1'" in seen[1] and len(seen[1].split(",")) < 6, told


@pytest.mark.cut
def test_a_submission_changes_nothing_of_the_grader(way):
    told = outputs(way["course"], "patches")
    assert "Permission denied" in told and "No such file or directory" in told, told


def outputs(course, who):
    notebook = nbformat.read(course / "autograded" / who / ASSIGNMENT / f"{LAB}.ipynb", 4)
    return "\n".join(each.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for each in cell.outputs)


@pytest.mark.parametrize("kind", ["submitted", "autograded"])
def test_of_a_submission_the_teacher_gets_the_code_and_what_it_printed(way, kind):
    course, who = way["course"], way["honest"].name
    release = nbformat.read(course / "release" / ASSIGNMENT / f"{LAB}.ipynb", 4)
    found = nbformat.read(course / kind / who / ASSIGNMENT / f"{LAB}.ipynb", 4)
    assert [cell.id for cell in found.cells if cell.cell_type != "code"] == [
        cell.id for cell in release.cells if cell.cell_type != "code"
    ]
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert RANKS in [cell.source for cell in code] and SHOWS.strip() in [cell.source.strip() for cell in code]
    assert found.metadata == release.metadata and not [cell for cell in found.cells if "attachments" in cell]
    outputs = [each for cell in code for each in cell.outputs]
    for cell in code:
        assert {*cell.metadata} <= {"nbgrader", "deletable", "editable"}, cell.metadata
        assert cell.execution_count is None or type(cell.execution_count) is int
    assert {kind for each in outputs for kind in each.get("data", {})} <= {"text/plain", "image/png"}
    assert ("plain text of the end" in str(outputs)) == (kind == "autograded")


# What a browser is told so that the defence is off: the policy is passed over, and the guard changes nothing.
OFF = "Object.defineProperty(Document.prototype, 'createElement', {value: Document.prototype.createElement, writable: false})"


@pytest.mark.parametrize("defence", ["off", "on"])
@pytest.mark.parametrize("who", ["teacher", "honest"])
def test_a_notebook_of_somebody_elses_does_not_act_for_who_opens_it(hub, way, chromium, who, defence):
    """The teacher who opens what lies in `submitted`, or a learner a friend's notebook. Where the defence is off, it does act."""
    reader = way[who]
    write(reader, Path(reader.home, "of-a-friend.ipynb"), nbformat.writes(foreign.notebook()))
    link, off = f"/user/{reader.name}/lab/tree/of-a-friend.ipynb?reset", defence == "off"
    with people.at_the_hub(chromium, reader, "/hub/home", height=3000, bypass_csp=off) as page:
        page.wait_for_selector("#logout")
        page.add_init_script(OFF if off else "")
        page.goto(f"{hub.address}{link}")
        page.wait_for_selector(foreign.SHOWN, state="attached")
        page.wait_for_selector(".jp-OutputArea-output")
        page.wait_for_timeout(3000)
        if not off:
            foreign.click_all(page)
        assert foreign.ran(page) >= {"iframe"} if off else not foreign.ran(page)


@pytest.mark.cut
@pytest.mark.parametrize("kind", ["submitted", "autograded", "feedback"])
def test_what_the_teacher_opens_of_a_submission_runs_no_script(hub, way, chromium, kind):
    """Also where the browser passes over the defence: there is nothing in it that could run."""
    teacher, folder = way["teacher"], f"teaching/{kind}/{way['honest'].name}/{ASSIGNMENT}"
    name, drawn = (f"{LAB}.html", "iframe") if kind == "feedback" else (f"{LAB}.ipynb", ".jp-Notebook .jp-CodeCell")
    with people.at_the_hub(chromium, teacher, "/hub/home", height=3000, bypass_csp=True) as page:
        page.wait_for_selector("#logout")
        page.add_init_script(OFF)
        page.goto(f"{teacher.url}/lab/tree/{folder}/{name}?reset")
        page.wait_for_selector(drawn, state="attached")
        page.wait_for_timeout(3000)
        assert not foreign.ran(page) and not page.locator(foreign.SHOWN).count()


def test_a_teacher_who_runs_a_submission_runs_it_as_the_teacher(way):
    """A kernel of the teacher's server, as JupyterLab starts it for each notebook."""
    hidden = way["course"] / "hidden" / "deadlock_clinic.py"
    with way["teacher"].kernel() as run:
        assert run(f"print('EXTRA' in open({str(hidden)!r}).read())") == "True"


def test_who_reads_a_submission_is_the_teacher(way):
    marked = way["course"] / "autograded" / "reads" / ASSIGNMENT / f"{LAB}.ipynb"
    assert marked.stat().st_uid == way["teacher"].uid


def test_a_mark_is_as_honest_as_its_learner(way):
    """It reads the hidden cases and writes its own verdict; that is text on the page."""
    page = (way["course"] / "feedback" / "cheats" / ASSIGNMENT / f"{LAB}.html").read_text()
    assert "\ncheats: 2 of 2\n" in way["graded"]
    assert "&lt;b&gt;hidden cases of [" in page and "hand_out" in page and "<b>hidden" not in page


def test_feedback_shows_what_a_function_was_given(way):
    page = (way["course"] / "feedback" / "patches" / ASSIGNMENT / f"{LAB}.html").read_text()
    assert "should return" in page


def test_who_is_told_a_submissions_name_may_do_all_with_it_and_its_time_is_the_learners_to_write(hub, way):
    inbound = hub.folder / "exchange" / COURSE / "inbound"
    theirs = next(inbound.glob(f"{way['honest'].name}+*+*+[!f]*"))
    assert way["attacker"].as_user("cat", theirs / f"{LAB}.ipynb").returncode == 0
    for one, other in ((f"{LAB}.ipynb", "taken"), ("taken", f"{LAB}.ipynb")):  # away, and back
        assert way["attacker"].as_user("mv", theirs / one, theirs / other).returncode == 0
    assert (theirs / "timestamp.txt").stat().st_uid == way["honest"].uid
    assert list(inbound.glob(f"{way['attacker'].name}+*+large")), "a file of a gigabyte, by who has handed in nothing"


def test_submissions_are_not_executed_without_the_stranger(way):
    assert "Submissions are executed by strangers alone: mark them by the command `grade`." in way["direct"], way["direct"]


def test_what_is_marked_is_not_marked_again_unless_it_is_asked_for(way):
    assert "nobody: nothing was collected of clinic\n1 marked before: --again marks them anew" in way["again"], way["again"]


@pytest.mark.cut
def test_grading_leaves_no_process_and_no_file(way):
    assert not way["left"]


def leftovers(hub, teacher):
    """Strangers' processes, and files of the strangers or of the teacher's jobs: a set of paths."""
    lines = [line.split(":") for line in Path("/etc/subuid").read_text().splitlines()]
    first, count = next((int(begin), int(count)) for name, begin, count in lines if name == teacher.name)
    strangers = range(first, first + count)
    owners = {}
    for path in [*Path("/proc").glob("[0-9]*"), *Path("/tmp").iterdir(), *Path("/dev/shm").iterdir()]:
        with suppress(FileNotFoundError):
            owners[path] = path.lstat().st_uid
    of_a_job = f"ringtree-{hub.name}-"
    return {
        str(path) for path, owner in owners.items() if owner in strangers or (of_a_job in path.name and owner == teacher.uid)
    }
