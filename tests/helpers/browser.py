"""The machine's own Chromium, driven by Playwright; it reaches nothing but the local disk.

with launched() as browser, opened(browser, "file:///…/welcome.html", width=390) as (page, problems):
    page.evaluate("document.title")
"""

import shutil
from contextlib import contextmanager
from functools import partial

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Whatever a page might ask from the network fails, as it does on a train.
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND"

PAGE_IS_SET = "async () => { await document.fonts.ready; if (window.MathJax) await MathJax.startup.promise; return true; }"


def find_chromium():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launched(reaches=""):
    """A headless Chromium, ended with its driver however the block ends. reaches: the one host that it may ask.

    While it runs, Playwright keeps an event loop running in this thread, and `asyncio.run`
    refuses to start another: hold it for the tests of one file, not for a whole session.
    """
    with sync_playwright() as playwright:
        rules = f"{OFFLINE}, EXCLUDE {reaches}" if reaches else OFFLINE
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", rules])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser, url, **reader):
    """A page once its mathematics and fonts are set, and the list that its problems are added to, in a `window` of its own."""
    with window(browser, **reader) as look, look(url) as found:
        yield found


@contextmanager
def window(browser, width=1400, height=1000, theme="light", **reader):
    """A reader's window, as the function that opens a page in it: `with look("file:///…") as (page, problems)`.

    Pages that are opened in one window read and compile the fonts and scripts that they share once, which is half of the
    work of showing a page. Problems are console errors, uncaught exceptions and failed requests. `theme` is what the reader
    chose in the book; what they told their system goes to `reader` (color_scheme, reduced_motion).
    """
    with browser.new_context(viewport={"width": width, "height": height}, is_mobile=width < 600, **reader) as context:
        context.set_default_timeout(15_000)
        context.set_default_navigation_timeout(60_000)
        # The theme's own script reads these two when a page starts.
        context.add_init_script(f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}');")
        yield partial(_shown, context.new_page())


@contextmanager
def _shown(page, url):
    problems = []
    note = problems.append
    heard = {
        "console": lambda said: said.type in ("error", "assert") and note(f"console: {said.text} {said.location['url']}"),
        "pageerror": lambda error: note(f"exception: {error}"),
        "requestfailed": lambda request: note(f"request failed: {request.url} {request.failure}"),
    }
    for event, told in heard.items():
        page.on(event, told)
    try:
        page.goto(url)
        page.wait_for_function(PAGE_IS_SET, timeout=60_000)
        yield page, problems
    finally:
        for event, told in heard.items():
            page.remove_listener(event, told)
