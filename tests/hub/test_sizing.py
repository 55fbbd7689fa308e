"""What README says of twenty learners is what the benchmark stored; no hub is needed."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOUND = json.loads((ROOT / "benchmarks" / "hub.json").read_text())
README = (ROOT / "hub" / "README.md").read_text().partition("## Sizing")[2].partition("\n## ")[0]


def test_nobody_failed_and_nothing_was_lost():
    assert FOUND["learners"] == FOUND["saved"] == 20 and not FOUND["failed"]
    assert FOUND["gpus_at_once"] <= FOUND["gpus"]


def test_readme_says_what_was_found():
    rows = {"to a server": "server", "in the queue": "queue", "live ranks": "ranks", "the lab,": "lab"}
    for words, stage in rows.items():
        told = next(line for line in README.splitlines() if line.startswith("|") and words in line)
        assert re.findall(r"\| (\d+) (?=\|)", told) == [
            f"{FOUND['seconds'][stage][kind]:.0f}" for kind in ("alone", "median", "most")
        ]
    for kind in ("all", "server", "kernel", "ranks"):
        assert re.search(rf"\b{FOUND['memory_mb'][kind]['median']:.0f}\b", README), kind
    for said in (
        f"{FOUND['waited']} learners waited",
        f"{FOUND['servers_at_once']} servers ran",
        f"after {FOUND['all_done']} seconds",
    ):
        assert said in README
