"""The import graph of the product has no cycle, imports under TYPE_CHECKING included."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = ("params", "trainer", "tasks", "flows")


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    order = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(f"an import cycle: {' -> '.join(reversed(error.args[1]))}")
