/* SPDX-License-Identifier: MIT */
/* backlog.c - a ring buffer of descriptors that doubles when full. Memory is allocated and freed without a guard. */
#include "io/accept/backlog.h"

#include "os/os.h"

#include <errno.h>
#include <stdlib.h>

#define CAPACITY_FIRST 16u

bool rsi_backlog_grow(const struct rsi_backlog *backlog, int **memory)
{
    uint32_t capacity = rsi_load_relaxed(&backlog->capacity);
    *memory = NULL;
    if (rsi_load_relaxed(&backlog->count) < capacity)
        return true;
    capacity = capacity != 0 ? capacity * 2 : CAPACITY_FIRST;
    *memory = malloc(capacity * sizeof **memory);
    return *memory != NULL;
}

int *rsi_backlog_push(struct rsi_backlog *backlog, int fd, int *memory)
{
    int *old = NULL;
    if (memory != NULL) {
        for (uint32_t i = 0; i < backlog->count; i++)
            memory[i] = backlog->fds[(backlog->first + i) % backlog->capacity];
        old = backlog->fds;
        backlog->fds = memory;
        backlog->capacity = backlog->capacity != 0 ? backlog->capacity * 2 : CAPACITY_FIRST;
        backlog->first = 0;
    }
    backlog->fds[(backlog->first + backlog->count++) % backlog->capacity] = fd;
    return old;
}

static int pop(struct rsi_backlog *backlog)
{
    int fd = backlog->fds[backlog->first];
    backlog->first = (backlog->first + 1) % backlog->capacity;
    rsi_store_relaxed(&backlog->count, backlog->count - 1); /* grow may be reading it */
    return fd;
}

int rsi_backlog_take(struct rsi_backlog *backlog, struct sockaddr *address, socklen_t *length)
{
    int fd = pop(backlog);
    if (address == NULL)
        return fd;
    long result = rsi_syscall3(SYS_getpeername, fd, address, length);
    if (result == -ENOTCONN)
        *length = 0; /* length is readable, or the error would be another one */
    else if (result < 0)
        rsi_syscall1(SYS_close, fd);
    return result == -ENOTCONN || result == 0 ? fd : (int)result;
}

void rsi_backlog_drop(struct rsi_backlog *backlog)
{
    while (backlog->count != 0)
        rsi_syscall1(SYS_close, pop(backlog));
    free(backlog->fds);
    backlog->fds = NULL;
    backlog->first = 0;
    rsi_store_relaxed(&backlog->capacity, 0u); /* grow may be reading it */
}
