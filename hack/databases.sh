#!/usr/bin/env bash
# Installs the databases of `make test-databases`, Debian's PostgreSQL and SQLite. Their packages run nothing afterwards: Debian's PostgreSQL
# would make a database cluster and start it, which is prevented for this installation only. Installed packages stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
need sqlite3 sqlite3
# 14 or later has pg_amcheck, outside of PATH.
compgen -G '/usr/lib/postgresql/*/bin/pg_amcheck' >/dev/null && exit
conf=/etc/postgresql-common/createcluster.d
if [ "$(id -u)" = 0 ]; then
  made=()
  for d in "$(dirname "$conf")" "$conf"; do [ -e "$d" ] || { mkdir "$d"; made=("$d" "${made[@]}"); }; done
  # What the packages have put into a folder meanwhile keeps it.
  trap 'rm -f "$conf/gemel-tests.conf"; for d in "${made[@]}"; do rmdir "$d" 2>/dev/null || true; done' EXIT
  echo "create_main_cluster = false" >"$conf/gemel-tests.conf"
fi
install_package pg_amcheck postgresql
say "PostgreSQL is installed without a database cluster, and nothing of it runs"
