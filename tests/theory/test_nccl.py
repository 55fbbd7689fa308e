"""NCCL's cost model: the table it makes, what it picks, and what it prints."""

from dataclasses import replace

import pytest

from ringtree import data
from ringtree.errors import UsageError
from ringtree.theory import nccl
from ringtree.theory.nccl import (
    Communicator,
    Graph,
    Platform,
    choice,
    model,
    predict_from_table,
    read_platform,
    read_tuning,
    tuning,
)

H200 = replace(nccl.published("h200_p8"), version="2.30")
V100_NODES = nccl.published("v100_n2_p8")
# Two ranks that take each other for two hosts, over sockets: one RTX 5090, NCCL 2.29.7.
SOCKETS = Platform(
    "2 ranks over sockets",
    120,
    2,
    1,
    Graph(2, 1.2e9, 1.2e9),
    tree=Graph(2, 2.4e9, 1.2e9),
    intra="LOC",
    inter="PHB",
    version="2.30",
)


EIGHT_H200 = [(15.2, 43.6), (31.5, 128.8), (64.4, 165.6), (15.0, 80.6), (40.6, 189.3), (56.0, 205.7)]  # Tree, Ring


def cells(platform, collective):
    return {
        (row["algorithm"], row["protocol"]): (round(row["latency"] * 1e6, 1), round(row["bandwidth"] / 1e9, 1))
        for row in nccl.table(platform)
        if row["collective"] == collective
    }


def cell(platform, *key):
    return next(row for row in nccl.table(platform) if (row["collective"], row["algorithm"], row["protocol"]) == key)


# --- the table ---


def test_the_table_is_the_one_that_nccl_prints_on_eight_h200():
    """NCCL 2.30.4: C-TC/multi-gpu-programming-models, repro/thesis_microbench/README.md, commit 19e8fbf3bd."""
    assert cells(H200, "all_reduce") == {
        ("tree", "LL"): (15.2, 43.6),
        ("tree", "LL128"): (31.5, 128.8),
        ("tree", "Simple"): (64.4, 165.6),
        ("ring", "LL"): (15.0, 80.6),
        ("ring", "LL128"): (40.6, 189.3),
        ("ring", "Simple"): (56.0, 205.7),
        ("nvls", "Simple"): (25.0, 272.0),
    }


def test_the_table_is_the_one_that_nccl_prints_between_two_hosts():
    """NCCL 2.29.7: eunomia-bpf/nccl-eBPF, docs/tmp/default-suboptimal-search.md, commit b28739427f."""
    assert cells(SOCKETS, "all_reduce") == {
        ("tree", "LL"): (16.8, 0.5),
        ("tree", "LL128"): (31.0, 0.0),
        ("tree", "Simple"): (36.4, 1.9),
        ("ring", "LL"): (16.6, 1.2),
        ("ring", "LL128"): (31.0, 0.0),
        ("ring", "Simple"): (36.4, 2.4),
    }
    gather = {
        ("ring", "LL"): (11.6, 2.4),
        ("ring", "LL128"): (22.5, 0.0),
        ("ring", "Simple"): (22.4, 4.8),
        ("pat", "Simple"): (17.6, 3.6),
    }
    assert cells(SOCKETS, "all_gather") == gather == cells(SOCKETS, "reduce_scatter")
    once = {("ring", "LL"): (9.3, 1.2), ("ring", "LL128"): (18.0, 0.0), ("ring", "Simple"): (22.4, 2.4)}
    assert cells(SOCKETS, "broadcast") == once == cells(SOCKETS, "reduce")


def test_hand_computed_cells_of_two_v100_nodes_under_2_8():
    table = cells(V100_NODES, "all_reduce")
    # 14 ring steps, 2 of them between nodes. Beside a network an LL step inside a node takes 1.8 times as long:
    # 3.6 + 12·0.846 + 2·2.7 µs; and a quarter of the links' 2 × 12 GB/s, of which a vector gets 8/14.
    assert table["ring", "LL"] == (19.2, 3.4)
    assert table["ring", "LL128"] == (10 + 12 * 1.9 + 2 * 4, 12.6)  # 24 · 0.92 · 8/14
    assert table["tree", "LL"] == (20.0, 4.9)  # 4.4 + 2·(3·0.936 + 5); 2 trees of at most 18.5 each: 37 / 3.8 / 2
    assert table["tree", "Simple"] == (2 * (3 * 28 + 28), 18.5)


