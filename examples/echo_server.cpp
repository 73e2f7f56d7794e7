/* SPDX-License-Identifier: MIT */
/* echo_server.cpp - an echo server in C++: a thread per connection, deadlines, and an end on SIGINT or SIGTERM. */
#include <rouse/rouse.hpp>

#include <csignal>
#include <iostream>
#include <list>

using namespace std::chrono_literals;

static void serve(rouse::socket client)
try {
    char text[4096];
    for (;;) {
        client.expires_after(10s);
        std::size_t bytes = client.read_some(text, sizeof text);
        if (bytes == 0)
            return;
        client.write(text, bytes);
    }
} catch (const std::system_error &error) {
    std::cerr << "client: " + error.code().message() + "\n"; /* slow, gone, or the server ends */
}

int main(int argc, char **argv)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, nullptr); /* before the first thread, which inherits it */
    rouse::listener listener(argc > 1 ? static_cast<std::uint16_t>(std::stoi(argv[1])) : 7007);
    std::cout << "port " << listener.port() << std::endl;
    rouse::jthread server([&] {
        std::list<rouse::jthread> clients; /* they are stopped and joined with the server */
        for (;;) {
            try {
                clients.emplace_back(serve, listener.accept());
            } catch (const rouse::cancelled &) {
                throw;
            } catch (
                const std::system_error &error) { /* too many open files, until a client leaves */
                std::cerr << "accept: " + error.code().message() + "\n";
                rouse::this_thread::sleep_for(100ms);
            }
            clients.remove_if([](rouse::jthread &one) { return one.try_join(); });
        }
    });
    int number;
    sigwait(&ends, &number);
}
