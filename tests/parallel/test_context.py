"""Context parallel: equal to one process in all its ways; the sketch's calls are the hand form's; work, bytes and memory counted."""

from functools import cache, partial

import pytest
import torch
from helpers.processes import shared
from torch.nn import functional as F

from ringtree import Link, data, simulate, traced
from ringtree.parallel import around_attention as around
from ringtree.parallel import context as by_hand
from ringtree.parallel import counting, tensor_parallel
from ringtree.parallel import model as M
from ringtree.simulated import sketches

LINK = Link(10e-6, 1e-9)
WIDTH, ROWS = 8, 2
WAYS = "contiguous", "zigzag", "striped"
GRIDS = [(2, 1), (3, 1), (1, 2), (1, 3), (2, 2), (3, 2), (2, 3)]  # ring × heads


def case(length, heads, key_heads, dtype=torch.float64):
    """Queries, keys, values and the gradient of the result, of the whole sequence."""
    dice = torch.Generator().manual_seed(length)
    counts = heads, key_heads, key_heads, heads
    return tuple(torch.randn(ROWS, count, length, WIDTH, generator=dice, dtype=dtype) for count in counts)


def alone(given, mask):
    """The result and three gradients of one process, by torch's own attention."""
    q, k, v, gradient = given
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, attn_mask=mask, enable_gqa=True)
    out.backward(gradient)
    return [out.detach(), *(each.grad for each in leaves)]


def groups_of(cut, dist):
    """The groups of the two axes, for `Way`s that have both."""
    grid = torch.arange(cut.ring * cut.heads).view(cut.ring, cut.heads)
    if min(grid.shape) == 1:
        return None, None
    made = [[(side, dist.new_group(side)) for side in sides.tolist()] for sides in (grid.T, grid)]
    return [next(group for side, group in groups if dist.get_rank() in side) for groups in made]


def attend_by(cut, dist, gathered=False):
    """attend(q, k, v) of this rank, and the positions that it holds."""
    ring, heads = groups_of(cut, dist)
    i, j = divmod(dist.get_rank(), cut.heads)
    attend = partial(by_hand.attention, cut=cut, dist=dist, group=ring)
    if gathered:
        whole = partial(by_hand.attend, cut=cut, mine=cut.pieces[i], stops=[sum(cut.pieces, [])], move=lambda pairs: list)
        lengths = [sum(map(len, each)) for each in cut.pieces]
        attend = partial(around.with_all_keys, whole, lengths=lengths, dist=dist, group=ring)
    if cut.heads > 1:
        lengths = [len(cut.held(i, other)) for other in range(cut.heads)]
        attend = partial(around.by_heads, attend, lengths=lengths, dist=dist, group=heads)
    return attend, cut.held(i, j)


def there_and_back(q, k, v, gradient, dist, cut, gathered=False):
    """This rank's positions, and its part of the result and of the three gradients."""
    attend, held = attend_by(cut, dist, gathered)
    leaves = [each[:, :, held].clone().requires_grad_() for each in (q, k, v)]
    out = attend(*leaves)
    out.backward(gradient[:, :, held])
    return held, [out.detach(), *(each.grad for each in leaves)]


def most_off(found, wanted):
    """The largest difference of any rank's part from one process."""
    return max(
        (part - whole[:, :, held]).abs().max().item()
        for held, parts in found
        for part, whole in zip(parts, wanted, strict=True)
    )


def documents_of(length):
    """No documents; packed ones; and some that come again."""
    places = torch.arange(length)
    return None, places // 5, places * 7 % 11 // 4


@pytest.mark.parametrize("size", range(1, 7))
@pytest.mark.parametrize("way", WAYS)
def test_the_ring_and_gathered_keys_are_one_process(size, way):
    """Causal and not, packed, with fewer key heads, lengths that p divides and that it does not; by NCCL's strict rules."""
    for length in {12, 23, size}:
        for causal, documents, heads in (True, 0, 4), (False, 0, 4), (True, 1, 2), (False, 1, 2), (True, 2, 2):
            cut = by_hand.Cut(length, size, way=way, causal=causal, documents=documents_of(length)[documents])
            given = case(length, heads, 2)
            wanted = alone(given, cut.mask(torch.arange(length), torch.arange(length)))
            for gathered in False, True:
                program = partial(there_and_back, cut=cut, gathered=gathered)
                run = simulate(program, [given] * size, LINK, rules="nccl", autograd=True)
                assert most_off(run.outputs, wanted) < 1e-12, (length, causal, documents, gathered)


