"""`%%px` on live ranks, as a reader uses it in a notebook."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from helpers.live import kernel


@pytest.fixture(scope="module")
def notebook():
    with kernel() as live:
        live.run("import ringtree")
        yield live


@pytest.fixture
def started(notebook):
    """A kernel whose four ranks run, whatever the test before did to them."""
    answer = notebook.run("ranks = ringtree.live.cluster.current() or ringtree.start(4)")
    assert answer.error is None, answer.traceback
    return notebook


def blocks(*texts):
    return "".join(f"[rank {i}] {line}\n" for i, text in enumerate(texts) for line in text.split("\n"))


def test_px_before_start_says_what_to_do(notebook):
    answer = notebook.run("%%px\nrank")
    assert answer.error == "UsageError"
    assert answer.message == "there are no ranks yet: run `ringtree.start(4)` in a cell before this one"
    assert answer.traceback == f"UsageError: {answer.message}"


def test_start_shows_a_table(notebook):
    answer = notebook.run("ranks = ringtree.start(4)")
    header, *rows = answer.shown[0].split("\n")
    assert header.split() == ["rank", "device", "backend", "host"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3"]


def test_output_comes_in_rank_order(started):
    code = "import time\ntime.sleep(0.3 * (3 - rank))\nprint('from', rank)\nprint('again')"
    answer = started.run(f"%%px\n{code}")
    assert answer.text == blocks(*(f"from {i}\nagain" for i in range(4)))


def test_the_last_expression_is_shown_without_counters(started):
    assert started.run("%%px\nrank * 2").text == blocks("0", "2", "4", "6")


def test_rank_is_engine_id_and_the_names_are_there(started):
    answer = started.run("%%px\nprint(dist.get_rank(), rank, world_size, device.type in ('cpu', 'cuda'), torch.__name__)")
    assert answer.text == blocks(*(f"{i} {i} 4 True torch" for i in range(4)))
    assert started.run("print([ranks.client[i].pull('rank', block=True) for i in range(4)])").text == "[0, 1, 2, 3]\n"


def test_ranks_draw_different_random_numbers(started):
    answer = started.run("%px draw = torch.rand(1).item()\nlen(set(ranks.pull('draw')))")
    assert answer.shown == ["4"]


def test_a_cell_is_all_reduced(started):
    answer = started.run("%%px\nt = torch.tensor([rank + 1.0], device=device)\ndist.all_reduce(t)\nprint(t.item())")
    assert answer.text == blocks("10.0", "10.0", "10.0", "10.0")


def test_local_runs_here_and_on_every_rank(started):
    answer = started.run("%%px --local\ndef double(x):\n    return 2 * x")
    assert answer.error is None
    assert started.run("double(4)").shown == ["8"]
    assert started.run("%px double(rank)").text == blocks("0", "2", "4", "6")


def test_targets_and_noblock_stay_as_in_ipyparallel(started):
    assert started.run("%%px --targets 1\nrank").text == "[rank 1] 1\n"
    assert started.run("%%px --targets 1:3\nrank").text == "[rank 1] 1\n[rank 2] 2\n"
    answer = started.run("%%px --noblock -o result\nvalue = rank")
    assert answer.error is None
    assert started.run("result.get(); print(ranks.pull('value'))").text == "[0, 1, 2, 3]\n"
    started.run("%%px --noblock\nrank + 1")
    assert started.run("%pxresult").text == blocks("1", "2", "3", "4")


def test_a_cell_that_fails_here_alone_still_waits_for_the_ranks(started):
    answer = started.run("%%px --local\nif 'rank' not in globals():\n    1 / 0\nthere = rank")
    assert answer.error == "RankError" and "in this notebook it raised" in answer.message
    assert started.run("ranks.pull('there')").shown == ["[0, 1, 2, 3]"]


def test_call_gives_results_by_rank(started):
    assert started.run("ranks.call(lambda factor: factor * rank, 3)").shown == ["[0, 3, 6, 9]"]


def test_functions_of_this_package_go_to_ranks_by_their_names_decorated_or_not(started):
    started.run("from ringtree import algorithms, measure, units")
    assert started.run("len(ranks.call(measure.ping_pong, [1, 8], repeats=2)[0])").shown == ["2"]
    started.run("ranks.push({'in_words': units.bytes_text, 'ring': algorithms.ring_all_reduce})")
    said = started.run("%%px\nx = torch.ones(4)\nring(x, dist)\nprint(in_words(2000), x.tolist(), ring.__module__)").text
    assert said.splitlines()[0] == "[rank 0] 2 KB [4.0, 4.0, 4.0, 4.0] ringtree.algorithms.all_reduce"


def test_what_is_pulled_comes_as_it_is_and_what_cannot_come_is_an_error(started):
    started.run(
        "%%px\nkept = {'z': {'y': 1, 'b': 2}, 'a': torch.ones(2)}\nclass Own:\n    pass\nown, twice = Own(), lambda x: 2 * x"
    )
    assert started.run("print(ranks.pull('kept')[3])").text == "{'z': {'y': 1, 'b': 2}, 'a': tensor([1., 1.])}\n"
    assert started.run("print([each(3) for each in ranks.pull('twice')])").text == "[6, 6, 6, 6]\n"
    for name, said in [
        ("nowhere", "rank 0 cannot give 'nowhere': name 'nowhere' is not defined"),
        ("dist", "rank 0 cannot give 'dist': cannot pickle 'module' object"),
        ("own", "rank 0 has in own what this notebook's kernel does not know"),
    ]:
        answer = started.run(f"ranks.pull({name!r})", timeout=30)
        assert answer.error == "UsageError" and answer.message.startswith(said)


def test_what_a_call_returns_comes_as_it_is_and_what_cannot_come_is_an_error(started):
    started.run("%%px\nclass Own:\n    pass")
    started.run("def ordered():\n    return {'z': rank, 'a': torch.ones(2)}\n\ndef twice():\n    return lambda x: 2 * x")
    assert started.run("print(ranks.call(ordered)[3])").text == "{'z': 3, 'a': tensor([1., 1.])}\n"
    assert started.run("print([each(3) for each in ranks.call(twice)])").text == "[6, 6, 6, 6]\n"
    answer = started.run("def own():\n    return Own()\nranks.call(own)", timeout=30)
    assert answer.error == "UsageError" and answer.message.startswith(
        "rank 0 returned what this notebook's kernel does not know"
    )
    answer = started.run("def module():\n    return dist\nranks.call(module)", timeout=30)
    assert answer.message == "ranks 0, 1, 2 and 3 raised TypeError: cannot pickle 'module' object"


def test_push_and_pull(started):
    assert started.run("ranks.push({'a': 5}); ranks.pull('a')").shown == ["[5, 5, 5, 5]"]


def test_one_error_is_shown_once(started):
    answer = started.run("%%px\nhere = 1\n1 / 0")
    assert answer.error == "RankError"
    assert answer.message == "ranks 0, 1, 2 and 3 raised ZeroDivisionError: division by zero"
    assert answer.traceback.count("line 3: 1 / 0") == 1
    assert started.run("%px here").text == blocks("1", "1", "1", "1")  # variables live on


def test_progress_is_for_those_who_watch(started):
    cell = "%%px\nimport time\nprint('step 1', flush=True)\ntime.sleep(5 if rank == 2 else 0)"
    assert started.run(cell).shown == []
    watched = started.run(cell, allow_stdin=True)
    assert re.fullmatch(r"3 of 4 ranks have finished, [2-4] s\n  rank 2 is running: step 1", watched.shown[0])
    assert watched.text == blocks(*["step 1"] * 4)


def test_start_again_replaces_the_ranks(started):
    before = started.run("%px import os\n%px pid = os.getpid()\nprint(*ranks.pull('pid'))").text.split()
    started.run("ranks = ringtree.start(2)")
    import psutil

    assert not any(psutil.pid_exists(int(pid)) for pid in before)
    assert started.run("%px world_size").text == blocks("2", "2")
    started.run("ranks = ringtree.start(4)")


def test_bad_input_leaves_the_ranks_as_they_were(started):
    started.run("%px kept = 7")
    wrong = {
        "ringtree.start(0)": "start(0): the number of ranks must be a whole number, 1 or more",
        "ringtree.start(4, backend='mpi')": "backend='mpi' is not one that ringtree starts",
        "ringtree.start(4, timeout=0)": "timeout=0: give the seconds",
        "ringtree.start(4, engines='slurm')": "engines='slurm' needs the command sbatch",
        "ringtree.start(4, engines='pbs')": "engines='pbs' is not a way to start ranks",
        "ringtree.start(4, engines={'a': 1})": "engines={'a': 1} has places for 1 ranks, and 4 were asked for: let the numbers add up",
        "ringtree.start(4, ranks_per_node=3)": "ranks_per_node=3 does not divide 4 ranks",
    }
    started.run("import os; path, os.environ['PATH'] = os.environ['PATH'], ''  # no sbatch, wherever this runs")
    for code, message in wrong.items():
        answer = started.run(code)
        assert answer.error == "UsageError", code
        assert answer.message.startswith(message)
        assert "\n" not in answer.traceback
    started.run("os.environ['PATH'] = path")
    for options, word in {"--timeout soon": "soon", "--nonsense": "--nonsense", "--targets 9": "0 to 3"}.items():
        answer = started.run(f"%%px {options}\n1")
        assert answer.error == "UsageError" and word in answer.message
    assert started.run("%px kept").text == blocks("7", "7", "7", "7")


def test_stop_and_context_manager(notebook):
    notebook.run("ranks = ringtree.start(2)")
    assert notebook.run("ranks.stop(); ranks.stop(); ranks").shown == ["2 ranks, stopped"]
    assert notebook.run("%px rank").error == "UsageError"
    notebook.run("with ringtree.start(2) as pair:\n    print(pair.call(lambda: rank))")
    assert notebook.run("pair.running").shown == ["False"]
    assert notebook.run("pair.call(len)").error == "UsageError"


def test_a_cell_that_raised_does_not_take_the_next_one_with_it(started):
    """The next cell may be there before the rank has told of the error: both are sent at once here."""
    answer = started.run("""
one, two = (ranks.view.execute(code, silent=False, block=False) for code in ("1 / 0", "came_next = rank"))
two.get()
print(ranks.pull("came_next"))""")
    assert (answer.error, answer.text) == (None, "[0, 1, 2, 3]\n"), answer.traceback


def test_libraries_are_not_the_reader_s_wherever_they_were_installed(tmp_path):
    """As `pip install --target` does it: no folder on the way is called site-packages."""
    for name in ("ipykernel", "traitlets", "torch"):
        (tmp_path / name).symlink_to(importlib.util.find_spec(name).submodule_search_locations[0])
    program = """
import ipykernel.kernelapp, traitlets.config.application
from ringtree.live.reports import frames
for module in ipykernel.kernelapp, traitlets.config.application:
    print(module.__file__, frames.is_readers(module.__file__))
print(frames.is_readers("/home/reader/train.py"))
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
    places = [tmp_path / "ipykernel/kernelapp.py", tmp_path / "traitlets/config/application.py"]
    assert said == "".join(f"{place} False\n" for place in places) + "True\n"
