"""README's picture, taken from the built book: `make book`, then `python tools/pictures.py` writes book/_static/page.png.

Three cells of the first evening: four ranks add up a number, a hang is named, and the player in the middle of a ring.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "_build" / "html" / "notebooks" / "00-first-evening.html"
TARGET = ROOT / "book" / "_static" / "page.png"
CELLS = ["dist.all_reduce(x)\n", "if rank == 0:\n    dist.all_reduce(loss)", "draw.player("]
STEPS = 2  # of the player
KEEP = """
([texts, steps]) => {
  const code = cell => cell.querySelector(".cell_input pre")?.textContent ?? "";
  const cells = texts.map(text => [...document.querySelectorAll("div.cell")].find(cell => code(cell).includes(text)));
  if (!cells.every(Boolean)) throw new Error("the page lacks one of the cells");
  const box = document.createElement("article");
  box.className = "bd-article";
  box.id = "picture";
  box.style = "width: 760px; padding: 16px 24px; background: var(--pst-color-background)";
  box.append(...cells);
  document.body.replaceChildren(box);
  for (let step = 0; step < steps; step++) box.querySelector("button[data-do=next]").click();
}
"""


def main():
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not PAGE.is_file() or not chromium:
        print("a built book and a Chromium are needed: run `make book`, and install Chromium", file=sys.stderr)
        return 1
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 860, "height": 1400}, device_scale_factor=2)
        page.goto(PAGE.as_uri())
        page.evaluate(KEEP, [CELLS, STEPS])
        page.wait_for_timeout(1000)  # the player moves to its step
        page.locator("#picture").screenshot(path=TARGET)
        browser.close()
    print(f"written: {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
