/* SPDX-License-Identifier: MIT */
/*
 * host.c - whether a Host header or the authority of a target is valid.
 *
 * RFC 3986: a registered name, an IPv4 address or an address in brackets, and perhaps a port. RFC 9110 forbids user
 * information here. Peers that read an invalid host differently could be made to disagree about a request.
 */
#include "serve.h"

static bool is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

static bool is_hex(char byte)
{
    return is_digit(byte) || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
}

/*
 * The bytes of a name but the percent sign. Every byte of a request's host comes here, and most are letters. The others
 * are looked up as bits, which is faster than a search in a text.
 */
static bool is_name_byte(char byte)
{
    /* ! $ & ' ( ) * + , - . 0-9 ; =, then A-Z _ a-z ~ */
    static const uint64_t bits[2] = { 0x2bff7fd200000000u, 0x47fffffe87fffffeu };
    unsigned char index = (unsigned char)byte;

    if ((unsigned)(index | 0x20) - 'a' < 26u)
        return true;
    return index < 128 && bits[index / 64] >> index % 64 & 1;
}

bool host_is_valid(const char *text, size_t bytes)
{
    const char *end = text + bytes;

    if (text < end && *text == '[') {
        const char *first = ++text;

        while (text < end && (is_name_byte(*text) || *text == ':'))
            text++;
        if (text == first || text == end || *text++ != ']')
            return false;
    } else {
        for (; text < end && *text != ':'; text++) {
            if (*text == '%' && end - text > 2 && is_hex(text[1]) && is_hex(text[2]))
                text += 2;
            else if (!is_name_byte(*text))
                return false;
        }
    }
    if (text < end && *text++ != ':')
        return false;
    while (text < end && is_digit(*text))
        text++;
    return text == end;
}
