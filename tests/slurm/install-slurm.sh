#!/bin/sh
# Slurm with its controller, nodes and headers, munge, a C compiler and Lua, if one is missing and this
# machine's packages can be installed. The tests of the scheduler's plugin are skipped without them.
missing=
for tool in slurmctld slurmd sbatch munged gcc lua5.1; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
[ -e /usr/include/slurm/spank.h ] || missing="$missing slurm/spank.h"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # Level 1: no daemon is started, the tests start their own.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurmctld slurmd \
        slurm-client munge slurm-wlm-basic-plugins libslurm-dev gcc libc6-dev lua5.1; } >/dev/null ||
        echo "Slurm could not be installed; missing:$missing" >&2
else
    echo "Slurm is missing:$missing" >&2
fi
exit 0
