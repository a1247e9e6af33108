"""The root is the package: what is shipped, under which name, and beside whom."""

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pauseledger
import pytest
from pauseledger.domain.errors import REFUSALS

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = ("domain", "projections", "infrastructure")
NOT_SHIPPED = {"tests", "benchmarks", "docs", "build", "dist"}


def folders_with_code():
    for folder in sorted({path.parent for path in ROOT.rglob("*.py")}):
        parts = folder.relative_to(ROOT).parts
        if not any(part in NOT_SHIPPED or part.startswith(".") or part.endswith(".egg-info") for part in parts):
            yield ".".join(("pauseledger", *parts))


def test_packages_names_every_folder_that_is_shipped():
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(folders_with_code())


def test_no_module_but_the_face_lies_in_the_root():
    assert [path.name for path in ROOT.glob("*.py")] == ["__init__.py"]


def test_every_file_has_a_caption():
    for path in [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]:
        caption = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        assert len(caption) > 20, f"{path} has no caption"


def test_product_code_imports_relatively_and_tests_absolutely():
    for path in [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").split(".")[0] not in {*ROOMS, "pauseledger"}, path
    for path in ROOT.rglob("tests/**/test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("domain.kernel_resume", ["prepare", "ResumedTurn", "continuing", "RESUME_PROMPT"]),
        ("domain.rehydration", ["rehydrate", "NOT_DISPATCHED", "NOT_ANSWERED"]),
        (
            "domain.continuation",
            ["recognise", "Recognition", "NO_PAUSE_CAPABILITY", "NO_DECODE_TRANSPORT", "NOT_A_CAPABILITY_TOKEN"],
        ),
        ("domain.capability", ["HumanInteractionCapability"]),
        ("domain.interactions", ["ASK_USER", "APPROVAL", "Interaction", "AskUserAnsweredEvent"]),
        ("infrastructure.wiring", ["open_ledger", "Ledger"]),
        ("infrastructure.settings", ["LedgerSettings"]),
    ],
)
def test_public_names_are_importable_from_where_they_are_promised(module, names):
    found = __import__(f"pauseledger.{module}", fromlist=names)
    for name in names:
        assert hasattr(found, name), f"{module}.{name}"


def test_the_face_exports_what_it_imports():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(pauseledger.__all__)


def test_every_refusal_stands_on_the_face():
    for kind in REFUSALS.values():
        assert getattr(pauseledger, kind.__name__) is kind


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return next(out.glob("*.whl"))


def test_a_wheel_brings_one_top_level_package_and_disturbs_no_other(wheel, tmp_path):
    site, project = tmp_path / "site", tmp_path / "project"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pauseledger"}
    for shipped in (
        "py.typed",
        "infrastructure/sqlite.sql",
        "infrastructure/postgres.sql",
        "infrastructure/export_readme.md",
    ):
        assert f"pauseledger/{shipped}" in names
    assert any(name.startswith("pauseledger/infrastructure/turns/") and name.endswith(".json") for name in names)
    assert not any(part in name for name in names for part in ("/tests/", "conftest", "/benchmarks/"))
    (project / "domain").mkdir(parents=True)
    (project / "domain" / "__init__.py").write_text("WHOSE = 'the host'\n")
    (project / "main.py").write_text(
        "import domain, pauseledger, pauseledger.domain\n"
        "assert domain.WHOSE == 'the host' and pauseledger.domain is not domain\n"
        f"assert pauseledger.__file__.startswith({str(site)!r}), pauseledger.__file__\n"
    )
    run = subprocess.run(
        [sys.executable, "main.py"],
        cwd=project,
        env={"PYTHONPATH": f"{project}:{site}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_the_project_speaks_of_itself_alone():
    for path in ROOT.rglob("*"):
        relative = path.relative_to(ROOT)
        shipped = not any(part.startswith(".") or part.endswith(".egg-info") for part in relative.parts)
        if (
            shipped
            and path.suffix in {".py", ".md", ".sql", ".toml"}
            and relative.parts[:2] != ("tests", "transcripts")
        ):
            text = path.read_text()
            for word in ("/" + "work/", "/" + "tmp/w", "CONTRACT" + ".md", "CASES" + ".md"):
                assert word not in text, f"{relative} mentions {word}"
