"""The pages of who chooses a server and of who waits for one, as a learner has them: wide and narrow, light and dark."""

import os
from pathlib import Path

import people
import requests
from people import wait_for

LOOKS = [(width, scheme) for width in (1400, 390) for scheme in ("light", "dark")]
# Relative luminance and contrast as WCAG 2 defines them; what is behind is the nearest colour that is not transparent.
CONTRAST = """element => {
    const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
    let behind = element;
    while (behind.parentElement && numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const two = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map((each) => light(numbers(each)));
    return (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
}"""


def look(page, name, *read):
    """In all four ways: nothing is wider than the page, and what is to be read can be."""
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("scheme => document.documentElement.setAttribute('data-bs-theme', scheme)", scheme)
        page.wait_for_timeout(300)  # colours change over some moments
        if folder := os.environ.get("RINGTREE_HUB_PICTURES"):
            page.screenshot(path=Path(folder, f"{name}-{width}-{scheme}.png"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, scheme)
        for selector in read:
            assert page.locator(selector).first.evaluate(CONTRAST) >= 4.5, (selector, width, scheme)


def test_the_page_to_choose_can_be_read_everywhere(hub, chromium, learners):
    with people.at_the_hub(chromium, learners(1), "/hub/spawn") as page:
        page.wait_for_selector("#gpus")
        look(page, "choose", "h1", "label", "#gpus", "#gpus-help")
        offered = page.locator("#gib option").evaluate_all("all => all.map(each => Number(each.value))")
    there = int(hub.slurm("sinfo", "--noheader", "--format=%m"))  # MiB
    assert max(offered) * 1024 <= there < max(offered) * 2048 or max(offered) == 64, "more than there is, or less, is offered"


def test_the_proxy_keeps_its_connections(hub):
    """One that is opened for each request becomes a 503 now and then: hub/server/connections.cjs."""
    answer = requests.post(f"{hub.address}/hub/api/users/somebody", json={}, timeout=30)
    assert (answer.status_code, answer.headers["Connection"]) == (403, "keep-alive")


def test_who_waits_may_cancel_and_the_next_moves_up(hub, chromium, learners):
    first, second, third = learners(1), learners(2), learners(3)
    first.start(gpus=4)
    with people.at_the_hub(chromium, second, "/hub/spawn") as page:
        people.choose(page, gpus=4)
        page.wait_for_selector("h1:has-text('You are in the queue')")
        hub.admin.start(third.name, gpus=2)
        page.wait_for_selector("#told:has-text('place 1 of 2')")
        look(page, "queue", "h1", "#told", "#cancel", "#patience")
        page.click("#cancel")
        page.wait_for_selector("h1:has-text('Cancelled')")
        assert page.locator("#cancel").is_hidden() and page.locator("#waiting").is_hidden()
        look(page, "cancelled", "h1", "#told", "#again")
        wait_for(lambda: not hub.admin.job(second.name), "the job to leave the queue")
        told = next(each["message"] for each in hub.admin.progress(third.name) if "queue" in each.get("message", ""))
        assert "place 1 of 1" in told, told
        page.click("#again")
        page.wait_for_selector("#gpus")


def test_who_waits_while_the_hub_dies_is_told_and_may_choose_again(hub, chromium, learners):
    first, second = learners(1), learners(2)
    first.start(gpus=4)
    with people.at_the_hub(chromium, second, "/hub/spawn") as page:
        people.choose(page, gpus=1)
        page.wait_for_selector("h1:has-text('You are in the queue')")
        try:
            hub.kill("hub")
            page.wait_for_selector("#told:has-text('The hub does not answer')", timeout=30_000)
        finally:
            hub.restart("hub")
        page.click("#start:has-text('Launch Server')")
        page.wait_for_selector("#gpus")
    assert not hub.admin.job(second.name)
