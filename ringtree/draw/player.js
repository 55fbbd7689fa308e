((name) => {
  // One figure on the page may be there twice (a page shown in two places), so each takes the next that sleeps.
  for (const figure of document.querySelectorAll(`figure[data-ringtree="${name}"]:not(.rt-on)`)) wake(figure);

  function wake(figure) {
    const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const steps = data.steps, last = steps.length;
    const find = (selector) => figure.querySelector(selector);
    const [slider, play, caption, spoken] = [find("input"), find(".rt-play"), find(".rt-caption"), find(".rt-spoken")];
    const rows = figure.querySelectorAll("tbody tr");
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    let at = 0, running = 0;

    figure.classList.add("rt-on");
    find("details").open = false;
    const stage = makeStage(find(".rt-stage"), data);
    show(0);

    // ---- moving about

    function show(time, quiet) {
      at = Math.max(0, Math.min(last, time));
      stage.draw(at);
      slider.value = at;
      const step = Math.ceil(at - 1e-9);
      const text = step ? `Step ${step} of ${last}` : `Before the first of ${last} steps`;
      slider.setAttribute("aria-valuetext", text);
      figure.dataset.step = step;
      if (caption.dataset.step === String(step)) return;
      caption.dataset.step = step;
      caption.textContent = step ? `${text} · ${steps[step - 1].t}` : text;
      if (!quiet) spoken.textContent = step ? `${text}. ${[...rows[step].cells].slice(1).map((cell) => cell.textContent).join(". Then ").replaceAll(" → ", " to ")}` : text;
      rows.forEach((row, index) => row.classList.toggle("rt-now", index === step));
    }

    function run(target) {
      stop();
      const from = at, began = performance.now(), quiet = target - from > 1;
      if (still.matches) {
        if (!quiet) return show(target);
        play.classList.add("rt-running");
        running = setInterval(() => { show(Math.floor(at) + 1); if (at >= target) stop(); }, 1200);
        return;
      }
      if (quiet) play.classList.add("rt-running");
      // 900 ms of moving and 350 ms to look at what has come of it; a single step goes faster.
      const moving = quiet ? 900 : 520, looking = quiet ? 350 : 0;
      const frame = (now) => {
        const passed = Math.max(0, now - began) + (from % 1) * moving;
        const whole = Math.floor(passed / (moving + looking));
        const part = Math.min(1, (passed - whole * (moving + looking)) / moving);
        show(Math.min(target, Math.floor(from) + whole + ease(part)));
        if (at < target) running = requestAnimationFrame(frame); else stop();
      };
      running = requestAnimationFrame(frame);
    }

    function stop() {
      cancelAnimationFrame(running);
      clearInterval(running);
      running = 0;
      play.classList.remove("rt-running");
      play.setAttribute("aria-label", "Play");
    }

    const actions = {
      first: () => { stop(); show(0); },
      back: () => { stop(); show(Math.ceil(at - 1e-9) - 1); },
      play: () => {
        if (play.classList.contains("rt-running")) return stop();
        if (at >= last) show(0);
        run(last);
        if (running) play.setAttribute("aria-label", "Pause");
      },
      next: () => {
        // Pressed again while a step still moves: that step is done at once and the next one begins.
        const playing = play.classList.contains("rt-running");
        if (running) { stop(); show(Math.floor(at + 1e-9) + 1); }
        if (at < last && !playing) run(Math.floor(at + 1e-9) + 1);
      },
      last: () => { stop(); show(last); },
    };
    for (const button of figure.querySelectorAll("button")) button.onclick = actions[button.dataset.do];
    slider.oninput = () => { stop(); show(+slider.value); };
    slider.onchange = () => show(Math.round(at));
    const keys = { ArrowRight: "next", ArrowLeft: "back", ArrowUp: "next", ArrowDown: "back", Home: "first", End: "last", " ": "play" };
    figure.onkeydown = (event) => {
      const action = keys[event.key];
      if (!action || event.ctrlKey || event.altKey || event.metaKey || event.target.closest("details")) return;
      // A button answers the space bar itself; the notebook around must not answer at all.
      event.stopPropagation();
      if (event.key === " " && event.target.closest("button")) return;
      event.preventDefault();
      actions[action]();
    };

    // ---- on paper, every step beside the others

    addEventListener("beforeprint", () => {
      const paper = find(".rt-paper");
      if (paper.childElementCount) return;
      for (let step = 0; step <= last; step++) {
        const box = document.createElement("div");
        paper.append(box);
        makeStage(box, data).draw(step);
        box.append(step ? `after step ${step}` : "before");
      }
    });
  }

  function ease(part) {
    return part < 1 ? part * part * (3 - 2 * part) : 1;
  }

  function svg(parent, tag, attributes, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  // What a place holds: one stripe a rank in a sum, one coloured box otherwise.
  function fill(group, data, number, width, height) {
    group.replaceChildren();
    const [label, origins] = data.contents[number];
    const box = { width, height, rx: 3 };
    group.dataset.holds = origins.map(([rank, times]) => (times > 1 ? `${rank}×${times}` : rank)).join(" ");
    group.dataset.chunk = label;
    const text = (x, size) => svg(group, "text", { x, y: height / 2, class: "rt-label", "font-size": size }, label);
    if (data.mode === "text") return void text(width / 2, 13);
    if (!origins.length) return void svg(group, "rect", { ...box, class: "rt-empty" });
    if (data.mode === "move") {
      svg(group, "rect", { ...box, class: "rt-tint", fill: data.colours[origins[0][0]], stroke: data.colours[origins[0][0]] });
      return void text(width / 2, Math.max(11, Math.min(14, (width - 3) / (0.6 * label.length))));
    }
    const stripe = width / data.slots.length;
    svg(group, "rect", { ...box, class: "rt-ground" });
    for (const [rank, times] of origins) {
      const x = data.slots.indexOf(rank) * stripe;
      svg(group, "rect", { x, width: stripe, height, fill: data.colours[rank] });
      if (times > 1) svg(group, "text", { x: x + stripe / 2, y: height / 2, class: "rt-twice", "font-size": 13 }, times);
    }
    svg(group, "rect", { ...box, class: origins.length === data.slots.length ? "rt-full" : "rt-part" });
  }

  function makeStage(parent, data) {
    const colours = data.colours, where = data.places, radius = data.radius;
    const map = svg(parent, "svg", { viewBox: `0 0 ${data.width} ${data.height}`, class: "rt-map", "aria-hidden": "true" });
    map.style.maxWidth = data.width + "px";
    const wires = svg(map, "g", {}), moving = svg(map, "g", {}), discs = svg(map, "g", {}), chips = svg(map, "g", {});
    for (const [src, dst] of data.wires) svg(wires, "path", { d: route(src, dst).d, class: "rt-wire" });
    where.forEach(([x, y], rank) => {
      const disc = svg(discs, "g", { transform: `translate(${x} ${y})` });
      svg(disc, "circle", { r: radius, class: "rt-paper-fill" });
      svg(disc, "circle", { r: radius, class: "rt-disc", fill: colours[rank], stroke: colours[rank] });
      svg(disc, "text", { class: "rt-number", "font-size": radius < 13 ? 11 : 15 }, rank);
    });
    const cells = table();
    let shown = -1, messages = [], before = null;
    return { draw };

    function draw(time) {
      const step = Math.ceil(time - 1e-9), part = step ? time - step + 1 : 1;
      const holding = part >= 1 - 1e-9 ? step : step - 1;
      if (shown !== step) {
        shown = step;
        moving.replaceChildren();
        chips.replaceChildren();
        messages = step ? data.steps[step - 1].m.map(start) : [];
      }
      for (const message of messages) move(message, part);
      if (before === holding) return;
      before = holding;
      const held = data.start.map((chunks) => chunks.slice()), fresh = new Set();
      data.steps.slice(0, holding).forEach((each, index) => {
        for (const [rank, chunk, content] of each.c) {
          held[rank][chunk] = content;
          if (index === holding - 1) fresh.add(rank + " " + chunk);
        }
      });
      held.forEach((chunks, rank) => chunks.forEach((content, chunk) => {
        const cell = cells[rank][chunk];
        fill(cell.holder, data, content, data.cell - 3, data.row - 5);
        cell.frame.classList.toggle("rt-fresh", fresh.has(rank + " " + chunk));
      }));
    }

    // A curve that bends to the left of its way, so that two ways between two ranks stay apart.
    function route(src, dst) {
      const [x0, y0] = where[src], [x1, y1] = where[dst];
      const [dx, dy] = [x1 - x0, y1 - y0], length = Math.hypot(dx, dy);
      const aside = bend(src, dst, length) / length;
      const [cx, cy] = [(x0 + x1) / 2 + dy * aside, (y0 + y1) / 2 - dx * aside];
      const edge = (x, y, gap) => {
        const far = Math.hypot(cx - x, cy - y);
        return [x + ((cx - x) / far) * gap, y + ((cy - y) / far) * gap];
      };
      const [ax, ay] = edge(x0, y0, radius + 2), [bx, by] = edge(x1, y1, radius + 4);
      const round = (value) => Math.round(value * 10) / 10;
      return { d: `M${round(ax)} ${round(ay)}Q${round(cx)} ${round(cy)} ${round(bx)} ${round(by)}`, angle: (Math.atan2(by - cy, bx - cx) * 180) / Math.PI, end: [bx, by] };
    }

    function bend(src, dst, length) {
      const size = where.length;
      if (data.layout === "row") return Math.min(0.62 * length, data.height - 60);
      if (data.layout === "tree") return data.both ? 0.16 * length : 0;
      if (data.layout === "grid") return length > 1.5 * data.apart ? 0.34 * length : data.both ? 0.16 * length : 0;
      // Between neighbors, clockwise, the way lies on the circle; past others it keeps to the inside.
      const steps = (dst - src + size) % size, back = size - steps;
      if (steps === 1 && size > 2) return Math.tan(Math.PI / size / 2) * length;
      return (steps === back || back === 1 ? 0.14 : steps < back ? -0.06 : 0.34) * length;
    }

    function start([src, dst, contents]) {
      const way = route(src, dst), colour = colours[src];
      const line = svg(moving, "path", { d: way.d, class: "rt-line", stroke: colour });
      const head = svg(moving, "path", { d: "M0 0L-9 -4.5V4.5Z", fill: colour, transform: `translate(${way.end}) rotate(${way.angle})` });
      const chip = svg(chips, "g", { class: "rt-chip" }), wide = load(chip, contents, colour);
      const length = line.getTotalLength();
      // Ways across the ring all meet in its middle: there what they carry stops before it.
      const across = data.layout === "ring" && 2 * Math.abs(dst - src) === where.length;
      return { line, head, chip, length, reach: across ? 0.3 : 0.6, aside: length < 95 ? wide : 0 };
    }

    // What a message carries: up to three chunks side by side, of more the first and last letter. Returns its width.
    function load(chip, contents, colour) {
      const sum = data.mode === "sum", described = contents.map((content) => data.contents[content]);
      if (!contents.length) { svg(chip, "circle", { r: 6, fill: colour }); return 0; }
      const rim = (width) => svg(chip, "rect", { x: -width / 2, y: -12, width, height: 24, rx: 6, stroke: colour, class: "rt-paper-fill" });
      const text = (x, words) => svg(chip, "text", { x, y: 0, class: "rt-label", "font-size": 13 }, words);
      const box = (x, width, content) => fill(svg(chip, "g", { transform: `translate(${x} -9)` }), data, content, width, 18);
      const crowded = data.layout === "row" && where.length > 4;
      if (contents.length > (crowded ? 1 : 3)) {
        const alike = sum && !crowded && new Set(described.map((each) => String(each[1]))).size === 1;
        const words = described[0][0] + "–" + described.at(-1)[0].replace(/\d+/, ""), room = words.length * 9 + 6, total = room + (alike ? 24 : 0);
        rim(total);
        text((room - total) / 2, words);
        if (alike) box(total / 2 - 24, 20, contents[0]);
        return total;
      }
      const longest = Math.max(...described.map((each) => each[0].length)), letters = sum && longest ? 5 + 9 * longest : 0, one = letters + (sum ? 20 : 24), total = contents.length * (one + 2) - 2;
      if (sum) rim(total + 6);
      else svg(chip, "rect", { x: -total / 2, y: -9, width: total, height: 18, rx: 3, class: "rt-paper-fill" });
      contents.forEach((content, index) => {
        const x = index * (one + 2) - total / 2;
        box(x + letters, one - letters, content);
        if (letters) text(x + letters / 2, described[index][0]);
      });
      return total;
    }

    // On a short way the chunk goes beside the line, which would be hidden under it.
    function move({ line, head, chip, length, reach, aside }, part) {
      const gone = part >= 1, along = length * (0.1 + (reach - 0.1) * part);
      const place = line.getPointAtLength(along), ahead = line.getPointAtLength(along + 1);
      const left = ahead.y - place.y, up = place.x - ahead.x;
      // In a tree, above the line: below it are the neighbors.
      const side = data.layout === "tree" && up > 0.3 ? -1 : 1;
      const far = aside && side * (Math.abs(left) * (aside / 2 + 3) + Math.abs(up) * 12 + 5);
      const x = place.x + left * far, y = place.y + up * far;
      line.style.strokeDasharray = gone ? "none" : `${length * part} ${length + 1}`;
      head.style.visibility = gone ? "visible" : "hidden";
      const small = data.layout === "ring" && where.length > 4 ? " scale(.82)" : "";
      chip.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})${small}`);
    }

    function table() {
      const left = data.mode === "text" || where.length > 10 ? 72 : 62, top = 44, gap = 12, count = data.columns.flatMap((column) => column[1]).length;
      const width = left + count * data.cell + (data.columns.length - 1) * gap + 2, height = top + where.length * data.row;
      const grid = svg(parent, "svg", { viewBox: `0 0 ${width} ${height}`, class: "rt-grid", "aria-hidden": "true" });
      grid.style.maxWidth = width + "px";
      const cells = where.map((_, rank) => {
        const y = top + rank * data.row;
        svg(grid, "circle", { cx: 6, cy: y + (data.row - 5) / 2, r: 5, fill: colours[rank] });
        svg(grid, "text", { x: 16, y: y + (data.row - 5) / 2, class: "rt-name" }, `rank ${rank}`);
        return [];
      });
      let x = left;
      for (const [name, heads, chunks] of data.columns) {
        const middle = x + (heads.length * data.cell) / 2;
        svg(grid, "text", { x: middle, y: 10, class: "rt-label rt-soft", "font-size": 13 }, name);
        heads.forEach((head, index) => {
          svg(grid, "text", { x: x + data.cell / 2 - 1, y: 31, class: "rt-label rt-soft", "font-size": data.cell < 19 ? 11 : 13 }, head);
          cells.forEach((row, rank) => {
            const cell = svg(grid, "g", { transform: `translate(${x} ${top + rank * data.row})`, "data-rank": rank, "data-place": chunks + index });
            const holder = svg(cell, "g", {});
            const frame = svg(cell, "rect", { x: -1, y: -1, width: data.cell - 1, height: data.row - 3, rx: 4, class: "rt-frame" });
            row[chunks + index] = { holder, frame };
          });
          x += data.cell;
        });
        x += gap;
      }
      return cells;
    }
  }
})
