/* SPDX-License-Identifier: MIT */
/*
 * weak_ring.pml - a ring of events (src/obs/event_ring.h) that another process copies (rouse/store/decode.py).
 *
 * The writer writes EVENTS events of two words into a ring of two entries. The reader reads the count, all entries,
 * and the count again. Checked: an event that it takes for valid is whole, and is the one of that number.
 * src/obs/waits.h has the same protocol, with a writer in preload/record/wait_ring.c.
 *
 * The reader reads by system calls. fence_acquire stands for what orders two of them: see docs/design/weak-ordering.md.
 *
 * mutant NO_WRITER_FENCE: the writer has no release fence before the words
 * mutant FENCE_LATE: the writer's fence stands after the first word
 * mutant WRITTEN_RELAXED: the writer counts by a relaxed store
 * mutant COUNT_RELAXED: the reader reads the first count relaxed
 * mutant NO_READER_FENCE: the second count may be read before the words
 * mutant FULL_CAPACITY: the reader keeps as many events as there are entries
 */
#define EVENTS 4
#define CAPACITY 2
#define CPUS 2
#define WORDS 5
#define STORES 5
#include "weak.pml"

#define WRITER 0
#define READER 1

#define WRITTEN 0
#define ENTRY(number) (1 + 2 * ((number) % CAPACITY)) /* and the next one. Both are number + 1 */

proctype writer()
{
    byte next;
    do
    :: next < EVENTS ->
#if !defined(NO_WRITER_FENCE) && !defined(FENCE_LATE)
        fence_release(WRITER);
#endif
        store_relaxed(WRITER, ENTRY(next), next + 1);
#ifdef FENCE_LATE
        fence_release(WRITER);
#endif
        store_relaxed(WRITER, ENTRY(next) + 1, next + 1);
        next++;
#ifdef WRITTEN_RELAXED
        store_relaxed(WRITER, WRITTEN, next)
#else
        store_release(WRITER, WRITTEN, next)
#endif
    :: else -> break
    od
}

proctype reader()
{
    byte until, first, count, i;
    byte copy[2 * CAPACITY];
#ifdef COUNT_RELAXED
    load_relaxed(READER, WRITTEN, until);
#else
    load_acquire(READER, WRITTEN, until);
#endif
    do
    :: i < 2 * CAPACITY -> load_relaxed(READER, 1 + i, copy[i]); i++
    :: else -> break
    od;
#ifndef NO_READER_FENCE
    fence_acquire(READER);
#endif
    load_relaxed(READER, WRITTEN, count);
#ifdef FULL_CAPACITY
    first = (count > CAPACITY -> count - CAPACITY : 0);
#else
    first = (count > CAPACITY - 1 -> count - CAPACITY + 1 : 0);
#endif
    do
    :: first < until ->
        assert(copy[ENTRY(first) - 1] == first + 1 && copy[ENTRY(first)] == first + 1);
        first++
    :: else -> break
    od
}

init {
    atomic {
        weak_init();
        run writer();
        run reader()
    }
}
