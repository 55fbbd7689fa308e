"""A word of the field has one meaning in the book's cells."""

import ast

import core_names
import nbformat
import pytest
import routes

from ringtree import Link

SOURCES = sorted((routes.ROOT / "labs" / "source").glob("*/*.ipynb"))
NOTEBOOKS = [*routes.chapters().values(), *SOURCES]


def other_links(code):
    """Return the lines where `link` is something else than a `Link`: what speaks like torch.distributed is called `wire`."""
    for node in ast.walk(ast.parse(core_names.python_of(code))):
        if isinstance(node, ast.Assign) and any(isinstance(each, ast.Name) and each.id == "link" for each in node.targets):
            made = getattr(getattr(node.value, "func", None), "id", None)
            if made in ("emulate", "traced"):
                yield ast.unparse(node)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "link":
            if not hasattr(Link(1.0, 1.0), node.attr):
                yield ast.unparse(node)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_link_is_an_alpha_and_a_beta(path):
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert not [line for cell in cells if not cell.startswith(("%%sh", "%%bash", "%%writefile")) for line in other_links(cell)]


def test_another_meaning_is_found():
    assert list(other_links("%%px\nlink = emulate(dist, slow)\nlink.send(x, dst=1)")) == [
        "link = emulate(dist, slow)",
        "link.send",
    ]
    assert not list(other_links("link = Link.of(1e-6, bandwidth=1e9)\nprint(link.time(8), link.half_size)"))
