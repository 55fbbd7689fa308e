"""How to run a page: one line below the title of every notebook's page, and a button where a hub is named.

The hub's address is the setting `hub_address` in _config.yml. Its link brings the course to whoever follows it, through
nbgitpuller, and opens this page's notebook there. `hub_course` is the course's repository, as the hub's servers reach it.
"""

import html
from urllib.parse import urlencode

COURSE = "file:///var/lib/ringtree-hub/course.git"  # where a server that `make hub` made keeps it


def link_to_hub(address, name, course=COURSE):
    """Where the notebook of page `name` opens on the hub at `address`. course: the address of the course's repository."""
    asked = {"repo": course, "branch": "main", "targetPath": "course", "urlpath": f"lab/tree/course/{name}.ipynb"}
    return f"{address.rstrip('/')}/hub/user-redirect/git-pull?{urlencode(asked)}"


def say_how_to_run(app, name, template, context, doctree):
    if not name.startswith(("notebooks/", "labs/")) or "body" not in context:
        return
    ways = [f"<code>make lab</code>, then <code>{html.escape(name)}.ipynb</code>"]
    if address := app.config.hub_address:
        link = link_to_hub(address, name, app.config.hub_course)
        ways.append(f'or <a href="{html.escape(link)}">open it on the hub</a>')
        context.setdefault("header_buttons", []).insert(
            0,
            {
                "type": "link",
                "url": link,
                "tooltip": "Run this page on the hub",
                "icon": "fas fa-rocket",
                "label": "launch-hub",
            },
        )
    setup = context["pathto"]("book/setup")
    line = f'<p class="how-to-run">To run this page: {", ".join(ways)}. <a href="{setup}">Set-up</a></p>'
    context["body"] = context["body"].replace("</h1>", f"</h1>\n{line}", 1)


def setup(app):
    app.add_config_value("hub_address", "", "html", [str])
    app.add_config_value("hub_course", COURSE, "html", [str])
    app.connect("html-page-context", say_how_to_run, priority=902)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
