"""Drawings of machines: ranks on nodes, links inside a node, the codes of `nvidia-smi topo -m`, memory."""

from __future__ import annotations

from itertools import groupby

from matplotlib.patches import FancyBboxPatch, Rectangle

from ringtree.draw.picture import Picture, picture
from ringtree.draw.style import INK, NARROW, canvas, figure, letters, narrow, rank_colour, styled
from ringtree.errors import UsageError
from ringtree.given import takes, whole
from ringtree.units import bytes_text

# How two devices are joined, closest first, in the colours of both the matrix and the drawing of a node.
_PATH_COLOURS = {"NV": "#4a57ee", "PIX": "#3f7d68", "PXB": "#149bea", "PHB": "#6f6572", "NODE": "#f25a0a", "SYS": "#b235b0"}


@styled
@takes(nodes=whole(), per_node=whole())
def ranks_on_nodes(nodes=2, per_node=4) -> Picture:
    """Ranks laid out on nodes with their global rank, local rank and device, and three kinds of process group.

    nodes: 1 to 4 machines; per_node: 1 to 8 ranks on each. Raises UsageError outside of that.
    """
    if not (1 <= nodes <= 4 and 1 <= per_node <= 8):
        raise UsageError(f"ranks_on_nodes() got {nodes} nodes × {per_node} ranks: it draws 1 to 4 nodes of 1 to 8 ranks")
    # Where all nodes do not fit beside each other, one stands below the other, each with its own names.
    stacked = narrow() or nodes * per_node > 8
    gap, left, right = 20, 82 if narrow() else 104, 4 if narrow() else 8
    cell = (NARROW - left - right - 12) / per_node if narrow() else 73
    node_width = cell * per_node + 12
    corners = [(left, 32 + 200 * node) if stacked else (left + node * (node_width + gap), 32) for node in range(nodes)]
    width, below = corners[-1][0] + node_width + right, corners[-1][1] + 180 if stacked else 228
    world = below if stacked else 186
    ax = canvas(width, below + 90)
    centres = {}
    for node, (x0, y0) in enumerate(corners):
        for local in range(per_node):
            centres[node * per_node + local] = x0 + 6 + cell * (local + 0.5)
        _draw_node(ax, node, per_node, x0, y0, cell)
        _band(ax, x0, x0 + node_width, y0 + 136 if stacked else below, f"the ranks of node {node}")
        if stacked or node == 0:
            for name, y in (("global rank", 38), ("local rank", 85), ("device", 109)):
                ax.text(left - 10, y0 + y, name, ha="right", va="center")
    ax.text(left - 10, world + 15, "groups", ha="right", va="center")
    _band(ax, left, width - right, world, f"the world: all {nodes * per_node} ranks")
    if nodes > 1:
        local = min(1, per_node - 1)
        chosen = [node * per_node + local for node in range(nodes)]
        places = [left + 20 + 40 * node for node in range(nodes)] if stacked else [centres[rank] for rank in chosen]
        ax.plot(places, [below + 52] * nodes, color=INK, lw=1.2)
        for rank, x in zip(chosen, places):
            ax.plot([x], [below + 52], "o", color=rank_colour(rank), ms=13)
        words, middle = f"one rank of each node: those with local rank {local}", (places[0] + places[-1]) / 2
        ax.text(left if stacked else middle, below + 65, words, ha="left" if stacked else "center", va="top")
    alt = f"{nodes} nodes with {per_node} ranks each: global ranks, local ranks, and three kinds of process group."
    return picture(ax.figure, alt)


