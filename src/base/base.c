/* SPDX-License-Identifier: MIT */
/* base.c - guards, fatal errors, formatting without libc's locks. */
#include "base/syscall.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

size_t (*rsi_fatal_describe)(char *buffer, size_t bytes);

void rsi_guard_lock_slow(uint32_t *guard)
{
    for (unsigned round = 0;; round++) {
        for (unsigned i = 0; i < 64; i++) {
            if (rsi_load_relaxed(guard) == 0 && rsi_guard_try(guard))
                return;
            rsi_cpu_relax();
        }
        if (round >= 4)
            rsi_syscall0(SYS_sched_yield);
    }
}

struct sink {
    char *at, *end;
};

static void put(struct sink *sink, char c)
{
    if (sink->at < sink->end)
        *sink->at++ = c;
}

static void put_text(struct sink *sink, const char *text)
{
    for (text = text ? text : "(null)"; *text; text++)
        put(sink, *text);
}

static void put_number(struct sink *sink, uint64_t value, unsigned base)
{
    char digits[24];
    unsigned n = 0;
    do {
        digits[n++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value);
    while (n)
        put(sink, digits[--n]);
}

static void format_list(struct sink *sink, const char *format, va_list list)
{
    for (; *format; format++) {
        if (*format != '%') {
            put(sink, *format);
            continue;
        }
        format++;
        bool is_long = *format == 'l' || *format == 'z';
        if (is_long)
            format++;
        switch (*format) {
        case 's': put_text(sink, va_arg(list, const char *)); break;
        case 'd': {
            long value = is_long ? va_arg(list, long) : va_arg(list, int);
            if (value < 0)
                put(sink, '-');
            put_number(sink, value < 0 ? -(uint64_t)value : (uint64_t)value, 10);
            break;
        }
        case 'u':
            put_number(sink, is_long ? va_arg(list, unsigned long) : va_arg(list, unsigned), 10);
            break;
        case 'x':
            put_number(sink, is_long ? va_arg(list, unsigned long) : va_arg(list, unsigned), 16);
            break;
        case 'p':
            put_text(sink, "0x");
            put_number(sink, (uintptr_t)va_arg(list, void *), 16);
            break;
        default: put(sink, *format); break;
        }
    }
}

size_t rsi_format_list(char *buffer, size_t bytes, const char *format, va_list list)
{
    if (bytes == 0)
        return 0;
    struct sink sink = { buffer, buffer + bytes - 1 };
    format_list(&sink, format, list);
    *sink.at = 0;
    return (size_t)(sink.at - buffer);
}

size_t rsi_format(char *buffer, size_t bytes, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    size_t used = rsi_format_list(buffer, bytes, format, list);
    va_end(list);
    return used;
}

static void report_list(const char *format, va_list list)
{
    char line[512];
    struct sink sink = { line, line + sizeof line - 1 };
    put_text(&sink, "rouse: ");
    format_list(&sink, format, list);
    if (rsi_fatal_describe)
        sink.at += rsi_fatal_describe(sink.at, (size_t)(sink.end - sink.at));
    *sink.at++ = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)(sink.at - line));
    if (written < 0 &&
        errno == EBADF) { /* the monitor has a descriptor table of its own: core/spares.c */
        int fd = open("/proc/self/fd/2", O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC);
        written = write(fd, line, (size_t)(sink.at - line));
        close(fd);
    }
    (void)written;
}

void rsi_report(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    report_list(format, list);
    va_end(list);
}

void rsi_fatal(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    report_list(format, list);
    va_end(list);
    abort();
}

#ifdef ROUSE_TEST
static uint64_t test_seed;
static unsigned test_chance;

__attribute__((constructor)) static void test_delay_setup(void)
{
    const char *seed = secure_getenv("ROUSE_TEST_SEED"),
               *chance = secure_getenv("ROUSE_TEST_DELAY");
    test_seed = seed ? strtoull(seed, NULL, 10) : 1;
    test_chance = chance ? (unsigned)strtoul(chance, NULL, 10) : 0;
}

void rsi_test_delay(void)
{
    static __thread uint64_t state;
    if (test_chance == 0)
        return;
    if (state == 0)
        state = (rsi_fetch_add_relaxed(&test_seed, UINT64_C(0x9e3779b97f4a7c15)) | 1);
    uint64_t r = rsi_random_next(&state);
    if ((r & 1023) >= test_chance)
        return;
    if ((r >> 10 & 7) == 0) {
        rsi_syscall0(SYS_sched_yield);
        return;
    }
    for (uint64_t n = r >> 16 & 1023; n; n--)
        rsi_cpu_relax();
}

uint32_t rsi_test_overlooked;

bool rsi_test_overlooks(void)
{
    uint32_t left = rsi_load_relaxed(&rsi_test_overlooked);
    while (left != 0 && !rsi_cas_relaxed(&rsi_test_overlooked, &left, left - 1)) {
    }
    return left != 0;
}

#define TEST_LINES 64u

int rsi_test_writer;
static struct {
    struct rsi_test_range ranges[RSI_TEST_RANGES];
    unsigned range_count;
    struct rsi_test_writes writes;
    uintptr_t lines[TEST_LINES];
} test_writes;

void rsi_test_wrote(const volatile void *at, bool is_locked)
{
    const uintptr_t address = (uintptr_t)at, line = address / RSI_CACHE_LINE;
    if (gettid() != __atomic_load_n(&rsi_test_writer, __ATOMIC_RELAXED))
        return;
    unsigned range = 0;
    while (range < test_writes.range_count &&
           address - (uintptr_t)test_writes.ranges[range].from >= test_writes.ranges[range].bytes)
        range++;
    if (range == test_writes.range_count)
        range = RSI_TEST_RANGES;
    uint32_t *counts = is_locked ? test_writes.writes.locked : test_writes.writes.stores;
    counts[range]++;
    unsigned i = 0;
    while (i < test_writes.writes.lines && test_writes.lines[i] != line)
        i++;
    if (i == test_writes.writes.lines && i < TEST_LINES)
        test_writes.lines[test_writes.writes.lines++] = line;
}

void rsi_test_writes_begin(const struct rsi_test_range *ranges, unsigned count)
{
    memset(&test_writes, 0, sizeof test_writes);
    memcpy(test_writes.ranges, ranges, count * sizeof *ranges);
    test_writes.range_count = count;
    __atomic_store_n(&rsi_test_writer, gettid(), __ATOMIC_RELAXED);
}

void rsi_test_writes_end(struct rsi_test_writes *writes)
{
    __atomic_store_n(&rsi_test_writer, 0, __ATOMIC_RELAXED);
    *writes = test_writes.writes;
}
#endif
