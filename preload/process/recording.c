/* SPDX-License-Identifier: MIT */
/*
 * recording.c - creates and ends the file that this process is recorded in.
 *
 * The file is created when the program begins, so that a program that never waits can be distinguished from one that
 * was not recorded. The child of a fork creates its own at its first wait, since most children run another program
 * before that.
 */
#include "process/recording.h"

#include "obs/ledger.h"
#include "os/os.h"
#include "process/guard.h"
#include "process/self.h"

#include <errno.h>
#include <sys/mman.h>

volatile const uint32_t *rpi_recording_here;
bool rpi_recording_is_aside;
bool rpi_recording_confined;

static uint32_t *here; /* the same page, writable */
static const struct rpi_recording_calls *calls;
static uint32_t guard;  /* over the creation of the file */
static bool is_ready;   /* release */
static bool is_refused; /* the file cannot be created */

/* librouse calls it, by name, before it creates a file of its own. */
RPI_EXPORT void rouse_preload_step_aside(void);
void rouse_preload_step_aside(void)
{
    rsi_store_relaxed(&rpi_recording_is_aside, true);
}

/* Creating the file has cancellation points. A thread that was cancelled there would leave the guard locked. */
bool rpi_recording_open(void)
{
    int cancel;
    sigset_t before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    rpi_guard_enter(&guard, &before);
    if (!rsi_file_head && !is_refused) {
        /* Not printed, since standard error is the program's. `rouse run` reports the missing file. */
        char reason[192];
        is_refused = rsi_file_open(reason, sizeof reason) != 0;
        if (!is_refused)
            calls->note();
    }
    rpi_guard_exit(&guard, &before);
    pthread_setcancelstate(cancel, NULL);
    return !is_refused;
}

void rpi_recording_settle(void)
{
    int error = errno;
    if (rpi_recording_is_ready() && !rpi_self_is_closed && rpi_recording_is_on())
        (void)rpi_recording_open();
    errno = error;
}

/* Map a page that the kernel clears in every child that has memory of its own. The fork handler fills it in again. */
static bool here_put(void)
{
    if (!here && !(here = rsi_map(RSI_PAGE)))
        return false;
    *here = 1;
    rpi_recording_here = here;
    return madvise(here, RSI_PAGE, MADV_WIPEONFORK) == 0;
}

bool rpi_recording_setup(const struct rpi_recording_calls *of)
{
    calls = of;
    return here_put();
}

void rpi_recording_start(void)
{
    rsi_store_release(&is_ready, true); /* pairs with rpi_recording_is_ready */
}

bool rpi_recording_is_ready(void)
{
    return rsi_load_acquire(&is_ready); /* pairs with rpi_recording_start */
}

/* The counts up to now are final. */
void rpi_recording_confine(void)
{
    int error = errno;
    if (rpi_self_is_vforked() || rpi_recording_is_confined())
        return;
    rpi_recording_settle();
    if (calls)
        calls->confine();
    bool is_recorded = here && *here && rsi_load_relaxed(&rsi_file_head) &&
                       !rsi_load_relaxed(&rpi_recording_is_aside);
    rsi_store_relaxed(&rpi_recording_confined, true);
    if (here)
        rsi_store_relaxed(here, 0u);
    if (is_recorded) {
        rsi_store_relaxed(&rsi_file_head->is_confined, UINT64_C(1));
        rsi_file_end();
    }
    errno = error;
}

void rpi_recording_child(void)
{
    (void)here_put();
    guard = 0;
    is_refused = false;
}
