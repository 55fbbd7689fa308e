"""Marks that cannot be talked into: a lab's exercises are judged in one process, and the learner's text runs in others.

    python -m ringtree.labs mark ring-all-reduce.ipynb --hidden labs/hidden

The judge has the simulator, the cases (also those that only the teacher has) and the verdict. The learner's cells run
afresh in a process for each rank. The two talk by calls of `dist` and by plain tensors alone: a process says which call it
makes, the judge carries it out, counts it and answers. There is no way to say "it is right", so what an answer patches,
prints, raises or writes there changes what its function does, and nothing else.

Who does what:

    notebook             a notebook's marks: one exercise after the other
    standin, mirrors     the judge's side: looks like the learner's function; tensors that are on their way
    processes            the judge's side: processes are started, and ended with all that they started
    nursery              a clean process from which those of the ranks are forked, with limits
    cells, rank, dist    the learner's side: cells are run, then the function, with a `dist` that hands calls over
    encoding, pipe       how the two talk
    autograding          the same for nbgrader
    collecting           nbgrader's exchange: what was submitted is taken over as files with plain text, and no more

What is not promised. The learner's processes belong to the user who marks: they can read that user's files, the hidden
cases too if they know where these are. Where that matters, `--enclose` names a command that starts them as somebody else,
as the hub's grading does. Ranks can find ways beside `dist` to whisper to each other. Whether a function looks at a value,
and whether it leaves alone what it was given, is told by its own process.
"""
