/* SPDX-License-Identifier: MIT */
/* dump.h - the dump, for obs' own files. */
#ifndef RSI_OBS_DUMP_H
#define RSI_OBS_DUMP_H

/* rouse_obs_dump, with a line before it that says why; NULL: none. */
void rsi_dump(int fd, const char *reason);

/* deadlock.c: in a child after fork. */
void rsi_deadlock_child(void);

#endif
