"""How ranks are placed and started, tried without the machines that it is for."""

import importlib.util
import os

import pytest

from ringtree.errors import UsageError
from ringtree.live.cluster import start
from ringtree.live.placement import choose_backend
from ringtree.live.processes import engine, launchers


def place(ranks_by_host, gpus_by_host, **wishes):
    hosts = [host for host, ranks in ranks_by_host.items() for _ in range(ranks)]
    return choose_backend(len(hosts), hosts, gpus_by_host, **wishes)


def test_no_gpu_means_gloo_on_the_cpu():
    assert place({"a": 4}, {"a": 0}) == ("gloo", ["cpu"] * 4, None)


def test_gpus_that_were_allotted_and_cannot_be_opened_are_told():
    backend, _, remark = place({"a": 4}, {"a": 0}, allotted={"a": 2})
    assert backend == "gloo" and remark.startswith("Slurm allotted 2 GPUs, and PyTorch can open none: Gloo on the CPU is used.")
    assert place({"a": 4}, {"a": 0}, allotted={"a": 0})[2] is None
    assert place({"a": 2}, {"a": 2}, allotted={"a": 2})[2] is None
    assert place({"a": 4}, {"a": 0}, backend="gloo", allotted={"a": 2})[2] is None


def test_as_many_gpus_as_ranks_means_nccl_with_one_gpu_a_rank():
    assert place({"a": 4}, {"a": 8}) == ("nccl", ["cuda:0", "cuda:1", "cuda:2", "cuda:3"], None)


def test_each_node_counts_its_own_gpus():
    backend, devices, _ = place({"a": 2, "b": 2}, {"a": 2, "b": 2})
    assert (backend, devices) == ("nccl", ["cuda:0", "cuda:1", "cuda:0", "cuda:1"])


def test_fewer_gpus_than_ranks_means_gloo_and_a_line_that_says_so():
    backend, devices, remark = place({"a": 4}, {"a": 1})
    assert (backend, devices) == ("gloo", ["cpu"] * 4)
    assert remark.startswith("4 ranks and 1 GPU on one host: Gloo on the CPU is used.")


def test_ranks_share_gpus_when_asked_to():
    backend, devices, remark = place({"a": 4}, {"a": 2}, share_gpus=True)
    assert (backend, devices) == ("nccl", ["cuda:0", "cuda:1", "cuda:0", "cuda:1"])
    assert "times say nothing about a network" in remark


def test_sharing_changes_nothing_without_a_gpu_or_with_enough():
    assert place({"a": 2}, {"a": 0}, share_gpus=True)[0] == "gloo"
    assert place({"a": 2}, {"a": 2}, share_gpus=True) == place({"a": 2}, {"a": 2})


def test_nccl_without_gpus_and_nccl_with_too_few_say_what_to_do():
    with pytest.raises(UsageError, match="PyTorch sees none here"):
        place({"a": 2}, {"a": 0}, backend="nccl")
    with pytest.raises(UsageError, match="4 ranks and 2 GPUs on one host: NCCL wants one GPU a rank"):
        place({"a": 4}, {"a": 2}, backend="nccl")
    with pytest.raises(UsageError, match="PyTorch sees none here"):
        place({"a": 1, "b": 1}, {"a": 1, "b": 0}, backend="nccl")


def test_gloo_can_be_asked_for_where_there_are_gpus():
    assert place({"a": 2}, {"a": 2}, backend="gloo") == ("gloo", ["cpu", "cpu"], None)


@pytest.mark.parametrize("variable", engine.LAUNCHERS)
def test_an_engine_takes_its_id_from_slurm_or_mpi(variable):
    assert engine.rank_from({variable: "3", "OTHER": "5"}) == 3


def test_an_engine_of_mpirun_inside_of_a_slurm_step_has_mpis_rank():
    assert engine.rank_from({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "3"}) == 3


def test_an_engine_without_a_launcher_has_no_rank():
    assert engine.rank_from({}) is None


def test_ssh_ranks_of_a_host_stand_together():
    engines = launchers.SSHEngineSet(engines={"a": 2, "user@b:22": 3})
    places = [engines.place(name) for name in ("a/0", "a/1", "user@b:22/0", "user@b:22/2")]
    assert places == [0, 1, 2, 4]


@pytest.mark.skipif(not launchers.can_fork(), reason="ranks are forked on Linux alone")
def test_torch_is_loaded_before_ranks_are_forked():
    launchers.fork_server().folder()  # answers once it is ready
    loaded = open(f"/proc/{launchers.fork_server().process.pid}/maps").read()
    assert "libtorch_cpu" in loaded and "_greenlet" not in loaded  # what a rank needs, and not the simulator as well


@pytest.mark.parametrize("name", ["Forked", "Nursed"])
def test_ranks_find_what_the_pythonpath_that_they_are_given_names(tmp_path, name):
    """Also after a restart."""
    if name == "Forked" and not launchers.can_fork():
        pytest.skip("ranks are forked on Linux alone")
    (tmp_path / "only_there.py").touch()
    given = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    engines = "fork" if name == "Forked" else "local"
    with start(2, engines=engines, options={f"{name}EngineSet": {"environment": given}}) as ranks:
        for _ in range(2):
            assert all(ranks.call(importlib.util.find_spec, "only_there"))
            ranks.restart()
