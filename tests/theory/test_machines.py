"""Fitting a machine to several world sizes, and judging it by what it has not seen."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ringtree import data, theory
from ringtree.errors import UsageError
from ringtree.theory import nccl
from ringtree.theory.model import Model, Protocol

SIZES = 2 ** np.arange(3, 28)
TRUE = Model(
    (
        Protocol(6e-6, 1e-6, 0.5e-6, 5e-6, 4e9, 2e9, 0.8),
        Protocol(25e-6, 1e-6, 4e-6, 15e-6, 150e9, 20e9, 0.8),
    ),
    ranks_per_node=4,
)
WORLDS = ((4, 1), (8, 2), (16, 4), (32, 8))


def sampled(model, worlds, noise=0.0, collective="all_reduce", sizes=SIZES):
    random = np.random.default_rng(3)
    parts = []
    for ranks, nodes in worlds:
        times = model.time(collective, sizes, ranks, nodes) * np.exp(random.normal(0, noise, len(sizes)))
        parts.append(pd.DataFrame({"collective": collective, "ranks": ranks, "nodes": nodes, "size": sizes, "time": times}))
    return pd.concat(parts, ignore_index=True)


def family(prefix):
    return data.samples(*[name for name in data.runs() if name.startswith(prefix)])


def number(fitted, protocol, parameter):
    table = fitted.parameters.set_index(["protocol", "parameter"])
    return table.loc[(protocol, parameter)]


def medians(held):
    return held.assign(miss=held.miss.abs()).groupby("run", sort=False).miss.median()


# ---- fitting


def test_a_machine_is_found_again_from_its_times():
    fitted = theory.fit_machine(sampled(TRUE, WORLDS, noise=0.01), protocols=2)
    for protocol, true in enumerate(TRUE.protocols):
        for name in ("hop_between", "bandwidth_inside", "bandwidth_between"):
            found = number(fitted, protocol, name)
            assert found.value == pytest.approx(getattr(true, name), rel=0.2), (protocol, name)
            assert found.determined
    assert fitted.misses.miss.abs().median() < 0.015


def test_a_world_that_was_not_measured_is_predicted():
    fitted = theory.fit_machine(sampled(TRUE, WORLDS, noise=0.03))
    for ranks, nodes in ((24, 6), (64, 16)):
        true = TRUE.time("all_reduce", SIZES, ranks, nodes)
        off = fitted.model.time("all_reduce", SIZES, ranks, nodes) / true - 1
        assert np.median(np.abs(off)) < 0.1


def test_nine_of_ten_measurements_lie_in_the_interval_of_nine_tenths():
    fitted = theory.fit_machine(sampled(TRUE, WORLDS, noise=0.05), protocols=2)
    unseen = sampled(TRUE, ((12, 3), (24, 6)), noise=0.05)
    inside = []
    for (ranks, nodes), rows in unseen.groupby(["ranks", "nodes"]):
        low, high = fitted.interval("all_reduce", rows["size"], ranks, nodes)
        assert (low < high).all()
        inside += list((low <= rows.time) & (rows.time <= high))
    assert np.mean(inside) > 0.8
    with pytest.raises(UsageError, match="interval got 'all_to_all', which has no closed form: give one of"):
        fitted.interval("all_to_all", [16], 16, 4)


def test_more_sure_the_more_is_known():
    few, many = (theory.fit_machine(sampled(TRUE, worlds, noise=0.05), protocols=2) for worlds in (WORLDS[1:2], WORLDS))
    spread = [np.log(number(each, 1, "hop_between").high / number(each, 1, "hop_between").low) for each in (few, many)]
    assert spread[1] < spread[0]


def test_without_a_single_node_nothing_fixes_the_links_inside():
    """One single-node V100 run fixes its NVLink; without it nothing does."""
    everything = family("v100")
    known, unknown = theory.fit_machine(everything, 3), theory.fit_machine(everything[everything.nodes > 1], 3)
    assert number(known, 2, "bandwidth_inside").determined
    assert not number(unknown, 2, "bandwidth_inside").determined
    assert number(unknown, 2, "bandwidth_between").determined


def test_a_ping_pong_gives_the_machine_its_hop_and_its_bandwidth():
    link = Model((Protocol(1e-6, 0, 1e-6, 2e-6, 10e9, 10e9),))
    fitted = theory.fit_machine(sampled(link, ((2, 2),), collective="send_recv"), protocols=1)
    assert fitted.misses.miss.abs().max() < 0.02
    assert number(fitted, 0, "bandwidth_between").value == pytest.approx(10e9, rel=0.02)


def test_several_collectives_are_fitted_together():
    together = pd.concat([sampled(TRUE, WORLDS[:3]), sampled(TRUE, WORLDS[:3], collective="all_gather")])
    fitted = theory.fit_machine(together, protocols=2)
    predicted = fitted.model.time("reduce_scatter", SIZES, 32, 8)
    assert np.median(np.abs(predicted / TRUE.time("reduce_scatter", SIZES, 32, 8) - 1)) < 0.05


def test_a_forced_algorithm_is_fitted_as_that_algorithm():
    forced = family("l40s")
    fitted = theory.fit_machine(forced)
    tree = fitted.misses[fitted.misses.algorithm == "tree"]
    assert medians(fitted.misses)["l40s_p4_ring"] < 0.05
    assert tree.predicted.iloc[-1] > 1.05 * fitted.misses[fitted.misses.algorithm == "ring"].predicted.iloc[-1]


def test_the_unit_of_time_does_not_matter():
    """NCCL's constants are only where the fit starts, in this machine's own measure."""
    samples = sampled(TRUE, WORLDS, noise=0.02)
    slow = samples.assign(time=samples.time * 1000)
    one, other = theory.fit_machine(samples, 2), theory.fit_machine(slow, 2)
    assert other.misses.predicted.to_numpy() == pytest.approx(1000 * one.misses.predicted.to_numpy(), rel=0.02)


def test_the_number_of_protocols_is_chosen_by_what_they_predict():
    one = Model((Protocol(6e-6, 1e-6, 0.5e-6, 5e-6, 40e9, 20e9, 0.8),))
    assert len(theory.fit_machine(sampled(one, WORLDS, noise=0.03)).model.protocols) == 1
    assert len(theory.fit_machine(sampled(TRUE, WORLDS, noise=0.03)).model.protocols) >= 2


def test_several_functions_of_torch_are_one_collective():
    samples = sampled(TRUE, WORLDS, collective="all_gather")
    renamed = samples.assign(collective="all_gather_into_tensor")
    assert theory.fit_machine(renamed, 1).model == theory.fit_machine(samples, 1).model


# ---- held out


@pytest.mark.parametrize(
    "prefix, inner",
    [("v100", ["v100_n2_p8", "v100_n4_p16", "v100_n8_p32"]), ("a100", ["a100_n1_p8", "a100_n2_p16"])],
)
def test_published_world_sizes_between_others_are_predicted_within_15_percent(prefix, inner):
    held = theory.held_out(family(prefix))
    assert medians(held)[inner].max() <= 0.15
    assert held[held.between].run.unique().tolist() == inner


@pytest.mark.parametrize("prefix", ["v100", "a100"])
def test_published_sizes_left_out_are_predicted_within_8_percent(prefix):
    assert theory.held_out(family(prefix), by="size").miss.abs().median() <= 0.08


def test_another_cluster_with_other_software_is_predicted_by_the_same_code():
    held = theory.held_out(family("osu_vnode_host"))
    assert held[held.between].miss.abs().median() < 0.1


def test_a_cluster_that_was_found_afterwards_is_predicted_but_for_two_runs():
    held = theory.held_out(family("gh200"), protocols=2)
    inner = medians(held[held.between])
    assert len(inner) == 8 and inner.median() <= 0.15
    assert inner.drop(["gh200_n2_p8", "gh200_n256_p1024"]).max() <= 0.18


@pytest.mark.parametrize("name", ["h100_aws_n2_p16", "b200_n4_p32"])
def test_a_cluster_that_answers_by_nccls_own_model_is_predicted(name):
    """NVLS, capped protocols and the tree's corrections are in that model and not in ours."""
    random, parts = np.random.default_rng(1), []
    for nodes in (1, 2, 4, 8):
        platform = replace(nccl.published(name), nodes=nodes)
        times = np.array([nccl.choice("all_reduce", int(size), platform).seconds for size in SIZES])
        times *= np.exp(random.normal(0, 0.03, len(SIZES)))
        what = {"run": str(nodes), "collective": "all_reduce", "ranks": platform.ranks, "nodes": nodes}
        parts.append(pd.DataFrame({**what, "size": SIZES, "time": times}))
    held = theory.held_out(pd.concat(parts))
    assert medians(held[held.between]).max() <= 0.15


