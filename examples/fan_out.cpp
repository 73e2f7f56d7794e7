/* SPDX-License-Identifier: MIT */
/* fan_out.cpp - several threads look for an answer. The first one wins; the others are asked to stop in their waits. */
#include <rouse/rouse.hpp>

#include <iostream>

using namespace std::chrono_literals;

static void look(int number, rouse::channel<int> &answers, std::atomic<int> &stopped)
try {
    rouse::this_thread::sleep_for(number * 10ms + (number == 3 ? 0ms : 1h)); /* a slow search */
    answers.send(number);
} catch (const rouse::cancelled &) {
    ++stopped;
    throw; /* what is on the stack has been destroyed; the thread ends */
}

int main()
{
    rouse::channel<int> answers(1);
    std::atomic<int> stopped{ 0 };
    {
        std::vector<rouse::jthread> all;
        for (int i = 0; i < 8; i++)
            all.emplace_back(look, i, std::ref(answers), std::ref(stopped));
        std::cout << "answer " << *answers.receive() << "\n";
    } /* the threads are asked to stop, one after the other, and joined */
    std::cout << "stopped " << stopped << "\n";
}
