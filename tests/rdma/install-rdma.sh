#!/bin/sh
# What the virtual machines with verbs are made of: an emulator, a kernel's tools, pyverbs and the verbs'
# own commands, if one is missing and this machine's packages can be installed. The kernel is no installed
# package: the tests download it, so apt has to know of it.
missing=
for tool in qemu-system-x86_64 busybox depmod rdma tc ibv_rc_pingpong ib_write_bw; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
[ -d /usr/lib/python3/dist-packages/pyverbs ] || missing="$missing pyverbs"
apt-cache show linux-image-amd64 >/dev/null 2>&1 || missing="$missing linux-image-amd64"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-system-x86 \
        busybox-static kmod e2fsprogs iproute2 python3-pyverbs ibverbs-providers ibverbs-utils \
        perftest; } >/dev/null ||
        echo "the virtual machine's parts could not be installed; missing:$missing" >&2
else
    echo "the virtual machine's parts are missing:$missing" >&2
fi
exit 0
