"""What a learner may ask for: GPUs, hours, memory, a start without their own settings. The page that asks, and the check of what comes back."""

from dataclasses import dataclass
from html import escape

GPUS = (0, 1, 2, 4, 8)
HOURS = (1, 2, 4, 8, 12)
GIB = (2, 4, 8, 16, 32, 64, 128, 256, 512)
GIB_A_GPU = 4  # at least: a rank on a GPU keeps CUDA's and NCCL's own memory in the host's
OWN, CLEAN = "own", "clean"  # settings: of the learner's home, or none of them
PART = "part"  # of a GPU that the administrator has set aside for learners to share

PAGE = """
<p>What you choose is yours alone{part} until you stop your server or its time is over. Others may wait for it: take what the lab
needs, and stop the server when you are done (File, Hub Control Panel, Stop My Server).</p>
{last}<p id="now">{now}</p>
<div class="row">{fields}</div>
"""
FIELD = """
<div class="{width} mb-3"><label class="form-label fw-bold" for="{name}">{label}</label>
<select class="form-select" id="{name}" name="{name}" aria-describedby="{name}-help">{options}</select>
<div class="form-text" id="{name}-help">{help}</div></div>
"""
HELP = {
    "gpus": "The labs start four ranks, which share what you take, and also run without. If too few are free, you wait in a "
    "queue and see your place.",
    "hours": "Then your server ends, whatever it does. What was saved stays.",
    "gib": f"For notebook and ranks together: {GIB_A_GPU} at least for each GPU. If you use more, your server is stopped.",
    "settings": "If your server does not start, or your home is full: start it without your settings, open a terminal, and repair "
    "or delete what stands in the way. Your files stay.",
}
HELP_PART = "A part is for learning, not for timing: who shares a GPU may fill its memory and take its time."
WIDTH = {
    "gpus": "col-md-6",
    "hours": "col-md-3",
    "gib": "col-md-3",
    "settings": "col-md-12",
}  # of twelve columns, side by side where there is room


@dataclass(frozen=True)
class Limits:
    """The most that one learner may ask for on this server: GPUs, hours, GiB of memory.

    sharing: how many learners share a GPU that is set aside for that; 0 where none is.
    """

    gpus: int
    hours: int
    gib: int
    sharing: int = 0

    def choices(self):
        """{name: (label, its values)}, as the page shows them."""
        part = [PART] if self.sharing else []
        return {
            "gpus": ("GPUs", [0, *part, *(value for value in GPUS if 0 < value <= self.gpus)]),
            "hours": ("Hours, at most", up_to(HOURS, self.hours)),
            "gib": ("Memory (GiB)", up_to(GIB, self.gib)),
            "settings": ("Settings", [OWN, CLEAN]),
        }

    def page(self, now="", last=""):
        """The form's HTML; first in each list, and so chosen, is the least.

        now: what is free at this moment, in words. last: how the learner's last server ended, if it did by itself.
        """
        fields = []
        for name, (label, values) in self.choices().items():
            options = "".join(f'<option value="{value}">{self.spoken(name, value)}</option>' for value in values)
            told = f"{HELP[name]} {HELP_PART}" if PART in values else HELP[name]
            words = {"label": escape(label), "help": escape(told)}
            fields.append(FIELD.format(name=name, width=WIDTH[name], options=options, **words))
        part = " (a part of a GPU is shared)" if self.sharing else ""
        last = f'<p id="last" class="alert alert-warning" style="white-space: pre-line">{escape(last)}</p>\n' if last else ""
        return PAGE.format(last=last, part=part, now=escape(now), fields="".join(fields))

    def spoken(self, name, value):
        if value == PART:
            return f"a part of one, which up to {self.sharing} learners share"
        words = {("gpus", 0): "none: the ranks run on the CPU", ("settings", OWN): "your own"}
        words["settings", CLEAN] = "none of your own, to repair something"
        return words.get((name, value), str(value))

    def checked(self, asked):
        """{"gpus": …, "hours": …, "gib": …} as integers, or PART for the GPUs, and "settings": OWN or CLEAN, from a form's or a program's request.

        Raises ValueError, which the hub shows to the learner, for what this server does not offer. What a
        request leaves out is the least on offer, and what else it holds is ignored. Memory is raised to what the GPUs want,
        as far as there is so much.
        """
        chosen = {}
        for name, (label, values) in self.choices().items():
            value = asked.get(name, values[0])
            value = value[0] if isinstance(value, list) and value else value
            if str(value) not in map(str, values):
                raise ValueError(
                    f"{label}: {repr(value)[:60]} was asked for, and this server offers {', '.join(map(str, values))}."
                )
            chosen[name] = value if value in (PART, OWN, CLEAN) else int(value)
        gpus = 1 if chosen["gpus"] == PART else chosen["gpus"]
        chosen["gib"] = max(chosen["gib"], min(GIB_A_GPU * gpus, self.gib))
        return chosen


def up_to(values, most):
    """Those of `values` that are not more than `most`, and `most` itself, which an administrator has set."""
    return sorted({*(value for value in values if value < most), most})
