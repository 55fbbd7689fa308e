"""What the hub's texts say of themselves: no hub is needed."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.cut
HUB = Path(__file__).resolve().parents[2] / "hub"
TEXTS = [path for path in sorted(HUB.rglob("*")) if path.is_file() and path.suffix not in (".pyc", ".json", ".lock")]
# "Run." and its like: on which machine something has run.
RAN = re.compile(
    r"\bRun(?: on (?:Debian|Ubuntu|Kubernetes)|\.(?=\s|\"|$))"
    r"|(?<![Dd]o )\b(?:[Nn]ot|[Nn]ever) (?:been )?(?:run|tried)\b(?! yet)|\brun here\b"
)


def told(text):
    return [match[0] for match in RAN.finditer(text)]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(HUB).as_posix())
def test_where_something_ran_stands_in_one_table_and_nowhere_else(path):
    text = path.read_text()
    if path == HUB / "README.md":
        before, heading, table = text.partition("## What was run")
        assert heading and table.count("\n| ") > 8
        text = before
    assert not told(text)


@pytest.mark.parametrize(
    "text", ["Run on Ubuntu 24.04 (emulated).", "# Not run: on this", "it was never tried", '"""A part. Run."""']
)
def test_such_a_text_would_be_found(text):
    assert told(text)


def test_the_readme_begins_with_what_a_hub_is():
    title, first = (HUB / "README.md").read_text().split("\n\n")[:2]
    assert title.startswith("# ") and first.startswith("A hub is")


def test_where_a_hole_is_reported_is_said_and_leads_somewhere():
    link = re.search(r"\]\(\.\./(CONTRIBUTING\.md)#([\w-]+)\) says how to report a hole", (HUB / "SECURITY.md").read_text())
    headings = re.findall(r"^## (.*)", (HUB.parent / link[1]).read_text(), re.MULTILINE)
    assert link[2] in [heading.lower().replace(" ", "-") for heading in headings]
    assert re.search(r"\]\(README\.md#what-was-run\)", (HUB / "SECURITY.md").read_text())
