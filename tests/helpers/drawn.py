"""What a browser makes of the drawings on a page: asked of the drawings alone, and of the built pages."""

# Of every drawing that is seen: words and marks that lie outside of it, and letters that are too small to read. A mark's
# line may stick out by half its width.
UNREADABLE = """
least => {
  const found = [];
  for (const svg of document.querySelectorAll("main figure svg, article .cell_output svg")) {
    if (!svg.checkVisibility() || svg.closest("mjx-container, button")) continue;
    const frame = svg.getBoundingClientRect();
    const name = (svg.getAttribute("aria-label") || svg.getAttribute("class") || "").slice(0, 50);
    const note = (what, element) =>
      found.push(`${what}: ${element.textContent.trim().slice(0, 30) || element.outerHTML.slice(0, 60)} in ${name}`);
    if (frame.right > innerWidth + 1 || frame.left < -1) note("wider than the page", svg);
    for (const element of svg.querySelectorAll("text, path, circle, rect")) {
      if (element.closest("defs, clipPath") || !element.checkVisibility()) continue;
      const box = element.getBoundingClientRect();
      if (!box.width && !box.height) continue;
      const words = element.tagName === "text";
      if (words && !element.textContent.trim()) continue;
      const drawn = element.getScreenCTM(), size = parseFloat(getComputedStyle(element).fontSize);
      if (words && size * Math.hypot(drawn.a, drawn.b) < least) note("too small", element);
      if (element.closest("[clip-path]")) continue;
      const off = Math.max(frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom);
      if (off > 3) note(`outside by ${off.toFixed(0)}`, element);
    }
  }
  return found.slice(0, 12);
}
"""

# Of every drawing that is seen, words that are written over other words.
OVERLAPPING = """
() => {
  const found = new Set();
  for (const svg of document.querySelectorAll("main figure.ringtree-picture svg")) {
    const words = [...svg.querySelectorAll("text")].filter(e => e.textContent.trim() && e.checkVisibility());
    const boxes = words.map(e => e.getBoundingClientRect());
    boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b, j) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 3 && down > 4) found.add(`${words[i].textContent} over ${words[i + 1 + j].textContent}`);
    }));
  }
  return [...found].slice(0, 10);
}
"""