def test_hand_computed_cells_of_four_h100_nodes():
    nodes = replace(nccl.published("h100_aws_n2_p16"), nodes=4, network_latency=0.0)
    table = cells(nodes, "all_reduce")
    # Posting to the network takes 1 µs, longer than the 0.6 µs of a step; Intel CPUs let 20.4 GB/s through, of which 32/62.
    assert table["ring", "LL"] == (pytest.approx(6.6 + 56 * 1.0 + 6 * 2.7), 10.5)
    assert table["ring", "Simple"] == (pytest.approx(8.4 + 56 * 3.4 + 6 * 14), 198.2)  # 8 × 48 · 32/62
    assert table["tree", "LL128"] == (pytest.approx(14 + 2 * (7 * 1.25 + 2 * 8.5), abs=0.1), 116.0)  # 8 × 29 / 2
    assert table["tree", "Simple"] == (pytest.approx(8.4 + 2 * (7 * 4 + 2 * 14)), 144.0)  # 8 × 36 / 2
    assert table["nvls_tree", "Simple"] == (pytest.approx(25 + 4 * 20.9), 187.9)  # 8 × 45.5 · 32/62
    assert table["ring", "LL128"][1] == 151.5  # 8 × 36.7 · 32/62


def test_hand_computed_cells_inside_one_node():
    a100, b200, l40s = (cells(nccl.published(run), "all_reduce") for run in ("a100_n1_p8", "b200_n1_p8", "l40s_p4_ring"))
    assert a100["ring", "Simple"] == (56.0, 134.3)  # of 12 × 21 GB/s NCCL 2.8 believes 235; · 8/14
    assert a100["ring", "LL128"] == (36.6, 115.9)  # 12 channels of 16.9
    assert a100["tree", "LL"] == (11.7, 28.4)  # 235 · 0.92 / 3.8 / 2
    assert b200["ring", "Simple"][1] == 411.4  # 16 × 45 · 8/14
    assert b200["nvls", "Simple"] == (25.0, 411.4)  # the switch's 2 · 80 · 0.74 · 7/8 are more than the 90 of a head; 8 heads
    assert l40s["ring", "Simple"] == (42.6, 13.3) and l40s["ring", "LL"] == (12.6, 6.7)  # 20 GB/s, LL half; · 4/6


@pytest.mark.parametrize(
    ("version", "capability", "nodes", "expected"),
    [  # GB/s on the links of Ring LL, Ring LL128, Tree Simple, Tree LL128, of one channel
        ("2.28", 70, 1, (39, 20, 26.5, 20)),
        ("2.28", 70, 2, (39, 20, 18.5, 17.34)),
        ("2.28", 70, 4, (20.4, 20, 10, 9.38)),
        ("2.28", 80, 1, (87.7, 20, 24, 18.67)),
        ("2.28", 80, 2, (39, 20, 23.6, 20)),
        ("2.28", 80, 4, (20.4, 20, 17.8, 16.69)),
        ("2.28", 90, 1, (141, 36.7, 38.7, 30.1)),
        ("2.28", 90, 2, (39, 36.7, 41.4, 36.7)),
        ("2.28", 90, 4, (20.4, 36.7, 36, 29)),
        ("2.28", 100, 1, (282, 73.4, 70, 54.44)),
        ("2.28", 100, 2, (39, 34.6, 42.8, 31.67)),
        ("2.28", 100, 4, (20.4, 73.4, 24, 20)),
        ("2.30", 100, 1, (282, 40, 70, 54.44)),
        ("2.30", 100, 4, (20.4, 40, 24, 20)),
        ("2.30", 90, 4, (20.4, 36.7, 36, 29)),
        ("2.8", 70, 1, (39, 16.9, 26.5, 16.9)),
        ("2.8", 70, 2, (39, 16.9, 18.5, 16.9)),
        ("2.8", 70, 4, (20.4, 16.9, 10, 9.15)),
        ("2.8", 80, 1, (58.75, 16.9, 24, 16.9)),
        ("2.8", 80, 2, (39, 16.9, 22.5, 16.9)),
        ("2.8", 80, 4, (20.4, 16.9, 16, 14.64)),
    ],
)
def test_with_links_without_limit_the_gpu_or_the_cpu_is_the_limit(version, capability, nodes, expected):
    links = Platform("endless", capability, nodes, 4, Graph(1, 1e15, 1e15), version=version)
    steps_a_rank = 2 * (links.ranks - 1) / links.ranks
    ring = [cell(links, "all_reduce", "ring", protocol)["bandwidth"] * steps_a_rank / 1e9 for protocol in ("LL", "LL128")]
    tree = [cell(links, "all_reduce", "tree", protocol)["bandwidth"] * 2 / 1e9 for protocol in ("Simple", "LL128")]
    assert (*ring, *tree) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("cpu", "nodes", "limit"), [("AMD", 2, 22.5), ("AMD", 4, 19), ("Intel", 2, 39), ("other", 4, 20.4)])
@pytest.mark.parametrize("version", ["2.8", "2.28"])
def test_between_nodes_what_limits_ll_is_the_cpu(version, cpu, nodes, limit):
    links = Platform("endless", 80, nodes, 8, Graph(20, 1e15, 1e15), version=version, cpu=cpu)
    if version == "2.8":
        links = replace(links, capability=70)  # whose links 2.8 does not limit
    speed = cell(links, "all_gather", "ring", "LL")["bandwidth"] * (links.ranks - 1) / links.ranks
    assert speed == pytest.approx(limit * 1e9)


