"""What the pages name is there: links, commands with their options, and the words of the log."""

import re
from pathlib import Path

import pauseledger
import pytest
import typer
from pauseledger.domain.errors import REFUSALS, LedgerError
from pauseledger.domain.facts import FACTS, Fact
from pauseledger.infrastructure.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
ERRORS = (ROOT / "docs" / "errors.md").read_text()
COMMANDS = typer.main.get_command(app)
named = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page):
    for title in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


@named
def test_every_link_leads_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        name, _, anchor = link.partition("#")
        if not name.startswith("http"):
            there = page.parent / name if name else page
            assert there.exists(), link
            assert not anchor or anchor in anchors(there), link


@named
def test_every_command_is_one_with_these_options(page):
    blocks = "\n".join(re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL))
    within = re.findall(r"`pauseledger ([a-z][^`\n]*)`", page.read_text())
    for said in within + re.findall(r"^pauseledger ([a-z].*)$", blocks, re.MULTILINE):
        command, words = COMMANDS, re.sub(r"[\[\]]|\.\.\.", "", said).split()
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, said
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known | {"--help"}, said


def test_every_field_of_every_fact_is_on_its_page():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "docs" / "facts.md").read_text(), re.MULTILINE))
    for fact in FACTS:
        own = set(fact.model_fields) - set(Fact.model_fields)
        assert own <= set(re.findall(r"\w+", rows[fact.__name__])), fact.__name__


def test_every_refusal_is_on_its_page_with_its_step_and_class():
    rows = re.findall(r"^\| (\d) \| `(\w+)` \| `(\w+)` \| ([^|]*) \|", ERRORS, re.MULTILINE)
    told = {(int(step), reason, kind, "*Again*" in means) for step, reason, kind, means in rows}
    assert told == {(kind.step, word, kind.__name__, kind.retryable) for word, kind in REFUSALS.items()}
    assert [int(step) for step, *_ in rows] == sorted(int(step) for step, *_ in rows)


def test_every_other_error_is_there_and_so_is_every_word_of_a_rejection():
    def kinds(base):
        return {base.__name__}.union(*(kinds(kind) for kind in base.__subclasses__()))

    named = set(re.findall(r"`(\w+)`", ERRORS))
    ours = {kind for kind in kinds(LedgerError) if hasattr(pauseledger, kind)} - {"Refusal", "LedgerError"}
    assert ours <= named
    code = "".join(file.read_text() for file in (ROOT / "domain").glob("*.py"))
    assert set(re.findall(r'PauseRejected\(\s*"(\w+)"', code)) | {"request_too_large", "turn_too_large"} <= named


def test_every_page_is_reached_from_the_readme():
    readme, pages = (ROOT / "README.md").read_text(), sorted(ROOT.glob("docs/**/*.md"))
    assert [page.name for page in pages if f"docs/{page.relative_to(ROOT / 'docs')}" not in readme] == []


def test_the_words_of_the_log_are_the_codes_own():
    table = (ROOT / "docs" / "operations.md").read_text().partition("| `decision` |")[2].partition("\n\n")[0]
    code = "".join(file.read_text() for room in ("domain", "infrastructure") for file in (ROOT / room).glob("*.py"))
    told = {word for row in table.splitlines()[2:] for word in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert {word for word in told if f'"{word}"' not in code} - {"reason", "recorded"} == set()
    logged = set(re.findall(r'\.note\(\s*"(\w+)"', code))
    assert logged - told == {"switch_flipped", "policy_changed"}  # decisions somebody made, not alarms
