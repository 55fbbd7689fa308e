"""Lab of chapter 19, "Scale": a layout for 1,024 GPUs, and the fewest GPUs within a budget of days."""

from dataclasses import dataclass

from ringtree.cost import Link
from ringtree.labs.exercise import Answer, Question
from ringtree.units import bytes_text, seconds_text

TITLE = "Scale"
CHAPTER = 19


@dataclass(frozen=True)
class Model:
    """A transformer: layers of `width`; a step has `sequences` of 4,096 tokens."""

    layers: int
    width: int
    sequences: int

    @property
    def parameters(self) -> int:
        return 12 * self.layers * self.width**2

    @property
    def tokens(self) -> int:
        return 4096 * self.sequences


@dataclass(frozen=True)
class Cluster:
    """GPUs with so much memory (bytes) and so many floating-point operations a second, eight a node; the links of one GPU."""

    memory: float = 80e9
    flops: float = 400e12
    inside: Link = Link.of(3e-6, bandwidth=370e9)
    between: Link = Link.of(10e-6, bandwidth=50e9)
    node: int = 8


@dataclass(frozen=True)
class Layout:
    """How a model is cut: tensor × pipeline × data = GPUs, and microbatches of whole sequences on each pipeline."""

    tensor: int
    pipeline: int
    data: int
    microbatches: int


def _ring(ranks, nbytes, link):
    return 2 * (ranks - 1) * link.time(nbytes / ranks) if ranks > 1 else 0.0


def fits(model: Model, layout: Layout) -> bool:
    """Whether the cut comes out even: layers by pipeline, width by tensor, sequences by data and microbatches."""
    numbers = (layout.tensor, layout.pipeline, layout.data, layout.microbatches)
    return min(numbers) >= 1 and not (
        model.layers % layout.pipeline or model.width % layout.tensor or model.sequences % (layout.data * layout.microbatches)
    )


def memory(model: Model, layout: Layout) -> float:
    """Bytes on the fullest GPU: 16 a parameter, and of each microbatch
    under way 34 bytes a token, a layer and a number of width.
    """
    state = 16 * model.parameters / (layout.tensor * layout.pipeline)
    tokens = model.tokens / (layout.data * layout.microbatches)
    kept = min(layout.pipeline, layout.microbatches)
    return state + 34 * tokens * model.width * (model.layers / layout.pipeline) * kept / layout.tensor


