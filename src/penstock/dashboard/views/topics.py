"""Topics and their queues."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock.dashboard.pages import Act, Done, View, action, page

__all__ = ["TopicRow", "TopicsPage", "delete_topic", "topics"]


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic with the names of its queues."""

    id: int
    name: str
    created_at: datetime
    queues: list[str]


@dataclass(frozen=True, slots=True)
class TopicsPage:
    """All topics."""

    topics: list[TopicRow]


@page("/topics", template="topics.html", title="Topics")
async def topics(view: View) -> TopicsPage:
    """All topics, with their queues."""
    queues = await view.client.list_queues()
    return TopicsPage(
        [
            TopicRow(
                each.id, each.name, each.created_at, [q.name for q in queues if q.topic_name == each.name]
            )
            for each in await view.client.list_topics()
        ]
    )


@action("/topics/{topic}/delete", name="delete_topic", needs="administer")
async def delete_topic(act: Act, topic: str) -> Done:
    """Delete a topic with its queues and all their messages."""
    await act.tx.delete_topic(topic)
    return Done(f"Topic {topic} was deleted, with its queues and their messages.")
