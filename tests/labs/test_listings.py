"""Nobody gets the top mark by copying: every listing of the book is handed in as an answer to the labs' exercises."""

import os

import listings
import pytest
from verdicts import EXERCISES, NAMES, module_of

LABS = [lab for lab in NAMES if module_of(lab).CHAPTER]  # the first evening is a tour: there the text shows what to write
FIRST = [(lab, next(iter(module_of(lab).EXERCISES))) for lab in LABS]
LATER = [(lab, name) for lab, name in EXERCISES if lab in LABS and (lab, name) not in FIRST]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A listing may write files."""
    monkeypatch.chdir(tmp_path)


def test_a_listing_that_answers_an_exercise_is_found():
    """The tour asks for the ring that chapter 10 prints, so copying does it there."""
    found = listings.at_the_top("first-evening", "ring_all_reduce")
    assert "ringtree.algorithms.all_reduce: ring_all_reduce (in place)" in found
    assert "10-ring-all-reduce: without_empty (in place)" in found


HANDED_IN = {  # a listing of each kind, and the parameters of an exercise that it would fit
    "10-ring-all-reduce: without_empty": ("x", "dist"),  # a cell's
    "05-broadcast: report": ("a", "b", "c", "d", "e"),  # a whole script's, folded
    "13-all-to-all: routed": ("size", "tokens", "share"),
    "ringtree.algorithms.broadcast: mst_broadcast": ("x", "dist", "root"),
    "ringtree.parallel.experts: Exchange": ("rows", "gets", "sends", "dist"),  # a class of autograd's
    "ringtree.parallel.sharded.zero1: ZeRO1": ("parameters", "dist", "optimizer"),
    "03-point-to-point: ring_with_batch": ("x", "dist"),  # it fills what it is given
    "ringtree.measure.flight_recorder: first_parting": ("records",),  # shown by `draw.source`
}


@pytest.mark.parametrize("name", HANDED_IN)
def test_listings_of_all_kinds_are_handed_in(name):
    assert listings.handed_in(listings.listings()[name], list(HANDED_IN[name]))


@pytest.mark.parametrize(("lab", "name"), FIRST)
def test_no_listing_gets_the_top_mark_of_a_first_exercise(lab, name):
    assert listings.at_the_top(lab, name) == []


@pytest.mark.skipif("RINGTREE_NIGHTLY" not in os.environ, reason="`make nightly` hands them in everywhere")
@pytest.mark.parametrize(("lab", "name"), LATER)
def test_no_listing_gets_the_top_mark_of_any_other(lab, name):
    assert listings.at_the_top(lab, name) == []
