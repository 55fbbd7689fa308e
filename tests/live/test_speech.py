"""Whatever a cell does to its output, the rank speaks again in the next cell."""

import pytest
from helpers.live import kernel

HEARD = "[rank 0] said 0\n[rank 1] said 1\n"


@pytest.fixture(scope="module")
def notebook():
    with kernel(cold=True) as live:
        # ipykernel leaves descriptors 1 and 2 alone where it finds pytest's mark, and ranks have it from what they are forked from
        live.run("import os; os.environ.pop('PYTEST_CURRENT_TEST', None); import ringtree")
        assert live.run("ranks = ringtree.start(2)").error is None
        yield live


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "deed",
    [
        "sys.{name} = None",
        "del sys.{name}",
        "sys.{name}.close()",
        "sys.{name} = io.StringIO()",
        "sys.{name} = open(os.devnull, 'w')",
        "sys.{name} = open(os.devnull, 'w'); sys.{name}.close()",
        "sys.{name} = object()",
        "with sys.{name}: pass",
        "contextlib.redirect_{name}(io.StringIO()).__enter__(); 1 / 0",
        "sys.{name}.close(); sys.exit(3)",
        "os.close({number})",
        "os.dup2(os.open(os.devnull, os.O_WRONLY), {number})",
        "os.dup2(os.open('/', os.O_RDONLY), {number})",
        "os.close(sys.{name}.fileno()); os.write({number}, b'lost')",
    ],
)
def test_a_rank_speaks_again_in_the_next_cell(notebook, name, deed):
    number = {"stdout": 1, "stderr": 2}[name]
    imports = "import contextlib, io, os, sys, time"
    first = notebook.run(f"%%px --timeout 20\n{imports}\n{deed.format(name=name, number=number)}")
    assert first.error in (None, "RankError"), first.message  # it may raise, and must come to an end
    assert notebook.run(f"%%px --timeout 20\nprint('said', rank, file=sys.{name})").text == HEARD
    assert heard_from_below(notebook, number)


def heard_from_below(notebook, number):
    """What is not Python's comes by way of a pipe and a thread: it is given more time where the machine is busy."""
    for seconds in (0.3, 1, 5, 20):
        cell = f"%%px --timeout 60\nwritten = os.write({number}, b'said %d\\n' % rank)\ntime.sleep({seconds})"
        if set(HEARD.splitlines()) <= set(notebook.run(cell).text.splitlines()):
            return True
    return False


@pytest.mark.parametrize(
    "deed",
    [
        "builtins.print = None",
        "del builtins.print",
        "builtins.print = lambda *_, **__: None",
        "builtins.setattr = builtins.callable = builtins.vars = builtins.print = None",
        "print = None",
        "print = 3",
        "os.dup2 = os.fstat = threading.Thread = None",
        "sys.stdout.write = None",
        "sys.stdout.flush = None",
        "sys.stdout.close = None",
        "sys.stdout.pub_thread = None",
        "sys.stdout.write = lambda *_: 0; builtins.print = 7",
    ],
)
def test_a_rank_whose_print_was_replaced_has_it_back_in_the_next_cell(notebook, deed):
    first = notebook.run(f"%%px --timeout 20\nimport builtins, os, sys, threading\n{deed}")
    assert first.error in (None, "RankError"), first.message
    assert notebook.run("%%px --timeout 20\nprint('said', rank)").text == HEARD


def test_a_print_that_a_reader_defines_is_kept_and_so_are_variables_with_names_of_functions(notebook):
    notebook.run("%%px\nimport builtins\nmax = 3\ndef print(*words): builtins.print('mine:', *words)")
    assert notebook.run("%px print(max)").text == "[rank 0] mine: 3\n[rank 1] mine: 3\n"
    notebook.run("%px del print, max")
    assert notebook.run("%%px --timeout 20\nprint('said', rank)").text == HEARD


def test_a_function_that_was_called_on_the_ranks_and_replaced_print_leaves_them_speaking_too(notebook):
    notebook.run("def silence():\n    import builtins\n    del builtins.print\n    return rank")
    assert notebook.run("ranks.call(silence, timeout=20)").shown == ["[0, 1]"]
    assert notebook.run("%px print('said', rank)").text == HEARD


@pytest.mark.parametrize("deed", ["sys.stdout = None", "sys.stdout = open('/dev/null', 'w'); sys.stdout.close()"])
def test_a_function_that_was_called_on_the_ranks_leaves_them_speaking_too(notebook, deed):
    notebook.run(f"def silence():\n    import sys\n    {deed}\n    return rank")
    assert notebook.run("ranks.call(silence, timeout=20)").shown == ["[0, 1]"]
    assert notebook.run("%px print('said', rank)").text == HEARD


def test_a_rank_that_has_silenced_itself_can_still_say_where_it_hangs(notebook):
    answer = notebook.run(
        "%%px --timeout 2\nimport sys\nsys.stdout = sys.stderr = None\ndist.recv(torch.ones(1), src=1 - rank)"
    )
    assert "rank 1 waits to receive from rank 0  [line 4: dist.recv" in answer.message
    assert notebook.run("%px print('said', rank)").text == HEARD
