/* SPDX-License-Identifier: MIT */
/*
 * mailbox.c - clients send letters to one server thread. Fault: the server looks into its mailbox every 2 ms.
 *
 * Repair: it waits on a condition that the clients signal.
 */
#include "findings.h"

#include <semaphore.h>

enum { CLIENTS = 2, THINK_US = 500, LETTER_BYTES = 50000, POLL_US = 2000 };

struct letter {
    struct letter *next;
    uint64_t value;
    sem_t answered;
};

static pthread_mutex_t mailbox_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t letter_came = PTHREAD_COND_INITIALIZER;
/* Both under mailbox_lock. */
static struct letter *mailbox;
static bool is_closed;

/* Take a letter, or NULL if there is none. Called with mailbox_lock. */
static struct letter *take_letter(void)
{
    struct letter *letter = mailbox;
    if (letter)
        mailbox = letter->next;
    return letter;
}

/* Wait for a letter. Returns NULL when the mailbox is closed. */
static struct letter *next_letter(void)
{
    struct letter *letter;
    pthread_mutex_lock(&mailbox_lock);
    while (!(letter = take_letter()) && !is_closed) {
        if (is_fixed) {
            pthread_cond_wait(&letter_came, &mailbox_lock);
            continue;
        }
        pthread_mutex_unlock(&mailbox_lock);
        usleep(POLL_US);
        pthread_mutex_lock(&mailbox_lock);
    }
    pthread_mutex_unlock(&mailbox_lock);
    return letter;
}

static void *serve(void *arg)
{
    struct letter *letter;
    while ((letter = next_letter())) {
        letter->value = digest(letter->value, LETTER_BYTES);
        sem_post(&letter->answered);
    }
    return arg;
}

static void send_letter(struct letter *letter)
{
    pthread_mutex_lock(&mailbox_lock);
    letter->next = mailbox;
    mailbox = letter;
    pthread_cond_signal(&letter_came);
    pthread_mutex_unlock(&mailbox_lock);
}

static void *correspond(void *arg)
{
    static struct letter letters[CLIENTS]; /* they outlive the server's last use */
    struct worker *self = arg;
    struct letter *letter = &letters[self->number];
    unsigned long ops = 0;
    int service = service_open();
    sem_init(&letter->answered, 0, 0);
    for (; !is_over(); ops++) {
        service_ask(service, THINK_US);
        send_letter(letter);
        while (sem_wait(&letter->answered) != 0)
            continue;
    }
    close(service);
    self->ops = ops;
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t server;
    begin(argc, argv);
    check(pthread_create(&server, NULL, serve, NULL) == 0);
    unsigned long ops = run_threads(CLIENTS, correspond);
    pthread_mutex_lock(&mailbox_lock);
    is_closed = true;
    pthread_cond_signal(&letter_came);
    pthread_mutex_unlock(&mailbox_lock);
    pthread_join(server, NULL);
    finish(ops);
    return 0;
}