def test_what_is_predicted_was_not_seen():
    """A world whose times are ten times too long is missed by as much: its own times did not teach the fit."""
    samples = sampled(TRUE, WORLDS)
    wrong = samples.assign(time=samples.time.where(samples.ranks != 16, 10 * samples.time))
    held = theory.held_out(wrong, protocols=2)
    assert held[held.ranks == 16].miss.median() == pytest.approx(0.1 - 1, abs=0.03)
    every_second = sampled(TRUE, WORLDS[:1])
    every_second.loc[1::2, "time"] *= 10
    held = theory.held_out(every_second, by="size", protocols=2)
    assert held.miss[1::2].median() < -0.7 and held.miss[::2].median() > 2


def test_every_measurement_is_predicted_once_in_its_place():
    samples = family("a100")
    for by in ("ranks", "size"):
        held = theory.held_out(samples, by, protocols=1)
        assert held[samples.columns.tolist()].equals(samples)
        assert held.predicted.notna().all()


def test_only_worlds_and_sizes_inside_count_as_between():
    held = theory.held_out(sampled(TRUE, WORLDS), protocols=1)
    assert held[held.between].ranks.unique().tolist() == [8, 16]
    held = theory.held_out(sampled(TRUE, WORLDS[:1]), by="size", protocols=1)
    assert held["size"][~held.between].tolist() == [SIZES[0], SIZES[-1]]


