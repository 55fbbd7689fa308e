"""When training hangs: the fault and its mend, what the recorder tells, and a training that outlives a rank."""

import contextlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import record_hangs
import torch
from helpers.one_process import losses_of_the_script
from helpers.processes import forks, shared

from ringtree import Link, ProgramError, data, simulate, traced
from ringtree.errors import UsageError
from ringtree.measure import flight_recorder as recorder
from ringtree.parallel import checkpoint, data_parallel, uneven
from ringtree.parallel import model as M
from ringtree.simulated import sketches

NBYTES = 40_000
SCRIPT = Path(__file__).resolve().parents[2] / "notebooks" / "scripts" / "restarted_training.py"


@pytest.fixture(scope="module", params=[2, 3, 4])
def ranks(request):
    return shared(request.param)


def new_model(dtype=torch.float64):
    tokens, symbols = M.tokens_of(data.prose())
    return tokens, M.seeded(lambda: M.GPT(len(symbols), layers=2, width=32, heads=2)).to(dtype)


def rows_of(size, step):
    """How many rows each rank has in this step: now one rank has none, now another, and seldom all the same."""
    return [(rank + step) % size for rank in range(size)]


def trained(dist, way, dtype=torch.float64, steps=4):
    """The losses of a rank, and its calls."""
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, net = new_model(dtype)
    noted = traced(dist)
    parts = [batch.split(rows_of(size, step))[rank] for step, batch in enumerate(batches_of(tokens, size, steps))]
    average = partial(data_parallel.average_buckets, net, noted, NBYTES)
    losses = list(way(net, parts, M.loss_of, average, noted))
    return losses, [(call.operation, call.nbytes, call.group) for call in noted.notes.calls], net.head.weight.detach()


def batches_of(tokens, size, steps):
    return M.batches(tokens, steps, sum(range(size)))


def alone(size, steps=4):
    tokens, net = new_model()
    losses = []
    for step, rows in enumerate(batches_of(tokens, size, steps), 1):
        loss = M.loss_of(net, rows)
        loss.backward()
        uneven.descend(net, 0.2 / step)
        losses.append(loss.item())
    return losses, net.head.weight.detach()


def test_together_trains_as_one_process_whoever_has_no_rows(ranks):
    found = ranks.call(trained, uneven.together)
    wanted, weight = alone(len(found))
    mean = [sum(losses) / len(found) for losses in zip(*(losses for losses, _, _ in found))]
    assert mean == pytest.approx(wanted, abs=1e-12, rel=0)
    for _, _, mine in found:
        torch.testing.assert_close(mine, weight, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_sketch_of_together_calls_what_the_hand_form_calls(size):
    live = shared(size).call(trained, uneven.together, torch.float32)
    has_rows = [[rows_of(size, step)[rank] > 0 for step in range(4)] for rank in range(size)]
    layers = sketches.layers_of(new_model(torch.float32)[1])
    run = simulate(partial(sketches.uneven.together, has_rows=has_rows, nbytes=NBYTES), [layers] * size, Link(1e-6, 1e-9))
    for rank, (_, calls, _) in enumerate(live):
        sketched = [(call.operation, call.nbytes, call.group) for call in run.trace.calls if call.rank == rank]
        assert sketched == [*calls, ("barrier", 0, tuple(range(size)))]  # which `traced` does not note
        assert sum(nbytes for _, nbytes, _ in calls) == 4 * (sum(layer.nbytes for layer in layers) + 4)


@pytest.mark.parametrize("size", [2, 3, 4, 16, 64])
def test_one_skipped_step_hangs_at_the_end_and_one_each_does_not(size):
    layers = sketches.layers_of(new_model(torch.float32)[1])
    each_step = len(sketches.data_parallel.buckets_of(layers, NBYTES))

    def run(skipped):
        has_rows = [[step != skipped.get(rank) for step in range(4)] for rank in range(size)]
        way = partial(sketches.uneven.skipping, has_rows=has_rows, nbytes=NBYTES)
        return simulate(way, [layers] * size, Link(1e-6, 1e-9), trace=False)

    with pytest.raises(ProgramError, match=f"collective {3 * each_step + 1} of the group is .*barrier"):
        run({1: 1})
    run({rank: rank % 4 for rank in range(size)})


# ---------------------------------------------------------------- a job that hangs, and its record


def stuck(dist, folder):
    """Rank 1 skips its second step. Each rank writes its record while it hangs, and gives up after ten seconds."""
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=10))

    class Job:
        """Speaks like torch.distributed, in that group."""

        barrier = staticmethod(partial(dist.barrier, group=group))
        get_world_size = staticmethod(dist.get_world_size)

    def write():
        while not over.wait(0.2):
            path = os.path.join(folder, f"rank{rank}")
            Path(f"{path}~").write_bytes(torch._C._distributed_c10d._dump_fr_trace())
            os.replace(f"{path}~", path)

    tokens, net = new_model(torch.float32)
    parts = [batch.chunk(size)[rank] for batch in M.batches(tokens, 3, 4 * size)]
    if rank == 1:
        parts[1] = parts[1][:0]
    average = partial(data_parallel.average_buckets, net, dist, NBYTES, group=group)
    over = threading.Event()
    writer = threading.Thread(target=write)
    writer.start()
    with contextlib.suppress(RuntimeError):
        list(uneven.skipping(net, parts, M.loss_of, average, Job))
    over.set()
    writer.join()
    return group.group_name


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """(records, the group's name, all-reduces of a step) of four ranks that hung."""
    folder, found = tmp_path_factory.mktemp("records"), {}
    reader = threading.Thread(target=lambda: found.update(recorder.when_still(folder, 4)))
    reader.start()
    names = shared(4).call(stuck, str(folder))
    reader.join()
    each_step = len(data_parallel.buckets_of(new_model(torch.float32)[1].parameters(), NBYTES))
    return found, names[0], each_step


