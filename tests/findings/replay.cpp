// SPDX-License-Identifier: MIT
//
// replay.cpp - one thread makes frames, and three evaluate each of them. Fault: the three read the number of the last frame
// in a loop until it changes, with fewer processors than threads.
//
// Repair: they sleep until it changes. An operation is a frame.
#include "findings.h"

#include <atomic>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned evaluators = 3, frame_bytes = 200000, evaluation_bytes = 20000;

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t is_next = PTHREAD_COND_INITIALIZER, is_done = PTHREAD_COND_INITIALIZER;
std::atomic<unsigned> last_frame{ 0 };
unsigned done_count = 0; // under the mutex
std::atomic<bool> is_last{ false };

__attribute__((noinline)) bool await_frame(unsigned seen)
{
    if (is_fixed) {
        pthread_mutex_lock(&mutex);
        while (last_frame.load() == seen)
            pthread_cond_wait(&is_next, &mutex);
        pthread_mutex_unlock(&mutex);
    }
    while (last_frame.load(std::memory_order_acquire) == seen)
        ;
    return !is_last.load();
}

void evaluate()
{
    for (unsigned seen = 0; await_frame(seen);) {
        digest(++seen, evaluation_bytes);
        pthread_mutex_lock(&mutex);
        if (++done_count == seen * evaluators)
            pthread_cond_signal(&is_done);
        pthread_mutex_unlock(&mutex);
    }
}

void publish()
{
    pthread_mutex_lock(&mutex);
    last_frame++;
    pthread_cond_broadcast(&is_next);
    pthread_mutex_unlock(&mutex);
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < evaluators; i++)
        threads.emplace_back(evaluate);
    unsigned frames = 0;
    while (!is_over()) {
        digest(++frames, frame_bytes);
        publish();
        pthread_mutex_lock(&mutex);
        while (done_count < frames * evaluators)
            pthread_cond_wait(&is_done, &mutex);
        pthread_mutex_unlock(&mutex);
    }
    is_last = true;
    publish();
    for (std::thread &thread : threads)
        thread.join();
    finish(frames);
    return 0;
}
