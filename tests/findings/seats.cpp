// SPDX-License-Identifier: MIT
//
// seats.cpp - a plan of seats. Fault: a spin lock of the program's own around work of 4 µs, with more threads than
// processors, so that a thread often spins while the holder has no processor.
//
// Repair: a lock for each row of seats.
#include "findings.h"

#include <atomic>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned clerks = 4;
constexpr unsigned booking_bytes = 4000, talk_bytes = 1000;

class Spin
{
    std::atomic_flag flag = ATOMIC_FLAG_INIT;

  public:
    void lock_seats()
    {
        while (flag.test_and_set(std::memory_order_acquire))
            ;
    }

    void unlock_seats()
    {
        flag.clear(std::memory_order_release);
    }
};

struct alignas(64) Row {
    Spin spin;
    std::uint64_t seats = 0;
};

Row rows[clerks];

unsigned long book(unsigned number)
{
    unsigned long ops = 0;
    Row &row = rows[is_fixed ? number : 0];
    for (; !is_over(); ops++) {
        row.spin.lock_seats();
        row.seats = digest(row.seats, booking_bytes);
        row.spin.unlock_seats();
        digest(ops, talk_bytes);
    }
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    std::vector<unsigned long> ops(clerks);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < clerks; i++)
        threads.emplace_back([&ops, i] { ops[i] = book(i); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < clerks; i++) {
        threads[i].join();
        sum += ops[i];
    }
    finish(sum);
    return 0;
}
