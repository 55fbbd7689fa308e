"""Labs: `check` says what is still wrong, in a smallest case; `hint` helps a step at a time.

    from ringtree import labs
    lab = labs.open("ring-all-reduce", ranks)
    lab.check("ring_all_reduce")     # tries your function in the simulator, then on the ranks
    lab.watch("ring_all_reduce")     # a run of yours, drawn
    lab.hint("ring_all_reduce")
    labs.progress()                  # all labs, as far as you have come

`lab` is what a learner sees, `exercise` what an exercise is, and `exercises/` has one module a lab. `judging` tries a
function in the simulator, under NCCL's rules, in what `conditions` sets up, and says what is wrong: `comparing` puts a
difference into words, and `error_text` an error. `forbidding` stops what is ready-made, and `patches` puts back what was
replaced; `inputs` has numbers for the cases, `limits` what many exercises count. `examination` and `onrank` run it on the
live ranks. `harnesses/` has what a check runs to train a model by it. `marks` keeps how far a learner has come, `release`
makes the learners' notebooks, and `marking/` marks what they hand in, in a sandbox.
`ringtree/README.md` says how to make a lab.
"""

from ringtree import late

__getattr__, __dir__, __all__ = late.names(__name__)
