"""Citations that JupyterLab can show: in a notebook a work stands as author and year with a link, and on its page as Sphinx cites it.

JupyterLab knows nothing of `references.bib` and shows `{cite:p}` as a warning. `tools/normalise.py` therefore stores links,
`as_links`, and the build turns exactly these back, `as_roles`.
"""

import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROLE = re.compile(r"\{cite:([pt])\}`([^`]+)`")


@functools.cache
def works():
    """{key of references.bib: (authors, year, address)}; the address is None where the work has none."""
    from pybtex.database import parse_file
    from pybtex.richtext import Text

    found = {}
    for key, entry in parse_file(str(ROOT / "book" / "references.bib")).entries.items():
        names = [str(Text.from_latex(" ".join([*each.prelast_names, *each.last_names]))) for each in entry.persons["author"]]
        authors = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
        doi = entry.fields.get("doi")
        address = f"https://doi.org/{doi}" if doi else entry.fields.get("url")
        found[key] = authors, entry.fields["year"], address and address.replace("(", "%28").replace(")", "%29")
    return found


def link(key, role, up):
    """The link that stands for a work. role: "p" in parentheses, "t" in a sentence. up: the way to the root of the project."""
    authors, year, address = works()[key]
    text = f"{authors}, {year}" if role == "p" else f"{authors} ({year})"
    return f"[{text}]({address or f'{up}book/references.md#{key}'})"


def as_links(text, up):
    """Markdown with each citation as a link. An unknown key stays, and the build says so."""

    def linked(match):
        keys = [each.strip() for each in match[2].split(",")]
        if not set(keys) <= works().keys():
            return match[0]
        links = [link(key, match[1], up) for key in keys]
        return f"({'; '.join(links)})" if match[1] == "p" else ", ".join(links)

    return ROLE.sub(linked, text)


@functools.cache
def _patterns(up):
    """{link: key} for both roles, and a pattern that finds citations in parentheses or in a sentence."""
    keys = {role: {link(key, role, up): key for key in works()} for role in "pt"}
    one = {role: "|".join(re.escape(each) for each in keys[role]) for role in "pt"}
    return keys, re.compile(rf"\((?P<p>(?:{one['p']})(?:; (?:{one['p']}))*)\)|(?P<t>{one['t']})")


def as_roles(text, up):
    """Markdown with the links of `as_links` as Sphinx's citations again."""
    keys, pattern = _patterns(up)

    def cited(match):
        if match["t"]:
            return f"{{cite:t}}`{keys['t'][match['t']]}`"
        cited = [keys["p"][each] for each in re.split(r"; (?=\[)", match["p"])]
        return f"{{cite:p}}`{','.join(cited)}`"

    return pattern.sub(cited, text)
