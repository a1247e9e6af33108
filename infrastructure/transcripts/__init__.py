"""Transcript codecs: one file a wire format, and the list of those known."""

from ...domain.turn import Transcripts
from .langchain import LangChain
from .openai_chat import OpenAIChat


def known() -> Transcripts:
    """Register every codec that is shipped; a host may register its own on top."""
    return Transcripts((OpenAIChat(), LangChain()))
