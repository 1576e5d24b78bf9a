#!/bin/sh
# The first process of a virtual machine. Its root becomes this machine's, read-only over 9p, with a scratch
# layer above that is gone with the machine; /run/vm is the folder in which the runner left `enter` and
# waits for `status`.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module" || echo "cannot load $module"; done </modules/order

plan9=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "$plan9,cache=loose,ro" host /host
mount -t tmpfs -o size=60% tmpfs /scratch
mkdir /scratch/upper /scratch/work
mount -t overlay -o lowerdir=/host,upperdir=/scratch/upper,workdir=/scratch/work overlay /new

for folder in dev proc sys; do mount --bind /$folder /new/$folder; done
mkdir -p /new/dev/shm /new/dev/pts
mount -t devpts devpts /new/dev/pts
for folder in dev/shm run; do mount -t tmpfs -o size=60%,mode=1777 tmpfs /new/$folder; done
mkdir /new/run/vm /new/run/shared /new/run/tmp
# Nothing kept: what the runner or another machine writes here is seen at once.
for tag in vm shared; do mount -t 9p -o "$plan9,cache=none" $tag /new/run/$tag; done

# Images that stand in for folders, by the number of their disk: reading them is faster than 9p.
while read -r disk folder; do
    mkdir -p "/images/$disk"
    mount -t ext4 -o ro,noatime "/dev/$disk" "/images/$disk" &&
        mount --bind "/images/$disk" "/new$folder"
done </new/run/vm/images

echo up >/new/run/vm/up
chroot /new /bin/sh /run/vm/enter </dev/null >/dev/vport0p1 2>&1
echo $? >/new/run/vm/status
sync
poweroff -f
