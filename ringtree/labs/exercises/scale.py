"""Lab of chapter 19, "Scale": the least tensor group, a layout for 1,024 GPUs, and the fewest GPUs within a budget of days."""

from dataclasses import dataclass

from ringtree.cost import Link
from ringtree.labs.comparing import is_whole
from ringtree.labs.exercise import Answer, Level, Question
from ringtree.theory.rates import PRODUCT_RATE
from ringtree.units import bytes_text, count_text, seconds_text

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
    """GPUs with `memory` bytes each, eight a node, and the links of one GPU.

    flops: floating-point operations a second of a GPU's matrix products; `step_seconds` adds bubble and messages itself.
    """

    memory: float = 80e9
    flops: float = PRODUCT_RATE["H100"]
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
    """Return whether the cut comes out even: layers by pipeline, width by tensor, sequences by data and microbatches."""
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


# ---------------------------------------------------------------- a layout


SMALL, MIDDLE, LARGE = Model(32, 4096, 512), Model(80, 8192, 1024), Model(96, 12288, 1536)
SLOW = Cluster(between=Link.of(10e-6, bandwidth=12.5e9))
TASKS = [  # a model, a cluster, a number of GPUs, and the seconds of a step by the quickest layout that has room
    (SMALL, Cluster(), 64, 2.096337),
    (MIDDLE, Cluster(), 1024, 3.408188),
    (LARGE, Cluster(), 1024, 12.187965),
    (SMALL, SLOW, 512, 0.399332),
    (LARGE, Cluster(memory=141e9), 512, 22.585947),
    (LARGE, Cluster(memory=40e9), 128, 377.584671),
]


def _task(model, cluster, gpus):
    return (
        f"{model.parameters / 1e9:.0f} billion parameters on {gpus} GPUs of {bytes_text(cluster.memory)}, "
        f"{bytes_text(cluster.between.bandwidth)}/s between nodes"
    )


def layout_questions():
    for level, within in enumerate((None, 1.15, 1.0001)):
        for *task, least in TASKS:
            most = within and within * least
            yield Question(
                tuple(task),
                lambda answer, task=task, least=least, most=most: _layout(answer, *task, least, most),
                _task(*task),
                level,
            )


def _layout(answer, model, cluster, gpus, least, most):
    if not isinstance(answer, Layout):
        return f"returned {answer!r}: return a Layout(tensor, pipeline, data, microbatches)."
    if not all(map(is_whole, (answer.tensor, answer.pipeline, answer.data, answer.microbatches))):
        return f"returned {answer}: give whole numbers."
    if answer.tensor * answer.pipeline * answer.data != gpus:
        return f"returned {answer}, which is {answer.tensor * answer.pipeline * answer.data} GPUs and not {gpus}."
    if not fits(model, answer):
        parts = f"{model.layers} layers, width {model.width} and {model.sequences} sequences"
        return f"returned {answer}: {parts} do not come out even."
    if (needs := memory(model, answer)) > cluster.memory:
        return f"returned {answer}, which needs {bytes_text(needs)} on a GPU of {bytes_text(cluster.memory)}."
    if most is not None and (took := step_seconds(model, answer, cluster)) > most:
        more = f"{took / least:.3g} times as long as" if took > 1.1 * least else f"{100 * (took / least - 1):.2g} % longer than"
        return f"{answer} takes {seconds_text(took)} a step, {more} the quickest that has room."
    return None


LAYOUT_HINTS = (
    "There are only some hundred layouts that come out even. Try them all: tensor, pipeline and data whose product is the "
    "number of GPUs, and every number of microbatches that divides what a pipeline gets.",
    "Leave out what has no room (`memory`), then take the one with the fewest `step_seconds`.",
    "for tensor in divisors of gpus, for pipeline in divisors of the rest, data is what is left; sequences must be a multiple "
    "of data, and microbatches a divisor of sequences // data. `fits` says whether it comes out even.",
)


# ---------------------------------------------------------------- the smallest tensor group


ROOMS = [  # a model, a cluster, a number of GPUs, and the smallest tensor group that has room; None where none has
    (SMALL, Cluster(), 64, 2),
    (Model(8, 1024, 64), Cluster(), 8, 1),
    (MIDDLE, Cluster(), 1024, 16),
    (LARGE, Cluster(), 1024, 64),
    (LARGE, Cluster(), 16, None),
    (SMALL, Cluster(memory=24e9), 64, 8),
    (Model(96, 12288, 96), Cluster(), 96, 48),
    (Model(32, 4096, 6), Cluster(), 12, 2),
    (Model(32, 4096, 12), Cluster(memory=45e9), 12, 4),
]