def step_seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Seconds of a training step: compute and four all-reduces a layer,
    stretched by the pipeline's bubble, then the gradients. All-reduces
    are rings, and nothing overlaps. Tensor groups lie inside nodes as
    far as they fit; the gradients go between nodes.
    """
    gpus = layout.tensor * layout.pipeline * layout.data
    compute = 6 * model.parameters * model.tokens / (gpus * cluster.flops)
    link = cluster.inside if layout.tensor <= cluster.node else cluster.between
    message = model.tokens / (layout.data * layout.microbatches) * model.width * 2
    layers = model.layers / layout.pipeline * layout.microbatches
    tensor = 4 * layers * _ring(layout.tensor, message, link)
    bubble = (layout.pipeline - 1) / layout.microbatches
    gradients = _ring(layout.data, 2 * model.parameters / (layout.tensor * layout.pipeline), cluster.between)
    return (compute + tensor) * (1 + bubble) + gradients


def layouts(model, gpus):
    """Every layout of so many GPUs that comes out even."""
    for tensor in _divisors(gpus):
        for pipeline in _divisors(gpus // tensor):
            data = gpus // tensor // pipeline
            if model.sequences % data == 0:
                for microbatches in _divisors(model.sequences // data):
                    layout = Layout(tensor, pipeline, data, microbatches)
                    if fits(model, layout):
                        yield layout


def _divisors(number):
    return [each for each in range(1, number + 1) if number % each == 0]


def best(model, cluster, gpus):
    """The quickest layout that has room, or None."""
    found = [each for each in layouts(model, gpus) if memory(model, each) <= cluster.memory]
    return min(found, key=lambda each: step_seconds(model, each, cluster), default=None)


# ---------------------------------------------------------------- a layout


SMALL, MIDDLE, LARGE = Model(32, 4096, 512), Model(80, 8192, 1024), Model(96, 12288, 1536)
SLOW = Cluster(between=Link.of(10e-6, bandwidth=12.5e9))
TASKS = [(SMALL, Cluster(), 64), (MIDDLE, Cluster(), 1024), (LARGE, Cluster(), 1024), (MIDDLE, SLOW, 512), (LARGE, Cluster(memory=141e9), 512),
         (MIDDLE, Cluster(memory=24e9), 256)]


def _task(model, cluster, gpus):
    return (
        f"{model.parameters / 1e9:.0f} billion parameters on {gpus} GPUs of {bytes_text(cluster.memory)}, "
        f"{bytes_text(cluster.between.bandwidth)}/s between nodes"
    )


def layout_questions():
    for level, within in enumerate((None, 1.15, 1.0001)):
        for model, cluster, gpus in TASKS:
            yield Question(
                (model, cluster, gpus), lambda answer, task=(model, cluster, gpus), within=within: _layout(answer, *task, within),
                _task(model, cluster, gpus), level,
            )  # fmt: skip


def _layout(answer, model, cluster, gpus, within):
    if not isinstance(answer, Layout):
        return f"returned {answer!r}: return a Layout(tensor, pipeline, data, microbatches)."
    if not all(type(each) is int for each in (answer.tensor, answer.pipeline, answer.data, answer.microbatches)):
        return f"returned {answer}: give whole numbers."
    if answer.tensor * answer.pipeline * answer.data != gpus:
        return f"returned {answer}, which is {answer.tensor * answer.pipeline * answer.data} GPUs and not {gpus}."
    if not fits(model, answer):
        return f"returned {answer}: {model.layers} layers, width {model.width} and {model.sequences} sequences do not come out even."
    if (needs := memory(model, answer)) > cluster.memory:
        return f"returned {answer}, which needs {bytes_text(needs)} on a GPU of {bytes_text(cluster.memory)}."
    if within is not None:
        took, least = (step_seconds(model, each, cluster) for each in (answer, best(model, cluster, gpus)))
        if took > within * least:
            return f"{answer} takes {seconds_text(took)} a step, and there is one that takes {seconds_text(least)}."
    return None


LAYOUT_HINTS = (
    "There are only some hundred layouts that come out even. Try them all: tensor, pipeline and data whose product is the "
    "number of GPUs, and every number of microbatches that divides what a pipeline gets.",
    "Leave out what has no room (`memory`), then take the one of which `step_seconds` says least.",
    "for tensor in divisors of gpus, for pipeline in divisors of the rest, data is what is left; sequences must be a multiple "
    "of data, and microbatches a divisor of sequences // data. `fits` says whether it comes out even.",
)


# ---------------------------------------------------------------- a budget


BUDGETS = [(SMALL, Cluster(), 1e11, 1.0), (MIDDLE, Cluster(), 1e12, 21.0), (MIDDLE, Cluster(), 1e12, 60.0), (MIDDLE, SLOW, 3e11, 14.0)]


def days(model, cluster, gpus, tokens):
    """Days for so many tokens, by the best layout; None where none has room."""
    layout = best(model, cluster, gpus)
    return None if layout is None else step_seconds(model, layout, cluster) * tokens / model.tokens / 86400


def fewest(model, cluster, tokens, most):
    """The smallest power of two of GPUs, 8 to 8,192, that needs no more than `most` days; None where none does."""
    for gpus in (2**k for k in range(3, 14)):
        took = days(model, cluster, gpus, tokens)
        if took is not None and took <= most:
            return gpus
    return None


def budget_questions():
    for model, cluster, tokens, most in BUDGETS:
        yield Question(
            (model, cluster, tokens, most), lambda answer, task=(model, cluster, tokens, most): _budget(answer, *task),
            f"{model.parameters / 1e9:.0f} billion parameters, {tokens:.0e} tokens in {most:g} days, "
            f"{bytes_text(cluster.between.bandwidth)}/s between nodes",
        )  # fmt: skip


def _budget(answer, model, cluster, tokens, most):
    wanted = fewest(model, cluster, tokens, most)
    if type(answer) is int and answer == wanted:
        return None
    if type(answer) is not int or answer not in {2**k for k in range(3, 14)}:
        return f"returned {answer!r}: return a power of two from 8 to 8,192."
    took = days(model, cluster, answer, tokens)
    if took is None or took > most:
        return f"says {answer} GPUs, which {'have no room for it' if took is None else f'need {took:.1f} days'}."
    return f"says {answer} GPUs, and {wanted} are enough: they need {days(model, cluster, wanted, tokens):.1f} days."


BUDGET_HINTS = (
    "How many steps are so many tokens? One step has model.tokens of them.",
    "For each number of GPUs take the best layout, by the first exercise. Where none has room, go on with more GPUs.",
    "for gpus in 8, 16, 32, …: layout = choose(model, cluster, gpus); step_seconds × tokens / model.tokens / 86,400 is days.",
)


GIVEN = Cluster, Layout, Model, fits, memory, step_seconds
EXERCISES = {
    "choose": Answer(layout_questions, LAYOUT_HINTS, ("within the target", "at the bound")),
    "fewest_gpus": Answer(budget_questions, BUDGET_HINTS),
}
