/* SPDX-License-Identifier: MIT */
/*
 * tuning.c - changes that `rouse run` makes to the program on request: ROUSE_RUN_SLACK_NS sets the timer slack of all
 * threads, ROUSE_RUN_SPIN_NS lets threads try for a held mutex before they sleep.
 */
#include "process/tuning.h"

#include "obs/ledger.h"

#include <stdlib.h>
#include <sys/prctl.h>

#define NS_MOST UINT64_C(1000000000)

uint64_t rpi_tuning_spin_ns;
static uint64_t slack_ns;

/* A number from the environment. 0: it is unset or invalid. The program sees the variable too. */
static uint64_t number_of(const char *name)
{
    const char *text = secure_getenv(name);
    char *end = NULL;
    unsigned long long number = text ? strtoull(text, &end, 10) : 0;
    return end && *end == 0 && number <= NS_MOST ? number : 0;
}

void rpi_tuning_setup(void)
{
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
