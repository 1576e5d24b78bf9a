#!/bin/sh
# Fetches the small files that packs are tried on: the npm package `openmoji` (11,500 SVG files) and
# Debian's `papirus-icon-theme` (58,000 SVG files, as many links), into the folder given, once. What
# cannot be had is left out: the tests that need it then skip and say so, or fail where REQUIRE
# names it.
set -u
folder=$1
mkdir -p "$folder" || exit 0
scratch=$(mktemp -d "$folder/coming.XXXXXX") || exit 0
trap 'rm -rf "$scratch"' EXIT

openmoji() {
    command -v npm >/dev/null 2>&1 || return 1
    (cd "$scratch" && timeout 120 npm pack --silent --fetch-retries=0 openmoji >/dev/null 2>&1) &&
        mkdir "$scratch/openmoji" &&
        tar -xzf "$scratch"/openmoji-*.tgz -C "$scratch/openmoji" --strip-components=1 &&
        mv "$scratch/openmoji" "$folder/openmoji"
}

papirus() {
    command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || return 1
    (cd "$scratch" && timeout 120 apt-get download -qq papirus-icon-theme >/dev/null 2>&1) &&
        dpkg-deb -x "$scratch"/papirus-icon-theme_*.deb "$scratch/papirus" &&
        mv "$scratch/papirus" "$folder/papirus"
}

for name in openmoji papirus; do
    [ -d "$folder/$name" ] || "$name" || echo "could not fetch: $name" >&2
done
