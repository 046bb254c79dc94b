-- Whether a send of one message has a value that is stored beside the message, and not both a payload and a body.
(payload is null) <> (body is null) and coalesce(octet_length(body), pg_column_size((array[payload])[1])) > 1500
