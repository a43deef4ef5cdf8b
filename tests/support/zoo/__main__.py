"""Try every architecture with every objective, in processes side by side, and write the table of docs/models.md: `make zoo`.

python -m tests.support.zoo [--only llama] [--processes 2]
"""

from __future__ import annotations

import argparse
import sys

from tests.support import forked
from tests.support.project import ROOT
from tests.support.zoo.architectures import ARCHITECTURES
from tests.support.zoo.cells import all_cells
from tests.support.zoo.running import REASONS, run_cells

PAGE = ROOT / "docs" / "models.md"
_START, _END = "<!-- table -->\n", "<!-- end of table -->\n"


def main() -> int:
    """Run the cells and return the exit status: 1 if one fails without a known reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.zoo", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="an architecture; the page stays as it is")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    forked.start_server()
    cells = [cell for cell in all_cells() if not given.only or cell.architecture in given.only]
    results: dict[str, str] = {}
    for cell, error in run_cells(cells, processes=given.processes):
        results[str(cell)] = error
        print(f"{cell}: {error or 'ok'}", flush=True)
    table = _table(results)
    print(table)
    if not given.only:
        before, rest = PAGE.read_text(encoding="utf-8").split(_START)
        PAGE.write_text(f"{before}{_START}{table}{_END}{rest.split(_END)[1]}", encoding="utf-8")
    return int(any(error and name not in REASONS for name, error in results.items()))


def _table(results: dict[str, str]) -> str:
    """A line for each architecture, a column for each objective: in full / with adapters."""
    objectives = list(dict.fromkeys(cell.objective for cell in all_cells()))
    lines = [
        f"| type | like | what is special | {' | '.join(objectives)} |",
        f"| --- | --- | --- |{' --- |' * len(objectives)}",
    ]
    for name, one in ARCHITECTURES.items():
        row = [name, one.like, one.quirk]
        for objective in objectives:
            cells = [cell for cell in all_cells() if (cell.architecture, cell.objective) == (name, objective)]
            row.append(" / ".join(_mark(str(cell), results) for cell in cells))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _mark(name: str, results: dict[str, str]) -> str:
    if name in REASONS:
        return f"no ({REASONS[name]})"
    return "-" if name not in results else "**fails**" if results[name] else "yes"


if __name__ == "__main__":
    sys.exit(main())