@pytest.mark.parametrize("ring, heads", [(ring, heads) for ring, heads in GRIDS if heads > 1])
def test_heads_alone_and_with_a_ring_are_one_process(ring, heads):
    for way in WAYS:
        for length, gathered in (24, False), (25, False), (25, True):
            cut = by_hand.Cut(length, ring, heads, way, documents=documents_of(length)[1])
            given = case(length, 12, 6)
            wanted = alone(given, cut.mask(torch.arange(length), torch.arange(length)))
            program = partial(there_and_back, cut=cut, gathered=gathered and ring > 1)
            run = simulate(program, [given] * (ring * heads), LINK, rules="nccl", autograd=True)
            assert most_off(run.outputs, wanted) < 1e-12, (way, length)


@pytest.mark.parametrize("way", WAYS)
def test_every_position_is_on_one_rank(way):
    for ring, heads, length in (1, 1, 1), (4, 1, 64), (3, 2, 25), (5, 1, 5), (4, 3, 12):
        cut = by_hand.Cut(length, ring, heads, way)
        held = [cut.held(i, j) for i in range(ring) for j in range(heads)]
        assert torch.cat(held).sort().values.tolist() == list(range(length))
        assert min(map(len, held)) >= 1


def test_a_block_is_skipped_where_nothing_is_seen_and_has_no_mask_where_all_is():
    """As the mask itself says, element by element."""
    for way in WAYS:
        for documents in documents_of(23):
            cut = by_hand.Cut(23, 4, way=way, documents=documents)
            for mine in cut.pieces:
                for theirs in cut.pieces:
                    found = {(rows.start, columns.start): mask for rows, columns, mask in cut.blocks(mine, theirs)}
                    for rows, queries in by_hand.slices(mine):
                        for columns, keys in by_hand.slices(theirs):
                            mask = cut.mask(queries, keys)
                            place = rows.start, columns.start
                            assert (place in found) == mask.any().item()
                            if place in found:
                                assert (found[place] is None) == mask.all().item()


# ---------------------------------------------------------------- balance


def parts_of(way, blocks, size=4, length=64):
    work = [sum(each) for each in sketches.context.scores_of(by_hand.Cut(length, size, way=way), blocks)]
    return [round(each * size / sum(work), 2) for each in work]


def test_work_over_the_mean():
    assert parts_of("contiguous", False) == [0.26, 0.75, 1.25, 1.74]
    assert parts_of("contiguous", True) == [0.4, 0.8, 1.2, 1.6]
    assert parts_of("zigzag", False) == parts_of("zigzag", True) == [1.0] * 4
    assert parts_of("striped", False) == [0.95, 0.98, 1.02, 1.05]


def test_scores_are_those_that_the_mask_leaves():
    for way in WAYS:
        for causal in True, False:
            for documents in documents_of(23):
                cut = by_hand.Cut(23, 4, way=way, causal=causal, documents=documents)
                for i, row in enumerate(sketches.context.scores_of(cut)):
                    seen = [cut.mask(cut.held(i), cut.held(j)).sum().item() for j in range(4)]
                    assert list(row) == seen


# ---------------------------------------------------------------- live, and its sketch


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    return shared(request.param)


def live(dist, length, way, heads, gathered, dtype):
    """What `there_and_back` finds on this rank, the messages and the calls, and the bytes kept for the backward pass."""
    torch.set_num_threads(1)
    size = dist.get_world_size()
    cut = by_hand.Cut(length, 1 if heads else size, size if heads else 1, way)
    noted, given = traced(dist), case(length, 12, 6, dtype)
    found = there_and_back(*given, noted, cut, gathered)
    notes = sent_of(noted.notes.messages), calls_of(noted.notes.calls)
    attend, held = attend_by(cut, dist, gathered)
    leaves = [each[:, :, held].clone().requires_grad_() for each in given[:3]]
    return found, notes, counting.kept_for_backward(torch.nn.Module(), lambda: attend(*(1 * each for each in leaves)).sum())


