#!/bin/sh
# redis-server, if it is missing and this machine's packages can be installed. Tests of several nodes
# are skipped without it; `make cluster` says what is missing.
command -v redis-server >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server; } >/dev/null \
        || echo "redis-server could not be installed" >&2
else
    echo "redis-server is missing: apt-get install redis-server, or your system's way" >&2
fi
exit 0
