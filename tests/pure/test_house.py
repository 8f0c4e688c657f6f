"""The house stands: floors, short functions, plain names, one place for each change."""

import ast
import re
import statistics
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import audit
import engine
import ingest
from tests.conftest import ROOT

ROOMS = ("engine", "ingest", "audit")
FORBIDDEN_NAMES = re.compile(r"utils?|helpers?|managers?|services?|core")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def _modules() -> list[str]:
    files = (file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return sorted(name.removesuffix(".__init__") for name in names)


def _functions() -> Iterator[tuple[str, int]]:
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert node.end_lineno is not None
                    yield f"{file.relative_to(ROOT)}:{node.name}", node.end_lineno - node.lineno + 1


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return [path for name in listed.splitlines() if (path := ROOT / name).is_file()]


def test_every_module_stands_on_a_floor() -> None:
    contract = PYPROJECT["tool"]["importlinter"]["contracts"][0]
    floors = {name.strip() for layer in contract["layers"] for name in layer.split("|")}
    homeless = [
        name for name in _modules()
        if name not in ROOMS and not any(name == floor or name.startswith(f"{floor}.") for floor in floors)
    ]  # fmt: skip
    assert not homeless


def test_functions_are_short() -> None:
    lengths = dict(_functions())
    assert statistics.median(lengths.values()) <= 10
    assert {name: length for name, length in lengths.items() if length > 60} == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [name for name in _modules() if FORBIDDEN_NAMES.fullmatch(name.rsplit(".", 1)[-1])] == []


@pytest.mark.parametrize("package", [engine, ingest, audit], ids=lambda package: package.__name__)
def test_the_map_of_a_package_names_exactly_its_modules(package: ModuleType) -> None:
    """The map is the section `Modules` of the package's docstring, one line for each module: four spaces, the name, two
    or more spaces, what it does. A sub-package is a line `name/`; its modules follow it, indented by four more."""
    section = re.search(r"^Modules\n((?: {4}.+\n)+)", package.__doc__ or "", re.MULTILINE)
    assert section
    named: list[str] = []
    above = [package.__name__]
    for line in section[1].splitlines():
        found = re.fullmatch(r"((?: {4})+)(\w+)(/?) {2,}\S.*", line)
        assert found, f"Not a line of a map: {line!r}"
        above = above[: len(found[1]) // 4]
        named.append(".".join([*above, found[2]]))
        above = [*above, found[2]] if found[3] else above
    assert sorted(named) == [name for name in _modules() if name.startswith(f"{package.__name__}.")]


def test_where_to_change_what_is_the_same_for_contributors() -> None:
    assert engine.__doc__ is not None
    told = re.findall(
        r"^ +(.+?) {2,}((?:config|engine|audit|ingest|a new file).+)$", engine.__doc__, re.MULTILINE
    )
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \|$",
        CONTRIBUTING.split("## Where to change what")[1].split("##")[0],
        re.MULTILINE,
    )
    assert [(what, where.replace("`", "")) for what, where in rows[1:]] == told[-11:]
    assert len(told[-11:]) == 11


def test_every_file_named_as_the_place_to_change_exists() -> None:
    table = CONTRIBUTING.split("## Where to change what")[1].split("##")[0]
    for name in re.findall(r"`((?:config|engine|audit|ingest)/[\w./]+)`", table):
        assert (ROOT / name).exists(), name


def test_every_direct_dependency_has_its_reason_in_the_readme() -> None:
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[\[=<>~! ]", item)[0] for item in wanted}
    table = README.split("## Dependencies")[1]
    assert names == set(re.findall(r"^\| `([\w.-]+)` \|", table, re.MULTILINE))


def test_every_direct_dependency_is_pinned_with_hashes() -> None:
    project = PYPROJECT["project"]
    for file, wanted in (
        ("requirements.lock", project["dependencies"]),
        ("requirements-dev.lock", project["dependencies"] + project["optional-dependencies"]["dev"]),
        ("requirements-build.lock", PYPROJECT["build-system"]["requires"]),
    ):
        names = {re.split(r"[\[=]", item)[0].lower() for item in wanted}
        assert names <= _pinned(file).keys(), file


def test_all_lock_files_agree_and_the_engines_own_has_no_test_tools() -> None:
    engine, everything = _pinned("requirements.lock"), _pinned("requirements-dev.lock")
    assert (engine | _pinned("requirements-build.lock")).items() <= everything.items()
    assert not {"pytest", "mypy", "moto", "ruff", "hypothesis", "hatchling"} & engine.keys()


def _pinned(file: str) -> dict[str, str]:
    """Each package that has a hash, and its version."""
    lock = (ROOT / file).read_text()
    pins = re.findall(r"^([\w.-]+)==(\S+).*\\\n +--hash=sha256:", lock, re.MULTILINE)
    return {name.lower(): version for name, version in pins}


def test_no_registry_address_and_no_path_of_a_machine_is_committed() -> None:
    hosts = re.compile(r"py[p]i\.org|python[h]osted|registry\.npm[j]s|deb\.debi[a]n\.|--(?:extra-)?index-url")
    paths = re.compile(r"(?:^|[^\w./-])/(?:wor[k]|far[m])/")
    for file in _tracked():
        text = file.read_text(errors="replace")
        assert not hosts.search(text), file
        assert file.suffix == ".lock" or not paths.search(text), file


def test_a_class_name_means_one_thing() -> None:
    """Seen red with `Search` in two modules."""
    names = Counter(
        node.name
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []
