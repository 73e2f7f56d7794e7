#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# qemu.sh COMMAND... - run a command that starts AArch64 programs, and lets those start others.
#
# A test that executes itself again needs a kernel that knows the emulator. The emulator is registered in a user
# namespace of the command (Linux 6.7), so that the settings of this system do not change. Where that is not
# possible, the script prints the reason and exits with status 77.
set -euo pipefail

if [[ $1 != --inside ]]; then
    if ! unshare --user --map-root-user --mount "$0" --inside true 2>/dev/null; then
        echo "not run: the kernel has no binfmt_misc in user namespaces"
        exit 77
    fi
    exec unshare --user --map-root-user --mount "$0" --inside "$@"
fi
shift
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
# ELF, 64 bits, little-endian, executable or shared object, machine 183. The second line is the mask.
elf='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":rouse-aarch64:M::$elf:$mask:$(command -v qemu-aarch64-static):F" \
    >/proc/sys/fs/binfmt_misc/register
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
export QEMU_SET_ENV=LD_LIBRARY_PATH=$PWD/build/aarch64-packages/usr/lib/aarch64-linux-gnu
exec "$@"
