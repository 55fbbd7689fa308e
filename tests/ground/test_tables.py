"""Tables as commented CSV: what comes back, and what is said of a damaged file."""

import math

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtree import tables
from ringtree.errors import UsageError

KIND = "ringtree.test"
TYPES = {"what": "object", "size": "int64", "count": "Int64", "time": "float64", "stable": "boolean"}
TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\ufeff"), min_size=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda each: st.lists(each),
    max_leaves=5,
)
ROW = st.fixed_dictionaries({
    "what": st.none() | TEXTS | st.sampled_from(["#", "# a: 1", "NaN", "None", "12", " x ", 'a "quote"', "two\nlines"]),
    "size": st.integers(-(2**63), 2**63 - 1),
    "count": st.none() | st.integers(-(2**63), 2**63 - 1),
    "time": st.floats(),
    "stable": st.none() | st.booleans(),
})


def frame_of(rows):
    return pandas.DataFrame({name: pandas.Series([row[name] for row in rows], dtype=kind) for name, kind in TYPES.items()})


def read(text, types=None):
    return tables.parse(text, KIND, "'t.csv'", types)


@given(st.lists(ROW), st.dictionaries(st.from_regex(r"[a-z_]+", fullmatch=True), JSON))
def test_every_digit_every_word_and_every_attr_come_back(rows, attrs):
    frame = frame_of(rows)
    back, told = read(tables.text_of(frame, attrs, KIND), TYPES)
    pandas.testing.assert_frame_equal(back.reset_index(drop=True), frame, check_exact=True)
    assert told == attrs


def test_a_table_is_lines_that_anybody_can_read():
    frame = pandas.DataFrame({"size": [8, 16], "time": [1 / 3, math.nan], "note": ["a, b", None]})
    assert tables.text_of(frame, {"ranks": 4, "devices": ["CPU"]}, KIND) == (
        '# ringtree.test\n# ranks: 4\n# devices: ["CPU"]\nsize,time,note\n8,0.3333333333333333,"a, b"\n16,,\n'
    )


def test_line_ends_come_back_as_newlines_and_an_empty_text_as_missing():
    frame = pandas.DataFrame({"said": ["a\r\nb\rc", "", "d"]})
    back, _ = read(tables.text_of(frame, {}, KIND))
    assert back["said"].tolist() == ["a\nb\nc", None, "d"]


def test_remarks_are_skipped_wherever_they_stand():
    back, attrs = read(f'# {KIND}\n# ranks: 4\n# by night\n#\n#none: x\nsize,said\n# the first\n8,"a\n# b"\n\n# end: 1\n')
    assert back.to_dict("records") == [{"size": "8", "said": "a\n# b"}] and attrs == {"ranks": 4, "end": 1}


def test_the_index_names_the_lines():
    back, _ = read(f'# {KIND}\n# a remark\nsize,said\n8,"two\nlines"\n\n16,b\n', {"size": "int64"})
    assert back.index.tolist() == [4, 7] and back["size"].tolist() == [8, 16]


@pytest.mark.parametrize("end", ["16,2e", "16", "16,2e-6", '16,"two\nli', '16,"two\n'])
def test_a_file_that_was_cut_in_a_line_gives_the_rows_before_and_says_so(end):
    back, attrs = read(f"# {KIND}\n# ranks: 4\nsize,time\n8,1e-6\n{end}")
    assert back["size"].tolist() == ["8"] and attrs["ranks"] == 4
    assert attrs["truncated"] == "the file ends in the middle of a line: these are the rows before it"


def test_a_remark_at_the_end_needs_no_line_end():
    back, attrs = read(f"# {KIND}\nsize\n8\n# that was all")
    assert back["size"].tolist() == ["8"] and attrs == {}


def test_windows_line_ends_are_read():
    back, attrs = read(f"# {KIND}\r\n# ranks: 4\r\n\r\nsize,time\r\n8,1\r\n", TYPES)
    assert back.to_dict("records") == [{"size": 8, "time": 1.0}] and attrs == {"ranks": 4}


def test_a_table_without_rows_keeps_its_columns_and_types():
    back, _ = read(f"# {KIND}\nsize,time\n", TYPES)
    assert len(back) == 0 and back.dtypes.astype(str).to_dict() == {"size": "int64", "time": "float64"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("size,time\n8,1\n16,fast\n", "line 5: time is 'fast', which is not possible: expected a number"),
        ("size,time\n8,1\n1.5,1\n", "line 5: size is '1.5', which is not possible: expected a whole number"),
        ("size,time\n# why\n\n,1\n", "line 6: size is missing: expected a whole number"),
        ("size,stable\n8,yes\n", "line 4: stable is 'yes', which is not possible: expected True or False"),
        ("size,time\n8,1\n16\n32,1\n", "line 5: it has 1 cells, and there are 2 columns"),
        ("size,time\n8,1,2\n", "line 4: it has 3 cells, and there are 2 columns"),
        ("", "'t.csv' has no columns"),
        ("size,ti", "'t.csv' has no columns"),
    ],
)
def test_a_damaged_file_is_told_with_the_line_in_one_sentence(body, sentence):
    with pytest.raises(UsageError) as caught:
        read(f"# {KIND}\n# ranks: 4\n{body}", TYPES)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["size,time\n8,1\n", "# ringtree.other\nsize\n8\n", "", "# ringtree.testing\nsize\n8\n"])
def test_another_kind_of_file_is_refused(text):
    with pytest.raises(UsageError, match="'t.csv' does not begin with the line '# ringtree.test'"):
        read(text)
