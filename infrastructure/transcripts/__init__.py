"""Transcript codecs: one file a wire format, and the list of those known."""

from ...domain.turn import Transcripts
from .anthropic import Anthropic
from .gemini import Gemini
from .langchain import LangChain
from .openai_chat import OpenAIChat
from .openai_responses import OpenAIResponses
from .pydantic_ai import PydanticAI


def known() -> Transcripts:
    """Register every codec that is shipped; a host may register its own on top."""
    return Transcripts((OpenAIChat(), OpenAIResponses(), Anthropic(), Gemini(), LangChain(), PydanticAI()))
