// SPDX-License-Identifier: MIT
// own_tls_test.cpp - user threads with thread-local storage of their own (attribute own_tls).
//
// Each thread yields many times, so that it moves between workers. errno is libc's own here, not that of
// rouse/errno.h: a compiler may keep its address over a switch, and with own_tls that must be harmless.
#include <rouse/rouse.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <pthread.h>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

#undef errno
#define errno (*__errno_location())

#define CHECK(condition) \
    ((condition) ? (void)0 \
                 : (std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition), \
                    std::abort()))

namespace
{
constexpr int THREADS = 16;
constexpr int ROUNDS = 2000;

std::atomic<int> begun, ended, moves;
thread_local int plain;
rouse_sem gate = ROUSE_SEM_INIT(3);

struct counted {
    int value;
    counted() : value(7)
    {
        begun++;
    }
    ~counted()
    {
        rouse_thread_yield(); // the runtime may be called from a destructor
        ended++;
    }
};
thread_local counted object;

rouse_thread *start(void *(*fn)(void *), void *arg, bool own)
{
    rouse_thread *t = nullptr;
    rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    attr.own_tls = own;
    int error = rouse_thread_create(&t, &attr, fn, arg);
    if (error == -EOPNOTSUPP) {
        std::puts("not run: own_tls is not supported here");
        std::exit(77);
    }
    CHECK(error == 0);
    return t;
}

void run(void *(*fn)(void *), bool mixed)
{
    rouse_thread *threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        threads[i] = start(fn, reinterpret_cast<void *>(i + 1), !mixed || i % 2 == 0);
    for (rouse_thread *t : threads)
        CHECK(rouse_thread_join(t, nullptr) == 0);
}

// libc reads the CPU from the thread block. The kernel may move the worker between two questions, but not each time.
bool cpu_is_right()
{
    for (int i = 0; i < 100; i++) {
        unsigned cpu = 0;
        CHECK(syscall(SYS_getcpu, &cpu, nullptr, nullptr) == 0);
        if (sched_getcpu() == static_cast<int>(cpu))
            return true;
    }
    return false;
}

void *keeps(void *arg)
{
    int mine = static_cast<int>(reinterpret_cast<long>(arg));
    pthread_t self = pthread_self();
    CHECK(errno == 0 && plain == 0 && object.value == 7);
    errno = plain = object.value = mine;
    for (int i = 0; i < ROUNDS; i++) {
        int before = rouse_worker_index();
        if (i % 4 == 0) { // a wake-up moves a thread to the worker of its waker
            CHECK(rouse_sem_wait(&gate) == 0);
            rouse_thread_yield();
            CHECK(rouse_sem_post(&gate) == 0);
        } else {
            rouse_thread_yield();
        }
        moves += rouse_worker_index() != before;
        CHECK(errno == mine);
        CHECK(plain == mine);
        CHECK(object.value == mine);
        CHECK(pthread_equal(pthread_self(), self));
        CHECK(cpu_is_right());
        errno = mine;
    }
    return nullptr;
}

void *mixed_kinds(void *arg)
{
    long mine = reinterpret_cast<long>(arg);
    if (mine % 2 == 1)
        return keeps(arg); // threads 1, 3, ... have own storage
    for (int i = 0; i < ROUNDS; i++) {
        rouse_thread_yield();
        CHECK(rouse_thread_self() != nullptr);
    }
    return nullptr;
}

std::recursive_mutex recursive;
int inside;

void *locks(void *)
{
    for (int i = 0; i < ROUNDS / 4; i++) {
        while (!recursive.try_lock())
            rouse_thread_yield();
        recursive.lock();
        CHECK(++inside == 1);
        rouse_thread_yield();
        CHECK(--inside == 0);
        recursive.unlock();
        recursive.unlock();
    }
    return nullptr;
}

void *locks_file(void *)
{
    for (int i = 0; i < ROUNDS / 4; i++) {
        while (ftrylockfile(stderr) != 0)
            rouse_thread_yield();
        CHECK(++inside == 1);
        rouse_thread_yield();
        CHECK(--inside == 0);
        funlockfile(stderr);
    }
    return nullptr;
}

void *allocates(void *arg)
{
    unsigned long random = reinterpret_cast<unsigned long>(arg);
    unsigned char *kept[32] = {};
    unsigned char mark = static_cast<unsigned char>(random);
    for (int i = 0; i < ROUNDS * 4; i++) {
        random = random * 6364136223846793005ul + 1442695040888963407ul;
        unsigned char *&p = kept[random >> 59];
        if (p)
            CHECK(p[0] == mark && p[15] == mark);
        std::free(p);
        p = static_cast<unsigned char *>(std::malloc(16 + (random >> 32) % 900));
        std::memset(p, mark, 16);
        if (i % 8 == 0)
            rouse_thread_yield();
    }
    for (unsigned char *p : kept)
        std::free(p);
    return nullptr;
}

void *catches(void *arg)
{
    std::string text = std::to_string(reinterpret_cast<long>(arg));
    for (int i = 0; i < ROUNDS / 8; i++) {
        try {
            throw std::runtime_error(text);
        } catch (const std::runtime_error &e) {
            rouse_thread_yield();
            CHECK(text == e.what());
            try {
                throw;
            } catch (const std::exception &again) {
                rouse_thread_yield();
                CHECK(text == again.what());
            }
        }
        CHECK(std::uncaught_exceptions() == 0);
    }
    return nullptr;
}
} // namespace

int main()
{
    rouse_config config = {};
    config.workers = 2;
    CHECK(rouse_configure(&config) == 0);
    run(keeps, false);
    CHECK(begun == THREADS && ended == THREADS);
    std::printf("%d moves\n", moves.load());
    begun = ended = 0;
    run(mixed_kinds, true);
    CHECK(begun == THREADS / 2 && ended == THREADS / 2);
    run(locks, false);
    run(locks_file, false);
    run(allocates, false);
    run(allocates, true);
    run(catches, false);
    run(catches, true);
    return 0;
}
