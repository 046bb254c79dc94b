-- The roles that the worker and the dashboard connect as. psql runs this file after `penstock migrate`, as often as
-- you like: it sets passwords anew.
\getenv worker_password PENSTOCK_WORKER_PASSWORD
\getenv dashboard_password PENSTOCK_DASHBOARD_PASSWORD

-- Passwords do not go into the log of the server.
set log_statement = 'none';
set log_min_error_statement = 'panic';
set log_min_duration_statement = -1;

select format('create role %I login', name)
from unnest(array['app_worker', 'app_dashboard']) as name
where not exists (select from pg_roles where rolname = name)
\gexec
alter role app_worker password :'worker_password';
alter role app_dashboard password :'dashboard_password';

-- Tasks may enqueue others, and periodic tasks do.
grant penstock_consumer, penstock_publisher to app_worker;
-- Pages read as penstock_viewer, actions run as penstock_admin.
grant penstock_viewer, penstock_admin to app_dashboard;
-- So that pages and metrics show which session holds back vacuum.
grant pg_read_all_stats to penstock_viewer;
