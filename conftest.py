"""What pytest needs to know about notebooks: pictures and HTML are not compared, their text is."""

PICTURES = ("text/html", "text/markdown", "image/svg+xml", "application/javascript")


def pytest_collectstart(collector):
    if hasattr(collector, "skip_compare"):  # a notebook, collected by nbval
        collector.skip_compare += PICTURES
