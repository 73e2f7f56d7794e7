/* SPDX-License-Identifier: MIT */
/*
 * rouse/version.h - the version of these headers.
 *
 * Compare the numbers in `#if`; the text is for messages. librouse.so.0 of a later version runs programs that were
 * built with earlier headers.
 */
#ifndef ROUSE_VERSION_H
#define ROUSE_VERSION_H

#define ROUSE_VERSION "0.1.0"
#define ROUSE_VERSION_MAJOR 0
#define ROUSE_VERSION_MINOR 1
#define ROUSE_VERSION_PATCH 0

#endif
