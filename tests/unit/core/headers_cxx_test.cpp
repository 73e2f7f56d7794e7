/* SPDX-License-Identifier: MIT */
/* headers_cxx_test.cpp - the public headers in C++: they compile, link, and initialise static objects. */
#include <rouse/io.h>
#include <rouse/obs.h>
#include <rouse/rouse.h>
#include <rouse/sync.h>
#include <rouse/thread.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace
{

constexpr unsigned workers = 6, rounds = 500;

rouse_mutex mutex = ROUSE_MUTEX_INIT;
rouse_mutex mutex_named = ROUSE_MUTEX_INIT_NAMED("mutex");
rouse_cond changed = ROUSE_COND_INIT;
rouse_cond changed_named = ROUSE_COND_INIT_NAMED("changed");
rouse_rwlock rwlock = ROUSE_RWLOCK_INIT;
rouse_rwlock rwlock_named = ROUSE_RWLOCK_INIT_NAMED("rwlock");
rouse_sem slots = ROUSE_SEM_INIT(2);
rouse_sem slots_named = ROUSE_SEM_INIT_NAMED(2, "slots");
rouse_barrier start = ROUSE_BARRIER_INIT(workers);
rouse_barrier start_named = ROUSE_BARRIER_INIT_NAMED(1, "start");
rouse_once once = ROUSE_ONCE_INIT;

unsigned counted, ended, once_runs;

[[noreturn]] void fail(const char *text, int line)
{
    std::fprintf(stderr, "headers_cxx_test.cpp:%d: failed: %s\n", line, text);
    std::abort();
}
#define CHECK(condition) ((condition) ? static_cast<void>(0) : fail(#condition, __LINE__))

template <typename T> bool is_zeroed(const T &object)
{
    T zeroed;
    std::memset(&zeroed, 0, sizeof zeroed);
    return std::memcmp(&object, &zeroed, sizeof zeroed) == 0;
}

void check_initialisers()
{
    CHECK(is_zeroed(mutex) && is_zeroed(changed) && is_zeroed(rwlock) && is_zeroed(once));
    CHECK(std::strcmp(mutex_named.name, "mutex") == 0);
    CHECK(std::strcmp(changed_named.name, "changed") == 0);
    CHECK(std::strcmp(rwlock_named.name, "rwlock") == 0);
    CHECK(std::strcmp(slots_named.name, "slots") == 0);
    CHECK(std::strcmp(start_named.name, "start") == 0);
    CHECK(rouse_sem_value(&slots) == 2 && rouse_sem_value(&slots_named) == 2);
    CHECK(start.parties == workers && start_named.parties == 1);
}

void *work(void *)
{
    CHECK(rouse_barrier_wait(&start) >= 0);
    rouse_once_call(
        &once, [](void *) { once_runs++; }, nullptr);
    for (unsigned i = 0; i < rounds; i++) {
        CHECK(rouse_sem_wait(&slots) == 0);
        rouse_rwlock_read_lock(&rwlock);
        rouse_rwlock_read_unlock(&rwlock);
        rouse_mutex_lock(&mutex);
        counted++;
        rouse_mutex_unlock(&mutex);
        CHECK(rouse_sem_post(&slots) == 0);
    }
    rouse_mutex_lock(&mutex);
    ended++;
    rouse_cond_signal(&changed);
    rouse_mutex_unlock(&mutex);
    return nullptr;
}

void run_threads()
{
    rouse_thread *threads[workers];
    for (unsigned i = 0; i < workers; i++) {
        rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
        attr.kind = i % 2 ? ROUSE_KIND_USER : ROUSE_KIND_KERNEL;
        CHECK(rouse_thread_create(&threads[i], &attr, work, nullptr) == 0);
    }
    rouse_mutex_lock(&mutex);
    CHECK(rouse_cond_wait_while(
              &changed, &mutex, [](void *) { return ended < workers; }, nullptr) == 0);
    rouse_mutex_unlock(&mutex);
    for (rouse_thread *t : threads)
        CHECK(rouse_thread_join(t, nullptr) == 0);
    CHECK(counted == workers * rounds && once_runs == 1);
}

void use_the_rest()
{
    int ends[2];
    char c = 0;
    rouse_wait_record record;
    CHECK(pipe(ends) == 0);
    CHECK(rouse_write(ends[1], "x", 1) == 1);
    CHECK(rouse_read(ends[0], &c, 1) == 1 && c == 'x');
    CHECK(rouse_close(ends[0]) == 0 && rouse_close(ends[1]) == 0);
    rouse_obs_last_wait(&record);
    CHECK(std::strcmp(rouse_wait_kind_name(record.kind), "?") != 0);
    CHECK(rouse_sleep_until(0) == 0 && rouse_now_ns() < ROUSE_FOREVER);
}

void destroy_all()
{
    rouse_mutex_destroy(&mutex);
    rouse_mutex_destroy(&mutex_named);
    rouse_cond_destroy(&changed);
    rouse_cond_destroy(&changed_named);
    rouse_rwlock_destroy(&rwlock);
    rouse_rwlock_destroy(&rwlock_named);
    rouse_sem_destroy(&slots);
    rouse_sem_destroy(&slots_named);
    rouse_barrier_destroy(&start);
    rouse_barrier_destroy(&start_named);
}

} // namespace

int main()
{
    alarm(60);
    check_initialisers();
    run_threads();
    use_the_rest();
    destroy_all();
    return 0;
}
