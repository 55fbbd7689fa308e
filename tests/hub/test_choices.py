"""What may be asked for, and what a learner in the queue is told: no hub is needed."""

import pytest
from choices import Limits
from queue_place import gpus_in, spoken, tell_free, tell_place

pytestmark = pytest.mark.cut
SERVER = Limits(gpus=4, hours=4, gib=16)
SETTINGS = ["own", "clean"]
CHOSEN = {"gpus": 2, "hours": 1, "gib": 8, "settings": "own"}


def test_a_form_and_a_program_may_ask_for_the_same():
    assert SERVER.checked({"gpus": ["2"], "hours": ["1"], "gib": ["8"]}) == CHOSEN
    assert SERVER.checked({"gpus": 2, "gib": 8}) == CHOSEN
    assert SERVER.checked({"gpus": 2, "gib": 8, "settings": ["clean"]}) == CHOSEN | {"settings": "clean"}


TOO_MUCH = [
    {"gpus": 8},
    {"gpus": 3},
    {"gpus": "part"},
    {"hours": "99"},
    {"gib": "64\n#SBATCH --gres=gpu:4"},
    {"gpus": [True]},
    {"settings": "x; id"},
]


@pytest.mark.parametrize("asked", TOO_MUCH)
def test_what_is_not_on_offer_is_refused_in_a_sentence(asked):
    with pytest.raises(ValueError, match="was asked for, and this server offers"):
        SERVER.checked(asked)


def test_nothing_else_in_a_request_reaches_the_job():
    assert SERVER.checked({"cmd": "id", "prologue": "id"}) == {"gpus": 0, "hours": 1, "gib": 2, "settings": "own"}


def test_a_long_value_is_refused_in_a_short_sentence():
    with pytest.raises(ValueError, match="was asked for") as refused:
        SERVER.checked({"gpus": "x" * 100_000})
    assert len(str(refused.value)) < 200


def test_the_page_shows_what_the_server_has():
    assert [values for _, values in SERVER.choices().values()] == [[0, 1, 2, 4], [1, 2, 4], [2, 4, 8, 16], SETTINGS]
    assert '<option value="0">none: the ranks run on the CPU</option>' in SERVER.page()


def test_a_part_of_a_gpu_is_on_offer_where_one_is_set_aside():
    sharing = Limits(gpus=1, hours=4, gib=16, sharing=3)
    part_of_one = {"gpus": "part", "hours": 1, "gib": 4, "settings": "own"}
    assert sharing.checked({"gpus": ["part"]}) == part_of_one == sharing.checked({"gpus": "part"})
    page = sharing.page()
    assert (
        '<option value="part">a part of one, which up to 3 learners share</option>' in page
        and "for learning, not for timing" in page
    )
    assert "is yours alone (a part of a GPU is shared) until" in page and "is yours alone until" in SERVER.page()
    assert "a part of one" not in SERVER.page() and "timing" not in SERVER.page()
    assert sharing.choices()["gpus"][1] == [0, "part", 1] and Limits(0, 4, 16, sharing=2).choices()["gpus"][1] == [0, "part"]


def test_the_most_that_an_administrator_allows_is_on_offer():
    assert [values for _, values in Limits(gpus=0, hours=24, gib=20).choices().values()] == [
        [0],
        [1, 2, 4, 8, 12, 24],
        [2, 4, 8, 16, 20],
        SETTINGS,
    ]
    assert [values for _, values in Limits(gpus=8, hours=1, gib=1).choices().values()] == [[0, 1, 2, 4, 8], [1], [1], SETTINGS]


def test_gpus_come_with_the_memory_that_their_ranks_want():
    assert SERVER.checked({"gpus": 2, "gib": 2})["gib"] == 8 and SERVER.checked({"gpus": 1, "gib": 16})["gib"] == 16
    assert Limits(gpus=8, hours=1, gib=20).checked({"gpus": 8})["gib"] == 20, "no more than there is"


@pytest.mark.parametrize("text, gpus", [("gres:gpu:2", 2), ("gpu:1", 1), ("N/A", 0), ("gres:gpu:a100:4", 4), ("gres/gpu=3", 3)])
def test_slurms_words_for_gpus(text, gpus):
    assert gpus_in(text) == gpus


LISTING = """RUNNING|7|gres:gpu:2|45:10|None
RUNNING|8|gres:gpu:1|1:03:00|None
PENDING|9|gres:gpu:2|1:00:00|(Resources)
PENDING|10|gres:gpu:1|1:00:00|Priority
COMPLETED|5|gres:gpu:4|0:00|None"""


def test_who_waits_is_told_the_place_what_is_free_why_and_how_long():
    assert tell_place(LISTING, "9", 4) == (
        "In the queue: place 1 of 2. You asked for 2 GPUs; 1 of 4 is free. Waiting until enough is free. "
        "The next server ends in 46 min at the latest, or when its learner stops it."
    )
    second = tell_place(LISTING, "10", 4)
    assert second.startswith("In the queue: place 2 of 2. You asked for 1 GPU; 1 of 4 is free. Waiting behind earlier requests")


@pytest.mark.parametrize("said", ["None", "InvalidAccount"])
def test_what_is_no_reason_is_not_told_to_who_waits_behind_others(said):
    silent = ("None", "InvalidAccount")
    told = tell_place(LISTING.replace("(Resources)", said), "9", 4, silent)
    assert told.startswith("In the queue: place 1 of 2. You asked for 2 GPUs; 1 of 4 is free. The next server ends in 46 min")
    assert tell_place(f"PENDING|9|N/A|1:00:00|{said}", "9", 4, silent) == "In the queue: place 1 of 1. It starts in a moment."


def test_an_account_that_a_cluster_has_closed_is_a_reason():
    told = tell_place(LISTING.replace("(Resources)", "InvalidAccount"), "9", 4)
    assert "where Slurm keeps accounts, it no longer knows this one. " in told


@pytest.mark.parametrize("seconds, words", [(0, "0 min"), (61, "2 min"), (3600, "1 h"), (3601, "1 h 1 min"), (86400, "24 h")])
def test_time_left_is_said_in_hours_and_minutes(seconds, words):
    assert spoken(seconds) == words


def test_who_chooses_is_told_what_is_free_and_how_many_wait():
    assert tell_free(LISTING, 4) == "GPUs: 1 of 4 is free. 2 learners wait in the queue."
    assert tell_free(LISTING.replace("PENDING|9", "COMPLETED|9"), 8) == "GPUs: 5 of 8 are free. 1 learner waits in the queue."
    assert tell_free("", 0) == ""


def test_who_asked_for_a_part_of_a_gpu_is_told_of_parts():
    listing = (
        "RUNNING|6|gres:shard:1|30:00|None\nRUNNING|4|gres/shard:1|20:00|None\nPENDING|11|gres:shard:1|1:00:00|Resources\n"
    )
    told = tell_place(listing + LISTING, "11", 4, parts=2)
    assert told.startswith(
        "In the queue: place 1 of 3. You asked for a part of a GPU; 0 of 2 are free. Waiting until enough is free."
    )
    assert "The next server ends in 20 min" in told
    assert (
        tell_free(listing, 4, 3) == "GPUs: 4 of 4 are free. Parts of shared GPUs: 1 of 3 is free. 1 learner waits in the queue."
    )
    assert "You asked for 2 GPUs; 1 of 4 is free." in tell_place(listing + LISTING, "9", 4, parts=2)


def test_who_does_not_wait_is_told_nothing():
    assert tell_place(LISTING, "7", 4) is None
    assert tell_place("", "9", 4) is None
