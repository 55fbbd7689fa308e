"""The course's configuration of nbgrader: run its commands in this folder, with a lab's folder as the assignment's name.

nbgrader generate_assignment 10-ring-all-reduce
nbgrader autograde 10-ring-all-reduce
nbgrader generate_feedback 10-ring-all-reduce
"""

from nbconvert.preprocessors import ClearMetadataPreprocessor, TagRemovePreprocessor
from nbgrader.preprocessors import AssignLatePenalties, CheckCellMetadata, IgnorePattern, LimitOutput, SaveAutoGrades

from ringtree.labs.marking.autograding import ExecuteForFeedback, FeedbackPage, Restore, WriteMarks
from ringtree.labs.marking.collecting import CollectOwn

c = get_config()  # noqa: F821, a name that nbgrader gives this file

c.CourseDirectory.course_id = "rings-and-trees"
c.CourseDirectory.ignore = [".ipynb_checkpoints", "__pycache__", "*.pyc", ".progress.json*", ".guesses.jsonl"]

# What explains a solution is a cell of its own. It goes first: nbgrader wants cells that stay to be as they were.
c.GenerateAssignment.preprocessors.prepend([TagRemovePreprocessor])
c.TagRemovePreprocessor.enabled = True
c.TagRemovePreprocessor.remove_cell_tags = {"solution"}

# Learners try a changed line in a given cell: JupyterLab would ignore what they type there, without a word. Restore puts the
# given cells back before anything is marked.
c.LockCells.lock_readonly_cells = False

# A check knows a function that is not yet written by what it raises.
c.ClearSolutions.code_stub = {"python": "# your code here\nraise NotImplementedError"}
c.ClearSolutions.begin_solution_delimeter = "### BEGIN SOLUTION"
c.ClearSolutions.end_solution_delimeter = "### END SOLUTION"

# Marks come out of the sandbox: nothing that the executed notebook prints or raises is one. First the submission is rebuilt from
# the release, with the learner's code alone; a check that was deleted is put back.
c.Autograde.sanitize_preprocessors.insert(0, Restore)
c.OverwriteCells.add_missing_cells = True
c.Autograde.autograde_preprocessors = [
    ExecuteForFeedback,
    WriteMarks,
    IgnorePattern,
    ClearMetadataPreprocessor,
    LimitOutput,
    SaveAutoGrades,
    AssignLatePenalties,
    CheckCellMetadata,
]
c.WriteMarks.hidden = "hidden"

# From an exchange nothing is taken but what learners have submitted as themselves.
c.ExchangeFactory.collect = CollectOwn

# Feedback has the learner's own cells and what was said of them, and asks no other server for anything.
c.GenerateFeedback.exporter_class = FeedbackPage