@pytest.mark.parametrize(
    ("collective", "cap"),
    [("broadcast", 18.8), ("reduce", 12), ("all_gather", 18.3), ("reduce_scatter", 15.2), ("all_reduce", 16.9)],
)
def test_in_2_8_the_collective_limits_ll128(collective, cap):
    links = Platform("endless", 70, 1, 4, Graph(1, 1e15, 1e15), version="2.8")
    share = {"all_reduce": 4 / 6, "all_gather": 4 / 3, "reduce_scatter": 4 / 3}.get(collective, 1)
    assert cell(links, collective, "ring", "LL128")["bandwidth"] == pytest.approx(cap * 1e9 * share)


@pytest.mark.parametrize(
    ("version", "capability", "nodes", "cap"),
    [("2.28", 90, 2, 57.7), ("2.28", 90, 4, 45.5), ("2.28", 100, 2, 96), ("2.28", 100, 4, 43.8), ("2.30", 100, 4, 80)],
)
def test_between_nodes_the_gpu_limits_the_switchs_tree(version, capability, nodes, cap):
    endless = Graph(8, 1e15, 1e15)
    links = Platform("endless", capability, nodes, 8, endless, nvls=endless, version=version)
    speed = cell(links, "all_reduce", "nvls_tree", "Simple")["bandwidth"] * 2 * (links.ranks - 1) / links.ranks
    assert speed == pytest.approx(8 * cap * 1e9)
    assert links.channels == 16


def test_between_blackwell_nodes_2_30_slows_the_switchs_tree_down_too():
    def factor(nbytes, version="2.30"):
        nodes = replace(nccl.published("b200_n4_p32"), version=version)
        row = cell(nodes, "all_reduce", "nvls_tree", "Simple")
        seconds = model("all_reduce", nbytes, nodes)["nvls_tree", "Simple"]
        return nbytes / (seconds - row["latency"]) / row["bandwidth"]

    assert [factor(n) for n in (2**20, 2**29 - 1, 2**29, 2**30)] == pytest.approx([0.5, 0.9, 0.9, 1.0], rel=1e-6)
    assert factor(2**20, version="2.28") == pytest.approx(1.0)


def test_all_gather_through_the_switch_has_one_operation_in_flight():
    assert cells(H200, "all_gather")["nvls", "Simple"] == (25.0, 208.2)  # 8 × 40 · 0.85 · 7/8 · 7/8
    assert cells(H200, "reduce_scatter")["nvls", "Simple"] == (25.0, 208.2)
    assert ("nvls", "Simple") not in cells(H200, "broadcast")


def test_a_call_of_eight_bytes_is_expected_to_take_what_nccl_expected_on_three_h100_nodes():
    """NCCL's log says "8 Bytes -> Algo 0 proto 0 time 25.200924": NVIDIA/nccl issue 1453, nodes that have a plain tree."""
    nodes = replace(nccl.published("h100_aws_n2_p16"), nodes=3, network_latency=0.0, plain_tree=True)
    assert choice("all_reduce", 8, nodes) == ("tree", "LL", pytest.approx(25.200924e-6, rel=1e-7))


def test_a_ring_takes_longer_by_the_same_for_every_rank_more():
    def latency(ranks):
        return cells(replace(H200, ranks_per_node=ranks, nvls=None), "all_reduce")["ring", "LL"][0]

    assert latency(6) - latency(4) == pytest.approx(2.4) == latency(8) - latency(6)


def test_a_tree_takes_longer_by_the_same_for_every_doubling_of_the_nodes():
    latency = [cells(replace(V100_NODES, nodes=nodes), "all_reduce")["tree", "LL"][0] for nodes in (2, 4, 8, 16)]
    assert [b - a for a, b in zip(latency, latency[1:])] == [pytest.approx(10.0)] * 3  # twice the 5 µs of a network step
    nine = cells(replace(V100_NODES, nodes=9), "all_reduce")["tree", "LL"][0]
    assert nine == latency[2]  # NCCL rounds its logarithm down


def test_inside_a_node_the_tree_is_a_chain_and_its_latency_grows_with_the_ranks():
    def latency(ranks):
        return cells(replace(H200, ranks_per_node=ranks, nvls=None), "all_reduce")["tree", "LL"][0]

    assert latency(8) - latency(6) == pytest.approx(2 * 2 * 0.6) == latency(4) - latency(2)


def test_all_gather_takes_half_the_steps_of_all_reduce():
    reduce, gather = cells(H200, "all_reduce")["ring", "Simple"], cells(H200, "all_gather")["ring", "Simple"]
    assert reduce[0] - 8.4 == pytest.approx(2 * (gather[0] - 8.4))
    assert gather[1] == pytest.approx(2 * reduce[1], abs=0.1)


