"""The first pattern of the docs, as it stands there: answered in a request, continued in a worker."""

import re
from pathlib import Path

import pytest
from pauseledger import Actor, AlreadyAnswered, recognise
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.stories import ANSWER, SCOPE, Stage, asked, axes, topics

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "answer-now-continue-later.md").read_text()


@pytest.fixture
def page():
    names = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(snippet, names)
    return names


class Delegate:
    def __init__(self, fails=0):
        self.fails, self.seen = fails, []

    async def run(self, prompt, *, run_id, session_id, history):
        self.seen.append(history)
        if self.fails:
            self.fails -= 1
            raise ConnectionError


async def test_a_request_answers_and_a_worker_goes_on(page, store_url, tmp_path):
    stage = Stage(store_url, tmp_path / "keys")
    if store_url.startswith("postgres"):
        KeyFile(tmp_path / "keys").create()
    async with stage.ledger() as web, stage.ledger() as worker:
        question = await asked(web)
        receipt = await page["post_answer"](web, question.receipt.token, ANSWER, axes(), Actor("maria"))
        assert receipt.state == "answered"
        with pytest.raises(AlreadyAnswered):
            other = {"answers": [{"question_id": "q1", "selections": ["Bob"]}]}
            await page["post_answer"](web, question.receipt.token, other, axes(), Actor("joe"))
        delegate = Delegate(fails=1)
        with pytest.raises(ConnectionError):
            await page["work_once"](worker, SCOPE, delegate)
        assert await page["work_once"](worker, SCOPE, delegate) == 1
        assert await page["work_once"](worker, SCOPE, delegate) == 0
        assert delegate.seen[0] == delegate.seen[1]
        assert topics(stage.rows(question.pause_id))[-1] == "continued"


async def test_whoever_fetches_the_link_changes_nothing(page, store_url, tmp_path):
    stage = Stage(store_url, tmp_path / "keys")
    async with stage.ledger() as web:
        question = await asked(web)
        await web.views.catch_up()
        before = stage.rows()
        for _ in range(3):
            shown = await page["get_question"](web, axes())
            assert [one["question"] for one in shown["questions"]] == ["Whose name?"]
            assert recognise(web.capability, question.token).envelope is not None
        assert await page["get_question"](web, axes(run_id="another")) is None
        assert stage.rows() == before
        await question.redeem()
        await web.views.catch_up()
        assert await page["get_question"](web, axes()) is None
