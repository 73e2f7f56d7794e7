/* SPDX-License-Identifier: MIT */
/*
 * weak_slot.pml - a thread's slot in the shared file (rsi_slot_change, src/obs/ledger.h) that another process reads
 * (rouse/store/snapshot.py).
 *
 * The writer changes two words CHANGES times, each time to the same value. The reader reads seq, the words, and seq
 * again. Checked: if both are the same even number, the words are equal.
 * The head's tick (src/obs/file.c), slot_free (src/obs/ledger.c) and an outside wake (preload/record/outside_wake.c)
 * have the same protocol. The reader reads by system calls. fence_acquire stands for what orders two of them: see
 * docs/design/weak-ordering.md.
 *
 * mutant NO_CHANGE_FENCE: the writer has no release fence after it has made seq odd
 * mutant CHANGED_RELAXED: the writer makes seq even by a relaxed store
 * mutant SEQ_RELAXED: the reader reads seq relaxed at first
 * mutant NO_READER_FENCE: seq may be read again before the words
 * mutant ODD_ACCEPTED: the reader accepts words between two equal odd numbers
 */
#define CHANGES 2
#define CPUS 2
#define WORDS 3
#define STORES 5
#include "weak.pml"

#define WRITER 0
#define READER 1

#define SEQ 0
#define FIRST 1
#define SECOND 2

proctype writer()
{
    byte change;
    do
    :: change < CHANGES ->
        change++;
        store_relaxed(WRITER, SEQ, 2 * change - 1);
#ifndef NO_CHANGE_FENCE
        fence_release(WRITER);
#endif
        store_relaxed(WRITER, FIRST, change);
        store_relaxed(WRITER, SECOND, change);
#ifdef CHANGED_RELAXED
        store_relaxed(WRITER, SEQ, 2 * change)
#else
        store_release(WRITER, SEQ, 2 * change)
#endif
    :: else -> break
    od
}

proctype reader()
{
    byte before, after, first, second;
#ifdef SEQ_RELAXED
    load_relaxed(READER, SEQ, before);
#else
    load_acquire(READER, SEQ, before);
#endif
    load_relaxed(READER, FIRST, first);
    load_relaxed(READER, SECOND, second);
#ifndef NO_READER_FENCE
    fence_acquire(READER);
#endif
    load_relaxed(READER, SEQ, after);
#ifdef ODD_ACCEPTED
    assert(before != after || first == second)
#else
    assert(before != after || before % 2 == 1 || first == second)
#endif
}

init {
    atomic {
        weak_init();
        run writer();
        run reader()
    }
}
