/* SPDX-License-Identifier: MIT */
/* lay_out.c - prints the structures of the shared file as the compiler lays them out, as JSON. */
#include "obs/store.h"

#include <rouse/obs.h>

#include <stdio.h>

/* A structure: each of its fields, which FIELD takes from `here`, the structure of the function it stands in. */
#define BEGIN(type) \
    typedef struct type here; \
    print_size(#type, sizeof(here))
#define FIELD(name) print_field(#name, offsetof(here, name), sizeof(((here *)0)->name))
#define END printf("}")
#define VALUE(name) printf(",\n \"" #name "\": %llu", (unsigned long long)(name))

static const char *separator = "{";

static void print_size(const char *type, size_t bytes)
{
    printf("%s\"%s\": {\"size\": %zu", separator, type, bytes);
    separator = ",\n ";
}

static void print_field(const char *name, size_t offset, size_t bytes)
{
    printf(", \"%s\": [%zu, %zu]", name, offset, bytes);
}

static void print_head(void)
{
    BEGIN(rsi_store_head);
    FIELD(magic), FIELD(version), FIELD(machine), FIELD(pid), FIELD(uid), FIELD(start_ticks),
        FIELD(tsc), FIELD(monotonic_ns), FIELD(realtime_ns), FIELD(tick_seq), FIELD(tick_tsc),
        FIELD(tick_monotonic_ns), FIELD(tick_guard), FIELD(mode), FIELD(ended), FIELD(chunk_count),
        FIELD(page_count), FIELD(lost_chunks), FIELD(site_depth), FIELD(spare), FIELD(boot_id),
        FIELD(program), FIELD(command), FIELD(host), FIELD(trace_until_ns), FIELD(lost_events),
        FIELD(stamps_ticks), FIELD(pid_namespace), FIELD(is_locked), FIELD(recorder),
        FIELD(slack_ns), FIELD(spin_ns), FIELD(accept_order), FIELD(scatter_ns),
        FIELD(lost_origins), FIELD(is_confined);
    END;
}

static void print_chunk(void)
{
    BEGIN(rsi_store_chunk);
    FIELD(kind), FIELD(bytes), FIELD(entry_bytes), FIELD(capacity), FIELD(used), FIELD(writer),
        FIELD(written);
    END;
}

static void print_thread(void)
{
    BEGIN(rsi_store_thread);
    FIELD(seq), FIELD(doing), FIELD(kind), FIELD(since_tsc), FIELD(run_tsc), FIELD(object),
        FIELD(wait_site), FIELD(waits), FIELD(worker), FIELD(verdict), FIELD(begin_tsc),
        FIELD(wake_tsc), FIELD(wake_site), FIELD(waker_id), FIELD(id), FIELD(useless),
        FIELD(yields), FIELD(accepted), FIELD(tid), FIELD(origin), FIELD(ticks), FIELD(name),
        FIELD(contest_tsc), FIELD(contest_holder);
    END;
}

static void print_wake(void)
{
    BEGIN(rsi_store_wake);
    FIELD(kind), FIELD(name), FIELD(wait_site), FIELD(wake_site), FIELD(object), FIELD(count),
        FIELD(wait_ticks), FIELD(wait_most), FIELD(late_ticks), FIELD(late_most),
        FIELD(waste_ticks);
    END;
}

static void print_lock(void)
{
    BEGIN(rsi_store_lock);
    FIELD(kind), FIELD(name), FIELD(site), FIELD(holder_site), FIELD(lock), FIELD(acquired),
        FIELD(holds), FIELD(hold_ticks), FIELD(hold_most), FIELD(contested), FIELD(given_up),
        FIELD(wait_ticks), FIELD(wait_most), FIELD(spin_ticks), FIELD(spun), FIELD(spare);
    END;
}

static void print_writer(void)
{
    BEGIN(rsi_store_writer);
    FIELD(index), FIELD(is_worker), FIELD(is_live), FIELD(tid), FIELD(worker), FIELD(cluster),
        FIELD(begin_tsc), FIELD(end_tsc), FIELD(idle_since_tsc), FIELD(idle_ticks),
        FIELD(idle_count), FIELD(switches), FIELD(steals), FIELD(stolen), FIELD(calls),
        FIELD(signals_unheard), FIELD(broadcasts_unheard), FIELD(herds), FIELD(lateness),
        FIELD(lateness_ns), FIELD(lateness_most_ns), FIELD(ended), FIELD(ended_waits),
        FIELD(ended_useless), FIELD(ended_yields), FIELD(ended_accepted), FIELD(ended_ticks),
        FIELD(lost_threads), FIELD(lost_wakes), FIELD(lost_locks), FIELD(lost_names),
        FIELD(lost_stacks), FIELD(lost_modules), FIELD(lost_holds), FIELD(spare);
    END;
}

static void print_name(void)
{
    BEGIN(rsi_store_name);
    FIELD(key), FIELD(text);
    END;
}

static void print_stack(void)
{
    BEGIN(rsi_store_stack);
    FIELD(hash), FIELD(depth), FIELD(spare), FIELD(frames);
    END;
}

static void print_event(void)
{
    BEGIN(rsi_store_event);
    FIELD(tsc), FIELD(what), FIELD(site), FIELD(value);
    END;
}

static void print_listener(void)
{
    BEGIN(rsi_store_listener);
    FIELD(cookie), FIELD(accepted), FIELD(woken), FIELD(in_vain), FIELD(lost), FIELD(samples),
        FIELD(backlog), FIELD(backlog_most), FIELD(ordered), FIELD(turns), FIELD(promoted),
        FIELD(overdue), FIELD(put_off), FIELD(delays), FIELD(delay_ticks), FIELD(is_tcp),
        FIELD(spare32), FIELD(name), FIELD(first_tsc), FIELD(last_tsc);
    END;
}

static void print_module(void)
{
    BEGIN(rsi_store_module);
    FIELD(start), FIELD(end), FIELD(bias), FIELD(build_id_bytes), FIELD(spare), FIELD(build_id),
        FIELD(path);
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
    VALUE(RSI_STORE_STAMPS);
    VALUE(RSI_STORE_INITIAL_PIDS);
    VALUE(RSI_STORE_WAIT_KINDS);
    VALUE(RSI_STORE_WAIT_FUTEX);
    VALUE(RSI_STORE_HERDS);
    VALUE(RSI_STORE_LATENESS);
    VALUE(RSI_STORE_EVENTS), VALUE(RSI_EVENT_COUNT), VALUE(RSI_EVENT_RUN);
    VALUE(RSI_EVENT_STEAL), VALUE(RSI_EVENT_END);
    VALUE(RSI_STORE_MODULES);
    VALUE(RSI_STORE_LISTENERS);
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
    print_chunk();
    print_thread();
    print_wake();
    print_lock();
    print_writer();
    print_name();
    print_stack();
    print_event();
    print_module();
    print_listener();
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
