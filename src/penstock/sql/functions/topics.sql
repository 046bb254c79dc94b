-- Topics: channels to publish to.

create or replace function penstock.create_topic(topic_name text) returns bigint
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    topic_id int;
begin
    perform penstock._check_name('topic_name', topic_name);
    loop
        select t.id into topic_id from penstock.topics t where t.name = topic_name;
        exit when found;
        insert into penstock.topics (name) values (topic_name) on conflict (name) do nothing returning id into topic_id;
        exit when found;
    end loop;
    return topic_id;
end
$$;
comment on function penstock.create_topic is
    'Creates a topic and returns its id. If the topic exists, returns its id.';

-- Lock order: the row of the topic, so that no queue joins the topic; then its queues by id, as in every function that
-- locks several queues.
create or replace function penstock.delete_topic(topic_name text) returns void
language plpgsql security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
declare
    topic int;
    queue int;
begin
    select t.id into topic from penstock.topics t where t.name = topic_name for update;
    if not found then
        perform penstock._unknown_topic(topic_name);
    end if;
    for queue in select q.id from penstock.queues q where q.topic_id = topic order by q.id loop
        perform penstock._delete_queue(queue);
    end loop;
    delete from penstock.topics t where t.id = topic;
end
$$;
comment on function penstock.delete_topic is 'Deletes a topic with its queues and all their messages.';

create or replace function penstock.list_topics(
    out id bigint, out name text, out created_at timestamptz, out queue_count bigint
) returns setof record
language sql stable security definer
set search_path = pg_catalog, penstock, pg_temp
as $$
    select t.id, t.name, t.created_at, (select count(*) from penstock.queues q where q.topic_id = t.id)
    from penstock.topics t order by t.name
$$;
comment on function penstock.list_topics is 'Lists all topics, by name, with the number of their queues.';

create or replace function penstock._unknown_topic(topic_name text) returns void
language plpgsql
as $$
begin
    raise exception using
        errcode = 'PN002',
        message = case
            when topic_name is null then 'no topic given'
            else format('topic "%s" does not exist', topic_name)
        end,
        hint = 'create_topic() creates a topic, list_topics() lists all topics.';
end
$$;
comment on function penstock._unknown_topic is 'Raises the error for a topic that does not exist.';
