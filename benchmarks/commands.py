"""How long `make book` and `make test` take in a fresh clone, cold and warm, and where the time goes.

    python benchmarks/commands.py [--book-only]

Clones this repository into a temporary folder and runs its commands there, as a newcomer would.
"""

import argparse
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--book-only", action="store_true", help="leave out make test")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        run("make book, cold", ["make", "book"], folder)
        run("make book, nothing changed", ["make", "book"], folder)
        if not options.book_only:
            run("make test, book built", ["make", "test", "ARGS=--durations=15"], folder)


def run(title, command, folder, longest=10):
    """Run a command, then print its seconds and the lines of its output that it stayed at longest."""
    lines, began = [], time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            lines.append((time.perf_counter(), line.strip()))
    ended = time.perf_counter()
    print(f"\n{title}: {ended - began:.1f} s, exit status {process.returncode}")
    ends = [moment for moment, _ in lines[1:]] + [ended]
    stays = sorted(((end - moment, text) for (moment, text), end in zip(lines, ends)), reverse=True)
    for seconds, text in stays[:longest]:
        print(f"  {seconds:7.1f} s at: {text[:100]}")
    if "slowest" in " ".join(text for _, text in lines):
        first = next(i for i, (_, text) in enumerate(lines) if "slowest" in text)
        print("\n".join(f"  {text}" for _, text in lines[first:] if text))
    return process.returncode


if __name__ == "__main__":
    main()
