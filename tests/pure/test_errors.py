"""The exception trees: each class that we define is drawn once, under its base class, in one of two docstrings."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

import audit
import audit.errors
import engine
import engine.errors
import ingest

_BRANCH = re.compile(r"^(?P<indent>(?:│   |    )*)[├└]── (?P<name>\w+)", re.MULTILINE)


def _defined() -> list[type[BaseException]]:
    return [
        kind
        for package in (engine, ingest, audit)
        for module in _modules(package)
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__ == module.__name__
    ]


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def _drawn(tree: str, root: str) -> list[tuple[str, str]]:
    """Each class of a drawn tree with the class above it."""
    found, above = [(root, "Exception")], [root]
    for branch in _BRANCH.finditer(tree):
        del above[len(branch["indent"]) // 4 + 1 :]
        found.append((branch["name"], above[-1]))
        above.append(branch["name"])
    return found


def test_every_exception_is_drawn_once_under_its_base_class() -> None:
    assert engine.errors.__doc__ and audit.errors.__doc__
    drawn = _drawn(engine.errors.__doc__, "AffidavitError") + _drawn(audit.errors.__doc__, "AuditError")
    bases = {kind.__name__: {base.__name__ for base in kind.__bases__} for kind in _defined()}
    assert sorted(name for name, _ in drawn) == sorted(kind.__name__ for kind in _defined())
    assert [(name, above) for name, above in drawn if above not in bases[name]] == []
