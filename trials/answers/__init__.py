"""Answers to the labs' exercises, right and wrong; and ways to spoil a right one in one point.

Each takes the text of an answer and the name of its function, and gives a text in which that function does something more.
"""

AROUND = """
def {name}(*given, **options):
    answer = {name}_itself(*given, **options)
    dist, rank, size = given[-1], given[-1].get_rank(), given[-1].get_world_size()
{more}
    return answer
"""


def _around(text, name, more):
    return text.replace(f"def {name}(", f"def {name}_itself(") + AROUND.format(name=name, more=more)


def writing_on_what_it_was_given(text, name):
    """It adds 1 to the first number that it was given, when its answer is done."""
    more = """
    answer = answer.clone() if isinstance(answer, torch.Tensor) else [each.clone() for each in answer]
    tensor = given[0][0] if isinstance(given[0], list) else given[0]
    tensor.view(-1)[:1] += 1"""
    return _around(text, name, more)


def with_a_barrier(text, name):
    """It calls a collective that does none of its work."""
    return _around(text, name, "    dist.barrier()")


def idling(text, name, rounds, where="size > 1", right="(rank + 1) % size", left="(rank - 1) % size"):
    """It sends empty messages to the right: rounds that move nothing."""
    more = f"""
    for _ in range({rounds}) if {where} else ():
        batch = [dist.P2POp(dist.isend, torch.empty(0), {right}), dist.P2POp(dist.irecv, torch.empty(0), {left})]
        for work in dist.batch_isend_irecv(batch):
            work.wait()"""
    return _around(text, name, more)


BOARD = """
board = {}

def put(value, dist):
    rank, size = dist.get_rank(), dist.get_world_size()
    board[rank] = value
    for _ in range(size - 1):
        batch = [dist.P2POp(dist.isend, torch.empty(0), (rank + 1) % size), dist.P2POp(dist.irecv, torch.empty(0), (rank - 1) % size)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
    return [board[each] for each in range(size)]
"""


def on_a_board(name, signature, expression):
    """Ranks put what they have where all can see it, since in the simulator all are one process; their messages are empty."""
    return f"{BOARD}\ndef {name}({signature}, dist):\n    return {expression}"
