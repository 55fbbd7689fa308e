"""What the rows of the table of algorithms are made of: costs in closed form, and the conditions under which they are exact.

A condition is a function of (p, elements, options). A form is a function of (p, n, link, gamma, options) to seconds; its
parts are functions of (p, options).
"""

from ringtree.cost import Link
from ringtree.theory.schedules import lg

# -- when a form is exact --------------------------------------------------------------


def always(p, count, options):
    return True


def p_divides_n(p, count, options):
    return count % p == 0


def p_is_a_power_of_two(p, count, options):
    return p & (p - 1) == 0


def a_power_of_two_divides_n(p, count, options):
    return p_is_a_power_of_two(p, count, options) and count % p == 0


def root_keeps_larger_half(p, count, options):
    return count % p == 0 and (options["root"] == 0 or p_is_a_power_of_two(p, count, options))


def chunks_divide_n(p, count, options):
    return p > 1 and count % options["chunks"] == 0


# -- forms and their parts --------------------------------------------------------------


def form_of(rounds, moved, reduced=lambda p, o: 0):
    """rounds·α + moved·nβ + reduced·nγ, all three functions of (p, options)."""

    def form(p, n, link, gamma, options):
        return rounds(p, options) * link.alpha + n * (moved(p, options) * link.beta + reduced(p, options) * gamma)

    return form


def direct_form(shots, moved, reduced=lambda p, o: 0):
    """Messages to all others at once, shots times: α, and the gaps between them."""

    def form(p, n, link, gamma, options):
        gaps = shots * (max(0, p - 2) * link.gap + (p > 1) * link.alpha)
        return gaps + n * (moved(p, options) * link.beta + reduced(p, options) * gamma)

    return form


def ahead_form(p, n, link, gamma, options):
    """A chain whose chunks follow each other by g + n/k·β."""
    k = options["chunks"]
    return (p - 1) * link.time(n / k) + (k - 1) * link.busy(n / k)


def ahead_reduce_form(p, n, link, gamma, options):
    """The same where every rank reduces a chunk before it passes it on."""
    k = options["chunks"]
    reducing = n / k * gamma
    return (p - 1) * (link.time(n / k) + reducing) + (k - 1) * max(link.busy(n / k), reducing)


def part(p, o):
    return (p - 1) / p


def twice_part(p, o):
    return 2 * (p - 1) / p


def others(p, o):
    return p - 1


def doublings(p, o):
    return lg(p)


def steps_of_chain(p, o):
    return p - 2 + o["chunks"]


def chunks_of_chain(p, o):
    return (p - 2 + o["chunks"]) / o["chunks"]


def floor_lg(p):
    return p.bit_length() - 1


def folds(p):
    return p & (p - 1) > 0


def power_part(p):
    return 1 - 1 / (1 << floor_lg(p))


def powers_of_two_and_p_divides_n(p, count, options):
    r = options["ranks_per_node"]
    return p % r == 0 and p_is_a_power_of_two(r, count, options) and a_power_of_two_divides_n(p, count, options)


def a_power_of_two_of_nodes(p, count, options):
    r = options["ranks_per_node"]
    return p % r == 0 and p_is_a_power_of_two(p // r, count, options)


def links(machine):
    """Inside a node and between nodes."""
    return (machine, machine) if isinstance(machine, Link) else (machine.inside, machine.between or machine.inside)


def two_level_form(inside, across):
    """inside: the form of what the vector takes inside a node; across: of what every chunk takes between nodes."""

    def form(p, n, machine, gamma, options):
        r, (near, far) = options["ranks_per_node"], links(machine)
        return inside(r, n, near, gamma, options) + across(p // r, n / r, far, gamma, options)

    return form


def on_two_levels(each):
    """The same form inside a node and between nodes."""
    return two_level_form(each, each)


def node_leader_form(p, n, machine, gamma, options):
    """A scatter, or a gather: whole nodes' shards between nodes, and the shards of one inside."""
    r, (inside, between) = options["ranks_per_node"], links(machine)
    direct = direct_form(1, part)
    return direct(p // r, n, between, gamma, options) + direct(r, n * r / p, inside, gamma, options)


def leader_form(p, n, machine, gamma, options):
    r, (inside, between) = options["ranks_per_node"], links(machine)
    return lg(r) * (2 * inside.time(n) + n * gamma) + lg(p // r) * (between.time(n) + n * gamma)


def hierarchical_form(p, n, machine, gamma, options):
    r, (inside, between) = options["ranks_per_node"], links(machine)
    return 2 * (r - 1) * inside.time(n / r) + 2 * (p // r - 1) * between.time(n / p) + (p - 1) / p * n * gamma
