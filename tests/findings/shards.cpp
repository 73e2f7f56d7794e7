// SPDX-License-Identifier: MIT
//
// shards.cpp - each round starts four threads, one for each part of an index, and joins them. Fault: one part has most
// of the documents. All waiting is done in a function of its own.
//
// Repair: equal parts. An operation is a round.
#include "findings.h"

#include <thread>
#include <vector>

namespace
{

constexpr unsigned threads = 4, documents = 40, large = 25;

void pause_for_disk(long us)
{
    struct timespec time = { 0, us * 1000 };
    nanosleep(&time, nullptr);
}

__attribute__((noinline)) void read_documents(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        pause_for_disk(1000);
}

__attribute__((noinline)) void index_part(unsigned count)
{
    read_documents(count);
    static_cast<void>(digest(count, count * 1000));
}

__attribute__((noinline)) void index_all()
{
    std::vector<std::thread> parts;
    for (unsigned i = 0; i < threads; i++)
        parts.emplace_back(index_part, is_fixed ? documents / threads
                                       : i == 1 ? large
                                                : (documents - large) / (threads - 1));
    for (auto &part : parts)
        part.join();
}

} // namespace

int main(int argc, char **argv)
{
    unsigned long ops = 0;
    begin(argc, argv);
    for (; !is_over(); ops++)
        index_all();
    finish(ops);
    return 0;
}
