// SPDX-License-Identifier: MIT
//
// metrics.cpp - a gateway that counts its requests. Fault: all threads add to one registry, and encode their samples
// while they hold its mutex. Most of a request's time is the answer of a remote service, outside the mutex.
//
// Repair: each thread has its own registry. The gain is large, because the threads hardly need the processors.
#include "findings.h"

#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned threads = 8, sample_bytes = 150000;
constexpr long answer_us = 400;

class Registry
{
    std::mutex registry_mutex;
    std::map<std::string, uint64_t> samples;

  public:
    void record(const std::string &name, uint64_t value)
    {
        std::lock_guard<std::mutex> guard(registry_mutex);
        samples[name] += digest(value, sample_bytes); // encode the sample
    }
};

unsigned long serve(Registry &registry, unsigned number)
{
    int service = service_open();
    unsigned long ops = 0;
    for (; !is_over(); ops++) {
        service_ask(service, answer_us);
        registry.record("requests", number + ops);
    }
    close(service);
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    static Registry shared;
    std::vector<Registry> own(threads);
    std::vector<unsigned long> ops(threads);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; i++)
        all.emplace_back([&, i] { ops[i] = serve(is_fixed ? own[i] : shared, i); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < threads; i++) {
        all[i].join();
        sum += ops[i];
    }
    finish(sum);
    return 0;
}