def test_a_broadcast_over_differing_rings_pays_for_every_rank():
    alike, differing = (cells(replace(H200, same_channels=same), "broadcast") for same in (True, False))
    assert alike["ring", "LL"][0] == pytest.approx(6.6 + 0.6) and differing["ring", "LL"][0] == pytest.approx(6.6 + 8 * 0.6)
    assert differing["ring", "Simple"][0] == pytest.approx(8.4 + 8 * 4.0)


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({}, True),
        ({"intra": "PHB"}, False),
        ({"intra": "NVB"}, True),
        ({"inter": "PXN"}, True),
        ({"inter": "PXN", "capability": 80}, False),
        ({"inter": "PXB", "capability": 80}, True),
        ({"inter": "PHB"}, False),
        ({"capability": 60}, False),
        ({"capability": 90, "version": "2.8", "nvls": None}, False),  # newer than that NCCL
        ({"capability": 80, "version": "2.8", "nvls": None, "intra": "NVB"}, False),
        ({"intra": "PHB", "ll128": True}, True),
        ({"ll128": False}, False),
    ],
)
def test_ll128_is_trusted_on_near_paths_only(change, allowed):
    assert (model("all_reduce", 1024, replace(H200, **change))["ring", "LL128"] is not None) == allowed


def test_between_nodes_the_cpu_limits_ll_and_posting_to_the_network_takes_longer_on_amd():
    intel = replace(V100_NODES, version="2.28", ring=Graph(8, 24e9, 24e9), tree=None)
    amd = replace(intel, cpu="AMD")
    assert cells(intel, "all_reduce")["ring", "LL"] == (24.0, round(39 * 8 / 14, 1))
    assert cells(amd, "all_reduce")["ring", "LL"] == (36.0, round(22.5 * 8 / 14, 1))


def test_what_the_network_declares_is_added_to_each_step_over_it_and_twice_for_simple():
    slow = replace(V100_NODES, version="2.28", network_latency=10e-6)
    before, after = cells(replace(slow, network_latency=0.0), "all_reduce"), cells(slow, "all_reduce")
    assert after["ring", "LL"][0] - before["ring", "LL"][0] == pytest.approx(2 * 10)
    assert after["tree", "Simple"][0] - before["tree", "Simple"][0] == pytest.approx(2 * 20)


def test_latencies_are_seconds_by_level_algorithm_and_protocol():
    new, old = nccl.latencies(), nccl.latencies("2.8")
    assert new["base", "ring", "LL"] == pytest.approx(6.6e-6) and new["network", "tree", "LL"] == pytest.approx(5e-6)
    assert new["PCIe", "ring", "Simple"] == pytest.approx(5.7e-6) and new["NVLink", "nvls", "Simple"] == pytest.approx(25e-6)
    assert old["NVLink", "tree", "Simple"] == pytest.approx(28e-6)
    assert ("base", "nvls", "LL") not in new and {level for level, _, _ in new} == {"base", "NVLink", "PCIe", "network"}


# --- one call ---


def test_the_tree_is_slowed_down_at_middle_sizes_and_by_the_sizes_power_of_two():
    def bandwidth(nbytes):
        latency = 31.5e-6
        return nbytes / (model("all_reduce", nbytes, H200)["tree", "LL128"] - latency) / 1e9

    assert bandwidth(64) == pytest.approx(128.8)
    assert bandwidth(2**16) == pytest.approx(128.8 * 0.6) == pytest.approx(bandwidth(2**17 - 1))
    assert bandwidth(2**22) == pytest.approx(128.8 * 0.8) and bandwidth(2**29) == pytest.approx(128.8)
    assert bandwidth(32) == pytest.approx(128.8)
    row = cell(H200, "all_reduce", "tree", "Simple")
    smallest = model("all_reduce", 64, H200)["tree", "Simple"]
    assert smallest == pytest.approx(row["latency"] + 64 / (0.9 * row["bandwidth"]), rel=1e-12)
    row = cell(V100_NODES, "all_reduce", "tree", "Simple")
    small = model("all_reduce", 32, V100_NODES)["tree", "Simple"]  # 2.8 had its factor for 64 bytes below that too
    assert small == pytest.approx(row["latency"] + 32 / (0.9 * row["bandwidth"]), rel=1e-12)


@pytest.mark.parametrize(
    ("version", "protocol", "tenths"),
    [
        ("2.8", "LL", "10 10 10 10 9 8 7 7 7 7 6 5 4 4 5 6 7 8 9 10 10 10 10"),
        ("2.8", "LL128", "10 10 10 10 10 9 8 8 8 7 6 6 6 5 6 6 7 7 8 9 9 9.2 9.2"),
        ("2.28", "LL128", "10 10 10 10 10 9 8 8 8 7 6 6 6 6 6 6 8 9 9 9 9 10 10"),
        ("2.30", "Simple", "9 9 9 9 9 9 9 8 7 6 6 5 5 5 5 6 7 8 7 7 8 9 9"),
    ],
)
def test_the_trees_factor_at_each_power_of_two_from_64_bytes(version, protocol, tenths):
    nodes = replace(V100_NODES, version=version)
    row = cell(nodes, "all_reduce", "tree", protocol)
    seconds = [model("all_reduce", 64 << power, nodes)["tree", protocol] for power in range(23)]
    factors = [(64 << power) / (took - row["latency"]) / row["bandwidth"] for power, took in enumerate(seconds)]
    assert factors == pytest.approx([float(tenth) / 10 for tenth in tenths.split()])


