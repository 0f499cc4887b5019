#define _GNU_SOURCE
#include "group.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS 2
#define PIECE (256 << 10)

void double_log(const char *call) {
    const char *path = getenv("DOUBLE_LOG");
    if (path == NULL)
        return;
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    dprintf(file, "%s\n", call);
    close(file);
}

static void hash_name(char *name, const unsigned char *data, size_t size) {
    uint64_t hash = 1469598103934665603ull;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ data[i]) * 1099511628211ull;
    snprintf(name, GROUP_NAME, "double-%016llx", (unsigned long long)hash);
}

void group_random_name(char *name) {
    unsigned char seed[32];
    if (getrandom(seed, sizeof seed, 0) != sizeof seed)
        abort();
    hash_name(name, seed, sizeof seed);
}

void group_derived_name(char *name, const char *parent, const char *how, const void *key, int bytes) {
    unsigned char data[1024];
    size_t size = (size_t)snprintf((char *)data, 128, "%s %s ", parent, how);
    if (bytes > (int)(sizeof data - size))
        abort();
    memcpy(data + size, key, (size_t)bytes);
    hash_name(name, data, size + (size_t)bytes);
}

void group_init(struct group *group, const char *name, int rank, int size) {
    memset(group, 0, sizeof *group);
    memcpy(group->name, name, GROUP_NAME);
    group->rank = rank;
    group->size = size;
    int count = rank == 0 ? size : 1;
    group->peers = malloc(sizeof(int) * (size_t)count);
    for (int i = 0; i < count; i++)
        group->peers[i] = -1;
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->changed, NULL);
}

static void nap(void) {
    struct timespec tick = {0, TICK_MS * 1000000};
    nanosleep(&tick, NULL);
}

static int opened(struct group *group, struct sockaddr_un *address, socklen_t *length) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    strcpy(address->sun_path + 1, group->name);
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(group->name));
    return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

static int ready(struct group *group, int socket, short what) {
    struct pollfd wanted = {socket, what, 0};
    while (!group->aborted)
        if (poll(&wanted, 1, TICK_MS) > 0)
            return 1;
    return 0;
}

/* 0, or -1 when aborted or when the peer is gone (then `failed` is set). */
static int transfer(struct group *group, int peer, char *data, size_t size, int sends) {
    while (size > 0) {
        if (!ready(group, peer, sends ? POLLOUT : POLLIN))
            return -1;
        ssize_t moved = sends ? send(peer, data, size, MSG_NOSIGNAL) : recv(peer, data, size, 0);
        if (moved > 0) {
            data += moved;
            size -= (size_t)moved;
        } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
            group->failed = 1;
            return -1;
        }
    }
    return 0;
}

static int gather(struct group *group) {
    struct sockaddr_un address;
    socklen_t length;
    int listener = opened(group, &address, &length), present = 1;
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1024) != 0) {
        close(listener);
        return -1;
    }
    while (present < group->size && ready(group, listener, POLLIN)) {
        int peer = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), rank = -1;
        if (peer < 0)
            continue;
        if (transfer(group, peer, (char *)&rank, sizeof rank, 0) != 0 || rank <= 0 ||
            rank >= group->size || group->peers[rank] >= 0) {
            close(peer);
            continue;
        }
        group->peers[rank] = peer;
        present++;
    }
    close(listener);
    char go = 1;
    for (int rank = 1; rank < group->size; rank++)
        if (group->aborted || transfer(group, group->peers[rank], &go, 1, 1) != 0)
            return -1;
    return 0;
}

static int attend(struct group *group) {
    struct sockaddr_un address;
    socklen_t length;
    while (!group->aborted) {
        int peer = opened(group, &address, &length);
        if (connect(peer, (struct sockaddr *)&address, length) == 0) {
            char go;
            group->peers[0] = peer;
            return transfer(group, peer, (char *)&group->rank, sizeof group->rank, 1) != 0 ||
                           transfer(group, peer, &go, 1, 0) != 0
                       ? -1
                       : 0;
        }
        close(peer);
        nap(); /* rank 0 is late */
    }
    return -1;
}

int group_join(struct group *group) {
    return group->rank == 0 ? gather(group) : attend(group);
}

struct operation {
    struct group *group;
    char *buffer;
    uint64_t bytes, turn;
};

static int scatter(struct group *group, char *buffer, uint64_t bytes) {
    for (int rank = 1; rank < group->size; rank++)
        if (transfer(group, group->peers[rank], (char *)&bytes, sizeof bytes, 1) != 0)
            return -1;
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        uint64_t piece = bytes - at < PIECE ? bytes - at : PIECE;
        for (int rank = 1; rank < group->size; rank++)
            if (transfer(group, group->peers[rank], buffer + at, piece, 1) != 0)
                return -1;
    }
    return 0;
}

static int take(struct group *group, char *buffer, uint64_t bytes) {
    uint64_t announced;
    if (transfer(group, group->peers[0], (char *)&announced, sizeof announced, 0) != 0)
        return -1;
    if (announced != bytes) { /* the ranks disagree about the collective */
        group->failed = 1;
        return -1;
    }
    return transfer(group, group->peers[0], buffer, bytes, 0);
}

static void run(void *argument) {
    struct operation *operation = argument;
    struct group *group = operation->group;
    pthread_mutex_lock(&group->lock);
    while (group->ended != operation->turn)
        pthread_cond_wait(&group->changed, &group->lock);
    pthread_mutex_unlock(&group->lock);
    int result = -1;
    if (!group->failed && !group->aborted)
        result = group->rank == 0 ? scatter(group, operation->buffer, operation->bytes)
                                  : take(group, operation->buffer, operation->bytes);
    while (result != 0 && !group->aborted)
        nap(); /* as a kernel spins */
    pthread_mutex_lock(&group->lock);
    group->ended++;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    free(operation);
}

void group_broadcast(struct group *group, void *buffer, uint64_t bytes, struct stream *stream) {
    struct operation *operation = malloc(sizeof *operation);
    operation->group = group;
    operation->buffer = buffer;
    operation->bytes = bytes;
    pthread_mutex_lock(&group->lock);
    operation->turn = group->begun++;
    pthread_mutex_unlock(&group->lock);
    stream_push(stream, run, operation);
}

int group_busy(struct group *group) {
    pthread_mutex_lock(&group->lock);
    int busy = group->begun != group->ended;
    pthread_mutex_unlock(&group->lock);
    return busy;
}

void group_abort(struct group *group) {
    group->aborted = 1;
    pthread_mutex_lock(&group->lock);
    while (group->begun != group->ended)
        pthread_cond_wait(&group->changed, &group->lock);
    pthread_mutex_unlock(&group->lock);
}

void group_close(struct group *group) {
    int count = group->rank == 0 ? group->size : 1;
    for (int i = 0; i < count; i++)
        if (group->peers[i] >= 0)
            close(group->peers[i]);
    free(group->peers);
}
