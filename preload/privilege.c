/* SPDX-License-Identifier: MIT */
/*
 * privilege.c - calls by which a process gives up its user or its root, as a server's workers do after their fork. What
 * comes after could not make the file; one that is there keeps growing, since it is mapped whole.
 */
#include "preload.h"

RSI_EXPORT RSI_NOINLINE int setuid(uid_t user)
{
    rsi_real_find();
    rsi_party_settle();
    return rsi_real.setuid(user);
}

RSI_EXPORT RSI_NOINLINE int setgid(gid_t group)
{
    rsi_real_find();
    rsi_party_settle();
    return rsi_real.setgid(group);
}

RSI_EXPORT RSI_NOINLINE int setreuid(uid_t real, uid_t effective)
{
    rsi_real_find();
    rsi_party_settle();
    return rsi_real.setreuid(real, effective);
}

RSI_EXPORT RSI_NOINLINE int setregid(gid_t real, gid_t effective)
{
    rsi_real_find();
    rsi_party_settle();
    return rsi_real.setregid(real, effective);
}

RSI_EXPORT RSI_NOINLINE int setresuid(uid_t real, uid_t effective, uid_t saved)
{
    rsi_real_find();
    rsi_party_settle();
    return rsi_real.setresuid(real, effective, saved);
}

RSI_EXPORT RSI_NOINLINE int setresgid(gid_t real, gid_t effective, gid_t saved)
{
    rsi_real_find();
    rsi_party_settle();
    return rsi_real.setresgid(real, effective, saved);
}

RSI_EXPORT RSI_NOINLINE int setgroups(size_t count, const gid_t *groups)
{
    rsi_real_find();
    rsi_party_settle();
    return rsi_real.setgroups(count, groups);
}

RSI_EXPORT RSI_NOINLINE int initgroups(const char *user, gid_t group)
{
    rsi_real_find();
    rsi_party_settle();
    return rsi_real.initgroups(user, group);
}

RSI_EXPORT RSI_NOINLINE int chroot(const char *path)
{
    rsi_real_find();
    rsi_party_settle();
    return rsi_real.chroot(path);
}
