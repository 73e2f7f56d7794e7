/* SPDX-License-Identifier: MIT */
/* folder.h - the folder of the shared files (file.h). */
#ifndef RSI_OBS_FOLDER_H
#define RSI_OBS_FOLDER_H

#include "obs/store.h"

#define RSI_FOLDER_NAME_BYTES 48 /* the longest name, with both numbers */

/*
 * Open the folder, and create it if necessary. It must belong to the user, with mode 0700. Returns a descriptor, or
 * -errno with the failure described in reason: -EEXIST if what is there is not this user's own. With a descriptor,
 * reason is empty, or says which other folder is used because the name is taken. Not from two threads at once.
 */
int rsi_folder_open(char *reason, size_t bytes);

/*
 * Remove the files of processes that have ended, except the newest of killed processes, which are kept for later
 * reports.
 */
void rsi_folder_clean(int folder, uint64_t pid_namespace);

/* Whether a process has locked the file of fd, through another descriptor or mapping. */
bool rsi_folder_has_lock(int fd);

/* Describe in reason the failure of a call that has just set errno. Returns -errno. */
int rsi_folder_failed(char *reason, size_t bytes, const char *what, const char *path);

#endif
