"""More models and clusters for the lab "Scale"."""

from ringtree.cost import Link
from ringtree.labs.exercise import Question
from ringtree.labs.exercises import scale as lab

TASKS = (
    (lab.Model(48, 6144, 768), lab.Cluster(), 128),
    (lab.Model(64, 8192, 512), lab.Cluster(memory=141e9, between=Link.of(8e-6, bandwidth=25e9)), 256),
)


def _least(model, cluster, gpus):
    """Seconds of a step by the quickest layout that has room; None where none has."""
    found = []
    for tensor in _divisors(gpus):
        for pipeline in _divisors(gpus // tensor):
            data = gpus // tensor // pipeline
            for microbatches in _divisors(model.sequences // data):
                layout = lab.Layout(tensor, pipeline, data, microbatches)
                if lab.fits(model, layout) and lab.memory(model, layout) <= cluster.memory:
                    found.append(lab.step_seconds(model, layout, cluster))
    return min(found, default=None)


def _divisors(number):
    return [each for each in range(1, number + 1) if number % each == 0]


def least_tensor():
    return lab.room_questions([
        (lab.Model(48, 6144, 768), lab.Cluster(), 128, 8),
        (lab.Model(40, 5120, 12), lab.Cluster(), 24, 4),
    ])


def choose():
    for level, within in enumerate((None, 1.15, 1.0001)):
        for task in TASKS:
            least = _least(*task)
            told = *task, least, within and within * least
            yield Question(task, lambda answer, told=told: lab._layout(answer, *told), lab._task(*task), level)


def fewest_gpus():
    tokens, most = 2e11, 30.0
    for model, cluster, _ in TASKS:
        steps = [_least(model, cluster, gpus) for gpus in lab.GPUS]
        days = {gpus: each and each * tokens / model.tokens / 86400 for gpus, each in zip(lab.GPUS, steps)}
        says = f"{model.layers} layers in {most:g} days"
        yield Question((model, cluster, tokens, most), lambda answer, days=days: lab._budget(answer, most, days), says)


EXTRA = {"least_tensor": least_tensor, "choose": choose, "fewest_gpus": fewest_gpus}
