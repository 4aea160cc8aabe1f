"""`__all__` says what a module offers: it names what exists, in order, and all that others take from it."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ledger", "gate", "trainer", "clients")


def _sources(*folders: str) -> dict[str, Path]:
    """Dotted name -> file, generated code left out."""
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    named = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}
    return {name.removesuffix(".__init__"): file for name, file in named.items() if ".v1" not in name}


MODULES = _sources(*PACKAGES)
IMPORTABLE = [name for name in MODULES if not name.endswith("__main__")]
#: Commands are public to whoever types them, a document's sections to whoever writes one.
ON_TOP = ("clients.cli.", "clients.demo.")


def _taken() -> dict[str, dict[str, str]]:
    """Module -> what others import from it by name -> one of those who do."""
    taken: dict[str, dict[str, str]] = defaultdict(dict)
    for importer, file in _sources(*PACKAGES, "tests").items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in MODULES:
                for alias in node.names:
                    if f"{node.module}.{alias.name}" not in MODULES:
                        taken[node.module].setdefault(alias.name, importer)
    return taken


TAKEN = _taken()


def _order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, as the linter sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _defined(name: str) -> list[str]:
    """Public names that the module itself defines at its top level, imports left out."""
    found: list[str] = []
    for node in ast.parse(MODULES[name].read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            inner = (each for target in targets for each in ast.walk(target))
            found += [each.id for each in inner if isinstance(each, ast.Name)]
    return [each for each in found if not each.startswith("_")]


@pytest.mark.parametrize("name", IMPORTABLE)
def test_what_a_module_offers_is_what_it_says(name: str) -> None:
    """Every name of `__all__` exists, once and in order; what another module takes is among them."""
    module = importlib.import_module(name)
    said = list(getattr(module, "__all__", []))
    assert sorted(set(said), key=_order) == said
    assert [] == [each for each in said if not hasattr(module, each)]
    assert {} == {
        each: by for each, by in TAKEN[name].items() if each not in said and not each.startswith("_")
    }


@pytest.mark.parametrize("name", [name for name in IMPORTABLE if not name.startswith(ON_TOP)])
def test_what_no_module_offers_is_private(name: str) -> None:
    """A public name at a module's top level stands in `__all__`; what is not for others begins with `_`."""
    module = importlib.import_module(name)
    said = getattr(module, "__all__", [])
    assert [] == [each for each in _defined(name) if each not in said]


def test_nobody_takes_what_is_private() -> None:
    """No module of ours imports a name that begins with `_` from another."""
    private = {
        f"{module}.{each}": by
        for module, names in TAKEN.items()
        for each, by in names.items()
        if each.startswith("_") and not by.startswith("tests.")
    }
    assert {} == private
