"""What looks for GPUs given twice finds one; no hub is needed."""

import types

from sampling import Sampled, held_in

TOLD = """JobId=7 JobName=a UserId=x JobState=RUNNING Reason=None Nodes=n CPU_IDs=0 Mem=1 GRES=gpu:3(IDX:0-1,3) MinCPUsNode=1
JobId=8 JobName=b UserId=y JobState=RUNNING Reason=None Nodes=n CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:2) MinCPUsNode=1
JobId=5 JobName=d UserId=v JobState=RUNNING Reason=None Nodes=n CPU_IDs=0 Mem=1 GRES=shard:1(IDX:4) MinCPUsNode=1
JobId=9 JobName=c UserId=z JobState=PENDING Reason=Resources
JobId=6 JobName=c UserId=z JobState=COMPLETED Reason=None GRES=gpu:1(IDX:2)"""


def test_a_gpu_that_two_jobs_hold_is_found():
    seen = Sampled(types.SimpleNamespace(gpus=range(5)))
    assert held_in(TOLD) == {7: {0, 1, 3}, 8: {2}} and held_in(TOLD, "shard") == {5: {4}}
    seen.look(TOLD)
    seen.look(TOLD + TOLD.splitlines()[2].replace("=5", "=4"))
    assert (seen.looks, seen.most, seen.twice) == (2, 4, [])
    seen.look(TOLD.replace("IDX:2) MinCPUsNode", "IDX:1) MinCPUsNode", 1))
    assert seen.twice == [{7: {0, 1, 3}, 8: {1}, 5: {4}}]


def test_a_gpu_that_one_holds_whole_and_another_in_part_is_found():
    seen = Sampled(types.SimpleNamespace(gpus=range(5)))
    seen.look(TOLD.replace("IDX:4", "IDX:2"))
    assert seen.twice == [{7: {0, 1, 3}, 8: {2}, 5: {2}}]
