/* SPDX-License-Identifier: MIT */
/*
 * tag.c - the entity tag of a file, and whether a list of tags names it (RFC 9110, 8.8.3).
 *
 * A tag is made of the time of the last change in nanoseconds, the size and the inode. The clock of a file system has
 * ticks of some milliseconds, so a file may change twice in one. While that may still happen, and for 2 s, the tag is
 * weak: it does not promise the same bytes.
 */
#include <string.h>
#include <strings.h>
#include <time.h>

#include "serve.h"

#define SETTLES_S 2

static char *put_hex(char *to, uint64_t number)
{
    int digits = number ? (67 - __builtin_clzll(number)) / 4 : 1;

    for (int i = digits - 1; i >= 0; i--, number >>= 4)
        to[i] = "0123456789abcdef"[number & 15];
    return to + digits;
}

/* A change in the future is no older than one just now. */
static bool is_weak_now(const struct file *file)
{
    return file->modified > time(NULL) - SETTLES_S;
}

/* Without W/, which the comparison treats apart. */
static char *put_opaque(char *to, const struct file *file)
{
    *to++ = '"';
    to = put_hex(to, (uint64_t)file->modified * 1000000000u + (uint64_t)file->modified_ns);
    *to++ = '-';
    to = put_hex(to, (uint64_t)file->bytes);
    *to++ = '-';
    to = put_hex(to, file->inode);
    *to++ = '"';
    return to;
}

size_t tag_write(char *to, const struct file *file)
{
    char *start = to;

    if (is_weak_now(file)) {
        *to++ = 'W';
        *to++ = '/';
    }
    return (size_t)(put_opaque(to, file) - start);
}

/*
 * At the end of a line of the list: skip to the value of the next line with this name. The lines between belong to
 * other headers. Returns end if there is none.
 */
static const char *next_line(const char *at, const char *end, const char *name)
{
    size_t bytes = strlen(name);

    while ((at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        at++;
        if ((size_t)(end - at) > bytes && strncasecmp(at, name, bytes) == 0 && at[bytes] == ':')
            return at + bytes + 1;
    }
    return end;
}

/* A text that is no tag matches nothing, and ends its line. */
bool tag_matches(const char *name, const char *list, size_t bytes, const struct file *file,
                 bool is_strong)
{
    char opaque[TAG_BYTES];
    size_t length = (size_t)(put_opaque(opaque, file) - opaque);
    const char *at = list, *end = list + bytes;

    if (is_strong && is_weak_now(file))
        return false;
    while (at < end) {
        bool is_weak = end - at > 2 && at[0] == 'W' && at[1] == '/';
        const char *quote;

        if (*at == ',' || *at == ' ' || *at == '\t') {
            at++;
            continue;
        }
        if (is_weak)
            at += 2;
        quote = *at == '"' ? memchr(at + 1, '"', (size_t)(end - at - 1)) : NULL;
        if (quote == NULL || memchr(at, '\n', (size_t)(quote - at))) {
            at = next_line(at, end, name);
            continue;
        }
        quote++;
        if (!(is_strong && is_weak) && (size_t)(quote - at) == length &&
            memcmp(at, opaque, length) == 0)
            return true;
        at = quote;
    }
    return false;
}
