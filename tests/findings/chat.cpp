// SPDX-License-Identifier: MIT
//
// chat.cpp - a chat room, its members, and the clients that they talk to, which are threads of this program too. Fault:
// the room's mutex is held until a client has acknowledged the message.
//
// Repair: the member is looked up under the room's mutex. The message is sent under the member's own.
#include "findings.h"

#include <mutex>
#include <sys/socket.h>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned count = 6, text_bytes = 5000;
constexpr long client_us = 300;

struct Member {
    int ours, theirs; // the ends of a connection
    std::mutex send_mutex;
};

class Room
{
    std::mutex room_mutex;
    std::vector<Member *> members;

    static void deliver(Member &member)
    {
        char letter = 'm';
        check(write(member.ours, &letter, 1) == 1);
        check(read(member.ours, &letter, 1) == 1);
    }

  public:
    void join(Member &member)
    {
        std::lock_guard<std::mutex> guard(room_mutex);
        members.push_back(&member);
    }

    void tell(unsigned whom)
    {
        std::unique_lock<std::mutex> guard(room_mutex);
        Member &member = *members[whom];
        if (is_fixed)
            guard.unlock();
        std::lock_guard<std::mutex> own(member.send_mutex);
        deliver(member);
    }
};

void listen_as_client(int connection)
{
    char letter;
    while (read(connection, &letter, 1) == 1) {
        usleep(client_us); // the way there and back
        check(write(connection, &letter, 1) == 1);
    }
}

unsigned long speak(Room &room, unsigned self)
{
    unsigned long ops = 0;
    for (; !is_over(); ops++) {
        digest(ops, text_bytes);
        room.tell(self);
    }
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    static Room room;
    static Member members[count];
    std::vector<unsigned long> ops(count);
    std::vector<std::thread> clients, speakers;
    for (Member &member : members) {
        int ends[2];
        check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        member.ours = ends[0];
        member.theirs = ends[1];
        room.join(member);
        clients.emplace_back([&member] { listen_as_client(member.theirs); });
    }
    for (unsigned i = 0; i < count; i++)
        speakers.emplace_back([&, i] { ops[i] = speak(room, i); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < count; i++) {
        speakers[i].join();
        sum += ops[i];
        shutdown(members[i].ours, SHUT_RDWR);
    }
    for (std::thread &client : clients)
        client.join();
    finish(sum);
    return 0;
}
