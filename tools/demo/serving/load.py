"""Sends chats to a Conductor: at their times (semi-open), or one after the other from a few clients (closed), to see what
it can do."""

import asyncio
import time
from collections.abc import Callable, Sequence

from mooncask.tools.demo.serving.chats import Chat
from mooncask.tools.demo.serving.client import ChatClient, session
from mooncask.tools.demo.serving.reply import Outcome, Reply

Heard = Callable[[Reply], None]
"""Called with every reply as it comes."""


async def offer(url: str, chats: Sequence[Chat], answer_tokens: int, heard: Heard) -> list[Reply]:
    """Each chat at its time, each next turn after its pause; a chat ends with the first turn that gets no answer."""
    async with session() as one:
        began = time.monotonic()
        client = ChatClient(one, url, answer_tokens, began)
        tasks = [_at_its_time(client, chat, began, heard) for chat in chats]
        return [reply for replies in await asyncio.gather(*tasks) for reply in replies]


async def press(url: str, chats: Sequence[Chat], clients: int, answer_tokens: int, heard: Heard) -> float:
    """`clients` of them at a time, without pauses: answered requests a second. 0.0 when none was answered."""
    waiting, answered = list(reversed(chats)), 0
    async with session() as one:
        began = time.monotonic()
        client = ChatClient(one, url, answer_tokens, began)

        async def work() -> None:
            nonlocal answered
            while waiting:
                replies = await _play(client, waiting.pop(), heard, with_pauses=False)
                answered += sum(reply.outcome is Outcome.ANSWERED for reply in replies)

        await asyncio.gather(*(work() for _ in range(clients)))
        return answered / (time.monotonic() - began)


async def _at_its_time(client: ChatClient, chat: Chat, began: float, heard: Heard) -> list[Reply]:
    await asyncio.sleep(max(0.0, began + chat.at - time.monotonic()))
    return await _play(client, chat, heard, with_pauses=True)


async def _play(client: ChatClient, chat: Chat, heard: Heard, with_pauses: bool) -> list[Reply]:
    messages, replies = chat.opening(), []
    for turn, question in enumerate(chat.questions):
        if turn and with_pauses:
            await asyncio.sleep(chat.pauses[turn - 1])
        messages.append({"role": "user", "content": question})
        reply = await client.ask(chat.name, turn, messages)
        heard(reply)
        replies.append(reply)
        if reply.outcome is not Outcome.ANSWERED:
            break
        messages.append({"role": "assistant", "content": reply.text})
    return replies
