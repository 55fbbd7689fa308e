"""What the browser tests rely on: problems are noticed, nothing is reached, and no process stays."""

import psutil
import pytest
from helpers.browser import find_chromium, launched, opened, window

pytestmark = pytest.mark.skipif(not find_chromium(), reason="no Chromium found on this machine")

PROBLEMS = {
    "fine": ("<p>fine", None),
    "console": ("<script>console.error('oh')</script>", "console: oh"),
    "assertion": ("<script>console.assert(false, 'oh')</script>", "console: oh"),
    "exception": ("<script>throw new Error('oh')</script>", "exception: oh"),
    "promise": ("<script>Promise.reject(new Error('oh'))</script>", "exception: oh"),
    "missing file": ("<img src='none.png'>", "request failed: file:///"),
    "network": ("<img src='https://example.org/'>", "request failed: https://example.org/ net::ERR_NAME_NOT_RESOLVED"),
    "address": ("<img src='http://192.0.2.1/'>", "request failed: http://192.0.2.1/ net::ERR_NAME_NOT_RESOLVED"),
}


def test_problems_of_a_page_are_noticed_and_the_network_is_out_of_reach(tmp_path):
    found = {}
    with launched() as browser, window(browser) as look:
        for name, (body, _) in [*PROBLEMS.items(), ("fine", PROBLEMS["fine"])]:  # nor is a page told of those before it
            (tmp_path / f"{name}.html").write_text(f"<!doctype html><title>{name}</title>{body}")
            with look((tmp_path / f"{name}.html").as_uri()) as (_, problems):
                found[name] = list(problems)
    assert not found.pop("fine")
    for name, problems in found.items():
        assert any(problem.startswith(PROBLEMS[name][1]) for problem in problems), (name, problems)


def test_a_failing_test_leaves_no_process_behind():
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ZeroDivisionError), launched() as browser, opened(browser, "about:blank"):
        started = set(psutil.Process().children(recursive=True)) - before
        assert any("chrom" in process.name() for process in started)
        raise ZeroDivisionError
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive
