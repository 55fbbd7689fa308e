"""Guesses before a cell runs: silent where none was made, honest where one was."""

import pytest

from ringtree import labs
from ringtree.errors import UsageError


def test_without_a_guess_nothing_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    labs.guess("steps", best=..., low=..., high=...).was(6)
    labs.guesses()
    assert capsys.readouterr().out == "You have recorded no guess yet.\n" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("numbers", "said"), [((6, ..., 8), "low is still `...`"), ((6, ..., ...), "low and high are still `...`")]
)
def test_half_a_guess_is_not_kept_and_says_so(tmp_path, monkeypatch, capsys, numbers, said):
    monkeypatch.chdir(tmp_path)
    best, low, high = numbers
    labs.guess("steps", best=best, low=low, high=high).was(6)
    assert capsys.readouterr().out == f"steps: {said}, so nothing is kept: give all three.\n" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("numbers", "found", "said"),
    [
        ((30, 20, 40), 27.4, "guessed 30, between 20 and 40; it is 27.4, 1.1 times as little.\nYour interval contains it."),
        ((10, 5, 20), 27.4, "it is 27.4, 2.7 times as much.\nYour interval does not contain it."),
        ((6, 6, 6), 6, "it is 6, exactly.\nYour interval contains it."),
        ((100, 90, 110), 102, "it is 102, and you are within 5 %.\nYour interval contains it."),
        ((0, -1, 1), 5, "it is 5.\nYour interval does not contain it."),
    ],
)
def test_a_guess_is_held_against_what_was_found(tmp_path, monkeypatch, capsys, numbers, found, said):
    monkeypatch.chdir(tmp_path)
    best, low, high = numbers
    labs.guess("milliseconds", best=best, low=low, high=high).was(found)
    assert said in capsys.readouterr().out


def test_guesses_counts_the_last_of_each(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for what, high in ("a", 1), ("a", 9), ("b", 9), ("c", 1):
        labs.guess(what, best=1, low=0, high=high).was(5)
    with open(".guesses.jsonl", "a") as file:
        file.write("not json\n[1]\n")
    capsys.readouterr()
    labs.guesses()
    said = capsys.readouterr().out
    assert said.startswith("2 of 3 intervals contained the measured value") and "wider" in said


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (("6", 1, 9), "best='6'"),
        ((6, None, 9), "low=None"),
        ((6, 1, float("nan")), "high=nan"),
        ((True, 1, 9), "best=True"),
        ((6, 7, 9), "low=7, best=6 and high=9"),
    ],
)
def test_what_is_no_guess_is_refused_in_a_sentence(numbers, said):
    best, low, high = numbers
    with pytest.raises(UsageError, match=said):
        labs.guess("steps", best=best, low=low, high=high)