def test_the_record_says_where_the_ranks_part_and_who_is_a_step_short(record):
    records, group, each_step = record
    assert [*records] == [0, 1, 2, 3]
    (place,) = (each for each in recorder.partings(records) if each.group == group)
    assert place.number == 2 * each_step + 1
    assert {rank: call.operation for rank, call in place.calls.items()} == {
        0: "all_reduce",
        1: "barrier",
        2: "all_reduce",
        3: "all_reduce",
    }
    assert place.calls[1].callers[0] == "skipping" and place.calls[0].callers[:3] == (
        "send_bucket",
        "average_buckets",
        "skipping",
    )
    assert not any(call.done for call in place.calls.values()) and all(calls[-2].done for calls in records.values())
    elements = place.calls[0].elements
    assert str(place) == (
        f"collective {place.number} of group {group}: ranks 0, 2 and 3: all_reduce of {elements:,} in send_bucket; "
        "rank 1: barrier in skipping"
    )


def entries(*calls, group="0", first=1):
    return [
        recorder.Entry(group, first + i, operation, count, done, ("step",)) for i, (operation, count, done) in enumerate(calls)
    ]


def test_partings_in_records_of_every_kind():
    one, two, open_ = ("all_reduce", 8, True), ("broadcast", 4, True), ("all_reduce", 8, False)
    part = recorder.partings
    assert part({0: entries(one, two), 1: entries(one, two)}) == []
    (place,) = part({0: entries(one, two), 1: entries(one)})
    assert (place.number, place.calls[1]) == (2, None) and str(place).endswith("rank 1: not called")
    (place,) = part({0: entries(one, two), 1: entries(two, one)})
    assert place.number == 1
    (place,) = part({0: entries(one), 1: entries(("all_reduce", 4, True))})
    assert "rank 0: all_reduce of 8 in step; rank 1: all_reduce of 4 in step" in str(place)
    (place,) = part({0: entries(one, open_), 1: entries(one, open_)})  # all are in it, and it does not end
    assert place.number == 2
    uneven_sizes = ("all_to_all", 3, True), ("all_to_all", 5, True)
    assert part({0: entries(uneven_sizes[0]), 1: entries(uneven_sizes[1])}) == []
    # the ring has forgotten rank 0's first calls
    assert part({0: entries(two, one, first=3), 1: entries(one, one, two, one)}) == []
    # two groups, of which one is in order
    both = {rank: entries(one) + entries(one if rank else two, group="1") for rank in range(2)}
    assert [place.group for place in part(both)] == ["1"]
    # a group that was made anew counts from 1 again
    assert part({0: entries(one, two) + entries(two), 1: entries(one) + entries(two)}) == []


