#!/bin/sh
# What the first of two machines does while the second tests the wire: a gateway, another once it was killed,
# and ibv_rc_pingpong, one client after the other. Both ends of that have to be told the same rounds and sizes.
while "$VIRTUAL_ENV/bin/python" -m tests.rdma.link.gateway || [ $? = 137 ]; do :; done &
while :; do
    ibv_rc_pingpong --ib-dev rxe0 --gid-idx 1 --iters 20 --size 65536 --mtu 4096 --chk
done
