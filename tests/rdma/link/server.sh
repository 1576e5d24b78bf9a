#!/bin/sh
# What the first of two machines does while the second tests the wire: it answers ibv_rc_pingpong, one
# client after the other. Both ends have to be told the same rounds and sizes.
while :; do
    ibv_rc_pingpong --ib-dev rxe0 --gid-idx 1 --iters 20 --size 65536 --mtu 4096 --chk
done
