"""A LangChain agent whose tool is gated by our own middleware; it keeps no checkpoints."""

from contextlib import nullcontext

from langchain.agents import create_agent
from langchain_core.tools import tool
from pauseledger.infrastructure.double_answer_langchain import Scripted
from pauseledger.infrastructure.double_answer_stage import TENANT, TOOL
from pauseledger.infrastructure.kernels import Gate
from pauseledger.infrastructure.kernels.langchain import LangChainKernel
from pauseledger.infrastructure.kernels.langchain_middleware import PauseMiddleware

GATES = {TOOL: Gate()}


class Gated:
    """How it is used, as the double-answer table has its own."""

    word, interactions = "decision", ()

    def kernel(self, world, session, capability):
        @tool(TOOL)
        def refund(order: str) -> str:
            """Refund an order."""
            return world.refund(order)

        model = Scripted(world=world, session=session)
        agent = create_agent(model, [refund], middleware=[PauseMiddleware(GATES)])
        return nullcontext(LangChainKernel(agent, capability, scope=TENANT, gates=GATES))
