/* SPDX-License-Identifier: MIT */
/*
 * pressure.c - trims stacks when the kernel reports that memory is short.
 *
 * Pressure stall information (PSI) has triggers: descriptors on which poll(2) reports POLLPRI at most once
 * per window. Only a program that asked for it has the kernel thread that waits there. It sleeps until then,
 * so an idle process makes no system calls. Rejected: reading the figures from the idle loop, which is one
 * wake-up per second. The kernel allows unprivileged processes no window shorter than 2 s.
 */
#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static const char trigger[] = "some 100000 2000000"; /* us of stall in a window in us */

static struct {
    uint32_t is_on; /* starters acquire and release it; the thread that ends releases it */
    int fd;
} watch = { 0, -1 };

static int open_raw(const char *path, int flags)
{
    return (int)rsi_syscall4(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0);
}

static int open_trigger(const char *path)
{
    int fd = open_raw(path, O_RDWR | O_NONBLOCK);
    if (fd < 0)
        return fd;
    long written = rsi_syscall3(SYS_write, fd, trigger, sizeof trigger);
    if (written < 0)
        rsi_syscall1(SYS_close, fd);
    return written < 0 ? (int)written : fd;
}

/* The path of the process's own cgroup, version 2. False: it has none. */
static bool group_path(char *path, size_t bytes)
{
    char text[4096];
    int fd = open_raw("/proc/self/cgroup", O_RDONLY);
    long length = fd < 0 ? fd : rsi_syscall3(SYS_read, fd, text, sizeof text - 1);
    if (fd >= 0)
        rsi_syscall1(SYS_close, fd);
    text[length > 0 ? length : 0] = 0;
    char *at = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!at)
        return false;
    at = strchr(at, '/');
    if (!at)
        return false;
    at[strcspn(at, "\n")] = 0;
    rsi_format(path, bytes, "/sys/fs/cgroup%s/memory.pressure", at);
    return true;
}

static void *watch_main(void *unused)
{
    struct pollfd event = { .fd = rsi_load_relaxed(&watch.fd), .events = POLLPRI };
    pthread_setname_np(pthread_self(), "rouse-pressure");
    for (;;) {
        int ready = poll(&event, 1, -1);
        if (ready > 0 && event.revents & (POLLERR | POLLHUP | POLLNVAL))
            break; /* the cgroup was removed */
        if (ready > 0)
            (void)rouse_stacks_trim(0);
    }
    /* Before the close, since a child closes the descriptor stored here. */
    rsi_store_relaxed(&watch.fd, -1);
    rsi_syscall1(SYS_close, event.fd);
    rsi_store_release(&watch.is_on, 0u); /* pairs with the exchange in rsi_pressure_watch */
    return unused;
}

/* Takes ownership of fd, also when it fails. */
int rsi_pressure_watch(int fd)
{
    if (rsi_exchange_acquire(&watch.is_on, 1u) != 0) {
        rsi_syscall1(SYS_close, fd);
        return 0;
    }
    rsi_store_relaxed(&watch.fd, fd);
    if (rsi_helper_start(watch_main))
        return 0;
    rsi_store_relaxed(&watch.fd, -1);
    rsi_syscall1(SYS_close, fd);
    rsi_store_release(&watch.is_on, 0u); /* as above */
    return -EAGAIN;
}

unsigned rsi_pressure_threads(void)
{
    return rsi_load_relaxed(&watch.is_on);
}

static int start(void)
{
    char path[4352];
    int fd = group_path(path, sizeof path) ? open_trigger(path) : -ENOENT;
    if (fd < 0)
        fd = open_trigger("/proc/pressure/memory");
    return fd < 0 ? fd : rsi_pressure_watch(fd);
}

int rouse_stacks_trim_on_pressure(void)
{
    int error = rsi_runtime_try_start();
    if (error || rsi_load_relaxed(&watch.is_on))
        return error;
    return start();
}

void rsi_pressure_setup(void)
{
    const char *text = secure_getenv("ROUSE_TRIM");
    if (!text || !*text || strcmp(text, "off") == 0)
        return;
    if (strcmp(text, "pressure") != 0)
        rsi_fatal("ROUSE_TRIM is \"%s\"; give off or pressure", text);
    int error = start();
    if (error)
        rsi_report(
            "ROUSE_TRIM=pressure is not possible here: error %d from pressure stall information",
            error);
}

void rsi_pressure_child(void)
{
    if (watch.fd >= 0)
        rsi_syscall1(SYS_close, watch.fd);
    watch.fd = -1;
    watch.is_on = 0;
}
