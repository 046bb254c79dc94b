-- Deliver now: messages that were scheduled for later become ready at once.

-- The order is that of messages that are due: a delayed message enters as new, a retry beside waiting messages, a
-- parked message at the front. A message whose time to live is over becomes a dead letter.
create or replace function penstock._deliver_now(queue_name text, message_ids bigint[]) returns bigint[]
language plpgsql
as $$
#variable_conflict use_variable
declare
    queue int := penstock._queue_id(queue_name, 'publish');
    moved bigint[];
begin
    perform penstock._require_read_committed('delivering messages now');
    perform penstock._lock_queue(queue);
    moved := penstock._make_ready(
        queue, penstock.clock(), array(select distinct i from unnest(message_ids) i where i is not null), true
    );
    if moved <> '{}' and (select q.notify from penstock.queues q where q.id = queue) then
        perform penstock._wake(queue_name, moved[1]);
    end if;
    return moved;
end
$$;
comment on function penstock._deliver_now is
    'Moves scheduled messages to ready or waiting before they are due. Returns the ids of the messages that left '
    'scheduled.';

create or replace function penstock.deliver_message_now(queue_name text, message_id bigint) returns boolean
language sql security definer
/*hot: sort*/
as $$ select penstock._deliver_now(queue_name, array[message_id]) <> '{}' $$;
comment on function penstock.deliver_message_now is
    'Makes a scheduled message ready before it is due; false if the message is not scheduled. A delayed message '
    'goes behind all others, a retry between them, a parked message to the front. A message over the cap of its '
    'tenant waits for a permit. A caller that may publish to the queue may call this for any of its messages.';

create or replace function penstock.deliver_messages_now(queue_name text, message_ids bigint[]) returns setof bigint
language plpgsql security definer
/*hot: sort*/
as $$
begin
    perform penstock._check_list('message_ids', message_ids);
    return query select unnest(penstock._deliver_now(queue_name, message_ids));
end
$$;
comment on function penstock.deliver_messages_now is
    'deliver_message_now() for many messages of a queue. Returns the ids of the messages that were scheduled.';
