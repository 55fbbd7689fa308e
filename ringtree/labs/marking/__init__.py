"""Marks for what learners hand in: the ordinary check, run beside the answer in a sandbox that protects everybody else.

    python -m ringtree.labs mark ring-all-reduce.ipynb --hidden labs/hidden

Each exercise has a process of its own. It runs the learner's cells, then the check with the teacher's cases, and writes one
verdict as JSON. The process that marks reads at most 100 kB of it, holds it against a schema, and takes nothing else.

    notebook      a notebook's marks: one exercise after the other
    sandbox       starts the processes, and ends them with all that they started
    nursery       a clean process from which they are forked, with limits and a fence around the files
    cells         runs the learner's cells
    verdict       how a verdict is made in the sandbox, and how it is read outside
    autograding   the same for nbgrader
    collecting    nbgrader's exchange: which submissions are taken over
    rebuilding    of a submission only the code is kept, and of its outputs only text and pictures

A mark is as honest as its learner: the answer shares its process with the check, so an answer that is written to cheat can
read the hidden cases and write its own verdict, as in any nbgrader course. The sandbox holds what a submission can do to
anybody else.
"""
