/* SPDX-License-Identifier: MIT */
/*
 * privilege.c - calls by which a process gives up its user or its root directory, as a server's workers do after their
 * fork.
 *
 * The file is created before the call, since the process may lack the rights afterwards. A file that exists keeps
 * growing, because it is mapped as a whole.
 */
#include "process/real.h"
#include "process/recording.h"

RPI_EXPORT RSI_NOINLINE int setuid(uid_t user)
{
    rpi_real_find();
    rpi_recording_settle();
    return rpi_real.setuid(user);
}

RPI_EXPORT RSI_NOINLINE int setgid(gid_t group)
{
    rpi_real_find();
    rpi_recording_settle();
    return rpi_real.setgid(group);
}

RPI_EXPORT RSI_NOINLINE int setreuid(uid_t real, uid_t effective)
{
    rpi_real_find();
    rpi_recording_settle();
    return rpi_real.setreuid(real, effective);
}

RPI_EXPORT RSI_NOINLINE int setregid(gid_t real, gid_t effective)
{
    rpi_real_find();
    rpi_recording_settle();
    return rpi_real.setregid(real, effective);
}

RPI_EXPORT RSI_NOINLINE int setresuid(uid_t real, uid_t effective, uid_t saved)
{
    rpi_real_find();
    rpi_recording_settle();
    return rpi_real.setresuid(real, effective, saved);
}

RPI_EXPORT RSI_NOINLINE int setresgid(gid_t real, gid_t effective, gid_t saved)
{
    rpi_real_find();
    rpi_recording_settle();
    return rpi_real.setresgid(real, effective, saved);
}

RPI_EXPORT RSI_NOINLINE int setgroups(size_t count, const gid_t *groups)
{
    rpi_real_find();
    rpi_recording_settle();
    return rpi_real.setgroups(count, groups);
}

RPI_EXPORT RSI_NOINLINE int initgroups(const char *user, gid_t group)
{
    rpi_real_find();
    rpi_recording_settle();
    return rpi_real.initgroups(user, group);
}

RPI_EXPORT RSI_NOINLINE int chroot(const char *path)
{
    rpi_real_find();
    rpi_recording_settle();
    return rpi_real.chroot(path);
}
