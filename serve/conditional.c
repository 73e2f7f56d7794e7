/* SPDX-License-Identifier: MIT */
/*
 * conditional.c - the preconditions of a request, in the order of RFC 9110, 13.2.2.
 */
#include <string.h>

#include "serve.h"

#define DATE_LONGEST 40 /* Wednesday, 09-Nov-94 08:49:37 GMT has 33 bytes */

/* RFC 9110, 5.6.7: a year of two digits is at most 50 years in the future. */
static void place_in_century(struct tm *t)
{
    time_t now = time(NULL);
    struct tm today;

    if (gmtime_r(&now, &today) == NULL)
        return;
    t->tm_year = today.tm_year / 100 * 100 + t->tm_year % 100;
    if (t->tm_year > today.tm_year + 50)
        t->tm_year -= 100;
}

/* Read a date in any of the three forms of HTTP. Returns whether it is one, with nothing after it. */
static bool read_date(const char *date, size_t bytes, time_t *seconds)
{
    static const char *const forms[] = { "%a, %d %b %Y %H:%M:%S GMT", "%a, %d-%b-%y %H:%M:%S GMT",
                                         "%a %b %e %H:%M:%S %Y" };
    char text[DATE_LONGEST];

    if (bytes == 0 || bytes >= sizeof(text))
        return false;
    memcpy(text, date, bytes);
    text[bytes] = 0;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct tm t = { 0 };
        const char *end = strptime(text, forms[i], &t);

        if (end == NULL || *end)
            continue;
        if (i == 1)
            place_in_century(&t);
        *seconds = timegm(&t);
        return true;
    }
    return false;
}

const char *conditional_value(const struct connection *c, enum kept_header header, size_t *bytes)
{
    const struct span *span = &c->kept[header];
    const char *text = c->in + c->request_at + span->at;

    *bytes = span->bytes;
    while (*bytes && (text[*bytes - 1] == ' ' || text[*bytes - 1] == '\t'))
        --*bytes;
    return span->at ? text : NULL;
}

static bool is_any(const char *text, size_t bytes)
{
    return bytes == 1 && *text == '*';
}

/* Whether the value of If-Match or If-None-Match, with all its lines, names the file. */
static bool names(const char *header, const char *text, size_t bytes, const struct file *file,
                  bool is_strong)
{
    return is_any(text, bytes) || tag_matches(header, text, bytes, file, is_strong);
}

unsigned conditional_status(const struct connection *c, const struct file *file)
{
    const char *text;
    size_t bytes;
    time_t date;

    if ((text = conditional_value(c, KEPT_MATCH, &bytes)) != NULL) {
        if (!names("if-match", text, bytes, file, true))
            return 412;
    } else if ((text = conditional_value(c, KEPT_UNMODIFIED_SINCE, &bytes)) != NULL &&
               read_date(text, bytes, &date) && file->modified > date) {
        return 412;
    }
    if ((text = conditional_value(c, KEPT_NONE_MATCH, &bytes)) != NULL)
        return names("if-none-match", text, bytes, file, false) ? 304 : 200;
    if ((text = conditional_value(c, KEPT_MODIFIED_SINCE, &bytes)) != NULL &&
        read_date(text, bytes, &date) && file->modified <= date)
        return 304;
    return 200;
}

/*
 * A tag has a quotation mark among its first three characters, and no date has (RFC 9110, 13.1.5). A date is a strong
 * validator only if the file cannot have changed twice in its second (8.8.2.2), so the file must be older than that
 * second.
 */
bool conditional_range(const struct connection *c, const struct file *file)
{
    size_t bytes;
    const char *text = conditional_value(c, KEPT_IF_RANGE, &bytes);
    time_t date;

    if (text == NULL)
        return true;
    if (memchr(text, '"', bytes < 3 ? bytes : 3))
        return tag_matches("if-range", text, bytes, file, true);
    return read_date(text, bytes, &date) && date == file->modified &&
           file->modified < time(NULL) - 1;
}