def room_questions(tasks=ROOMS):
    for *task, tensor in tasks:
        yield Question(tuple(task), lambda answer, task=task, tensor=tensor: _room(answer, *task, tensor), _task(*task))


def _room(answer, model, cluster, gpus, tensor):
    if tensor is None:
        return None if answer is None else f"returned {answer}: here no tensor group has room, so return None."
    wanted = Layout(tensor, 1, gpus // tensor, model.sequences // (gpus // tensor))
    if answer == wanted:
        return None
    if not isinstance(answer, Layout):
        return f"returned {answer!r}: return a Layout(tensor, pipeline, data, microbatches)."
    if answer.pipeline != 1 or answer.tensor * answer.data != gpus:
        return f"returned {answer}: pipeline should be 1, and tensor × data {gpus}."
    if answer.tensor < tensor:
        needs = memory(model, answer) if min(answer.data, answer.microbatches) >= 1 else cluster.memory
        why = f"it needs {bytes_text(needs)} on a GPU" if needs > cluster.memory else "it does not come out even"
        return f"returned {answer}: {why}."
    if answer.tensor > tensor:
        return f"returned {answer}, and a tensor group of {count_text(tensor, 'GPU')} has room."
    return f"returned {answer}: a microbatch should be one sequence, and so {wanted.microbatches} on each pipeline."


ROOM_HINTS = (
    "With pipeline=1 a layout is one number, tensor: data is gpus // tensor, and microbatches follows from data.",
    "Go through tensor = 1, 2, 3, … up to gpus, and skip each number that does not divide gpus. `fits` and `memory` say the rest.",
    "`layout = Layout(tensor, 1, gpus // tensor, model.sequences // (gpus // tensor))`: return the first that `fits` and whose "
    "`memory` is at most cluster.memory. After the loop return None.",
)


# ---------------------------------------------------------------- a budget


GPUS = [2**k for k in range(3, 14)]
# Days by the quickest layout that has room, for each of GPUS; None where none has.
SMALL_DAYS = [8.34, 4.23, 2.18, 1.16, 0.64, 0.357, 0.215, 0.13, 0.087, 0.061, 0.046]  # 1e11 tokens
MIDDLE_DAYS = [None, 574, 219, 111, 57.5, 30.6, 16.8, 9.4, 5.64, 3.4, 2.28]  # 1e12 tokens
SLOW_DAYS = [None, 172, 65.8, 33.6, 17.6, 9.52, 5.23, 3.01, 1.79, 1.12, 0.784]  # 3e11 tokens, on the slow network
BUDGETS = [
    (SMALL, Cluster(), 1e11, 1.2, SMALL_DAYS),
    (MIDDLE, Cluster(), 1e12, 31.0, MIDDLE_DAYS),
    (MIDDLE, Cluster(), 1e12, 9.0, MIDDLE_DAYS),
    (MIDDLE, SLOW, 3e11, 3.0, SLOW_DAYS),
]


def budget_questions():
    for model, cluster, tokens, most, days in BUDGETS:
        yield Question(
            (model, cluster, tokens, most),
            lambda answer, most=most, days=days: _budget(answer, most, dict(zip(GPUS, days))),
            f"{model.parameters / 1e9:.0f} billion parameters, {tokens:.0e} tokens in {most:g} days, "
            f"{bytes_text(cluster.between.bandwidth)}/s between nodes",
        )


def _budget(answer, most, days):
    if not is_whole(answer) or answer not in days:
        return f"returned {answer!r}: return a power of two from 8 to 8,192."
    took, wanted = days[answer], next(gpus for gpus, took in days.items() if took is not None and took <= most)
    if answer == wanted:
        return None
    if took is None or took > most:
        return f"says {answer} GPUs, which {'have no room for it' if took is None else f'need {took:g} days'}."
    return f"says {answer} GPUs, and {wanted} are enough: they need {days[wanted]:g} days."


BUDGET_HINTS = (
    "How many steps are needed for `tokens` tokens? One step has model.tokens of them.",
    "For each number of GPUs take the best layout, by `choose`. Where none has room, go on with more GPUs.",
    "for gpus in 8, 16, 32, …: layout = choose(model, cluster, gpus); step_seconds × tokens / model.tokens / 86,400 is days.",
)


GIVEN = Cluster, Layout, Model, fits, memory, step_seconds
EXERCISES = {
    "least_tensor": Answer(room_questions, ROOM_HINTS),
    "choose": Answer(layout_questions, LAYOUT_HINTS, (Level("within the target"), Level("at the bound"))),
    "fewest_gpus": Answer(budget_questions, BUDGET_HINTS),
}
