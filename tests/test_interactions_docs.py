"""The page on interactions, as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pauseledger import ResponseInvalid
from pauseledger.domain.answers import ASK_USER_REQUEST
from pauseledger.infrastructure.stories import Stage, approve, asked, refusal

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "interactions.md").read_text()


WHO = {"questions": [{"question": "Who?", "options": [{"label": "Anne"}, {"label": "Bob"}]}]}


@pytest.fixture
def stage(tmp_path):
    return Stage("memory:", tmp_path / "keys")


def test_an_interaction_of_ones_own(tmp_path):
    program = tmp_path / "mine.py"
    program.write_text(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1])
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "refund: 12.5\n"), run.stderr


def test_the_fields_of_a_question_are_all_listed():
    question = ASK_USER_REQUEST["properties"]["questions"]["items"]["properties"]
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(question)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        ({"selections": ["Zed"]}, "label_unknown"),
        ({"selections": ["Anne", "Bob"]}, "more_than_one_selected"),
        ({"selections": []}, "answer_empty"),
        ({"selections": [], "other": "somebody else"}, "other_not_allowed"),
    ],
)
async def test_the_rules_named(stage, answer, rule):
    assert f"`{rule}`" in PAGE
    given = {"answers": [{"question_id": "q1", **answer}]}
    async with stage.ledger() as ledger:
        question = await asked(ledger, request=WHO)
        assert (await refusal(stage, question.redeem(given), ResponseInvalid)).rule == rule


async def test_anything_else_for_an_approval(stage):
    async with stage.ledger() as ledger:
        approval = await asked(ledger, approve())
        for given, where in (
            ({"decision": "aprove"}, "/oneOf"),
            ({"decision": "edit"}, "/oneOf/1/required"),
            ({"decision": "approve", "more": 1}, "/oneOf/0/additionalProperties"),
        ):
            refused = await refusal(stage, approval.redeem(given), ResponseInvalid)
            assert (refused.rule, refused.at_pointer) == ("schema", where)
            assert f"`{where}`" in PAGE
