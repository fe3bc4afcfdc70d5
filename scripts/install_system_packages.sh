#!/bin/sh
# Installs what the tests need from the system, when root and missing, and warns about what is missing then.
# The Debian packages of the servers would start them: the tests start their own, so these stay off.

has_bubblewrap() { test -x /usr/bin/bwrap; }
has_chromium() { test -x /usr/bin/chromium; }
has_iproute2() { command -v ip >/dev/null; }
has_pgbouncer() { test -x /usr/sbin/pgbouncer || command -v pgbouncer >/dev/null; }
has_postgresql() {
    for program in /usr/lib/postgresql/*/bin/postgres; do
        version=${program#/usr/lib/postgresql/}
        test -x "$program" && test "${version%%/*}" -ge 15 && return
    done
    command -v pg_config >/dev/null && version=$(pg_config --version) && version=${version#PostgreSQL } &&
        test "${version%%[!0-9]*}" -ge 15 && test -x "$(pg_config --bindir)/postgres"
}

install_packages() {
    policy=/usr/sbin/policy-rc.d
    if ! test -e "$policy"; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
        trap 'exit 1' INT TERM
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    for service in postgresql pgbouncer; do
        case " $* " in
        *" $service "*) systemctl disable --quiet "$service" 2>/dev/null ;;
        esac
    done
}

packages=
for package in bubblewrap chromium iproute2 postgresql pgbouncer; do
    "has_$package" || packages="$packages $package"
done
if test "$packages" && test "$(id -u)" = 0 && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2086 # these are words
    install_packages $packages
fi

has_bubblewrap ||
    echo "WARNING: no bubblewrap (/usr/bin/bwrap): the tests of the sandbox are skipped; apt-get install bubblewrap" >&2
has_chromium ||
    echo "WARNING: no Chromium (/usr/bin/chromium): the tests of the web page are skipped; apt-get install chromium" >&2
has_postgresql ||
    echo "WARNING: no PostgreSQL 15 or newer: its tests are skipped; apt-get install postgresql" >&2
has_pgbouncer ||
    echo "WARNING: no PgBouncer: the tests behind a pooler are skipped; apt-get install pgbouncer" >&2
has_iproute2 ||
    echo "WARNING: no iproute2 (ip): the tests of nodes on networks of their own are skipped; apt-get install iproute2" >&2
exit 0