def sent_of(messages):
    return [(each.sends, each.dst if each.sends else each.src, each.nbytes) for each in messages]


def calls_of(calls):
    return [(each.operation, each.nbytes, each.group) for each in calls]


TECHNIQUES = {"ring": (False, False), "gather": (False, True), "heads": (True, False)}


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("way", WAYS)
def test_live_ranks_are_one_process_too(ranks, technique, way):
    found = ranks.call(live, 25, way, *TECHNIQUES[technique], torch.float64)
    given = case(25, 12, 6)
    assert most_off([each for each, *_ in found], alone(given, torch.ones(25, 25, dtype=torch.bool).tril())) < 1e-12


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_sketch_calls_what_the_hand_form_calls_and_keeps_what_it_keeps(ranks, technique, dtype):
    """Messages with peers and bytes, collectives with bytes and group, in the order of each rank's calls."""
    heads, gathered = TECHNIQUES[technique]
    for length in 24, 25:
        found = ranks.call(live, length, "zigzag", heads, gathered, dtype)
        size = len(found)
        cut = by_hand.Cut(length, 1 if heads else size, size if heads else 1)
        layer = sketches.context.Attention.of(cut, 12, 6, WIDTH, rows=ROWS, dtype=dtype)
        for rank, (messages, calls) in enumerate(sketched(layer, size, gathered=gathered)):
            _, live_notes, kept = found[rank]
            assert (messages, calls) == live_notes
            assert layer.kept(0 if heads else rank, gathered) == kept


def sketched(layer, size, **options):
    """By rank, the messages and the calls of a `step`, as a traced rank notes them."""

    def program(dist):
        noted = traced(dist)
        sketches.context.step(layer, noted, **options)
        return sent_of(noted.notes.messages), calls_of(noted.notes.calls)

    return simulate(program, [()] * size, LINK).outputs


@pytest.mark.parametrize("ring, heads", GRIDS)
@pytest.mark.parametrize("length", [24, 25])
def test_the_sketch_on_two_axes_calls_the_same(ring, heads, length):
    """Simulated both, since a sketch and tensors go the same ways there."""

    def program(*given):
        noted = traced(given[-1])
        there_and_back(*given[:-1], noted, cut)
        return sent_of(noted.notes.messages), calls_of(noted.notes.calls)

    cut = by_hand.Cut(length, ring, heads)
    size = ring * heads
    found = simulate(program, [case(length, 12, 6)] * size, LINK, autograd=True).outputs
    layer = sketches.context.Attention.of(cut, 12, 6, WIDTH, rows=ROWS, dtype=torch.float64)

    def sketch(dist):
        noted = traced(dist)
        sketches.context.on_axes(layer, sketches.context.Way(ring, heads), True, noted)
        return sent_of(noted.notes.messages), calls_of(noted.notes.calls)

    assert simulate(sketch, [()] * size, LINK).outputs == found


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_bytes_and_messages_are_the_formulas(size):
    """n: a rank's keys and values; q: its queries. In 16 bits the ring's gradients are twice as long."""
    length, heads, key_heads = 24 * size, 24, 12
    n, q = (2 * ROWS * count * 24 * WIDTH for count in (2 * key_heads, heads))
    sums = {
        "ring": 2 * (size - 1) * n + size * 2 * n,
        "gather": 2 * (size - 1) * n,
        "heads": (size - 1) / size * 2 * (2 * q + n),
    }
    for technique, expected in sums.items():
        by_heads, gathered = TECHNIQUES[technique]
        cut = by_hand.Cut(length, 1 if by_heads else size, size if by_heads else 1)
        layer = sketches.context.Attention.of(cut, heads, key_heads, WIDTH, rows=ROWS)
        program = partial(sketches.context.step, layer, gathered=gathered)
        trace = simulate(lambda dist: program(dist), [()] * size, LINK).trace
        assert trace.bytes_sent == [expected] * size
        if technique == "ring":
            assert len(trace) == size * (3 * size - 2)  # p−1 hops forward, and p−1 and p back
        else:
            assert len([call for call in trace.calls if call.rank == 0]) == (2 if gathered else 8)


