// SPDX-License-Identifier: MIT
//
// itinerary.cpp - two threads that ask four hotels for each night. Fault: std::async asks a hotel, and get() waits for
// its offer before the next one is asked.
//
// Repair: all hotels are asked before the first offer is awaited.
#include "findings.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned threads = 2, hotels = 4;
constexpr long answer_us = 2000;

uint64_t ask_hotel(unsigned hotel, uint64_t night)
{
    std::this_thread::sleep_for(std::chrono::microseconds(answer_us));
    return digest(night + hotel, 1000) % 400;
}

uint64_t book_night(uint64_t night)
{
    uint64_t best = UINT64_MAX;
    std::vector<std::future<uint64_t>> offers;
    for (unsigned hotel = 0; hotel < hotels; hotel++) {
        std::future<uint64_t> offer = std::async(std::launch::async, ask_hotel, hotel, night);
        if (is_fixed)
            offers.push_back(std::move(offer));
        else
            best = std::min(best, offer.get());
    }
    for (std::future<uint64_t> &offer : offers)
        best = std::min(best, offer.get());
    return best;
}

unsigned long plan()
{
    unsigned long ops = 0;
    for (uint64_t price = 0; !is_over(); ops++)
        price += book_night(price);
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    std::vector<unsigned long> ops(threads);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; i++)
        all.emplace_back([&, i] { ops[i] = plan(); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < threads; i++) {
        all[i].join();
        sum += ops[i];
    }
    finish(sum);
}
