/* SPDX-License-Identifier: MIT */
/*
 * with_curl.c - libcurl with a multi handle per thread: libcurl says which sockets it waits for, rouse_poll waits.
 *
 * usage: with_curl URL THREADS [easy]
 * The answer to request N of a thread is expected to be the thread's number. easy: curl_easy_perform, which blocks.
 */
#include "threads.h"

#include <curl/curl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

enum { SOCKETS = 8, WAIT_MS = 60000 };

struct waits {
    struct pollfd sockets[SOCKETS];
    nfds_t count;
    long timeout_ms;
};

struct answer {
    char text[64];
    size_t bytes;
};

static const char *url;
static bool is_easy;

static int note_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *unused)
{
    struct waits *waits = arg;
    nfds_t at = 0;

    (void)easy;
    (void)unused;
    while (at < waits->count && waits->sockets[at].fd != fd)
        at++;
    if (what == CURL_POLL_REMOVE) {
        if (at < waits->count)
            waits->sockets[at] = waits->sockets[--waits->count];
        return 0;
    }
    if (at == SOCKETS)
        return -1;
    if (at == waits->count)
        waits->count++;
    waits->sockets[at] = (struct pollfd){
        .fd = fd,
        .events =
            (short)((what & CURL_POLL_IN ? POLLIN : 0) | (what & CURL_POLL_OUT ? POLLOUT : 0)),
    };
    return 0;
}

static int note_timeout(CURLM *multi, long timeout_ms, void *arg)
{
    struct waits *waits = arg;

    (void)multi;
    waits->timeout_ms = timeout_ms;
    return 0;
}

/* A callback of libcurl. It must not call rouse: libcurl and OpenSSL are in the middle of something. */
static size_t keep(char *bytes, size_t size, size_t count, void *arg)
{
    struct answer *answer = arg;
    size_t room = sizeof(answer->text) - 1 - answer->bytes;
    size_t taken = size * count < room ? size * count : room;

    memcpy(answer->text + answer->bytes, bytes, taken);
    answer->bytes += taken;
    return size * count;
}

static CURLcode perform(CURL *easy)
{
    struct waits waits = { .timeout_ms = 0 };
    CURLM *multi = curl_multi_init();
    CURLcode result = CURLE_OK;
    CURLMsg *message;
    int running = 1, left;

    CHECK(multi != NULL, "curl_multi_init");
    curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, note_socket);
    curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, &waits);
    curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, note_timeout);
    curl_multi_setopt(multi, CURLMOPT_TIMERDATA, &waits);
    CHECK(curl_multi_add_handle(multi, easy) == CURLM_OK, "curl_multi_add_handle");
    while (running) {
        bool has_end = waits.timeout_ms >= 0 && waits.timeout_ms < WAIT_MS;
        struct pollfd ready[SOCKETS];
        nfds_t count = waits.count;
        int found;

        memcpy(ready, waits.sockets, sizeof(ready));
        found = rouse_poll(ready, count, has_end ? (int)waits.timeout_ms : WAIT_MS);
        CHECK(found > 0 || (found == 0 && has_end), "no answer came");
        if (found == 0) {
            waits.timeout_ms = -1;
            curl_multi_socket_action(multi, CURL_SOCKET_TIMEOUT, 0, &running);
        }
        for (nfds_t i = 0; found > 0 && i < count; i++) {
            short events = ready[i].revents;
            int flags = (events & (POLLIN | POLLHUP) ? CURL_CSELECT_IN : 0) |
                        (events & POLLOUT ? CURL_CSELECT_OUT : 0) |
                        (events & POLLERR ? CURL_CSELECT_ERR : 0);

            if (events)
                curl_multi_socket_action(multi, ready[i].fd, flags, &running);
        }
    }
    while ((message = curl_multi_info_read(multi, &left)))
        if (message->msg == CURLMSG_DONE)
            result = message->data.result;
    curl_multi_remove_handle(multi, easy);
    curl_multi_cleanup(multi);
    return result;
}

static void *work(void *arg)
{
    struct answer answer = { .bytes = 0 };
    char whole[256], expected[16], error[CURL_ERROR_SIZE] = "";
    CURL *easy = curl_easy_init();

    CHECK(easy != NULL, "curl_easy_init");
    snprintf(expected, sizeof(expected), "%u", (unsigned)(uintptr_t)arg);
    snprintf(whole, sizeof(whole), "%s%s", url, expected);
    curl_easy_setopt(easy, CURLOPT_URL, whole);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L); /* signals belong to the process */
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, keep);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer);
    CHECK((is_easy ? curl_easy_perform(easy) : perform(easy)) == CURLE_OK, error);
    answer.text[answer.bytes] = 0;
    CHECK(strcmp(answer.text, expected) == 0, "the answer of another request");
    curl_easy_cleanup(easy);
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3 || argc == 4, "usage: with_curl URL THREADS [easy]");
    url = argv[1];
    is_easy = argc == 4;
    signal(SIGPIPE, SIG_IGN);
    CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "curl_global_init");
    run_all((unsigned)atoi(argv[2]), work);
    curl_global_cleanup();
    puts("right");
    return 0;
}