def test_between_nodes_a_ring_of_simple_has_a_plateau():
    nodes = replace(V100_NODES, version="2.28")
    assert nodes.channels == 4 and nodes.ranks == 8

    def factor(nbytes, platform, collective="all_reduce"):
        row = cell(platform, collective, "ring", "Simple")
        return (model(collective, nbytes, platform)["ring", "Simple"] - nbytes / row["bandwidth"]) / row["latency"]

    a_chunk_of_64_bytes = 64 * nodes.channels * nodes.ranks
    assert factor(a_chunk_of_64_bytes - 1, nodes) == pytest.approx(1)
    assert factor(a_chunk_of_64_bytes, nodes) == pytest.approx(1.9)
    assert factor(a_chunk_of_64_bytes, replace(nodes, capability=80)) == pytest.approx(1.4)
    assert factor(8 * 4096 - 1, V100_NODES) == pytest.approx(1) and factor(8 * 4096, V100_NODES) == pytest.approx(1.9)
    assert factor(2**30, nodes, "all_gather") == pytest.approx(1)
    assert factor(2**30, H200) == pytest.approx(1)


@pytest.mark.parametrize("run", ["v100_n1_p4", "v100_n16_p64", "a100_n8_p64", "l40s_p4_ring", "h200_p8", "b200_n4_p32"])
@pytest.mark.parametrize("collective", nccl.COLLECTIVES)
def test_what_is_picked_is_the_fastest_and_takes_longer_for_more_bytes(run, collective):
    platform, before = nccl.published(run), 0.0
    for nbytes in (2**power for power in range(3, 34)):
        times = model(collective, nbytes, platform)
        pick = choice(collective, nbytes, platform)
        assert pick.seconds == times[pick.algorithm, pick.protocol] == min(t for t in times.values() if t is not None)
        assert pick.seconds > before
        before = pick.seconds


def test_of_two_equal_times_nccls_first_wins():
    times = {("tree", "Simple"): 2.0, ("ring", "LL"): 1.0, ("ring", "LL128"): None, ("nvls", "Simple"): 1.0}
    assert tuning.fastest(times, "all_reduce") == ("ring", "LL", 1.0)


def test_eight_h200_go_from_ring_to_the_switch_where_it_was_seen():
    """RING/LL up to 1 MiB and NVLS/SIMPLE from 2 MiB: the note of the published run, and the log of the printed table."""
    assert choice("all_reduce", 2**20, H200)[:2] == ("ring", "LL")
    assert choice("all_reduce", 2**21, H200)[:2] == ("nvls", "Simple")
    assert choice("all_reduce", 2**25, replace(H200, nvls=None))[:2] == ("ring", "LL128")


def test_trees_win_small_messages_between_nodes_and_rings_inside_one():
    assert choice("all_reduce", 8, nccl.published("v100_n16_p64"))[:2] == ("tree", "LL")
    assert choice("all_reduce", 8, nccl.published("v100_n1_p4"))[:2] == ("ring", "LL")


def test_an_algorithm_or_a_protocol_can_be_forced():
    assert {key[0] for key in model("all_reduce", 8, H200, algorithms="tree")} == {"tree"}
    assert choice("all_reduce", 8, H200, protocols=["Simple"])[:2] == ("nvls", "Simple")
    pcie = nccl.published("l40s_p4_ring")
    assert choice("all_reduce", 2**20, pcie, protocols=["LL128"]).protocol == "LL128"  # by name, where it is not trusted
    assert model("all_reduce", 2**20, pcie)["ring", "LL128"] is None
    forced = cells(replace(pcie, ll128=True), "all_reduce")["ring", "LL128"]
    assert forced[0] == pytest.approx(14 + 6 * 2.5)  # still PCIe's steps
    with pytest.raises(UsageError, match="no algorithm and protocol is left for broadcast"):
        choice("broadcast", 8, H200, algorithms="tree")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: model("allreduce", 8, H200), "collective='allreduce': give one of"),
        (lambda: model("all_reduce", -1, H200), "nbytes=-1"),
        (lambda: model("all_reduce", 1.5, H200), "nbytes=1.5"),
        (lambda: model("all_reduce", 8, H200, algorithms=["star"]), "'star' is unknown"),
        (lambda: model("all_reduce", 8, H200, protocols="LL64"), "'LL64' is unknown"),
        (lambda: nccl.latencies("2.19"), "version='2.19'"),
        (lambda: replace(H200, version="2"), "version='2'"),
        (lambda: replace(H200, nodes=0), "nodes=0"),
        (lambda: replace(H200, ranks_per_node=1), "one rank"),
        (lambda: replace(H200, intra="NVLink"), "intra='NVLink'"),
        (lambda: replace(H200, cpu="Arm"), "cpu='Arm'"),
        (lambda: replace(H200, capability=9), "capability=9"),
        (lambda: Graph(0, 1e9, 1e9), "1 or more channels"),
        (lambda: Graph(2, 1e9, 0), "more than 0"),
        (lambda: nccl.published("osu_vnode_gpu_latency"), "not made with NCCL"),
    ],
)
def test_bad_input_gets_one_sentence(call, sentence):
    with pytest.raises(UsageError, match=sentence) as error:
        call()
    assert "\n" not in str(error.value)


