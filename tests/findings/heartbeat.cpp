// SPDX-License-Identifier: MIT
//
// heartbeat.cpp - a healthy program: four threads that do some work at regular times, and sleep between them.
#include "findings.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned threads = 4, beat_bytes = 100000;
constexpr std::chrono::milliseconds shortest(10);

std::mutex beats_mutex;
unsigned long beats; // under beats_mutex

void beat(unsigned number)
{
    uint64_t sum = digest(number, beat_bytes);
    std::lock_guard<std::mutex> guard(beats_mutex);
    beats += sum != 0;
}

void run(unsigned number)
{
    while (!is_over()) {
        beat(number);
        std::this_thread::sleep_for(shortest * (number + 1)); // until the next time
    }
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; i++)
        all.emplace_back(run, i);
    for (std::thread &thread : all)
        thread.join();
    finish(beats);
    return 0;
}
