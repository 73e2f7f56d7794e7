/* SPDX-License-Identifier: MIT */
/*
 * weak.pml - words whose old values may still be read, after C's rules. Other models include this file.
 *
 * memory.pml delays stores, and its loads always have the newest value that has left a buffer. Here loads may also be
 * early, as on AArch64: a missing acquire makes a model fail. Each word keeps all values that were ever stored to it,
 * in order. A CPU has a view: of each word, the oldest value that it may still read.
 *   load_relaxed    reads any value that is not older than the view, which then begins there
 *   load_acquire    also takes over what the value's store made known
 *   store_relaxed   adds a value. It makes known what the CPU knew at its last release fence
 *   store_release   makes known all that the CPU knows
 *   rmw_*           reads the newest value, and makes known also what that value's store made known
 *   await           waits until the newest value is this one, and reads it (acquire)
 *   fence_acquire   the CPU takes over what all values that it has loaded made known
 *   fence_release   later relaxed stores make known what the CPU knows now
 *   fence_full      both, and the CPU and all fences before it take over what each other knew. An rmw is none, of
 *                   whatever order: on AArch64 a later load may come before its store
 *   fence_light     does nothing: a compiler barrier
 *   fence_heavy     membarrier: fence_full here, then at some moment on each other CPU, and here again
 * Source: the views of Kang and others, "A Promising Semantics for Relaxed-Memory Concurrency" (2017), without
 * promises. So a store never comes before an older load, and stores to one word are in the order in which they were made:
 * AArch64 is weaker there. Otherwise C's rules are the weaker ones.
 *
 * Define before the inclusion: CPUS, WORDS (which start as 0), and STORES, the most values of one word, with the 0.
 */
typedef known {
    byte at[WORDS]; /* of each word, the number of a value */
};

typedef word {
    byte count;
    byte value[STORES];
    known made[STORES]; /* what an acquire load of the value makes known */
};

typedef view {
    byte now[WORDS];
    byte loaded[WORDS];   /* what an acquire fence would add */
    byte released[WORDS]; /* what a relaxed store makes known */
};

word words[WORDS];
view views[CPUS];
byte fenced[WORDS]; /* what the full fences know */

/* Used within one step. */
byte each, picked;

#define NEWEST(w) words[w].value[words[w].count - 1]

inline weak_init()
{
    each = 0;
    do
    :: each < WORDS -> words[each].count = 1; each++
    :: else -> break
    od;
    each = 0
}

/* from is known in to */
#define JOIN(to, from) \
    each = 0; \
    do \
    :: each < WORDS -> to[each] = (from[each] > to[each] -> from[each] : to[each]); each++ \
    :: else -> break \
    od; \
    each = 0

inline read_picked(cpu, w, acquire, out)
{
    d_step {
        out = words[w].value[picked];
        JOIN(views[cpu].loaded, words[w].made[picked].at);
        if
        :: acquire -> JOIN(views[cpu].now, words[w].made[picked].at)
        :: else
        fi;
        views[cpu].now[w] = picked;
        picked = 0
    }
}

inline load(cpu, w, acquire, out)
{
    atomic {
        picked = views[cpu].now[w];
        do
        :: picked + 1 < words[w].count -> picked++
        :: break
        od;
        read_picked(cpu, w, acquire, out)
    }
}
#define load_relaxed(cpu, w, out) load(cpu, w, false, out)
#define load_acquire(cpu, w, out) load(cpu, w, true, out)

inline await(cpu, w, v, out)
{
    atomic {
        NEWEST(w) == v;
        picked = words[w].count - 1;
        read_picked(cpu, w, true, out)
    }
}

/* Used within one step. */
inline put(cpu, w, v, release)
{
    assert(words[w].count < STORES);
    words[w].value[words[w].count] = v;
    JOIN(words[w].made[words[w].count].at, views[cpu].released);
    if
    :: release -> JOIN(words[w].made[words[w].count].at, views[cpu].now)
    :: else
    fi;
    words[w].made[words[w].count].at[w] = words[w].count;
    views[cpu].now[w] = words[w].count;
    words[w].count++
}

inline store(cpu, w, v, release)
{
    d_step { put(cpu, w, v, release) }
}
#define store_relaxed(cpu, w, v) store(cpu, w, v, false)
#define store_release(cpu, w, v) store(cpu, w, v, true)

/* The newest value is replaced by v, which may contain out, its old value. */
inline rmw(cpu, w, v, acquire, release, out)
{
    d_step {
        picked = words[w].count - 1;
        out = words[w].value[picked];
        JOIN(views[cpu].loaded, words[w].made[picked].at);
        if
        :: acquire -> JOIN(views[cpu].now, words[w].made[picked].at)
        :: else
        fi;
        JOIN(words[w].made[picked + 1].at, words[w].made[picked].at);
        put(cpu, w, v, release);
        picked = 0
    }
}

inline fence_acquire(cpu)
{
    d_step { JOIN(views[cpu].now, views[cpu].loaded) }
}

inline fence_release(cpu)
{
    d_step { JOIN(views[cpu].released, views[cpu].now) }
}

inline fence_full(cpu)
{
    d_step {
        JOIN(views[cpu].now, views[cpu].loaded);
        JOIN(views[cpu].now, fenced);
        JOIN(fenced, views[cpu].now);
        JOIN(views[cpu].released, views[cpu].now)
    }
}

#define fence_light(cpu) skip

inline fence_heavy(cpu)
{
    fence_full(cpu);
    fence_other = 0;
    do
    :: fence_other < CPUS -> fence_full(fence_other); fence_other++
    :: else -> break
    od;
    fence_full(cpu);
    fence_other = 0
}
/* The counter of fence_heavy. Each process that uses it declares it. */
#define FENCE_LOCAL byte fence_other = 0