def test_a_dump_is_read_as_pytorch_writes_it(tmp_path):
    dump = {
        "entries": [
            {
                "process_group": ("0", "default_pg"),
                "collective_seq_id": 7,
                "profiling_name": "nccl:all_reduce",
                "is_p2p": False,
                "input_sizes": [[2, 3], [4]],
                "retired": False,
                "frames": [
                    {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 1},
                    {"name": "step", "filename": "/home/train.py", "line": 2},
                ],
            },
            {
                "process_group": ("0", "default_pg"),
                "collective_seq_id": 7,
                "profiling_name": "nccl:send",
                "is_p2p": True,
                "input_sizes": [[1]],
                "retired": True,
            },
        ]
    }
    (tmp_path / "trace_3").write_bytes(pickle.dumps(dump))
    (tmp_path / "trace_0").write_bytes(pickle.dumps({}))
    (tmp_path / "notes.txt").write_text("of another kind")
    assert recorder.read(tmp_path) == {0: [], 3: [recorder.Entry("0", 7, "all_reduce", 10, False, ("step",))]}


def test_a_folder_without_dumps_is_told(tmp_path):
    with pytest.raises(UsageError, match="has no dump of a Flight Recorder: expected a file for each rank"):
        recorder.read(tmp_path)
    with pytest.raises(TimeoutError, match="not all of the 2 were writing their records"):
        recorder.when_still(tmp_path, 2, patience=0.05, timeout=0.2)


def test_a_rank_that_writes_no_more_is_not_taken_for_one_that_hangs(tmp_path):
    """It may have had no core for as long."""
    call = {"process_group": ("0", ""), "collective_seq_id": 1, "profiling_name": "gloo:all_reduce", "input_sizes": [[1]]}
    dump = pickle.dumps({"entries": [call | {"retired": True, "is_p2p": False}]})
    over = threading.Event()

    def write(path, again):
        while True:
            path.with_name(f"{path.name}~").write_bytes(dump)
            os.replace(path.with_name(f"{path.name}~"), path)
            if not again or over.wait(0.05):
                return

    def found(folder, writes_again):
        folder.mkdir()
        writers = [
            threading.Thread(target=write, args=(folder / f"rank{rank}", again)) for rank, again in enumerate(writes_again)
        ]
        for each in writers:
            each.start()
        try:
            return recorder.when_still(folder, 2, patience=0.1, timeout=20 if all(writes_again) else 2)
        finally:
            over.set()
            for each in writers:
                each.join()
            over.clear()

    assert [*found(tmp_path / "both", [True, True])] == [0, 1]
    with pytest.raises(TimeoutError):
        found(tmp_path / "one", [True, False])


def test_the_labs_records_are_what_such_a_job_leaves():
    def told(dump):
        return [
            (
                each["profiling_name"],
                each["input_sizes"],
                each["retired"],
                each["collective_seq_id"],
                [f["name"] for f in each["frames"]],
            )
            for each in dump["entries"]
        ]

    stored = json.loads(record_hangs.RECORDS.read_text())
    assert [*stored] == [*record_hangs.JOBS] and all(len(dumps) == 4 for dumps in stored.values())
    found = shared(4).call(record_hangs.hang, "5 again", 5)
    assert [told(dump) for dump in found] == [told(dump) for dump in stored["5 again"]]


# ---------------------------------------------------------------- checkpoint and restart


def test_a_resumed_training_goes_on_as_if_nothing_had_happened(tmp_path):
    path = tmp_path / "checkpoint.pt"
    tokens, _ = new_model()
    batches = list(M.batches(tokens, 6, 4))

    def train(net, optimizer, rows):
        optimizer.zero_grad()
        loss = M.loss_of(net, rows)
        loss.backward()
        optimizer.step()
        return loss.item()

    def begin():
        net = new_model()[1]
        return net, torch.optim.AdamW(net.parameters(), lr=3e-3)

    net, optimizer = begin()
    assert checkpoint.resume(path, net, optimizer) == 0
    whole = []
    for step, rows in enumerate(batches, 1):
        whole.append(train(net, optimizer, rows))
        if step == 3:
            checkpoint.save(path, step, net, optimizer)
    net, optimizer = begin()
    assert checkpoint.resume(path, net, optimizer) == 3
    assert [train(net, optimizer, rows) for rows in batches[3:]] == whole[3:]
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]


