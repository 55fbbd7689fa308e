from ringtree.data.published import Run as Run, run as run, runs as runs, samples as samples, sweep as sweep
from ringtree.data.recordings import Recording as Recording, recording as recording
from ringtree.data.texts import prose as prose
