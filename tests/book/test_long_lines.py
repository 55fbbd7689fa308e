"""Code and what cells print, as `book/ext/pages.py` marks it so that a phone can fold it or set it small enough."""

import re
from html import unescape

import pages
import pytest

CODE, PRINTED, SHOWN = "highlight-python", "output stream highlight-myst-ansi", "output text_plain highlight-myst-ansi"


def marked(text, kind=PRINTED):
    block = f'<div class="{kind} notranslate"><div class="highlight"><pre><span></span>{text}</pre></div></div>'
    context = {"body": f"<p>Before.</p>{block}"}
    pages.mark_long_lines(None, "page", "page.html", context, None)
    return context["body"]


def text_of(body):
    return unescape(re.sub("<[^>]*>", "", body.partition("<pre")[2].partition(">")[2].partition("</pre>")[0]))


@pytest.mark.parametrize("kind", [CODE, PRINTED, SHOWN])
@pytest.mark.parametrize(
    "text",
    [
        "short\n",
        f"{'a long line of words ' * 4}\nshort\n\n    {'indented words ' * 6}\n",
        "no end of line",
        "name" + " " * 60 + "number\n",
    ],
)
def test_marks_change_no_letter(kind, text):
    assert text_of(marked(text, kind)) == text


def test_a_long_line_of_code_knows_its_indent():
    body = marked(f"def f():\n    return {'<b>x</b> + ' * 10}\n", CODE)
    assert re.findall(r'<span class="long" style="--indent:(\d+)">', body) == ["4"]
    assert "--letters" not in body


def test_a_letter_that_the_page_spells_out_counts_as_one():
    assert "long" not in marked("a &lt; b &amp;&amp; " * 3 + "\n", CODE)


def test_columns_say_how_wide_they_are_and_sentences_fold():
    table = "name                 one        two        three\n"
    body = marked(table + "a sentence that nobody would want to read in smaller letters\n")
    assert f'style="--letters:{len(table) - 1}"' in body and body.count('class="long"') == 2
    assert "--letters" not in marked("a sentence that nobody would want to read in smaller letters\n")


def test_columns_that_are_too_wide_for_letters_that_can_be_read_scroll():
    body = marked("name" + " " * 70 + "number\n")
    assert '<pre class="scrolls" style="--letters:68">' in body and "long" not in body


def test_a_sentence_with_one_small_gap_is_no_row_of_a_table():
    sentence = "rank 0 is held in isend to rank 1: rank 1 has not come to make the communicator  [ring, line 6]\n"
    body = marked("name    one   two\n" + sentence)
    assert "scrolls" not in body and body.count('class="long"') == 1 and 'style="--letters:17"' in body
    wide = marked(f"{'name':40} {'one':>20} {'two':>20}\n" + sentence)
    assert '<pre class="scrolls"' in wide and wide.count('class="long"') == 1, "beside a wide table it folds all the same"


def test_a_comment_comes_near_and_a_word_without_blanks_breaks_after_a_dot_or_a_bracket():
    opening = '<span class="p">(</span>'
    body = marked(f'n = 3_840_000{" " * 28}<span class="c1"># bytes</span>\nlist{opening}{"x" * 50}\n', CODE)
    assert f'n = 3_840_000  <span class="gap">{" " * 26}</span><span class="c1">' in body
    assert f"list{opening}<wbr>" in body and body.count("<wbr>") == 1


def test_long_names_in_tables_may_break_and_nothing_else_may():
    name, formula = "recursive_doubling_all_gather", "<td>\\(very_long.names_in_a_formula\\)</td>"
    context = {"body": f'<p>{name}</p><td class="{name}">{name} rank_0</td>{formula}'}
    pages.break_names_in_tables(None, "page", "page.html", context, None)
    assert context["body"] == f'<p>{name}</p><td class="{name}">{name.replace("_", "_<wbr>")} rank_0</td>{formula}'


def test_reports_of_errors_fold_and_are_not_set_small():
    report = "rank 0    is held in a call of a collective that rank 1 never made" + " and so on" * 4 + "\n"
    body = marked(report, "output stderr highlight-ansi")
    assert 'class="long"' in body and "--letters" not in body