def close_to_one_process(dist):
    size = dist.get_world_size()
    cut, given = by_hand.Cut(48, size), case(48, 4, 2, torch.bfloat16)
    return there_and_back(*given, dist, cut)


def test_in_16_bits_it_is_as_close_as_torch():
    wanted = alone([each.double() for each in case(48, 4, 2, torch.bfloat16)], torch.ones(48, 48, dtype=torch.bool).tril())
    of_torch = alone(case(48, 4, 2, torch.bfloat16), torch.ones(48, 48, dtype=torch.bool).tril())
    most = [(one - exact).abs().max().item() for one, exact in zip(of_torch, wanted)]
    for held, parts in shared(3).call(close_to_one_process):
        for part, exact, bound in zip(parts, wanted, most):
            assert part.dtype == torch.bfloat16
            assert (part - exact[:, :, held]).abs().max() <= 1.5 * bound


# ---------------------------------------------------------------- training, alone and on 2 × 2


LAYERS, HEADS, NET_WIDTH, CONTEXT, STEPS = 2, 4, 32, 26, 3


@cache
def text():
    return M.tokens_of(data.prose())


def new_model():
    tokens, symbols = text()
    return M.seeded(lambda: M.GPT(len(symbols), LAYERS, NET_WIDTH, HEADS, CONTEXT)).double()


def trained(net, loss_of, after=lambda: None):
    """Losses of some steps, and the gradients of the last by name."""
    losses, optimizer = [], torch.optim.AdamW(net.parameters(), lr=3e-3)
    for batch in M.batches(text()[0], STEPS, 4, CONTEXT):
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        after()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: each.grad for name, each in net.named_parameters()}


@cache
def trained_alone():
    net = new_model()
    return trained(net, partial(M.loss_of, net))


def trained_on(dist, ring, heads, way="zigzag", gathered=False, forgets=False):
    torch.set_num_threads(1)
    cut = by_hand.Cut(CONTEXT, ring, heads, way)
    attend, held = attend_by(cut, dist, gathered)
    net = around.share(new_model(), attend, held)
    after = (lambda: None) if forgets else partial(around.add_up, net, dist)
    losses, gradients = trained(net, lambda batch: around.loss_of(net, batch, held), after)
    losses = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(losses)
    return losses.tolist(), gradients


