/* SPDX-License-Identifier: MIT */
/*
 * range.c - which part of a file a request asks for (RFC 9110, 14).
 *
 * One range is served. Several ranges, other units and malformed values are ignored, as the RFC permits: the answer
 * is the whole file.
 */
#include <string.h>
#include <strings.h>

#include "serve.h"

/* Read digits up to end. Returns what follows them; a number too large for a file becomes the largest. */
static const char *read_number(const char *text, const char *end, off_t *number)
{
    const off_t most = INT64_MAX / 10 - 1;

    *number = 0;
    for (; text < end && *text >= '0' && *text <= '9'; text++)
        *number = *number < most ? *number * 10 + (*text - '0') : INT64_MAX - 1;
    return text;
}

static unsigned suffix(const char *text, const char *end, off_t bytes, struct range *range)
{
    off_t count;

    if (text == end || read_number(text, end, &count) != end)
        return 200;
    if (count == 0)
        return 416;
    if (bytes == 0)
        return 200; /* satisfiable, but no Content-Range can name an empty part */
    range->first = count < bytes ? bytes - count : 0;
    range->end = bytes;
    return 206;
}

unsigned range_of(const char *text, size_t length, off_t bytes, struct range *range)
{
    const char *end = text + length, *dash, *last;
    off_t first, to;

    if (length < 7 || strncasecmp(text, "bytes=", 6) != 0)
        return 200;
    text += 6;
    if (*text == '-')
        return suffix(text + 1, end, bytes, range);
    dash = read_number(text, end, &first);
    if (dash == text || dash == end || *dash != '-')
        return 200;
    last = read_number(dash + 1, end, &to);
    if (last != end)
        return 200;
    if (dash + 1 == end)
        to = INT64_MAX - 1;
    if (to < first)
        return 200;
    if (first >= bytes)
        return 416;
    range->first = first;
    range->end = to < bytes ? to + 1 : bytes;
    return 206;
}
