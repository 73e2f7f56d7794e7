// SPDX-License-Identifier: MIT
//
// clinic.cpp - eight threads that use the rooms of a clinic in two ways. Fault: there are two rooms.
//
// Repair: there are eight.
#include "findings.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned threads = 8, few = 2, record_bytes = 10000;
constexpr long examination_us = 500, vaccination_us = 400;

class Rooms
{
    std::mutex mutex;
    std::condition_variable room_free;
    unsigned count;

  public:
    explicit Rooms(unsigned size) : count(size)
    {
    }

    __attribute__((noinline)) void enter()
    {
        std::unique_lock<std::mutex> guard(mutex);
        room_free.wait(guard, [this] { return count > 0; });
        count--;
    }

    __attribute__((noinline)) void leave()
    {
        {
            std::lock_guard<std::mutex> guard(mutex);
            count++;
        }
        room_free.notify_one();
    }
};

__attribute__((noinline)) void examine(Rooms &rooms, int device)
{
    rooms.enter();
    service_ask(device, examination_us);
    rooms.leave();
}

__attribute__((noinline)) void vaccinate(Rooms &rooms, int device)
{
    rooms.enter();
    service_ask(device, vaccination_us);
    rooms.leave();
}

unsigned long treat(Rooms &rooms)
{
    unsigned long ops = 0;
    const int device = service_open();
    for (uint64_t records = 0; !is_over(); ops++) {
        if (ops % 2 == 0)
            examine(rooms, device);
        else
            vaccinate(rooms, device);
        records = digest(records, record_bytes);
    }
    close(device);
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    Rooms rooms(is_fixed ? threads : few);
    std::vector<unsigned long> ops(threads);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; i++)
        all.emplace_back([&, i] { ops[i] = treat(rooms); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < threads; i++) {
        all[i].join();
        sum += ops[i];
    }
    finish(sum);
    return 0;
}