def test_an_unknown_run_is_answered_with_the_nearest_names():
    with pytest.raises(UsageError, match="h200_p8"):
        nccl.judge("h200")


# --- what NCCL prints ---


def log(*lines, prefix="node1:4711:4712 [0] NCCL INFO "):
    return "\n".join(prefix + line for line in lines)


def block(algorithms, rows, protocols=3):
    """A block of the table as 2.18 and later print it."""
    head = "  Algorithm   |" + "".join(f" {'':14s}   {algorithm:>14s}   {'':14s} |" for algorithm in algorithms)
    under = "  Protocol    |" + "".join(f" {protocol:>14s} |" for _ in range(protocols) for protocol in nccl.PROTOCOLS)
    threads = " Max NThreads |" + "".join(f" {512:14d} |" for _ in range(3 * len(algorithms)))
    printed = [f"{name:>13s} |" + "".join(f"{us:8.1f}/{speed:6.1f} |" for us, speed in row) for name, row in rows]
    return [head, under, threads, *printed]


def sockets_log():
    """What NCCL 2.29.7 printed for SOCKETS, with noise in between."""
    off = (0.0, 0.0)
    tree, ring, collnet = [(16.8, 0.5), (31, 0), (36.4, 1.9)], [(16.6, 1.2), (31, 0), (36.4, 2.4)], [(5, 0), (8.5, 0), (14, 0)]
    tree_ring_collnet = [
        ("Broadcast", [off] * 3 + [(9.3, 1.2), (18.0, 0.0), (22.4, 2.4)] + [off] * 3),
        ("AllReduce", tree + ring + collnet),
    ]
    stamped = "[2026-01-05 10:11:12] node1:4711:4711 [0] NCCL INFO "
    return "\n".join([
        "NCCL version 2.29.7+cuda12.9",
        log("9 coll channels, 0 nvls channels"),  # of a communicator whose rank 0 writes elsewhere, as is the one below
        log("comm 0x55d0c0 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0", "Channel 00/04 :    0   1"),
        log(*block(["Tree", "Ring", "CollNetDirect"], tree_ring_collnet)),
        "epoch 3 | loss 1.25/ 2.0 |",
        log(*block(["PAT"], [("AllGather", [off, off, (17.6, 3.6)])])),
        log("threadThresholds 8/8/64 | 16/8/64 | 512 | 512"),
        log("4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels, 4 p2p channels per peer"),
        log("9 coll channels, 0 nvls channels"),
        log("Broadcast: 16384 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"),
        log("AllReduce: 4096 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}", prefix=stamped),
    ])


def test_a_log_gives_the_table_in_seconds_and_bytes_per_second():
    found = read_tuning(sockets_log())
    assert found.version == "2.29.7"
    assert found.communicators == [Communicator(ranks=2, nodes=2, channels=4, version="2.30")]
    rows = {(row["collective"], row["algorithm"], row["protocol"]): row for row in found.table}
    assert len(found.table) == len(rows) == 2 * 9 + 3
    assert rows["all_reduce", "ring", "LL"] == {
        "communicator": 0,
        "collective": "all_reduce",
        "algorithm": "ring",
        "protocol": "LL",
        "latency": pytest.approx(16.6e-6),
        "bandwidth": pytest.approx(1.2e9),
    }
    assert rows["all_reduce", "collnet_direct", "Simple"]["bandwidth"] == 0
    assert rows["all_gather", "pat", "Simple"]["bandwidth"] == pytest.approx(3.6e9)


def test_a_log_gives_the_choices_in_order():
    assert read_tuning(sockets_log()).calls == [
        {"collective": "broadcast", "bytes": 16384, "algorithm": "ring", "protocol": "LL", "seconds": None, "channels": 2},
        {"collective": "all_reduce", "bytes": 4096, "algorithm": "ring", "protocol": "Simple", "seconds": None, "channels": 4},
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("8 Bytes -> Algo 0 proto 0 time 25.200924", (None, 8, "tree", "LL", 25.200924e-6)),  # 2.20 to 2.22
        ("AllGather: 65536 Bytes -> Algo 1 proto 2 time 40.5", ("all_gather", 65536, "ring", "Simple", 40.5e-6)),  # 2.23
        ("AllReduce: 64 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}", ("all_reduce", 64, "nvls", "Simple", None)),
        (
            "AllReduce: 8 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..7}",
            ("all_reduce", 8, "nvls_tree", "Simple", None),
        ),
        (
            "ReduceScatter: 64 Bytes -> Algo COLLNET_DIRECT proto LL128 channel{Lo..Hi}={0..7}",
            ("reduce_scatter", 64, "collnet_direct", "LL128", None),
        ),
        ("8 Bytes -> Algo 5 proto 2 time 90.0", (None, 8, "nvls_tree", "Simple", 90e-6)),
        (
            "AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R nchannels 1 nthreads 512 nWorks 1",
            ("all_reduce", 1024, "symmetric", "Kernel AllReduce_AGxLL_R nchannels 1 nthreads 512 nWorks 1", None),
        ),
        ("AllGather [Copy Engine]: 64 Bytes -> cudaMemcpyAsync", ("all_gather", 64, "copy_engine", "cudaMemcpyAsync", None)),
    ],
)
def test_the_lines_of_all_versions_are_read(line, expected):
    (call,) = read_tuning(log(line)).calls
    assert (call["collective"], call["bytes"], call["algorithm"], call["protocol"]) == expected[:4]
    assert call["seconds"] == (None if expected[4] is None else pytest.approx(expected[4]))


