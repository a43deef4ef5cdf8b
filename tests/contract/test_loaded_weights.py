"""Every place that loads a network aligns its weights, so that bits do not depend on where a file holds them."""

from __future__ import annotations

import ast

from tests.support.project import ROOT

NO_NETWORK = ("AutoConfig", "AutoTokenizer", "PeftModel")
"""What `from_pretrained` is called on where it loads no weights, or adds them to a network that is loaded already."""


def loads_network(call: ast.AST) -> bool:
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return False
    return call.func.attr == "from_pretrained" and not ast.unparse(call.func.value).endswith(NO_NETWORK)


def test_each_function_that_loads_a_network_aligns_its_weights() -> None:
    found = {}
    for folder in ("trainer", "tasks", "flows", "params"):
        texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py")}
        for path, text in texts.items():
            for function in ast.walk(ast.parse(text)) if ".from_pretrained(" in text else ():
                if isinstance(function, ast.FunctionDef) and any(map(loads_network, ast.walk(function))):
                    found[f"{path.relative_to(ROOT)}:{function.name}"] = "align_weights(" in ast.unparse(function)
    assert len(found) >= 4, "the places that are known"
    assert [place for place, aligns in found.items() if not aligns] == []
