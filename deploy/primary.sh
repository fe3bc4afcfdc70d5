#!/bin/sh
# Creates the database and its users, when the primary starts for the first time.
set -eu
psql --no-psqlrc --set ON_ERROR_STOP=1 --set password="$POSTGRES_PASSWORD" --username postgres <<'SQL'
CREATE ROLE treadle LOGIN PASSWORD :'password';
CREATE ROLE replicator LOGIN REPLICATION PASSWORD :'password';
CREATE DATABASE treadle OWNER treadle;
-- Only from the next start on: the standby does not exist yet.
ALTER SYSTEM SET synchronous_standby_names = 'standby';
SQL
echo "host replication replicator all scram-sha-256" >> "$PGDATA/pg_hba.conf"
