/* SPDX-License-Identifier: MIT */
/*
 * tuning.c - changes that `rouse run` makes to the program on request: ROUSE_RUN_SLACK_NS sets the timer slack of all
 * threads, ROUSE_RUN_SPIN_NS lets threads try for a held mutex before they sleep, ROUSE_RUN_DELAY lengthens the holds of
 * one mutex. That is `DEVICE:INODE:OFFSET:NS`: of the file of the program that has the mutex as a static variable, and
 * where.
 */
#include "process/tuning.h"

#include "obs/ledger.h"
#include "os/os.h"

#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define NS_MOST UINT64_C(1000000000)

uint64_t rpi_tuning_spin_ns;
const void *rpi_tuning_delayed;
static uint64_t slack_ns, delay_ns;

/* A number from the environment. 0: it is unset or invalid. The program sees the variable too. */
static uint64_t number_of(const char *name)
{
    const char *text = secure_getenv(name);
    char *end = NULL;
    unsigned long long number = text ? strtoull(text, &end, 10) : 0;
    return end && *end == 0 && number <= NS_MOST ? number : 0;
}

/* The program comes first, before its libraries. */
static int note_base(struct dl_phdr_info *info, size_t bytes, void *base)
{
    (void)bytes;
    *(uintptr_t *)base = info->dlpi_addr;
    return 1;
}

static void find_delayed(void)
{
    unsigned long long device, inode, offset, ns;
    struct stat program;
    uintptr_t base = 0;
    char rest;
    const char *text = secure_getenv("ROUSE_RUN_DELAY");
    if (!text || sscanf(text, "%llu:%llu:%llu:%llu%c", &device, &inode, &offset, &ns, &rest) != 4 ||
        ns > NS_MOST || stat("/proc/self/exe", &program) != 0 || program.st_dev != device ||
        program.st_ino != inode)
        return;
    dl_iterate_phdr(note_base, &base);
    delay_ns = ns;
    rpi_tuning_delayed = (const void *)(base + (uintptr_t)offset);
}

/* It computes, since a sleep lasts some 50 µs longer than it is meant to. */
void rpi_tuning_delay(void)
{
    uint64_t until_ns = rsi_now_ns() + delay_ns;
    while (rsi_now_ns() < until_ns)
        rsi_cpu_relax();
}

void rpi_tuning_setup(void)
{
    int error = errno;
    find_delayed();
    errno = error;
    rpi_tuning_spin_ns = number_of("ROUSE_RUN_SPIN_NS");
    slack_ns = number_of("ROUSE_RUN_SLACK_NS");
    /* Every thread inherits the slack of the thread that creates it. */
    if (slack_ns && prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns, 0, 0, 0) != 0)
        slack_ns = 0;
}

void rpi_tuning_note(void)
{
    rsi_store_relaxed(&rsi_file_head->slack_ns, slack_ns);
    rsi_store_relaxed(&rsi_file_head->spin_ns, rpi_tuning_spin_ns);
}
