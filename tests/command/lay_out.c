/* SPDX-License-Identifier: MIT */
/* lay_out.c - prints the structures of the shared file as the compiler lays them out, as JSON. */
#include "obs/store.h"

#include <rouse/obs.h>

#include <stdio.h>

#define BEGIN(type) \
    printf("%s\"" #type "\": {\"size\": %zu", separator, sizeof(struct type)), separator = ",\n "
#define FIELD(type, name) \
    printf(", \"" #name "\": [%zu, %zu]", offsetof(struct type, name), \
           sizeof(((struct type *)0)->name))
#define END printf("}")
#define VALUE(name) printf(",\n \"" #name "\": %llu", (unsigned long long)(name))

static const char *separator = "{";

static void print_head(void)
{
    BEGIN(rsi_store_head);
    FIELD(rsi_store_head, magic), FIELD(rsi_store_head, version), FIELD(rsi_store_head, machine);
    FIELD(rsi_store_head, pid), FIELD(rsi_store_head, uid), FIELD(rsi_store_head, start_ticks);
    FIELD(rsi_store_head, tsc), FIELD(rsi_store_head, monotonic_ns),
        FIELD(rsi_store_head, realtime_ns);
    FIELD(rsi_store_head, tick_seq), FIELD(rsi_store_head, tick_tsc);
    FIELD(rsi_store_head, tick_monotonic_ns), FIELD(rsi_store_head, tick_guard);
    FIELD(rsi_store_head, mode), FIELD(rsi_store_head, ended), FIELD(rsi_store_head, chunk_count);
    FIELD(rsi_store_head, page_count), FIELD(rsi_store_head, lost_chunks);
    FIELD(rsi_store_head, site_depth), FIELD(rsi_store_head, workers),
        FIELD(rsi_store_head, boot_id);
    FIELD(rsi_store_head, program), FIELD(rsi_store_head, command), FIELD(rsi_store_head, host);
    FIELD(rsi_store_head, trace_until_ns), FIELD(rsi_store_head, lost_events);
    END;
    BEGIN(rsi_store_chunk);
    FIELD(rsi_store_chunk, kind), FIELD(rsi_store_chunk, bytes),
        FIELD(rsi_store_chunk, entry_bytes);
    FIELD(rsi_store_chunk, capacity), FIELD(rsi_store_chunk, used), FIELD(rsi_store_chunk, writer);
    FIELD(rsi_store_chunk, written);
    END;
}

static void print_thread(void)
{
    BEGIN(rsi_store_thread);
    FIELD(rsi_store_thread, seq), FIELD(rsi_store_thread, doing), FIELD(rsi_store_thread, kind);
    FIELD(rsi_store_thread, since_tsc), FIELD(rsi_store_thread, run_tsc);
    FIELD(rsi_store_thread, object), FIELD(rsi_store_thread, wait_site),
        FIELD(rsi_store_thread, waits);
    FIELD(rsi_store_thread, worker), FIELD(rsi_store_thread, verdict);
    FIELD(rsi_store_thread, begin_tsc), FIELD(rsi_store_thread, wake_tsc);
    FIELD(rsi_store_thread, wake_site), FIELD(rsi_store_thread, waker_id),
        FIELD(rsi_store_thread, id);
    FIELD(rsi_store_thread, useless), FIELD(rsi_store_thread, yields),
        FIELD(rsi_store_thread, accepted);
    FIELD(rsi_store_thread, tid), FIELD(rsi_store_thread, origin), FIELD(rsi_store_thread, ticks);
    FIELD(rsi_store_thread, name), FIELD(rsi_store_thread, spare);
    END;
}

static void print_ledger(void)
{
    BEGIN(rsi_store_wake);
    FIELD(rsi_store_wake, kind), FIELD(rsi_store_wake, name), FIELD(rsi_store_wake, wait_site);
    FIELD(rsi_store_wake, wake_site), FIELD(rsi_store_wake, object), FIELD(rsi_store_wake, count);
    FIELD(rsi_store_wake, wait_ticks), FIELD(rsi_store_wake, wait_most);
    FIELD(rsi_store_wake, late_ticks), FIELD(rsi_store_wake, late_most);
    FIELD(rsi_store_wake, waste_ticks);
    END;
    BEGIN(rsi_store_lock);
    FIELD(rsi_store_lock, kind), FIELD(rsi_store_lock, name), FIELD(rsi_store_lock, site);
    FIELD(rsi_store_lock, holder_site), FIELD(rsi_store_lock, lock),
        FIELD(rsi_store_lock, acquired);
    FIELD(rsi_store_lock, contested), FIELD(rsi_store_lock, given_up);
    FIELD(rsi_store_lock, wait_ticks), FIELD(rsi_store_lock, wait_most);
    FIELD(rsi_store_lock, spin_ticks), FIELD(rsi_store_lock, spun), FIELD(rsi_store_lock, holds);
    FIELD(rsi_store_lock, hold_ticks), FIELD(rsi_store_lock, hold_most),
        FIELD(rsi_store_lock, spare);
    END;
}

static void print_writer(void)
{
    BEGIN(rsi_store_writer);
    FIELD(rsi_store_writer, index), FIELD(rsi_store_writer, is_worker);
    FIELD(rsi_store_writer, is_live), FIELD(rsi_store_writer, tid), FIELD(rsi_store_writer, worker);
    FIELD(rsi_store_writer, cluster), FIELD(rsi_store_writer, begin_tsc);
    FIELD(rsi_store_writer, end_tsc), FIELD(rsi_store_writer, idle_since_tsc);
    FIELD(rsi_store_writer, idle_ticks), FIELD(rsi_store_writer, idle_count);
    FIELD(rsi_store_writer, switches), FIELD(rsi_store_writer, steals),
        FIELD(rsi_store_writer, stolen);
    FIELD(rsi_store_writer, calls), FIELD(rsi_store_writer, signals_unheard);
    FIELD(rsi_store_writer, broadcasts_unheard), FIELD(rsi_store_writer, herds);
    FIELD(rsi_store_writer, lateness), FIELD(rsi_store_writer, lateness_ticks);
    FIELD(rsi_store_writer, lateness_most), FIELD(rsi_store_writer, ended);
    FIELD(rsi_store_writer, ended_waits), FIELD(rsi_store_writer, ended_useless);
    FIELD(rsi_store_writer, ended_yields), FIELD(rsi_store_writer, ended_accepted);
    FIELD(rsi_store_writer, ended_ticks), FIELD(rsi_store_writer, lost_threads);
    FIELD(rsi_store_writer, lost_wakes), FIELD(rsi_store_writer, lost_locks);
    FIELD(rsi_store_writer, lost_names), FIELD(rsi_store_writer, lost_stacks);
    FIELD(rsi_store_writer, lost_modules), FIELD(rsi_store_writer, lost_holds);
    FIELD(rsi_store_writer, spare);
    END;
}

static void print_rest(void)
{
    BEGIN(rsi_store_name);
    FIELD(rsi_store_name, key), FIELD(rsi_store_name, text);
    END;
    BEGIN(rsi_store_stack);
    FIELD(rsi_store_stack, hash), FIELD(rsi_store_stack, depth), FIELD(rsi_store_stack, spare);
    FIELD(rsi_store_stack, frames);
    END;
    BEGIN(rsi_store_event);
    FIELD(rsi_store_event, tsc), FIELD(rsi_store_event, what), FIELD(rsi_store_event, site);
    FIELD(rsi_store_event, value);
    END;
    BEGIN(rsi_store_module);
    FIELD(rsi_store_module, start), FIELD(rsi_store_module, end), FIELD(rsi_store_module, bias);
    FIELD(rsi_store_module, build_id_bytes), FIELD(rsi_store_module, spare);
    FIELD(rsi_store_module, build_id), FIELD(rsi_store_module, path);
    END;
}

static void print_values(void)
{
    VALUE(RSI_STORE_MAGIC);
    VALUE(RSI_STORE_VERSION);
    VALUE(RSI_STORE_DIRECTORY);
    VALUE(RSI_STORE_CHUNKS_MAX);
    VALUE(RSI_STORE_CHUNKS);
    VALUE(RSI_STORE_BYTES_MAX);
    VALUE(RSI_STORE_CHUNK_HEAD);
    VALUE(RSI_STORE_WAIT_KINDS);
    VALUE(RSI_STORE_HERDS);
    VALUE(RSI_STORE_LATENESS);
    VALUE(RSI_STORE_EVENTS), VALUE(RSI_EVENT_COUNT), VALUE(RSI_EVENT_RUN);
    VALUE(RSI_EVENT_STEAL), VALUE(RSI_EVENT_END);
    VALUE(RSI_STORE_MODULES);
    VALUE(RSI_SITE_STACK);
    VALUE(RSI_DOES_NOTHING);
    VALUE(RSI_DOES_RUN);
    VALUE(RSI_DOES_WAIT);
    VALUE(RSI_DOES_QUEUE);
    VALUE(RSI_IN_MUTEX);
    VALUE(RSI_IN_SLEEP);
    VALUE(RSI_IN_COUNT);
}

int main(void)
{
    print_head();
    print_thread();
    print_ledger();
    print_writer();
    print_rest();
    print_values();
    printf(",\n \"kinds\": [");
    for (uint32_t kind = 0; kind < ROUSE_WAIT_KINDS; kind++)
        printf("%s\"%s\"", kind ? ", " : "", rouse_wait_kind_name(kind));
    printf("],\n \"verdicts\": [");
    for (uint32_t verdict = 0; verdict < ROUSE_VERDICTS; verdict++)
        printf("%s\"%s\"", verdict ? ", " : "", rouse_verdict_name(verdict));
    printf("]}\n");
    return 0;
}
