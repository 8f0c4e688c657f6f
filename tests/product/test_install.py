"""The wheel, installed elsewhere, answers a question: nothing of the checkout is needed.

Seen red on the wheel as it was: without sql/ and config/ inside, every command ended with a traceback.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import httpx
import psycopg
import pytest

from engine.storage.database import Database
from supply.bill_of_materials import NAME
from tests.conftest import HUNG_S, PATIENCE, ROOT, free_port, killed_after
from tests.databases import empty_database
from tests.manual.documented import PAGES

BUILD_S = 300
ANSWER_S = 120


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=BUILD_S)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def affidavit(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script of an environment that has the wheel, and borrows our dependencies without our checkout: a path
    file adds a folder of packages and does not follow the path files in it, so the editable install stays out."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, timeout=BUILD_S)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "affidavit"


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """That of somebody who has no checkout."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    part_of_the_manual = {
        "AFFIDAVIT_BOOKS__MANUAL": "docs/tutorials"
    }  # all of it takes ten seconds of a core
    return kept | PATIENCE | part_of_the_manual | {"AFFIDAVIT_DATA_DIR": str(tmp_path / "data")}


def test_up_answers_a_question_and_the_doctor_is_content(
    affidavit: Path, environment: Mapping[str, str], tmp_path: Path
) -> None:
    port = free_port()
    with subprocess.Popen(
        [affidavit, "up", "--port", str(port)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as engine:  # fmt: skip
        try:
            assert engine.stdout is not None
            key = next(line.split()[-1] for line in engine.stdout if line.startswith("Demo key: "))
            answered = httpx.post(
                f"http://127.0.0.1:{port}/v1/query", json={"query": "What is gimbal lock?"},
                headers={"Authorization": f"Bearer {key}"}, timeout=ANSWER_S,
            ).json()  # fmt: skip
            with killed_after(HUNG_S, engine):
                second_book = next((line for line in engine.stdout if "manual" in line), "it ended before")
            doctor = _run(affidavit, environment, tmp_path, "doctor")
        finally:
            engine.terminate()
    assert answered["outcome"] == "answered"
    assert "gimbal lock" in answered["answer"].lower()
    assert second_book.startswith("The manual can be asked too: 4 pages, ")
    assert doctor.returncode == 0, doctor.stdout


def test_the_wheel_has_the_whole_manual(wheel: Path) -> None:
    shipped = "engine/shipped/docs/"
    with zipfile.ZipFile(wheel) as opened:
        held = {name.removeprefix(shipped) for name in opened.namelist() if name.startswith(shipped)}
    pages = {
        page.removeprefix("docs/") for page in PAGES if page.startswith("docs/") and "/site/" not in page
    }
    assert {name for name in held if name.endswith(".md")} == pages


def test_migrate_works_on_a_given_database(
    affidavit: Path, environment: Mapping[str, str], tmp_path: Path, database: Database
) -> None:
    with empty_database(database) as url:
        done = _run(affidavit, {**environment, "DATABASE_URL": url}, tmp_path, "migrate")
        assert done.returncode == 0, done.stderr
        with psycopg.connect(url) as connection:
            applied = connection.execute("SELECT name FROM schema_migrations ORDER BY name").fetchall()
    assert [name for (name,) in applied] == sorted(file.name for file in (ROOT / "sql").glob("[0-9]*.sql"))


# Seen red without the build hook.
def test_the_wheel_has_a_bill_of_materials_where_scanners_look(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(f".dist-info/sboms/{NAME}")]
        bill = json.loads(opened.read(name))
    assert {"numpy", "psycopg", "onnxruntime"} <= {one["name"] for one in bill["components"]}


def _run(
    affidavit: Path, environment: Mapping[str, str], folder: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [affidavit, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=ANSWER_S,
        check=False,
    )  # fmt: skip
