"""Answers to the lab "Scale"."""

HEAD = "from ringtree.labs.exercises.scale import Layout, fits, memory, step_seconds\n"
CHOOSE = (
    HEAD
    + """
def divisors(number):
    return [each for each in range(1, number + 1) if number % each == 0]

def choose(model, cluster, gpus):
    best = None
    for tensor in divisors(gpus):
        for pipeline in divisors(gpus // tensor):
            data = gpus // tensor // pipeline
            for microbatches in divisors(model.sequences // data) if model.sequences % data == 0 else ():
                layout = Layout(tensor, pipeline, data, microbatches)
                if fits(model, layout) and memory(model, layout) <= cluster.memory:
                    seconds = step_seconds(model, layout, cluster)
                    if best is None or seconds < best[0]:
                        best = seconds, layout
    return best and best[1]
"""
)
FEWEST = (
    CHOOSE
    + """
def fewest_gpus(model, cluster, tokens, days):
    for gpus in [2**k for k in range(3, 14)]:
        layout = choose(model, cluster, gpus)
        if layout and step_seconds(model, layout, cluster) * tokens / model.tokens <= days * 86400:
            return gpus
"""
)
FIRST = (
    HEAD
    + """
def choose(model, cluster, gpus):
    for tensor in ORDER:
        for pipeline in (1, 2, 4, 8, 16, 32, 64):
            data = gpus // tensor // pipeline
            for microbatches in (1536, 768, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
                layout = Layout(tensor, pipeline, data, microbatches)
                if data and tensor * pipeline * data == gpus and fits(model, layout) and memory(model, layout) <= cluster.memory:
                    return layout
"""
)
SECOND = (
    HEAD
    + """
def divisors(number):
    return [each for each in range(1, number + 1) if number % each == 0]

def choose(model, cluster, gpus):
    found = []
    for tensor in divisors(gpus):
        for pipeline in divisors(gpus // tensor):
            for microbatches in divisors(model.sequences):
                layout = Layout(tensor, pipeline, gpus // tensor // pipeline, microbatches)
                if fits(model, layout) and memory(model, layout) <= cluster.memory:
                    found.append(layout)
    found.sort(key=lambda each: step_seconds(model, each, cluster))
    return [each for each in found if step_seconds(model, each, cluster) < 1.1 * step_seconds(model, found[0], cluster)][-1]
"""
)

ROOM = (
    HEAD
    + """
def least_tensor(model, cluster, gpus):
    for tensor in range(1, gpus + 1):
        if gpus % tensor == 0:
            data = gpus // tensor
            layout = Layout(tensor, 1, data, model.sequences // data)
            if fits(model, layout) and memory(model, layout) <= cluster.memory:
                return layout
"""
)
RIGHT = {
    "least_tensor": {
        "all of them, and the smallest": HEAD
        + """
def least_tensor(model, cluster, gpus):
    cuts = [(tensor, gpus // tensor) for tensor in range(1, gpus + 1) if gpus % tensor == 0]
    layouts = [Layout(tensor, 1, data, model.sequences // data) for tensor, data in cuts]
    room = [each for each in layouts if fits(model, each) and memory(model, each) <= cluster.memory]
    return min(room, key=lambda each: each.tensor, default=None)
""",
    },
    "choose": {
        "with numpy": "import numpy as np\n" + CHOOSE.replace("in range(1, number + 1)", "in np.arange(1, number + 1)"),
        "all of them, sorted": HEAD
        + """
import itertools
def choose(model, cluster, gpus):
    powers = [2**k for k in range(11)]
    halves = [3 * 2**k for k in range(10)]
    found = []
    for tensor, pipeline, microbatches in itertools.product(powers, powers + halves, powers + halves):
        if gpus % (tensor * pipeline) == 0:
            layout = Layout(tensor, pipeline, gpus // (tensor * pipeline), microbatches)
            if fits(model, layout) and memory(model, layout) <= cluster.memory:
                found.append(layout)
    return min(found, key=lambda each: step_seconds(model, each, cluster))
""",
    },
    "fewest_gpus": {
        "from above": CHOOSE
        + """
def fewest_gpus(model, cluster, tokens, days):
    answer = None
    for k in range(13, 2, -1):
        layout = choose(model, cluster, 2**k)
        if layout is not None and step_seconds(model, layout, cluster) * (tokens / model.tokens) / 86400 <= days:
            answer = 2**k
    return answer
"""
    },
}
WRONG = {
    "least_tensor": {
        "powers of two": (
            ROOM.replace("if gpus % tensor == 0:", "if gpus % tensor == 0 and tensor & (tensor - 1) == 0:"),
            "on 96 GPUs .*returned None: return a Layout|a tensor group of 48 GPUs has room",
        ),
        "whether there is room": (ROOM.replace(" and memory(model, layout) <= cluster.memory", ""), "it needs .* on a GPU"),
        "whether it comes out even": (
            ROOM.replace("fits(model, layout) and ", "data <= model.sequences and "),
            "does not come out even",
        ),
        "the largest": (ROOM.replace("range(1, gpus + 1)", "range(gpus, 0, -1)"), "a tensor group of 2 GPUs has room"),
        "one microbatch": (
            ROOM.replace("model.sequences // data)", "1)"),
            "returned None: return a Layout",
        ),
        "in half as many": (
            ROOM.replace("return layout", "return Layout(tensor, 1, data, max(1, layout.microbatches // 2))"),
            "a microbatch should be one sequence, and so 16 on each pipeline",
        ),
        "a pipeline": (
            ROOM.replace("Layout(tensor, 1, data,", "Layout(1, tensor, data,"),
            "pipeline should be 1, and tensor × data",
        ),
        "always something": (ROOM + "    return layout\n", "here no tensor group has room, so return None"),
        "the number alone": (ROOM.replace("return layout", "return tensor"), "return a Layout"),
        "nothing": ("def least_tensor(model, cluster, gpus):\n    pass", "returned None: return a Layout"),
    },
    "choose": {
        "a tenth slower": (SECOND, "Not yet at the bound: .* % longer than the quickest"),
        "fractions": (
            CHOOSE
            + "\nbest_of_all = choose\ndef choose(*given):\n    best = best_of_all(*given)\n    return Layout(best.tensor, best.pipeline, best.data, float(best.microbatches))",
            "give whole numbers",
        ),
        "data alone": (
            HEAD + "def choose(model, cluster, gpus):\n    return Layout(1, 1, gpus, 1)",
            "which needs .* on a GPU of 80 GB",
        ),
        "the first that fits": (
            FIRST.replace("ORDER", "(1, 2, 4, 8, 16)"),
            "Not yet within the target: .* times as long as the quickest",
        ),
        "tensor over all": (FIRST.replace("ORDER", "(64, 32, 16)"), "Not yet within the target"),
        "always eight": (FIRST.replace("ORDER", "(8,)"), "174 billion parameters on 128 GPUs of 40 GB, .*returned None"),
        "the roomiest": (
            CHOOSE.replace("seconds = step_seconds(model, layout, cluster)", "seconds = memory(model, layout)"),
            "Not yet within the target",
        ),
        "room forgotten": (CHOOSE.replace(" and memory(model, layout) <= cluster.memory", ""), "which needs"),
        "too many GPUs": (HEAD + "def choose(model, cluster, gpus):\n    return Layout(8, 8, gpus, 8)", "GPUs and not 64"),
        "another network than the one given": (
            CHOOSE.replace("layout, cluster)", "layout, type(cluster)())"),
            "12.5 GB/s between nodes: .* 2.8 % longer than the quickest",
        ),
        "GiB for GB": (CHOOSE.replace("<= cluster.memory", "<= 1.0737 * cluster.memory"), "needs 42.3 GB on a GPU of 40 GB"),
        "microbatches by twos": (
            CHOOSE.replace("divisors(model.sequences // data)", "[2**k for k in range(10)]"),
            "174 billion parameters on 1024 GPUs .* 1.19 times as long as the quickest",
        ),
        "a tuple": ("def choose(model, cluster, gpus):\n    return 8, 8, gpus // 64, 8", r"return a Layout\("),
        "uneven": (HEAD + "def choose(model, cluster, gpus):\n    return Layout(1, gpus, 1, 7)", "do not come out even"),
    },
    "fewest_gpus": {
        "the compute alone": (
            FEWEST.replace(
                "step_seconds(model, layout, cluster) *", "6 * model.parameters * model.tokens / (gpus * cluster.flops) *"
            ),
            "which need 9.4 days",
        ),
        "all there are": ("def fewest_gpus(model, cluster, tokens, days):\n    return 8192", "are enough"),
        "a step for a token": (FEWEST.replace(" / model.tokens", ""), "returned None"),
        "hours for days": (FEWEST.replace("86400", "3600"), "are enough|returned None"),
        "the first with room": (
            FEWEST.replace(
                "if layout and step_seconds(model, layout, cluster) * tokens / model.tokens <= days * 86400", "if layout"
            ),
            "which need 8.34 days",
        ),
        "another network than the one given": (
            FEWEST.replace("step_seconds(model, layout, cluster) *", "step_seconds(model, layout, type(cluster)()) *"),
            "12.5 GB/s between nodes: says 1024 GPUs, which need 3.01 days",
        ),
        "one layout for all": (
            FEWEST.replace("layout = choose(model, cluster, gpus)", "layout = Layout(8, 1, gpus // 8, 1)"),
            "says 128 GPUs, and 64 are enough: they need 1.16 days",
        ),
        "twice the GPUs, half the days": (
            CHOOSE
            + """
def fewest_gpus(model, cluster, tokens, days):
    gpus = 64
    needs = step_seconds(model, choose(model, cluster, gpus), cluster) * tokens / model.tokens / 86400
    while needs > days:
        gpus, needs = 2 * gpus, needs / 2
    return gpus
""",
            "in 9 days, .*says 1024 GPUs, which need 9.4 days",
        ),
        "no power of two": ("def fewest_gpus(model, cluster, tokens, days):\n    return 100", "return a power of two"),
    },
}
