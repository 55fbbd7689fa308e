from ringtree.labs.exercise import (
    Answer as Answer,
    Case as Case,
    CheckFailed as CheckFailed,
    Level as Level,
    Limit as Limit,
    Program as Program,
    Question as Question,
)
from ringtree.labs.guessing import guess as guess, guesses as guesses
from ringtree.labs.lab import Lab as Lab, names as names, open as open
from ringtree.labs.progress import progress as progress
