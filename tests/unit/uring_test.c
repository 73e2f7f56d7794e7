/* SPDX-License-Identifier: MIT */
/* uring_test.c - what only rings can get wrong: buffers, what is held, and a worker that does not reap. */
#include "io_test.h"

#define STREAMS 96
#define PIECES 4
#define PIECE_BYTES 1500

struct stream {
    int ends[2];
    uint32_t seen; /* bytes read, and right */
    uint32_t goes_on;
};

static char byte_at(unsigned index, size_t at)
{
    return (char)(at * 7 + index);
}

/* Reads a little, so that a ring receives from then on; the rest when it is told to. */
static void read_stream(void *arg, unsigned index)
{
    struct stream *stream = &((struct stream *)arg)[index];
    char bytes[PIECES * PIECE_BYTES];
    EQUALS(rouse_read(stream->ends[0], bytes, sizeof bytes), 1);
    EQUALS(rouse_read(stream->ends[0], bytes, sizeof bytes), 1);
    rsi_store_release(&stream->seen, 2);
    while (!rsi_load_acquire(&stream->goes_on))
        CHECK(rouse_sleep(1000000) == 0);
    for (;;) {
        ssize_t got = rouse_read(stream->ends[0], bytes, sizeof bytes);
        if (got == 0)
            break;
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++, stream->seen++)
            CHECK(bytes[i] == byte_at(index, stream->seen - 2));
    }
    EQUALS(stream->seen, 2 + PIECES * PIECE_BYTES);
}

static void say(struct stream *stream, unsigned index, unsigned piece)
{
    char bytes[PIECE_BYTES];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = byte_at(index, piece * sizeof bytes + i);
    EQUALS(send(stream->ends[1], bytes, sizeof bytes, 0), (long)sizeof bytes);
}

/* More comes than there are buffers to begin with, and nobody reads: no byte is lost, none out of order. */
static void buffers_are_used_up(void **state)
{
    (void)state;
    static struct stream streams[STREAMS];
    static struct crew crew;
    for (unsigned i = 0; i < STREAMS; i++)
        wire_open(WIRE_TCP, streams[i].ends);
    for (unsigned i = 0; i < STREAMS; i++)
        (void)crew_add(&crew, CREW_USER, read_stream, streams);
    for (unsigned i = 0; i < STREAMS; i++) {
        UNTIL(is_awaited(streams[i].ends[0], RSI_FD_READ));
        EQUALS(send(streams[i].ends[1], "1", 1, 0), 1);
        UNTIL(rsi_load_relaxed(&rsi_fdtable_peek(streams[i].ends[0])->sides[0].edges) > 0);
    }
    for (unsigned i = 0; i < STREAMS; i++) {
        UNTIL(is_awaited(streams[i].ends[0], RSI_FD_READ));
        EQUALS(send(streams[i].ends[1], "2", 1, 0), 1);
        UNTIL(rsi_load_acquire(&streams[i].seen) == 2);
    }
    for (unsigned piece = 0; piece < PIECES; piece++)
        for (unsigned i = 0; i < STREAMS; i++)
            say(&streams[i], i, piece);
    for (unsigned i = 0; i < STREAMS; i++) {
        CHECK(shutdown(streams[i].ends[1], SHUT_WR) == 0);
        rsi_store_release(&streams[i].goes_on, 1);
    }
    crew_join(&crew);
    for (unsigned i = 0; i < STREAMS; i++) {
        streams[i].seen = streams[i].goes_on = 0;
        wire_close(streams[i].ends);
    }
}

static void wait_and_leave(void *arg, unsigned index)
{
    char byte;
    (void)index;
    EQUALS(rouse_read(*(int *)arg, &byte, 1), 1);
}

static size_t resident_bytes(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return (size_t)resident * RSI_PAGE;
}

/* Closed with bytes that nobody took, again and again: the buffers come back. */
static void unread_buffers_come_back(void **state)
{
    (void)state;
    static struct crew crew;
    size_t before = 0;
    int ends[2];
    for (unsigned i = 0; i < 1000; i++) {
        if (i == 200)
            before = resident_bytes();
        wire_open(WIRE_TCP, ends);
        (void)crew_add(&crew, CREW_USER, wait_and_leave, &ends[0]);
        UNTIL(is_awaited(ends[0], RSI_FD_READ));
        EQUALS(send(ends[1], "12345", 5, 0), 5);
        crew_join(&crew);
        EQUALS(send(ends[1], "12345", 5, 0), 5);
        wire_close(ends);
    }
    CHECK(resident_bytes() < before + 2000000); /* 800 lost buffers would touch as much again */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_used_up),
        cmocka_unit_test(unread_buffers_come_back),
    };
    CHECK(setenv("ROUSE_IO", "uring", 1) == 0);
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