def _draw_node(ax, node: int, per_node: int, x0: float, y0: float, cell: float) -> None:
    """A node's ranks, with their local ranks and devices."""
    _box(ax, x0, y0, cell * per_node + 12, 128, edge=INK)
    ax.text(x0 + 2, y0 - 15, f"node {node}", ha="left", va="center", weight="bold")
    side = min(62, cell - 3)
    for local in range(per_node):
        rank, x = node * per_node + local, x0 + 6 + cell * (local + 0.5)
        _box(ax, x - side / 2, y0 + 12, side, 52, fill=rank_colour(rank))
        ax.text(x, y0 + 38, str(rank), ha="center", va="center", color="white", size=letters(22), weight="bold")
        ax.text(x, y0 + 85, str(local), ha="center", va="center", size=letters(15))
        device = f"cuda:{local}" if cell > 44 else f"cuda\n:{local}"
        ax.text(x, y0 + 109, device, ha="center", va="center", size=letters(13))


@styled
def node_links() -> Picture:
    """One node with eight GPUs, its links, and four paths named as `nvidia-smi topo -m` names them."""
    column, left, half = (43, 4, 19) if narrow() else (88, 10, 37)  # half: of the width of a box
    ax = canvas(2 * left + 8 * column, 422 if narrow() else 376)
    middle = [left + column * (index + 0.5) for index in range(8)]
    # The trunk from GPU to switch to CPU runs right of the names in the boxes, the way to the network card left of it.
    trunk = [x + (13 if narrow() else 27) for x in middle]
    card, beside = (12, -7) if narrow() else (20, -18)

    _box(ax, left + 4, 14, 8 * column - 8, 36, edge=INK)
    ax.text(left + 2 * column, 32, "NVSwitch", ha="center", va="center", weight="bold")
    for index, x in enumerate(middle):
        _line(ax, (x, 50), (x, 84))
        _line(ax, (trunk[index], 124), (trunk[index], 160))
        _line(ax, (x + beside, 192), (x + beside, 216))
        _line(ax, (trunk[index], 192), (trunk[index], 272))
        _box(ax, x - half, 84, 2 * half, 40, edge=INK)
        ax.text(x, 104, f"GPU{index}", ha="center", va="center", weight="bold")
        _box(ax, x - half, 160, 2 * half, 32, edge=INK)
        ax.text(x - half + (2 if narrow() else 6), 172, "PCIe" if narrow() else "switch", va="center", size=letters(12))
        _box(ax, x - half, 216, 2 * card, 26, edge=INK)
        ax.text(x - half + card, 229, "NIC", ha="center", va="center", size=letters(12))
        _arrow(ax, x - half + card, 242, x - half + card, 261)
    for socket in (0, 1):
        x0 = left + 4 * column * socket + 7
        _box(ax, x0, 272, 4 * column - 14, 36, edge=INK)
        ax.text(x0 + 1.2 * column, 290, f"CPU {socket}", ha="center", va="center", weight="bold")
    _line(ax, (left + 4 * column - 7, 290), (left + 4 * column + 7, 290))

    to_card = [[(trunk[i], 185), (middle[i] + beside, 185), (middle[i] + beside, 216)] for i in range(8)]
    _path(ax, _PATH_COLOURS["NV"], (middle[4], 84), (middle[4], 32), (middle[6], 32), (middle[6], 84))
    _path(ax, _PATH_COLOURS["PIX"], (trunk[0], 124), *to_card[0])
    _path(ax, _PATH_COLOURS["NODE"], (trunk[1], 124), (trunk[1], 290), (trunk[2], 290), *to_card[2])
    _path(ax, _PATH_COLOURS["SYS"], (trunk[3], 124), (trunk[3], 290), (trunk[4], 290), *to_card[4])
    meanings = (
        ("NV", "NV18", "NVLink, here 18 of them"),
        ("PIX", "PIX", "one PCIe switch"),
        ("NODE", "NODE", "PCIe, and through one CPU"),
        ("SYS", "SYS", "PCIe, and from CPU to CPU"),
    )
    for place, (kind, code, meaning) in enumerate(meanings):
        x, y = (left + 8, 330 + 24 * place) if narrow() else (left + 8 + 300 * (place % 2), 332 + 26 * (place // 2))
        ax.plot([x, x + 26], [y, y], color=_PATH_COLOURS[kind], lw=5, solid_capstyle="butt")
        ax.text(x + 36, y, code, ha="left", va="center", weight="bold")
        ax.text(x + 84, y, meaning, ha="left", va="center")
    alt = "A node of eight GPUs with its switches, network cards and CPUs, and the paths called NV18, PIX, NODE and SYS."
    return picture(ax.figure, alt)


@styled
def topology_matrix(names, rows) -> Picture:
    """A `nvidia-smi topo -m` matrix, coloured by how far apart two devices are.

    names: the column headings; rows: dict from a row's name to its codes, one for each column
    (NV#, PIX, PXB, PHB, NODE, SYS, or X for the device itself).
    Raises UsageError on a row of another length, or on a code that nvidia-smi does not use.
    """
    for name, codes in rows.items():
        if len(codes) != len(names):
            raise UsageError(
                f"topology_matrix(): row {name} has {len(codes)} codes for {len(names)} columns: give one code for each column"
            )
    # On a phone, the columns in parts below each other: devices of one kind, nine at most.
    parts = [range(len(names))]
    if narrow():
        kinds = [list(group) for _, group in groupby(range(len(names)), lambda column: names[column].rstrip("0123456789"))]
        parts = [columns[first : first + 9] for columns in kinds for first in range(0, len(columns), 9)]
    left, top, cell_h = 40 if narrow() else 50, 26, 25
    cell_w = min(41, (NARROW - left - 2) / max(map(len, parts))) if narrow() else 41
    high = top + cell_h * len(rows) + 14
    ax = canvas(left + cell_w * max(map(len, parts)) + (2 if narrow() else 6), high * len(parts) - 10)
    for part, columns in enumerate(parts):
        for place, column in enumerate(columns):
            x = left + cell_w * place
            ax.text(x + cell_w / 2, high * part + 13, names[column], ha="center", va="center", size=letters(11))
            for row, (name, codes) in enumerate(rows.items()):
                _draw_code(ax, codes[column], name, x, high * part + top + cell_h * row, cell_w, cell_h)
        for row, name in enumerate(rows):
            y = high * part + top + cell_h * (row + 0.5)
            ax.text(left - 7, y, name, ha="right", va="center", size=letters(11))
    return picture(ax.figure, f"A topology matrix of {len(rows)} rows, with the nearest pairs marked.")


def _draw_code(ax, code: str, row: str, x: float, y: float, width: float, height: float) -> None:
    kind = "NV" if code.startswith("NV") else code
    at = {"x": x + width / 2, "y": y + height / 2, "ha": "center", "va": "center", "size": letters(11)}
    if kind == "X":
        ax.text(s="X", alpha=0.5, **at)
        return
    if kind not in _PATH_COLOURS:
        raise UsageError(
            f"topology_matrix(): {code!r} in row {row} is not a code of nvidia-smi topo -m: give what that command prints"
        )
    near = kind in ("NV", "PIX")
    ax.add_patch(Rectangle((x + 1, y + 1), width - 2, height - 2, fc=_PATH_COLOURS[kind], lw=0, alpha=1 if near else 0.2))
    ax.text(s=code, color="white" if near else INK, weight="bold" if near else "normal", **at)


@styled
def link_speeds(speeds) -> Picture:
    """Links by what they carry in one direction, on a logarithmic scale.

    speeds: dict from a link's name to bytes per second, one direction.
    """
    fig, ax = figure(720, 40 + 42 * len(speeds))
    names = list(speeds)
    values = [speeds[name] for name in names]
    low, high = 10 ** _floor_log10(min(values)), 3 * max(values)
    for row, value in enumerate(values):
        ax.plot([value, 2 * value], [row, row], lw=15, color=INK, alpha=0.18, solid_capstyle="butt")
        ax.plot([low, value], [row, row], lw=15, color=_PATH_COLOURS["NV"], solid_capstyle="butt")
        words, at = f"{bytes_text(value)}/s each way", {"textcoords": "offset points", "va": "center"}
        if narrow():  # the link's name and speed above its bar
            ax.annotate(f"{names[row]}: {words}", (low, row), xytext=(0, 15), **at)
        else:
            ax.annotate(words, (2 * value, row), xytext=(8, 0), **at)
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(len(names) - 0.4, -0.8 if narrow() else -0.6)
    ax.set_yticks(range(len(names)), [""] * len(names) if narrow() else names)
    ax.tick_params(axis="y", length=0)
    decades = [low * 10**power for power in range(_floor_log10(high / low) + 1)]
    ax.set_xticks(decades, [f"{bytes_text(value)}/s" for value in decades])
    ax.minorticks_off()
    ax.grid(axis="x")
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"solid: one direction; faint: both added up{chr(10) if narrow() else ' '}(logarithmic)")
    return picture(fig, "Links between GPUs by the bandwidth of one direction, on a logarithmic scale.")


@styled
def model_memory(models, capacity, device="GPU") -> Picture:
    """Draw what training keeps in memory for every model, part by part, beside the memory of one device.

    models: dict from a model's name to a dict from a part's name to bytes (the same parts in every
    model); capacity: bytes of one device, drawn as a line; device: its name.
    """
    fig, ax = figure(720, 96 + 46 * len(models))
    parts = list(next(iter(models.values())))
    for row, held in enumerate(models.values()):
        start = 0.0
        for index, part in enumerate(parts):
            # Shades of the text colour: the rank colours would say that a part belongs to a rank.
            shade = 0.8 - 0.55 * index / max(1, len(parts) - 1)
            label = part if row == 0 else None
            ax.barh(row, held[part], left=start, height=0.5, color=INK, alpha=shade, lw=0, label=label)
            start += held[part]
        ax.annotate(bytes_text(start), (start, row), xytext=(7, 0), textcoords="offset points", va="center", weight="bold")
    ax.axvline(capacity, color=INK, lw=1.5, ls=(0, (4, 3)))
    limit = f"one {device}: {bytes_text(capacity)}"
    ax.annotate(limit, (capacity, -0.62), xytext=(6, 0), textcoords="offset points", va="center")
    ax.set_ylim(len(models) - 0.5, -0.85)
    ax.set_yticks(range(len(models)), list(models))
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    largest = max(sum(held.values()) for held in models.values())
    ax.set_xlim(0, 1.12 * largest)
    ax.xaxis.set_major_formatter(lambda value, _: bytes_text(value) if value else "0")
    below = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.22)}
    ax.legend(**below, ncols=2 if narrow() else len(parts), frameon=False, handlelength=1, columnspacing=1.4)
    return picture(
        fig, f"Memory that training keeps for {len(models)} models, part by part, beside the memory of one {device}."
    )


def _box(ax, x, y, width, height, fill="none", edge="none"):
    rounded = "round,pad=0,rounding_size=7"
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=rounded, fc=fill, ec=edge, lw=1.2))


def _band(ax, x0, x1, y, text):
    _box(ax, x0, y, x1 - x0, 30, edge=INK)
    ax.text((x0 + x1) / 2, y + 15, text, ha="center", va="center")


def _line(ax, start, end):
    ax.plot([start[0], end[0]], [start[1], end[1]], color=INK, lw=1.2, solid_capstyle="butt")


def _path(ax, colour, *points):
    xs, ys = zip(*points, strict=True)
    ax.plot(xs, ys, color=colour, lw=4, solid_joinstyle="round", solid_capstyle="round")


def _arrow(ax, x0, y0, x1, y1):
    ax.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.2, "shrinkA": 0, "shrinkB": 0})


def _floor_log10(value) -> int:
    return len(str(int(value))) - 1
