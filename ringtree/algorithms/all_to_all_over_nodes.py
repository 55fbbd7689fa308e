"""All-to-all over nodes: blocks are put together inside a node, and cross to another in few messages.

`inputs[j]` is what this rank has for rank j; into `outputs[i]` comes what rank i has for this one;
all ranks' blocks for one rank have one length. Each function is a whole rank program, and every node
has `ranks_per_node` ranks. `dist` is `torch.distributed`, or anything that speaks like it. Costs are
for n bytes, all blocks of a rank together, on N nodes of r ranks over links of α + nβ with gaps of g.
"""

import torch


def two_level_direct_all_to_all(outputs, inputs, dist, ranks_per_node=8):
    """Each rank sends to every other one of its node the blocks for that one's place in all nodes, in
    one message. Then the ranks at one place send each other what their nodes have for them.

    Before: every rank has its `inputs`. After: it has its `outputs`. Cost: α + (r−2)g + (r−1)/r·nβ
    inside a node and α + (N−2)g + (N−1)/N·nβ between nodes. Source: NCCL 2.12, which puts the messages
    of a node together in this way (PXN).
    """
    node, rail = _levels(dist, ranks_per_node)
    r, mine = ranks_per_node, len(inputs[dist.get_rank()])
    columns = [torch.cat(inputs[place::r]) for place in range(r)]
    came = _to_each(dist, node, columns, inputs[0], [len(columns[node.index(dist.get_rank())])] * r)
    lengths = [len(inputs[other]) for other in rail]
    by_node = [torch.cat(blocks) for blocks in zip(*(column.split(lengths) for column in came))]
    came = _to_each(dist, rail, by_node, inputs[0], [r * mine] * len(rail))
    for first, blocks in zip(range(0, len(outputs), r), came):
        for output, block in zip(outputs[first : first + r], blocks.split([mine] * r)):
            output.copy_(block)


def node_leaders_all_to_all(outputs, inputs, dist, ranks_per_node=8):
    """The ranks of a node share out the other nodes. Each is given its node's blocks for the nodes
    that are its own, and swaps them in one message each way. Then it passes on inside its node what
    has come to it.

    Before: every rank has its `inputs`. After: it has its `outputs`. Cost: no closed form; where
    N = r + 1, 2(α + (r−2)g) + (2r+1)(r−1)·n/p·β inside a node and α + r²·n/p·β between nodes.
    Source: the leaders are those of `node_leader_all_reduce`, here all ranks of a node.
    """
    node, rail = _levels(dist, ranks_per_node)
    rank, r, nodes = dist.get_rank(), ranks_per_node, len(rail)
    place, home, mine = node.index(rank), rail.index(rank), len(inputs[rank])
    blocks = [inputs[first : first + r] for first in range(0, len(inputs), r)]  # by node
    far = [range(i + 1, nodes, r) for i in range(r)]  # how far away the nodes of each leader are
    led = [[(home + away) % nodes for away in aways] for aways in far]
    heard = [[(home - away) % nodes for away in aways] for aways in far]

    parts = []
    for other, goals in zip(node, led):
        parts.append(torch.cat([inputs[other], *(each for goal in goals for each in blocks[goal])]))
    came = _to_each(dist, node, parts, inputs[0], [len(parts[place])] * r)
    lengths = [mine, *(sum(map(len, blocks[goal])) for goal in led[place])]
    ours, *leaving = zip(*(part.split(lengths) for part in came))
    for source, block in zip(node, ours):
        outputs[source].copy_(block)

    batch, arrived = [], []
    for goal, source, pieces in zip(led[place], heard[place], leaving):
        arrived.append(inputs[rank].new_empty(r * sum(map(len, blocks[home]))))
        batch.append(dist.P2POp(dist.isend, torch.cat(pieces), rail[goal]))
        batch.append(dist.P2POp(dist.irecv, arrived[-1], rail[source]))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()

    lengths = [len(each) for each in blocks[home]] * r  # of each rank there, its blocks for ours
    cut = [each.split(lengths) for each in arrived]
    parts = [torch.cat([b for each in cut for b in each[i::r]]) if cut else None for i in range(r)]
    came = _to_each(
        dist, node, parts, inputs[0], [len(each) * r * mine if each else None for each in heard]
    )
    for sources, part in zip(heard, came):
        ranks = [first * r + i for first in sources for i in range(r)]
        for source, block in zip(ranks, part.split([mine] * len(ranks)) if ranks else ()):
            outputs[source].copy_(block)


# -- what they are made of -------------------------------------------------------


def _levels(dist, ranks_per_node):
    """The ranks of this rank's node, and its rail: the ranks at its place in every node."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if ranks_per_node < 1 or size % ranks_per_node:
        raise ValueError(
            f"{size} ranks do not make whole nodes of {ranks_per_node}: "
            "give a ranks_per_node that divides them"
        )
    place = rank % ranks_per_node
    node = range(rank - place, rank - place + ranks_per_node)
    return node, range(place, size, ranks_per_node)


def _to_each(dist, ranks, parts, like, lengths):
    """Send each of `ranks` its part, all at once, and return what each sends, of these lengths and the
    type of `like`. A part that is None is not sent, and where a length is None nothing comes."""
    at, size, batch, came = ranks.index(dist.get_rank()), len(ranks), [], list(parts)
    for step in range(1, size):
        to, source = (at + step) % size, (at - step) % size
        came[source] = None if lengths[source] is None else like.new_empty(lengths[source])
        if parts[to] is not None:
            batch.append(dist.P2POp(dist.isend, parts[to], ranks[to]))
        if lengths[source] is not None:
            batch.append(dist.P2POp(dist.irecv, came[source], ranks[source]))
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
    return came