def train_from(path, batches, stop, seed, killed_at=None):
    """Losses after the step that was resumed from, saving after each second one; or killed at a line of the last save's code."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    net = new_model()[1]
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    done, losses = checkpoint.resume(path, net, optimizer, schedule=schedule), {}
    for step, rows in enumerate(batches[:stop], 1):
        if step <= done:
            continue
        optimizer.zero_grad()
        loss = M.loss_of(torch.nn.Sequential(net, torch.nn.Dropout(0.1)), rows)  # dice that go on
        loss.backward()
        optimizer.step()
        schedule.step()
        losses[step] = loss.item()
        if step % 2 == 0:
            if killed_at and step == stop:
                sys.settrace(lambda frame, *_: kill_at(frame, killed_at))
            checkpoint.save(path, step, net, optimizer, schedule=schedule)
    return losses


def kill_at(frame, line):
    """A tracer that ends this process where `save` comes to its line."""
    if frame.f_code is not checkpoint.save.__code__:
        return None

    def look(frame, event, _):
        if event == "line" and frame.f_lineno == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return look

    return look


def test_a_kill_at_each_line_of_save_leaves_a_checkpoint_that_resumes_to_the_same_losses(tmp_path):
    tokens, _ = new_model()
    batches = list(M.batches(tokens, 6, 4))
    wanted = train_from(tmp_path / "whole.pt", batches, 6, 7)
    lines = sorted(
        {line for _, _, line in checkpoint.save.__code__.co_lines() if line} - {checkpoint.save.__code__.co_firstlineno}
    )
    resumed_from = []
    for line in lines:
        path = tmp_path / f"at-{line}.pt"
        killed = forks().Process(target=train_from, args=(path, batches, 4, 7, line))
        killed.start()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL, f"line {line} was not reached"
        again = train_from(path, batches, 6, 99)
        resumed_from.append(min(again) - 1)
        assert again == {step: wanted[step] for step in again}
    assert set(resumed_from) == {2, 4}


def disks_differ(dist, folder, has):
    """What ranks with disks of their own resume from; has: the steps that each has, one after another."""
    torch.set_num_threads(1)
    net = new_model()[1]
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    path = f"{folder}/{dist.get_rank()}.pt"
    for step in has[dist.get_rank()]:
        net.norm.weight.data.fill_(step)
        checkpoint.save(path, step, net, optimizer)
    try:
        return checkpoint.resume(path, net, optimizer, dist), net.norm.weight[0].item()
    except RuntimeError as error:
        return str(error)


def test_ranks_resume_from_the_newest_step_that_all_of_them_have(tmp_path):
    def found(name, has):
        (tmp_path / name).mkdir()
        return shared(4).call(disks_differ, str(tmp_path / name), has)

    assert found("one behind", [[3, 6], [3], [3, 6], [3, 6]]) == [(3, 3.0)] * 4
    assert found("all", [[3, 6]] * 4) == [(6, 6.0)] * 4
    assert {step for step, _ in found("none", [[]] * 4)} == {0}
    assert set(found("lost", [[3, 6], [], [3, 6], [3, 6]])) == {
        "no checkpoint is on all ranks (rank 0: [3, 6]; rank 1: none; rank 2: [3, 6]; rank 3: [3, 6]): "
        "copy one to all of them, or remove all to begin anew"
    }


def launched(tmp_path, *arguments):
    """What a job of two ranks printed."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, arguments)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
            "CUDA_VISIBLE_DEVICES": "",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_script_trains_on_the_rows_that_there_are():
    tokens, symbols = M.tokens_of(data.prose())
    net = M.seeded(lambda: M.GPT(len(symbols)))
    wanted = []
    for step, rows in enumerate(M.batches(tokens, 4, 8), 1):
        loss = M.loss_of(net, rows[:4] if step == 3 else rows)
        loss.backward()
        uneven.descend(net, 0.2 / step)
        wanted.append(loss.item())
    assert shared(2).call(losses_of_the_script, "uneven", 4)[0] == pytest.approx(wanted, abs=5e-5)


def test_a_training_that_lost_a_rank_has_the_losses_of_one_that_did_not(tmp_path):
    said = launched(
        tmp_path, "--max-restarts", 1, SCRIPT, tmp_path / "checkpoint.pt", "--steps", 5, "--every", 2, "--lose", "1:4"
    )
    found = [(int(a), int(s), float(loss)) for a, s, loss in re.findall(r"attempt (\d), step (\d+): loss ([\d.]+)", said)]
    assert [each[:2] for each in found] == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 4), (1, 5)]
    tokens, symbols = M.tokens_of(data.prose())
    net = M.seeded(lambda: M.GPT(len(symbols)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    wanted = {}
    for step, rows in enumerate(M.batches(tokens, 5), 1):
        optimizer.zero_grad()
        loss = M.loss_of(net, rows)
        loss.backward()
        optimizer.step()
        wanted[step] = loss.item()
    for _, step, loss in found:
        assert loss == pytest.approx(wanted[step], abs=1e-4)
