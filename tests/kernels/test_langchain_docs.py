"""The page on LangChain: each of its snippets runs, in order, and prints what it says."""

from typing import Any

import pytest

pytest.importorskip("langchain", reason="the langchain extra is not installed")
pytest.importorskip("langgraph.checkpoint.sqlite", reason="LangGraph's SQLite saver is not installed")

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class Model(BaseChatModel):
    replies: list[Any]

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **given):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **given):
        return ChatResult(generations=[ChatGeneration(message=self.replies.pop(0))])


class Bank:
    def __init__(self):
        self.paid = {}

    def pay(self, amount, idempotency_key):
        self.paid[idempotency_key] = amount
        return "paid"


def calling(name, **arguments):
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": "c1", "type": "tool_call"}])


async def test_every_snippet_runs_and_prints_what_it_says(tmp_path, play):
    replies = [
        calling("deploy", to="production"),
        AIMessage("It is on staging."),
        calling("pay", amount=7),
        AIMessage("Paid."),
        calling("pay", amount=8),
        AIMessage("Not paid."),
    ]
    bank = Bank()
    namespace = {"model": (model := Model(replies=replies)), "bank": bank, "path": str(tmp_path / "threads.db")}
    assert await play("langchain.md", namespace) == 4
    assert model.replies == []
    assert list(bank.paid.values()) == [7]
    assert None not in bank.paid
