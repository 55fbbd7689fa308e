"""Ping-pong, on ranks started by plain torch.multiprocessing."""

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from ringtree import measure


def _play(rank, size, store, answers):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        rows = measure.ping_pong([1, 1000, 2**16], repeats=7, warmup=1, at_most=2**17)
        for bad in ({"sizes": []}, {"sizes": [0]}, {"sizes": [1.5]}, {"sizes": [8], "repeats": 0}):
            try:
                measure.ping_pong(**bad)
            except ValueError:
                continue
            raise AssertionError(f"{bad} was accepted")
        answers.put((rank, rows))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_ping_pong_gives_plain_rows_on_rank_zero(tmp_path):
    answers = mp.get_context("spawn").SimpleQueue()
    started = mp.spawn(_play, (3, tmp_path / "store", answers), nprocs=3, join=False)
    by_rank = dict(answers.get() for _ in range(3))
    started.join()
    assert by_rank[2] is None, "rank 2 does not play"
    rows = by_rank[0]
    assert [row["bytes"] for row in rows] == [1, 1000, 2**16]
    assert [row["repeats"] for row in rows] == [7, 7, 5], "long messages are repeated less often"
    for row in rows:
        assert 0 < row["min"] <= row["median"] and row["first"] > 0


def test_columns_of_rows():
    rows = [{"bytes": 1, "min": 0.5}, {"bytes": 2, "min": 0.75}]
    assert measure.column(rows, "min") == [0.5, 0.75]
    assert measure.column([], "min") == []
    with pytest.raises(KeyError, match="bytes, min"):
        measure.column(rows, "mean")
