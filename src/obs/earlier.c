/* SPDX-License-Identifier: MIT */
/*
 * earlier.c - keeps the file of the program that ran before exec.
 *
 * A process keeps its PID and the time of its start when it calls exec, and so the name of its file. Most programs
 * that call exec are shells and the like, which did not wait: their files are not kept, or each command of a
 * script would leave one more.
 */
#include "obs/earlier.h"

#include "obs/cpu_time.h"
#include "obs/folder.h"
#include "obs/store.h"
#include "os/os.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX ".rouse"
#define KEPT_MOST 1000u /* files of one process; a loop of exec must not fill the folder */

/* Each is a few bytes of a file that this user alone may write to. */
static bool get(int fd, void *to, size_t bytes, uint64_t at)
{
    return pread(fd, to, bytes, (off_t)at) == (ssize_t)bytes;
}

static bool put(int fd, const void *from, size_t bytes, uint64_t at)
{
    return pwrite(fd, from, bytes, (off_t)at) == (ssize_t)bytes;
}

/* Whether waits are in it: then it has a chunk for them. */
static bool has_waits(int fd, uint32_t chunk_count)
{
    for (uint32_t i = 0; i < chunk_count && i < RSI_STORE_CHUNKS_MAX; i++) {
        uint32_t page, kind;
        if (!get(fd, &page, sizeof page, RSI_STORE_DIRECTORY + UINT64_C(4) * i))
            return false;
        uint64_t at = (uint64_t)page * RSI_PAGE + offsetof(struct rsi_store_chunk, kind);
        if (page && get(fd, &kind, sizeof kind, at) && kind == RSI_STORE_WAKES)
            return true;
    }
    return false;
}

/* As rsi_file_end does, for a file that is not mapped any more. */
static bool close_it(int fd, struct rsi_store_head *head, const struct rsi_process_time *used)
{
    head->tick_seq += 2 - head->tick_seq % 2;
    head->tick_tsc = rsi_tsc();
    head->tick_monotonic_ns = rsi_now_ns();
    head->tick_guard = 0;
    head->cpu_ns = used->cpu_ns - head->earlier_cpu_ns;
    head->system_ns = used->system_ns - head->earlier_system_ns;
    head->ended = 1;
    return put(fd, head, sizeof *head, 0);
}

static bool rename_it(int folder, const char *name, unsigned number)
{
    char other[RSI_FOLDER_NAME_BYTES];
    size_t length = strlen(name) - strlen(SUFFIX);
    memcpy(other, name, length);
    rsi_format(other + length, sizeof other - length, ".%u" SUFFIX, number);
    return renameat(folder, name, folder, other) == 0;
}

void rsi_earlier_keep(int folder, const char *name, uint64_t start_ticks, struct rsi_earlier *known)
{
    struct rsi_store_head head;
    int fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (get(fd, &head, sizeof head, 0) && head.magic == RSI_STORE_MAGIC &&
        head.version == RSI_STORE_VERSION && head.pid == getpid() &&
        head.start_ticks == start_ticks && !head.ended) {
        *known = (struct rsi_earlier){ head.earlier_programs, head.earlier_cpu_ns,
                                       head.earlier_system_ns };
        struct rsi_process_time used = rsi_process_time();
        unsigned number = (unsigned)head.earlier_programs + 1;
        if (number <= KEPT_MOST && has_waits(fd, head.chunk_count) && close_it(fd, &head, &used) &&
            rename_it(folder, name, number))
            *known = (struct rsi_earlier){ number, used.cpu_ns, used.system_ns };
    }
    close(fd);
}
