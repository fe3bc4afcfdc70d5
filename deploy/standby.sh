#!/bin/sh
# Copies the primary at the first start, and follows it. A standby that is promoted waits for no other one.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    until pg_basebackup --pgdata "$PGDATA" --write-recovery-conf --wal-method stream --checkpoint fast \
        --dbname "host=${PRIMARY:-primary} port=${PRIMARY_PORT:-5432} user=replicator application_name=standby"
    do
        find "$PGDATA" -mindepth 1 -delete
        sleep 1
    done
    chmod 700 "$PGDATA"
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c max_connections=200 -c synchronous_standby_names='' "$@"
