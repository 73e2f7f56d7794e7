/* SPDX-License-Identifier: MIT */
/* dump.h - the dump of all threads, for the other files of obs. */
#ifndef RSI_OBS_DUMP_H
#define RSI_OBS_DUMP_H

/* rouse_obs_dump, preceded by a line with the reason; NULL: no line. */
void rsi_dump(int fd, const char *reason);

/* Reset deadlock.c, in a child after fork. */
void rsi_deadlock_child(void);

#endif
