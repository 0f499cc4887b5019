#include "stream.h"

#include <pthread.h>
#include <stdlib.h>

struct item {
    stream_work work;
    void *argument;
    struct item *next;
};

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct item *first, *last;
    uint64_t pushed, done;
    int closed;
};

static void *play(void *argument) {
    struct stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (stream->first == NULL && !stream->closed)
            pthread_cond_wait(&stream->changed, &stream->lock);
        struct item *item = stream->first;
        if (item == NULL)
            break;
        stream->first = item->next;
        if (stream->first == NULL)
            stream->last = NULL;
        pthread_mutex_unlock(&stream->lock);
        item->work(item->argument);
        free(item);
        pthread_mutex_lock(&stream->lock);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

struct stream *stream_new(void) {
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return NULL;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    if (pthread_create(&stream->thread, NULL, play, stream) != 0) {
        free(stream);
        return NULL;
    }
    return stream;
}

void stream_push(struct stream *stream, stream_work work, void *argument) {
    struct item *item = malloc(sizeof *item);
    item->work = work;
    item->argument = argument;
    item->next = NULL;
    pthread_mutex_lock(&stream->lock);
    if (stream->last != NULL)
        stream->last->next = item;
    else
        stream->first = item;
    stream->last = item;
    stream->pushed++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

uint64_t stream_pushed(struct stream *stream) {
    pthread_mutex_lock(&stream->lock);
    uint64_t pushed = stream->pushed;
    pthread_mutex_unlock(&stream->lock);
    return pushed;
}

int stream_reached(struct stream *stream, uint64_t count) {
    pthread_mutex_lock(&stream->lock);
    int reached = stream->done >= count;
    pthread_mutex_unlock(&stream->lock);
    return reached;
}

void stream_wait(struct stream *stream, uint64_t count) {
    pthread_mutex_lock(&stream->lock);
    while (stream->done < count)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

void stream_free(struct stream *stream) {
    pthread_mutex_lock(&stream->lock);
    stream->closed = 1;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    free(stream);
}
