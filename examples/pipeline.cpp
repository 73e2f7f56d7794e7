/* SPDX-License-Identifier: MIT */
/* pipeline.cpp - numbers go through two stages of threads, over channels that hold back the faster stage. */
#include <rouse/rouse.hpp>

#include <iostream>

int main()
{
    rouse::channel<unsigned> numbers(16), squares(16);
    rouse::thread source([&] {
        for (unsigned i = 1; i <= 1000; i++)
            numbers.send(i);
        numbers.close();
    });
    std::vector<rouse::thread> squarers;
    for (int i = 0; i < 4; i++)
        squarers.emplace_back([&] {
            for (unsigned &number : numbers)
                squares.send(number * number);
        });
    rouse::thread end([&] {
        for (auto &one : squarers)
            one.join();
        squares.close();
    });
    unsigned long sum = 0;
    for (unsigned &square : squares)
        sum += square;
    source.join();
    end.join();
    std::cout << "sum " << sum << "\n";
}