def test_the_one_line_table_of_old_versions_is_read():
    """Up to 2.17; the numbers are those of NVIDIA/nccl issue 754."""
    kinds = [(algorithm, protocol) for algorithm in ("Tree", "Ring", "CollNet") for protocol in nccl.PROTOCOLS]
    values = [(0, 0)] * 3 + [(33.3, 0.8), (52.0, 0.0), (105.6, 3.2)] + [(0, 0)] * 3
    head = "Latency/AlgBw |" + "".join(f" {a:>7s}/{p:>6s} |" for a, p in kinds)
    row = f"{'AllGather':>13s} |" + "".join(f"{lat:8.1f}/{bw:6.1f} |" for lat, bw in values)
    found = read_tuning(log(head, " Max NThreads |" + " 512 |" * 9, row))
    rows = {(one["algorithm"], one["protocol"]): one for one in found.table}
    assert rows["ring", "Simple"]["latency"] == pytest.approx(105.6e-6) and rows["ring", "LL128"]["bandwidth"] == 0
    assert ("collnet", "LL") in rows and found.communicators == [Communicator()]


def test_each_communicator_keeps_its_own_table():
    node = log(
        "comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0",
        *block(["Tree", "Ring"], [("AllReduce", EIGHT_H200)]),
    )
    found = read_tuning(sockets_log() + "\n" + node)
    assert [(one.ranks, one.nodes) for one in found.communicators] == [(2, 2), (8, 1)]
    assert predict_from_table(found, "all_reduce", 2**25, communicator=1)[:2] == ("ring", "LL128")
    assert predict_from_table(found, "all_reduce", 2**25)[:2] == ("ring", "Simple")


def test_from_its_table_nccls_choices_follow():
    """Broadcast over sockets: the log of NCCL 2.29.7 shows LL up to 16 KiB and Simple from 32 KiB."""
    found = read_tuning(sockets_log())
    picks = {nbytes: predict_from_table(found, "broadcast", nbytes) for nbytes in (1024, 16384, 32768, 2**27)}
    assert [pick.protocol for pick in picks.values()] == ["LL", "LL", "Simple", "Simple"]
    assert picks[16384].seconds == pytest.approx(9.3e-6 + 16384 / 1.2e9)


@pytest.mark.parametrize("nbytes", [8, 2**12, 2**16, 2**21, 2**30])
def test_from_the_table_as_from_the_model(nbytes):
    """The model's own table, printed as NCCL prints it, leads to the model's choice, plateau and tree factor included."""
    nodes = replace(nccl.published("a100_n8_p64"), version="2.28")
    values = cells(nodes, "all_reduce")
    row = [values[algorithm, protocol] for algorithm in ("tree", "ring") for protocol in nccl.PROTOCOLS]
    told = log(
        f"comm 0x1 rank 0 nRanks {nodes.ranks} nNodes {nodes.nodes} localRanks 8",
        *block(["Tree", "Ring"], [("AllReduce", row)]),
        f"{nodes.channels} coll channels, 0 nvls channels",
    )
    predicted, modelled = predict_from_table(read_tuning(told), "all_reduce", nbytes), choice("all_reduce", nbytes, nodes)
    assert predicted[:2] == modelled[:2] and predicted.seconds == pytest.approx(modelled.seconds, rel=0.02)