def assert_equal(found, name=lambda name, whole: whole):
    losses, gradients = trained_alone()
    for mine, of_mine in found:
        assert mine == pytest.approx(losses, abs=1e-12, rel=0)
        assert of_mine.keys() == gradients.keys()
        for key, whole in gradients.items():
            torch.testing.assert_close(of_mine[key], name(key, whole), rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("gathered", [False, True])
def test_a_model_trains_as_in_one_process(ranks, way, gathered):
    size = len(ranks.call(size_of))
    assert_equal(ranks.call(trained_on, size, 1, way, gathered))


def size_of(dist):
    return [None] * dist.get_world_size()


def test_a_model_trains_on_ring_times_heads():
    assert_equal(shared(4).call(trained_on, 2, 2))


def test_without_the_sum_of_gradients_the_replicas_part():
    losses, _ = trained_alone()
    for mine, _ in shared(2).call(trained_on, 2, 1, "zigzag", False, True):
        assert mine[0] == pytest.approx(losses[0], abs=1e-12)
        assert abs(mine[-1] - losses[-1]) > 1e-3


def data_by_context(dist):
    """Two data ranks, each a ring of two: sums over the ring, then the mean over the data ranks."""
    torch.set_num_threads(1)
    row, i = divmod(dist.get_rank(), 2)
    rings = [dist.new_group(side) for side in ([0, 1], [2, 3])]
    replicas = [dist.new_group(side) for side in ([0, 2], [1, 3])]
    cut = by_hand.Cut(CONTEXT, 2)
    held = cut.held(i)
    net = around.share(new_model(), partial(by_hand.attention, cut=cut, dist=dist, group=rings[row]), held)

    def after():
        around.add_up(net, dist, rings[row])
        around.add_up(net, dist, replicas[i])
        for each in net.parameters():
            each.grad /= 2

    losses, gradients = trained(net, lambda batch: around.loss_of(net, batch.chunk(2)[row], held), after)
    losses = torch.tensor(losses, dtype=torch.float64) / 2
    dist.all_reduce(losses)
    return losses.tolist(), gradients


def tensor_by_context(dist):
    """Two ranks share the matrices, and each is one of a ring of two: sums over the ring alone."""
    torch.set_num_threads(1)
    i, place = divmod(dist.get_rank(), 2)
    tensors = [dist.new_group(side) for side in ([0, 1], [2, 3])]
    rings = [dist.new_group(side) for side in ([0, 2], [1, 3])]
    cut = by_hand.Cut(CONTEXT, 2)
    held = cut.held(i)
    net = tensor_parallel.share(new_model(), dist, tensors[i])
    around.share(net, partial(by_hand.attention, cut=cut, dist=dist, group=rings[place]), held)
    after = partial(around.add_up, net, dist, rings[place])
    losses, gradients = trained(net, lambda batch: around.loss_of(net, batch, held), after)
    losses = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(losses, group=rings[place])
    return losses.tolist(), gradients


def test_data_times_context_is_one_process_too():
    assert_equal(shared(4).call(data_by_context))


def test_tensor_times_context_is_one_process_too():
    found = shared(4).call(tensor_by_context)
    for place in 0, 1:

        def share_of(name, whole, place=place):
            if "qkv" in name:
                return whole.unflatten(0, (3, 2, -1))[:, place].flatten(0, 1)
            if "feed_forward.up" in name:
                return whole.chunk(2)[place]
            return whole.chunk(2, 1)[place] if name.endswith(("attention.out.weight", "down.weight")) else whole

        assert_equal(found[place::2], share_of)


# ---------------------------------------------------------------- what is refused, and the table of techniques


def test_what_cannot_be_cut_is_told():
    with pytest.raises(ValueError, match="^3 positions for 4 ranks: give each rank one$"):
        by_hand.Cut(3, 2, 2)
    with pytest.raises(ValueError, match="^4 documents: give one for each of 5 positions$"):
        by_hand.Cut(5, 2, documents=[0, 0, 1, 1])
    with pytest.raises(ValueError, match="^no way 'stripes' to cut: give contiguous, zigzag or striped$"):
        by_hand.Cut(5, 2, way="stripes")
    given = case(24, 12, 6)
    with pytest.raises(ValueError, match="^a Cut for 2 ranks on a ring of 3: give a Cut for 3"):
        simulate(partial(there_and_back, cut=by_hand.Cut(24, 2)), [given] * 3, LINK, autograd=True)
    with pytest.raises(ValueError, match="^6 key heads cannot be shared by 4 ranks: give a divisor"):
        simulate(partial(there_and_back, cut=by_hand.Cut(24, 1, 4)), [given] * 4, LINK, autograd=True)


def test_the_race_takes_every_technique_or_says_why_not():
    cut = partial(by_hand.Cut, 256)
    for size, heads, key_heads in (8, 32, 8), (8, 16, 4), (6, 12, 4):
        times, left_out = sketches.context.race(size, LINK, cut, heads, key_heads, 16, rate=1e12)
        every = set(sketches.context.ways(size))
        assert times.keys() | left_out.keys() == every and not times.keys() & left_out.keys()
        assert {way for way in every if key_heads % way.heads} == left_out.keys()
        assert list(times.values()) == sorted(times.values())
    kept = {str(way) for way in sketches.context.race(4, LINK, cut, 4, 4, 16, most=60_000)[1]}
    assert kept == {"gather 4"}
