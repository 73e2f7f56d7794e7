/* SPDX-License-Identifier: MIT */
/*
 * rouse/rouse.h - the whole public interface: includes every other header of rouse.
 *
 * It brings <errno.h> too, because calls return negative error numbers.
 */
#ifndef ROUSE_ROUSE_H
#define ROUSE_ROUSE_H

#include <rouse/cluster.h>
#include <rouse/errno.h>
#include <rouse/io.h>
#include <rouse/mark.h>
#include <rouse/obs.h>
#include <rouse/poll.h>
#include <rouse/sync.h>
#include <rouse/thread.h>
#include <rouse/version.h>

#endif
