"""Labs: `check` says what is still wrong, naming ranks; `hint` helps a step at a time.

    from ringtree import labs
    lab = labs.open("deadlock-clinic", ranks)
    lab.check("shift")      # runs your function `shift` on the ranks, with a deadline
    lab.hint("shift")

In the notebook's kernel: `lab` is what a learner sees, `exercises/` has one module a lab,
`examination` calls a learner's function on the ranks, `trial` is one such run and what is wrong
with it. On the ranks: `onrank` runs the function, and `watched` is the `dist` that it is given.
`release` makes the learners' notebooks.

To make a further lab:

1. Write `ringtree/labs/exercises/<name>.py` (underscores for the hyphens of the lab's name) with
   TITLE, RANKS (how many it needs at least), HEALTHY (the words of praise: "is healthy", "is
   right") and EXERCISES, a dict from the name of the learner's function to
   `Exercise(check, hints)`. What it needs is imported from `ringtree.labs`.
2. `check(examine)` calls `examine(inputs)`, with one tuple of arguments a rank, as often as it
   likes. Arguments are numbers and nested lists, which reach the function as float tensors on
   the rank's device; `dist` is added last. Fewer tuples than ranks means fewer ranks. A hang,
   an error and a dead rank are reported by `examine` itself. It returns a `Trial`: `expect`
   compares its answers with plain lists, `tidy` says whether every message was waited for and
   met its other half, `sent`, `received` and `collectives` tell what moved. `trial.complain`
   ends a check with one sentence that names the function and the number of ranks, `complain`
   with one that does not. Draw inputs by `examine.numbers` and `examine.random`: what the kernel
   knows never reaches the ranks, save each rank's own input, so a right answer has to be
   communicated.
3. Write `labs/source/<nn>-<name>/<name>.ipynb`: the learner's functions in `%%px --local`
   cells, with what the learner is to write between `### BEGIN SOLUTION` and
   `### END SOLUTION`; cells for teachers alone are tagged `solution`. Then
   `python -m ringtree.labs release` makes `labs/release` from it.
4. Test the check itself in `tests/test_labs.py`: the solution passes, the stub and several
   wrong answers fail with the right reason.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "exercise": ["CheckFailed", "Exercise", "complain"],
        "lab": ["Lab", "open"],
        "trial": ["Trial", "alike", "flat", "shape", "show"],
    },
)