def test_what_a_log_does_not_say_must_be_given():
    found = read_tuning(log(*block(["Tree", "Ring"], [("AllReduce", EIGHT_H200), ("AllGather", EIGHT_H200)])))
    with pytest.raises(UsageError, match="does not say nodes and ranks and channels"):
        predict_from_table(found, "all_reduce", 8)
    assert predict_from_table(found, "all_reduce", 8, nodes=1)[:2] == ("ring", "LL")
    assert predict_from_table(found, "all_gather", 8)[:2] == ("ring", "LL")
    with pytest.raises(UsageError, match="channels"):
        predict_from_table(found, "all_reduce", 8, nodes=2, ranks=16)
    with pytest.raises(UsageError, match="got a dict: give what read_tuning found"):
        predict_from_table({}, "all_reduce", 8)
    with pytest.raises(UsageError, match="got gpus"):
        predict_from_table(found, "all_reduce", 8, gpus=2)
    with pytest.raises(UsageError, match="no row of reduce_scatter"):
        predict_from_table(found, "reduce_scatter", 8)
    with pytest.raises(UsageError, match="1 communicators"):
        predict_from_table(found, "all_gather", 8, communicator=1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "neither NCCL's table nor a choice"),
        ("epoch 3 done\n" + log("Channel 00/04 :    0   1"), "NCCL_DEBUG=INFO"),
        (log(*block(["Tree", "Ring"], [("AllReduce", [(1, 1)] * 5)])), "5 cells under 6 headings"),
        (log(*block(["CollNetChain", "NVLS", "NVLSTree"], [("AllReduce", [(1, 1)] * 9)])), "middle of NCCL's table"),
    ],
)
def test_a_log_of_no_use_gets_one_sentence(text, sentence):
    with pytest.raises(UsageError, match=sentence):
        read_tuning(text)


def test_the_machine_is_read_from_nccls_search():
    """8 × H100 or H200 as search.cc leaves them: rings, then balanced trees, then the switch."""
    text = log(
        "=== System : maxBw 370.8 totalBw 370.8 ===",
        "Pattern 4, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1",
        "Pattern 1, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1",
        "Pattern 5, crossNic 0, nChannels 8, bw 40.000000/60.000000, type NVL/PIX, sameChannels 0",
        "comm 0x55d0c0 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0",
    )
    machine = read_platform(text, capability=90, version="2.30")
    assert machine.ring == H200.ring == machine.tree and machine.nvls == H200.nvls and machine.ranks == 8
    assert nccl.table(machine) == nccl.table(H200)


def test_the_machine_is_read_from_the_search_of_old_versions_too():
    text = log(
        "Pattern 4, crossNic 0, nChannels 4, speed 1.200000/1.200000, type SYS/SYS, sameChannels 0",
        "Pattern 3, crossNic 0, nChannels 4, speed 2.400000/1.200000, type SYS/SYS, sameChannels 1",
        "Pattern 5, crossNic 0, nChannels 0, bw 0.000000/0.000000, type LOC/PIX, sameChannels 0",
        "comm 0x1 rank 1 nRanks 8 nNodes 2 localRanks 4",
    )
    nodes = read_platform(text, capability=70, version="2.8", cpu="AMD")
    assert (nodes.nodes, nodes.ranks_per_node, nodes.nvls, nodes.plain_tree, nodes.same_channels) == (2, 4, None, True, False)
    assert (nodes.intra, nodes.inter, nodes.cpu) == ("SYS", "SYS", "AMD") and nodes.tree == Graph(4, 2.4e9, 1.2e9)


def test_a_log_without_the_search_gets_one_sentence():
    with pytest.raises(UsageError, match="found no ring"):
        read_platform(log("nothing here"), capability=90)
    with pytest.raises(UsageError, match="found no ring"):
        read_platform(log("comm 0x1 rank 1 nRanks 8 nNodes 2 localRanks 4"), capability=90)


def test_a_plain_tree_carries_less():
    assert cells(replace(H200, plain_tree=True), "all_reduce")["tree", "Simple"][1] == round(165.6 * 0.85, 1)


# --- published runs ---


def test_every_published_run_of_nccl_has_its_machine():
    # of the GH200 nothing is published from which to work out what NCCL's search finds there
    others = "osu_", "gh200_"
    made_by_nccl = [name for name, run in data.runs().items() if run.operation == "all_reduce" and not name.startswith(others)]
    assert [row["run"] for row in nccl.judge()] == made_by_nccl
    for name in made_by_nccl:
        run, platform = data.run(name), nccl.published(name)
        assert (run.ranks, run.nodes) == (platform.ranks, platform.nodes) and platform.source


def test_judged_is_the_median_of_the_misses():
    (row,) = nccl.judge("v100_n1_p4")
    sizes, seconds = data.sweep("v100_n1_p4")
    misses = sorted(abs(choice("all_reduce", n, nccl.published("v100_n1_p4")).seconds / t - 1) for n, t in zip(sizes, seconds))
    assert row["miss"] == pytest.approx((misses[11] + misses[12]) / 2) and row["worst"] == misses[-1] and row["sizes"] == 24
    assert row["picks"][0] == "ring/LL" and row["picks"][-1] == "ring/Simple"


def test_a_forced_run_is_judged_with_its_algorithm_forced():
    ring, tree = nccl.judge("l40s_p4_ring", "l40s_p4_tree")
    assert all(pick.startswith("ring/") for pick in ring["picks"]) and all(pick.startswith("tree/") for pick in tree["picks"])


def test_between_v100_nodes_the_model_meets_the_small_messages_unfitted():
    for row in nccl.judge("v100_n2_p8", "v100_n4_p16", "v100_n8_p32", "v100_n16_p64"):
        assert row["small"] == pytest.approx(1, abs=0.1)
