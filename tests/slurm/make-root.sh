#!/bin/sh
# Makes FOLDER a root of the Debian release SUITE with that release's Slurm in it, for tests that run with
# FEEDRACK_SLURM_ROOT=FOLDER. What is there already is kept; what was broken off begins anew.
#     sh tests/slurm/make-root.sh trixie .tools/trixie
# DEBIAN_MIRROR: where the packages come from. Wants root.
set -eu
suite=$1
folder=$2
# Without one debootstrap takes its own.
mirror=${DEBIAN_MIRROR:-}
packages=slurmctld,slurmd,slurm-client,munge,slurm-wlm-basic-plugins,libslurm-dev,gcc,libc6-dev,lua5.1
made="$suite $packages"
mark="$folder/etc/feedrack-root"
[ -e "$mark" ] && [ "$(cat "$mark")" = "$made" ] && exit 0
if ! command -v debootstrap >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
fi
rm -rf --one-file-system "$folder"
mkdir -p "$folder"
log=$folder.log
# In a mount namespace of its own: if it breaks off, no /proc stays mounted in the folder.
if ! unshare --mount debootstrap --variant=minbase --include="$packages" \
    "$suite" "$folder" ${mirror:+"$mirror"} >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    exit 1
fi
# What was downloaded is as large as a third of what is installed.
rm -f "$folder"/var/cache/apt/archives/*.deb "$log"
echo "$made" >"$mark"
