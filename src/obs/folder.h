/* SPDX-License-Identifier: MIT */
/*
 * folder.h - the folder that the shared files of file.h lie in.
 */
#ifndef RSI_OBS_FOLDER_H
#define RSI_OBS_FOLDER_H

#include "obs/store.h"

#define RSI_FOLDER_NAME_BYTES \
    48 /* with both numbers at their longest, and what is before and after them */

/*
 * The folder, made if it is not there; only if it is the user's own and nobody else's. Returns a descriptor, or -errno
 * and in reason what could not be done. Not from two threads at once.
 */
int rsi_folder_open(char *reason, size_t bytes);

/* Take away the files of processes that have ended. Those of killed ones stay, for those who ask why; the newest of them. */
void rsi_folder_clean(int folder, uint64_t pid_namespace);

/* Whether a process has locked the file that fd is of, by another descriptor or mapping. */
bool rsi_folder_has_lock(int fd);

/* Fill reason with what a call could not do that has just set errno. Returns -errno. */
int rsi_folder_failed(char *reason, size_t bytes, const char *what, const char *path);

#endif
