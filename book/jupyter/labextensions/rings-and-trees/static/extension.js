// What JupyterLab needs to show the book: an extension without a build. jupyter_server_config.py names its folder.
(() => {
  const NAME = "rings-and-trees";
  // JupyterLab attaches the cells of a notebook in batches: wait while more come, but not for long.
  const TOGETHER_MS = 100, AT_MOST_MS = 1000, STUCK_MS = 3000;

  // Look this long for a place, this often, and until it has stood still this many times, or until the reader moves.
  const PLACE_MS = 60000, STEP_MS = 100;
  const STOPPING = ["pointerdown", "wheel", "keydown"];

  let scope; // JupyterLab's own packages: {name: {version: {get}}}
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const shared = async (name) => (await Object.values(scope[name])[0].get())();

  // ------------------------------------------------------------------ cells that run on ranks, as book/ext/pages.py marks them
  const marks = (source) => {
    const ranks = source.startsWith("%%px");
    const options = source.split("\n", 1)[0].split(/\s+/);
    const some = ranks && (options.includes("--targets") || options.includes("-t"));
    return {
      "rt-every-rank": ranks && !some,
      "rt-some-ranks": some,
      "rt-here-too": ranks && options.includes("--local"),
    };
  };

  // ------------------------------------------------------------------ folded cells
  // JupyterLab shows the first line of what is folded. The book says what it is, and opens an answer with its output.
  const FOLDS = { "hide-cell": "Show the code and its output", "hide-input": "Show the code", "hide-output": "Show the output" };
  const opened_whole = new WeakSet();

  const say_what_is_folded = (cell) => {
    const tags = cell.model.getMetadata("tags") ?? [];
    const tag = Object.keys(FOLDS).find((each) => tags.includes(each));
    cell.toggleClass("rt-fold", Boolean(tag));
    if (!tag) return;
    const says = cell.model.getMetadata("mystnb")?.code_prompt_show ?? FOLDS[tag];
    cell.node.style.setProperty("--rt-fold", JSON.stringify(says));
    if (tag !== "hide-cell" || opened_whole.has(cell)) return;
    opened_whole.add(cell);
    const handle = cell.handleInputHidden; // JupyterLab calls it when the code is folded or opened, and sends no signal
    cell.handleInputHidden = function (hidden) {
      handle?.call(this, hidden);
      this.outputHidden = hidden;
    };
  };

  const mark = (notebook) => {
    if (notebook.isDisposed) return;
    for (const cell of notebook.widgets) {
      if (cell.model.type !== "code") continue;
      for (const [name, holds] of Object.entries(marks(cell.model.sharedModel.getSource()))) cell.toggleClass(name, holds);
      say_what_is_folded(cell);
    }
  };

  // A cell's widget exists before it is attached, so a notebook that JupyterLab draws in parts is marked as a whole.
  const follow = (notebook) => {
    let planned = false;
    const plan = () => {
      if (planned) return;
      planned = true;
      setTimeout(() => {
        planned = false;
        mark(notebook);
      });
    };
    notebook.modelContentChanged.connect(plan);
    notebook.modelChanged.connect(plan);
    plan();
  };

  // ------------------------------------------------------------------ a notebook that was only opened
  // JupyterLab notes the name and language of the kernel in the notebook, which then counts as changed. No reader changed it.
  const stay_clean = async ({ context }) => {
    await context.ready;
    const { model } = context;
    const readers = () => {
      const { metadata: { kernelspec, language_info, ...metadata }, ...rest } = model.toJSON();
      return JSON.stringify({ metadata, ...rest });
    };
    let saved = readers();
    model.stateChanged.connect((_, { name }) => {
      if (name !== "dirty") return;
      if (!model.dirty) saved = readers();
      else if (readers() === saved) model.dirty = false;
    });
  };

  // ------------------------------------------------------------------ one pass for all cells
  // jupyterlab-myst renders the whole notebook for each of its Markdown cells. The pass for one cell serves all that wait.
  const render_together = (cell) => {
    const type = Object.getPrototypeOf(cell);
    if (!type.updateFragmentMDAST || type.render.together) return;
    const alone = type.render;
    const turns = new WeakMap(); // the next pass of each notebook: {cells, done}
    const running = new WeakMap();

    const pass = async (notebook, turn) => {
      await Promise.race([running.get(notebook), pause(STUCK_MS)]); // a cell that is being removed never ends its own
      for (let waited = 0, before = 0; waited < AT_MOST_MS && turn.cells.size > before; waited += TOGETHER_MS) {
        before = turn.cells.size;
        await pause(TOGETHER_MS);
      }
      turns.delete(notebook);
      const cells = [...turn.cells].filter((each) => !each.isDisposed);
      const [first, ...others] = cells.filter((each) => each.isAttached);
      await Promise.all(cells.filter((each) => each !== first).map((each) => each.updateFragmentMDAST()));
      if (!first) return;
      await alone.call(first);
      await Promise.all(others.map(async (each) => {
        await each._mystWidget.renderPromise;
        if (!each.isDisposed) each.inputArea.renderInput(each._mystWidget);
      }));
    };

    type.render = function () {
      const notebook = this.parent;
      if (!notebook) return alone.call(this);
      if (!turns.has(notebook)) {
        const turn = { cells: new Set() };
        turns.set(notebook, turn);
        turn.done = pass(notebook, turn);
        running.set(notebook, turn.done.catch(() => {}));
      }
      turns.get(notebook).cells.add(this);
      return turns.get(notebook).done;
    };
    type.render.together = true;
  };

  // ------------------------------------------------------------------ links to a place on another page
  // JupyterLab opens the page. It finds no place that jupyterlab-myst has rendered. Cells above it may still grow, on a busy machine
  // after seconds in which nothing moved: so the place is kept in sight for a minute once it is there, or until the reader does anything.
  const show_place = async (app, path, id) => {
    let stays = true;
    const stop = () => { stays = false; };
    for (const each of STOPPING) addEventListener(each, stop, { capture: true, once: true });
    for (let left = PLACE_MS / STEP_MS, waits = 10 * left, before = null; stays && left > 0 && waits > 0; waits--) {
      await pause(STEP_MS);
      const page = [...app.shell.widgets("main")].find((each) => each.context?.path === path);
      const place = page?.node.querySelector(`#${CSS.escape(id)}`);
      if (!place?.checkVisibility()) continue;
      left--;
      if (place.getBoundingClientRect().top !== before) place.scrollIntoView();
      before = place.getBoundingClientRect().top;
    }
    for (const each of STOPPING) removeEventListener(each, stop, { capture: true });
  };

  // ------------------------------------------------------------------ the start page
  // JupyterLab lists the files beside the page that its address names. A reader of the start page looks for notebooks.
  const START = /\/lab\/tree\/(.*)book\/start\.md$/;
  const list_notebooks = (app) => {
    const found = decodeURIComponent(location.pathname).match(START);
    if (!found) return;
    const open = "filebrowser:open-path";
    const go_on = async (_, { id, result }) => {
      if (id !== open) return;
      app.commands.commandExecuted.disconnect(go_on);
      await result.catch(() => {});
      app.commands.execute(open, { path: `${found[1]}notebooks`, dontShowBrowser: true });
    };
    app.commands.commandExecuted.connect(go_on);
  };

  const plugin = async () => {
    const { INotebookTracker, NotebookPanel } = await shared("@jupyterlab/notebook");
    return {
      id: `${NAME}:plugin`,
      description: "Shows the book: marks cells, says what is folded, renders MyST in one pass, follows links to places.",
      autoStart: true,
      requires: [INotebookTracker, NotebookPanel.IContentFactory],
      activate: (app, notebooks, factory) => {
        const create = factory.createMarkdownCell;
        factory.createMarkdownCell = function (options) {
          const cell = create.call(this, options);
          render_together(cell);
          return cell;
        };
        const add = (panel) => {
          follow(panel.content);
          stay_clean(panel);
        };
        notebooks.forEach(add);
        notebooks.widgetAdded.connect((_, panel) => add(panel));

        app.commands.commandExecuted.connect((_, { id, args }) => {
          if (id === "rendermime:handle-local-link" && args.id) show_place(app, args.path, decodeURIComponent(args.id.slice(1)));
        });

        list_notebooks(app);

        const sheet = document.createElement("link");
        sheet.rel = "stylesheet";
        sheet.href = new URL("style.css", HERE);
        document.head.append(sheet);
      },
    };
  };

  const HERE = document.currentScript.src;
  (window._JUPYTERLAB ??= {})[NAME] = {
    init: (given) => { scope = given; },
    get: async () => {
      const made = await plugin();
      return () => ({ __esModule: true, default: made });
    },
  };
})();
