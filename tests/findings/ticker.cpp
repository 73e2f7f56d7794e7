// SPDX-License-Identifier: MIT
//
// ticker.cpp - a healthy program: a thread has a price to publish every 2 ms, and wakes one of eight threads, which asks a
// service for it. Its sleeps are the clock of the program.
#include "findings.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned publishers = 8, price_bytes = 100000;
constexpr long tick_us = 2000, service_us = 1500;

class Prices
{
    std::mutex prices_mutex;
    std::condition_variable price_came;
    std::deque<uint64_t> prices;
    bool is_closed = false;

  public:
    void put(uint64_t price)
    {
        std::lock_guard<std::mutex> guard(prices_mutex);
        prices.push_back(price);
        price_came.notify_one();
    }

    bool take(uint64_t &price)
    {
        std::unique_lock<std::mutex> guard(prices_mutex);
        while (prices.empty() && !is_closed)
            price_came.wait(guard);
        if (prices.empty())
            return false;
        price = prices.front();
        prices.pop_front();
        return true;
    }

    void close_it()
    {
        std::lock_guard<std::mutex> guard(prices_mutex);
        is_closed = true;
        price_came.notify_all();
    }
};

Prices prices;
std::atomic<unsigned long> ops;

void publish()
{
    int service = service_open();
    uint64_t price;
    while (prices.take(price)) {
        service_ask(service, service_us);
        digest(price, price_bytes);
        ops++;
    }
    close(service);
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < publishers; i++)
        all.emplace_back(publish);
    for (uint64_t price = 0; !is_over(); price++) {
        usleep(tick_us);
        prices.put(price);
    }
    prices.close_it();
    for (std::thread &each : all)
        each.join();
    finish(ops);
    return 0;
}
