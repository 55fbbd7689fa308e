// The first script of JupyterLab's page: jupyter_server_config.py beside this file says what for.
(() => {
  const { nonce } = document.currentScript;
  const create = Document.prototype.createElement;
  Document.prototype.createElement = function () {
    const made = create.apply(this, arguments);
    if (made.localName === "script") made.nonce = nonce;
    if (made.localName === "iframe") made.setAttribute("sandbox", ""); // JupyterLab sets another one on its own frames
    return made;
  };

  const check = (event) => {
    for (const part of event.composedPath()) {
      const href = part.getAttribute?.("href") ?? part.getAttribute?.("xlink:href");
      if (!href) continue;
      const scheme = URL.canParse(href, document.baseURI) && new URL(href, document.baseURI).protocol;
      const leads = ["http:", "https:", "mailto:", "blob:"].includes(scheme);
      const saves = scheme === "data:" && part.hasAttribute("download");
      if (!leads && !saves) {
        event.preventDefault();
        event.stopImmediatePropagation();
      }
    }
  };
  for (const each of ["click", "auxclick"]) addEventListener(each, check, true);
})();