# ---- refusals


BACK_TO_BACK = {"collective": "broadcast", "ranks": 16, "nodes": 4, "size": SIZES, "time": np.maximum(5e-6, SIZES / 20e9)}


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_what_was_timed_back_to_back_while_its_root_runs_ahead_is_refused_a_latency(collective):
    samples = pd.DataFrame({**BACK_TO_BACK, "collective": collective})
    with pytest.raises(UsageError, match=f"the samples of {collective} do not say how they were timed"):
        theory.fit_machine(samples)
    with pytest.raises(UsageError, match="timed back to back, so leave them out: .* the root runs ahead"):
        theory.fit_machine(samples.assign(back_to_back=True))
    for tool in ("nccl-tests", "rccl-tests"):
        samples.attrs["tool"] = tool
        with pytest.raises(UsageError, match="timed back to back"):
            theory.fit_machine(samples)


def test_one_by_one_a_broadcast_has_a_latency_and_so_has_an_all_reduce_back_to_back():
    samples = sampled(TRUE, WORLDS[:2], collective="broadcast")
    assert theory.fit_machine(samples.assign(back_to_back=False), 1).worlds == 2
    samples.attrs["tool"] = "OSU micro-benchmarks"
    assert theory.fit_machine(samples, 1).worlds == 2
    waiting = sampled(TRUE, WORLDS[:2])
    waiting.attrs["tool"] = "nccl-tests"
    assert theory.fit_machine(waiting, 1).worlds == 2


GOOD = {"collective": "all_reduce", "ranks": 4, "size": SIZES, "time": 1e-6 * SIZES}


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"time": np.where(SIZES > 100, np.nan, 1.0)}, "a sample's time is .*nan"),
        ({"time": np.where(SIZES > 100, np.inf, 1.0)}, "a sample's time is .*inf"),
        ({"time": 0 * SIZES}, "a sample's time is"),
        ({"time": ["quick"] * len(SIZES)}, "a sample's time is 'quick'"),
        ({"size": -SIZES}, "a sample's size is"),
        ({"ranks": 0}, "a sample's ranks is"),
        ({"ranks": 1}, "1 rank, which has no other rank"),
        ({"nodes": 3}, "not a multiple of its nodes"),
        ({"size": SIZES[::-1]}, "sizes out of order: 67108864 bytes comes after"),
        ({"size": [8] * len(SIZES)}, "sizes out of order: 8 bytes comes after"),
        ({"collective": "all_shout"}, "'all_shout': give one of broadcast, reduce, all_gather"),
        ({"algorithm": "star"}, "'star': give one of ring, tree"),
    ],
)
def test_samples_that_cannot_be_fitted_are_refused_in_one_sentence(change, sentence):
    for fitting in (theory.fit_machine, theory.held_out):
        with pytest.raises(UsageError, match=sentence) as error:
            fitting(pd.DataFrame({**GOOD, **change}))
        assert "\n" not in str(error.value)


def test_too_few_points_are_refused():
    few = pd.DataFrame(GOOD)[:3]
    with pytest.raises(UsageError, match="given 3 different sizes: give at least 4"):
        theory.fit_machine(few)
    with pytest.raises(UsageError, match="no samples"):
        theory.fit_machine([])
    with pytest.raises(UsageError, match="no column collective, ranks"):
        theory.fit_machine(pd.DataFrame({"size": SIZES, "time": SIZES}))


def test_one_world_cannot_be_left_out():
    with pytest.raises(UsageError, match="one world size, 4 ranks"):
        theory.held_out(pd.DataFrame(GOOD))


@pytest.mark.parametrize("count", [0, 4, 1.5, "two"])
def test_there_are_one_two_or_three_protocols(count):
    with pytest.raises(UsageError, match="give 1, 2 or 3"):
        theory.fit_machine(pd.DataFrame(GOOD), count)


def test_what_is_left_out_is_a_world_or_a_size():
    with pytest.raises(UsageError, match="by='moon'"):
        theory.held_out(pd.DataFrame(GOOD), by="moon")


def test_rows_of_no_bytes_are_left_out_of_a_fit():
    samples = sampled(TRUE, WORLDS[:2])
    nothing = samples[samples["size"] == SIZES[0]].assign(size=0, time=1.0)  # as OSU's tables begin
    with_nothing = pd.concat([nothing, samples]).sort_values(["ranks", "size"], ignore_index=True)
    fitted, as_before = (theory.fit_machine(each, protocols=1) for each in (with_nothing, samples))
    assert fitted.model == as_before.model
    with pytest.raises(UsageError, match="all samples have 0 bytes"):
        theory.fit_machine(nothing)
