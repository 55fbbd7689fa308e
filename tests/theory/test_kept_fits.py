"""A fit that the tests keep is the one that they would compute, and no other is taken for it."""

import numpy as np
import pytest
from helpers import fits

from ringtree import data, theory
from ringtree.theory import machines

FEW = data.samples("v100_n2_p8", "v100_n4_p16")


@pytest.fixture
def searched(monkeypatch):
    """A list with a number of protocols for each search that was done."""
    done, search = [], machines._search
    monkeypatch.setattr(machines, "_search", lambda samples, count: done.append(count) or search(samples, count))
    return done


def fitted(monkeypatch, samples=FEW, **how):
    """By a process that has fitted nothing yet."""
    monkeypatch.setattr(machines, "_found", fits.Kept(**how))
    return theory.fit_machine(samples, 1)


def test_what_is_read_is_what_was_computed(tmp_path, monkeypatch, searched):
    computed = fitted(monkeypatch, folder=tmp_path)
    assert (count := len(searched)) == 3
    read = fitted(monkeypatch, folder=tmp_path)
    assert len(searched) == count
    assert read.model == computed.model and read.parameters.equals(computed.parameters)
    assert [np.array_equal(*each) for each in zip(read.draws(20), computed.draws(20))] == [True, True]


def test_other_samples_and_other_code_compute_anew(tmp_path, monkeypatch, searched):
    fitted(monkeypatch, folder=tmp_path)
    others = dict(samples=FEW.assign(time=FEW.time * 1.01)), dict(code=lambda: "other code")
    for other in others:
        before = len(searched)
        fitted(monkeypatch, **{"folder": tmp_path, **other})
        assert len(searched) == before + 3, other


def test_the_code_below_a_fit_is_part_of_its_name(tmp_path, monkeypatch):
    (tmp_path / "ringtree" / "theory").mkdir(parents=True)
    (tmp_path / "ringtree" / "theory" / "model.py").write_text("a = 1\n")
    monkeypatch.setattr(fits, "ROOT", tmp_path)
    before = fits.code.__wrapped__()
    (tmp_path / "ringtree" / "theory" / "model.py").write_text("a = 2\n")
    assert fits.code.__wrapped__() != before
