#!/bin/sh
# Installs the S3 clients the tests drive: s3cmd and rclone from Debian, the AWS CLI from PyPI in an
# environment of its own (it pins another botocore than ours). What cannot be installed is left
# out: the tests that need it then skip and say so, or fail where REQUIRE names it.
set -u
uv=$1
missing=
for tool in rclone s3cmd; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null 2>&1
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 ||
        echo "could not install:$missing" >&2
fi
command -v "$UV_TOOL_BIN_DIR/aws" >/dev/null 2>&1 ||
    "$uv" tool install --quiet 'awscli>=1.40,<2' ||
    echo "could not install: awscli" >&2
