-- The end of the lease of a claimed message g. Each attempt multiplies the lease by the queue's factor; the maximum is
-- 30 days. Variables: now, lease, lease_end, backoff.
case
    when backoff = 1 then lease_end
    else now + make_interval(secs => least(lease * power(backoff, least(g.attempts, 100)), 2592000))
end
