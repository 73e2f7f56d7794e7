/* SPDX-License-Identifier: MIT */
/*
 * mapping.c - finds a mapping in /proc/self/maps, without memory allocation or locks, by system calls alone.
 */
#include "obs/mapping.h"

#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

static uint64_t hex(const char **at)
{
    uint64_t value = 0;
    for (;; (*at)++) {
        char c = **at;
        if (c >= '0' && c <= '9')
            value = value * 16 + (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value * 16 + (uint64_t)(c - 'a' + 10);
        else
            return value;
    }
}

/* Whether a line of /proc/self/maps describes the mapping around address, which then is *span. */
static bool parse_mapping(const char *line, uintptr_t address, struct rsi_span *span)
{
    span->low = hex(&line);
    if (*line != '-')
        return false;
    line++;
    span->high = hex(&line);
    return address >= span->low && address < span->high && line[0] == ' ' && line[1] == 'r';
}

static bool find_mapping_in(const char *path, uintptr_t address, struct rsi_span *span)
{
    char text[512];
    size_t used = 0;
    bool is_found = false;
    int fd = (int)rsi_syscall4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    for (;;) {
        long got = rsi_syscall3(SYS_read, fd, text + used, sizeof text - 1 - used);
        if (got <= 0 && got != -EINTR)
            break;
        used += got > 0 ? (size_t)got : 0;
        text[used] = 0;
        /*
         * Only the beginning of a line matters. The rest of a line that is longer than text is parsed as a line
         * too, and describes no mapping.
         */
        char *line = text, *end;
        while (!is_found && (end = strchr(line, '\n')) != NULL) {
            is_found = parse_mapping(line, address, span);
            line = end + 1;
        }
        if (is_found)
            break;
        used = (size_t)(text + used - line);
        if (used == sizeof text - 1)
            used = 0;
        memmove(text, line, used);
    }
    rsi_syscall1(SYS_close, fd);
    return is_found;
}

void rsi_mapping_find(uintptr_t address, struct rsi_span *span)
{
    /* /proc/self is the main thread, which may have ended */
    if (!find_mapping_in("/proc/self/maps", address, span) &&
        !find_mapping_in("/proc/thread-self/maps", address, span))
        *span = (struct rsi_span){ 0, 0 };
}
