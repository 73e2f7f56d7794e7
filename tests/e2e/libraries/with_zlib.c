/* SPDX-License-Identifier: MIT */
/* with_zlib.c - zlib keeps its state in the stream: a thread may wait, and move to another worker, between two calls. */
#include "threads.h"

#include <string.h>
#include <zlib.h>

#define BYTES (128u << 10)
#define PIECE 1021u

static void *work(void *arg)
{
    unsigned char *plain = malloc(BYTES), *packed = malloc(2 * BYTES), *back = malloc(BYTES);
    unsigned seed = (unsigned)(uintptr_t)arg;
    z_stream out = { 0 }, in = { 0 };

    CHECK(plain && packed && back, "no memory");
    for (unsigned i = 0; i < BYTES; i++)
        plain[i] = (unsigned char)((seed = seed * 1103515245 + 12345) >> 28);
    CHECK(deflateInit(&out, Z_DEFAULT_COMPRESSION) == Z_OK, "deflateInit");
    out.next_out = packed;
    out.avail_out = 2 * BYTES;
    for (unsigned at = 0; at < BYTES; at += PIECE) {
        out.next_in = plain + at;
        out.avail_in = BYTES - at < PIECE ? BYTES - at : PIECE;
        CHECK(deflate(&out, Z_NO_FLUSH) == Z_OK, "deflate");
        rouse_thread_yield();
    }
    CHECK(deflate(&out, Z_FINISH) == Z_STREAM_END, "the end of deflate");
    CHECK(inflateInit(&in) == Z_OK, "inflateInit");
    in.next_out = back;
    in.avail_out = BYTES;
    for (uLong at = 0; at < out.total_out; at += PIECE) {
        in.next_in = packed + at;
        in.avail_in = (uInt)(out.total_out - at < PIECE ? out.total_out - at : PIECE);
        CHECK(inflate(&in, Z_NO_FLUSH) >= Z_OK, "inflate");
        rouse_thread_yield();
    }
    CHECK(in.total_out == BYTES && memcmp(plain, back, BYTES) == 0, "other bytes came back");
    deflateEnd(&out);
    inflateEnd(&in);
    free(plain);
    free(packed);
    free(back);
    return NULL;
}

int main(void)
{
    run_all(32, work);
    puts("right");
    return 0;
}
