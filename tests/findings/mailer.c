/* SPDX-License-Identifier: MIT */
/*
 * mailer.c - clients hand letters to a pool of threads and wait until they are sent. Fault: they look every 5 ms.
 *
 * Repair: they wait on a condition.
 */
#include "findings.h"

enum {
    CLIENTS = 6,
    SENDERS = 4,
    LETTERS_MOST = CLIENTS,
    SEND_US = 400,
    LETTER_BYTES = 20000,
    LOOK_US = 5000
};

enum state { WAITING, SENT };

struct letter {
    enum state state; /* under outbox_lock */
    uint64_t text;
};

static pthread_mutex_t outbox_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t letter_came = PTHREAD_COND_INITIALIZER,
                      letter_sent = PTHREAD_COND_INITIALIZER;
/* All under outbox_lock. */
static struct letter *outbox[LETTERS_MOST];
static unsigned waiting;
static bool is_closed;

static void *send_letters(void *arg)
{
    int server = service_open();
    pthread_mutex_lock(&outbox_lock);
    for (;;) {
        while (!waiting && !is_closed)
            pthread_cond_wait(&letter_came, &outbox_lock);
        if (!waiting)
            break;
        struct letter *letter = outbox[--waiting];
        pthread_mutex_unlock(&outbox_lock);
        service_ask(server, SEND_US);
        pthread_mutex_lock(&outbox_lock);
        letter->state = SENT;
        pthread_cond_broadcast(&letter_sent);
    }
    pthread_mutex_unlock(&outbox_lock);
    close(server);
    return arg;
}

static void await_state(struct letter *letter, enum state wanted)
{
    pthread_mutex_lock(&outbox_lock);
    while (letter->state != wanted) {
        if (is_fixed) {
            pthread_cond_wait(&letter_sent, &outbox_lock);
            continue;
        }
        pthread_mutex_unlock(&outbox_lock);
        usleep(LOOK_US);
        pthread_mutex_lock(&outbox_lock);
    }
    pthread_mutex_unlock(&outbox_lock);
}

static void *correspond(void *arg)
{
    struct worker *self = arg;
    struct letter letter = { SENT, 0 };
    unsigned long ops = 0;
    for (; !is_over(); ops++) {
        letter.text = digest(letter.text, LETTER_BYTES);
        pthread_mutex_lock(&outbox_lock);
        letter.state = WAITING;
        outbox[waiting++] = &letter;
        pthread_cond_signal(&letter_came);
        pthread_mutex_unlock(&outbox_lock);
        await_state(&letter, SENT);
    }
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t senders[SENDERS];
    begin(argc, argv);
    for (unsigned i = 0; i < SENDERS; i++)
        check(pthread_create(&senders[i], NULL, send_letters, NULL) == 0);
    unsigned long ops = run_threads(CLIENTS, correspond);
    pthread_mutex_lock(&outbox_lock);
    is_closed = true;
    pthread_cond_broadcast(&letter_came);
    pthread_mutex_unlock(&outbox_lock);
    for (unsigned i = 0; i < SENDERS; i++)
        pthread_join(senders[i], NULL);
    finish(ops);
    return 0;
}
