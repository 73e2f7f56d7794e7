/* SPDX-License-Identifier: MIT */
/*
 * memory.pml - words that several CPUs with store buffers share. Other models include this file.
 *
 * Spin interleaves whole steps, so it would not notice a missing fence. Here a store goes to its CPU's buffer,
 * and some time later to memory (drain). A load reads its own CPU's buffer first.
 *   store_relaxed   may leave the buffer before an older store to another word
 *   store_release   leaves the buffer after all older stores; younger relaxed stores may overtake it
 *   rmw_acquire     acts on memory at once; older stores may still be in the buffer
 *   rmw             acts on memory at once, after all older stores (acq_rel and seq_cst)
 *   fence_light     does nothing: a compiler barrier. Its mutants swap the steps around it
 *   fence_full      waits until the CPU's own buffer is empty
 *   fence_heavy     membarrier: as fence_full, and each other CPU's buffer is empty at some moment meanwhile
 * This is weaker than x86, and nearly as weak as C's rules for stores. Loads are never early, so a missing
 * acquire is not noticed here, but in weak.pml.
 *
 * Define before the inclusion: CPUS, WORDS (the number of words, which start as 0), and DEPTH (of a buffer: 2, 3
 * or 4). A full buffer makes the CPU wait, which hides only faults that need more stores at a time. With
 * SEQUENTIAL there are no buffers, for runs that check other properties with more threads.
 */
byte memory[WORDS];

#ifdef SEQUENTIAL
#define LOAD(cpu, w) memory[w]
#define HAS_STORE(cpu, w) false
#define IS_DRAINED(cpu) true
#define HAS_ROOM(cpu) true

inline put(cpu, w, v, release)
{
    memory[w] = v
}
#else
typedef store_buffer {
    byte length;
    byte word[DEPTH];
    byte value[DEPTH];
    bool is_release[DEPTH];
};

store_buffer buffers[CPUS];

#define IN_BUFFER(cpu, i, w) (buffers[cpu].length > (i) && buffers[cpu].word[i] == (w))

#if DEPTH == 4
#define LOAD(cpu, w) \
    (IN_BUFFER(cpu, 3, w) -> buffers[cpu].value[3] : LOAD3(cpu, w))
#define HAS_STORE(cpu, w) (IN_BUFFER(cpu, 3, w) || HAS_STORE3(cpu, w))
#elif DEPTH == 3
#define LOAD(cpu, w) LOAD3(cpu, w)
#define HAS_STORE(cpu, w) HAS_STORE3(cpu, w)
#else
#define LOAD(cpu, w) LOAD2(cpu, w)
#define HAS_STORE(cpu, w) HAS_STORE2(cpu, w)
#endif
#define LOAD3(cpu, w) (IN_BUFFER(cpu, 2, w) -> buffers[cpu].value[2] : LOAD2(cpu, w))
#define LOAD2(cpu, w) \
    (IN_BUFFER(cpu, 1, w) -> buffers[cpu].value[1] : \
     (IN_BUFFER(cpu, 0, w) -> buffers[cpu].value[0] : memory[w]))
#define HAS_STORE3(cpu, w) (IN_BUFFER(cpu, 2, w) || HAS_STORE2(cpu, w))
#define HAS_STORE2(cpu, w) (IN_BUFFER(cpu, 1, w) || IN_BUFFER(cpu, 0, w))

#define IS_DRAINED(cpu) (buffers[cpu].length == 0)
#define HAS_ROOM(cpu) (buffers[cpu].length < DEPTH)

/* Used in an atomic step that has waited for room. */
inline put(cpu, w, v, release)
{
    buffers[cpu].word[buffers[cpu].length] = w;
    buffers[cpu].value[buffers[cpu].length] = v;
    buffers[cpu].is_release[buffers[cpu].length] = release;
    buffers[cpu].length++
}
#endif

inline store(cpu, w, v, release)
{
    atomic { HAS_ROOM(cpu); put(cpu, w, v, release) }
}
#define store_relaxed(cpu, w, v) store(cpu, w, v, false)
#define store_release(cpu, w, v) store(cpu, w, v, true)

#define fence_light(cpu) skip
#define fence_full(cpu) IS_DRAINED(cpu)

inline fence_heavy(cpu)
{
    IS_DRAINED(cpu);
    fence_other = 0;
    do
    :: fence_other < CPUS ->
        IS_DRAINED(fence_other);
        fence_other++
    :: else -> break
    od;
    fence_other = 0
}
/* The counters of fence_heavy. Each process that uses it declares them. */
#define FENCE_LOCAL byte fence_other = 0

/* Read-modify-write: atomic { RMW_READY(cpu, w); ... memory[w] = ... } */
#define RMW_READY(cpu, w) IS_DRAINED(cpu)
#define RMW_ACQUIRE_READY(cpu, w) (!HAS_STORE(cpu, w))

/* A guard of base.h, at word w. */
inline guard_lock(cpu, w)
{
    atomic { RMW_ACQUIRE_READY(cpu, w) && memory[w] == 0; memory[w] = 1 }
}
#define guard_unlock(cpu, w) store_release(cpu, w, 0)

#ifdef SEQUENTIAL
#define run_drain(cpu) skip
#else
inline drain_at(cpu, i)
{
    d_step {
        memory[buffers[cpu].word[i]] = buffers[cpu].value[i];
        drained = i;
        do
        :: drained + 1 < buffers[cpu].length ->
            buffers[cpu].word[drained] = buffers[cpu].word[drained + 1];
            buffers[cpu].value[drained] = buffers[cpu].value[drained + 1];
            buffers[cpu].is_release[drained] = buffers[cpu].is_release[drained + 1];
            drained++
        :: else -> break
        od;
        buffers[cpu].length--;
        buffers[cpu].word[buffers[cpu].length] = 0;
        buffers[cpu].value[buffers[cpu].length] = 0;
        buffers[cpu].is_release[buffers[cpu].length] = false;
        drained = 0
    }
}

#define MAY_OVERTAKE(cpu, i, j) (buffers[cpu].word[i] != buffers[cpu].word[j])

/* One instance per CPU. */
proctype drain(byte cpu)
{
    byte drained = 0;
end:
    do
    :: atomic { buffers[cpu].length > 0 -> drain_at(cpu, 0) }
    :: atomic {
        buffers[cpu].length > 1 && !buffers[cpu].is_release[1] && MAY_OVERTAKE(cpu, 1, 0) ->
        drain_at(cpu, 1)
    }
#if DEPTH > 2
    :: atomic {
        buffers[cpu].length > 2 && !buffers[cpu].is_release[2] && MAY_OVERTAKE(cpu, 2, 0) &&
        MAY_OVERTAKE(cpu, 2, 1) -> drain_at(cpu, 2)
    }
#endif
#if DEPTH > 3
    :: atomic {
        buffers[cpu].length > 3 && !buffers[cpu].is_release[3] && MAY_OVERTAKE(cpu, 3, 0) &&
        MAY_OVERTAKE(cpu, 3, 1) && MAY_OVERTAKE(cpu, 3, 2) -> drain_at(cpu, 3)
    }
#endif
    od
}
#define run_drain(cpu) run drain(cpu)
#endif
