"""How fast a GPU computes stands in one place, and pages keep its two rates apart."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from ringtree import theory

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("labs/source/*/*.ipynb")])
CODE = sorted({*ROOT.glob("ringtree/**/*.py"), *ROOT.glob("labs/hidden/*.py"), *ROOT.glob("notebooks/scripts/*.py")})
CODE.remove(ROOT / "ringtree/theory/rates.py")
FROM, TO = 5e13, 5e15  # operations a second of one GPU, from its slowest use to what no GPU of today does
RATE = re.compile(r"(\d[\d,.]*)\s*TFLOP/s")
A_LINK = re.compile(r"\]\([^)]*\)")


def rates_in(source):
    """Numbers in code that can only be a rate of computing."""
    numbers = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [each for each in numbers if type(each) in (int, float) and FROM <= each <= TO]


def mixed_up(text):
    """Sentences that give the rate of a whole training without saying that it is one."""
    whole = {f"{rate / 1e12:.0f}" for rate in theory.TRAINING_RATE.values()}
    sentences = re.split(r"(?<=[.:?)])\s+|\n\n", A_LINK.sub("]", text))
    return [each for each in sentences if whole & set(RATE.findall(each)) and not re.search(r"\btraining", each)]


def cells(path, kind):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def plain(source):
    """A cell's Python without the lines that are IPython's."""
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith(("%", "!")))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_takes_rates_of_computing_from_theory(path):
    assert [rate for source in cells(path, "code") for rate in rates_in(plain(source))] == []
    assert [sentence for text in cells(path, "markdown") for sentence in mixed_up(text)] == []


def test_code_takes_rates_of_computing_from_theory():
    found = {str(path): rates_in(path.read_text(encoding="utf-8")) for path in CODE}
    assert {path: rates for path, rates in found.items() if rates} == {}


def test_a_rate_that_is_typed_or_mixed_up_is_found():
    assert rates_in("layers = transformer(12, 768, rate=400e12)") == [400e12]
    assert rates_in("tokens, parameters = 1e12, 405e9") == []
    assert mixed_up("We let a GPU do 400 TFLOP/s, as Llama 3.") != []
    assert mixed_up("A whole training reached 400 TFLOP/s. Products run at 680 TFLOP/s.") == []


def test_products_are_faster_than_trainings_that_wait_too():
    assert theory.PRODUCT_RATE.keys() == theory.TRAINING_RATE.keys()
    assert all(theory.PRODUCT_RATE[gpu] > rate for gpu, rate in theory.TRAINING_RATE.items())
