/* SPDX-License-Identifier: MIT */
/*
 * checksum.c - threads that compute the CRC-32 of blocks, and never wait. Fault: they compute it bit by bit, which
 * only a profiler of the processor shows.
 *
 * Repair: a table, byte by byte.
 */
#include "findings.h"

enum { THREADS = 4, BLOCK_BYTES = 4096, BITS = 8 };
static const uint32_t POLYNOMIAL = 0xedb88320;

static uint32_t crc_of_byte[256]; /* written before the threads start */

static uint32_t crc_step(uint32_t crc)
{
    for (int bit = 0; bit < BITS; bit++)
        crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
    return crc;
}

static uint32_t crc_of(const unsigned char *block, uint32_t crc)
{
    for (size_t i = 0; i < BLOCK_BYTES; i++) {
        if (is_fixed)
            crc = crc >> 8 ^ crc_of_byte[(crc ^ block[i]) & 0xff];
        else
            crc = crc_step(crc ^ block[i]);
    }
    return crc;
}

static void *verify(void *arg)
{
    struct worker *self = arg;
    unsigned char block[BLOCK_BYTES];
    unsigned long ops = 0;
    memset(block, (int)self->number, sizeof block);
    for (uint32_t crc = 0; !is_over(); ops++) {
        crc = crc_of(block, ~crc);
        block[crc % BLOCK_BYTES]++;
    }
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    for (uint32_t byte = 0; byte < 256; byte++)
        crc_of_byte[byte] = crc_step(byte);
    begin(argc, argv);
    finish(run_threads(THREADS, verify));
    return 0;
}
