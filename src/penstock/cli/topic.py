"""The commands for topics: topic create, list, show, delete."""

from __future__ import annotations

import click

from penstock.errors import TopicNotFound

from .arguments import confirm, topic_argument, yes_option
from .connection import Session, with_session
from .output import count, facts

__all__ = ["topic"]


@click.group()
def topic() -> None:
    """Create, list, show and delete topics."""


@topic.command()
@topic_argument
@with_session
def create(session: Session, topic_name: str) -> None:
    """Create a topic.

    It is done already if there is one of that name.
    """
    with session.connect() as queue:
        topic_id = queue.create_topic(topic_name)
    session.output.done(f"topic {topic_name} is there", id=topic_id, name=topic_name)


@topic.command("list")
@with_session
def list_(session: Session) -> None:
    """List topics, with the number of their queues."""
    with session.connect() as queue:
        found = queue.list_topics()
    if session.as_json:
        session.output.json(found)
        return
    rows = [(each.name, each.queue_count, each.created_at) for each in found]
    empty = "There are no topics: penstock topic create NAME"
    session.output.table(("NAME", "QUEUES", "CREATED"), rows, empty=empty)


@topic.command()
@topic_argument
@with_session
def show(session: Session, topic_name: str) -> None:
    """Show a topic and its queues."""
    with session.connect() as queue:
        found = next((each for each in queue.list_topics() if each.name == topic_name), None)
        if found is None:
            raise TopicNotFound(f'topic "{topic_name}" does not exist')
        queues = [each.name for each in queue.list_queues() if each.topic_name == topic_name]
    if session.as_json:
        session.output.json({**facts(found), "queues": queues})
    else:
        session.output.record({"name": found.name, "created": found.created_at, "queues": queues})


@topic.command()
@topic_argument
@yes_option
@with_session
def delete(session: Session, topic_name: str, yes: bool) -> None:
    """Delete a topic with all its queues and their messages."""
    with session.connect() as queue:
        queues = [each.name for each in queue.list_queues() if each.topic_name == topic_name]
        if queues:
            confirm(
                f"Delete topic {topic_name} with {count(len(queues), 'queue')} and all messages in them?",
                yes=yes,
            )
        queue.delete_topic(topic_name)
    session.output.done(f"topic {topic_name} deleted", name=topic_name, queues=queues, deleted=True)
