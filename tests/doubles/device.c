#define _GNU_SOURCE
#include "device.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct block {
    char *address; /* what callers get: no access */
    char *bytes;   /* the same memory, for the double itself */
    size_t size;
    int file; /* of shared memory, else -1 */
    char imported[DEVICE_KEY];
    struct block *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;

static void *mapped(size_t size, int file) {
    if (file < 0)
        return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

static struct block *added(size_t size, int file) {
    struct block *block = calloc(1, sizeof *block);
    block->size = size;
    block->file = file;
    block->bytes = mapped(size, file);
    block->address = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block->bytes == MAP_FAILED || block->address == MAP_FAILED) {
        if (block->bytes != MAP_FAILED)
            munmap(block->bytes, size);
        free(block);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&lock);
    return block;
}

static void dropped(struct block *block) {
    munmap(block->bytes, block->size);
    munmap(block->address, block->size);
    if (block->file >= 0)
        close(block->file);
    free(block);
}

void *device_new(size_t size, int shared) {
    int file = -1;
    if (size == 0)
        return NULL;
    if (shared) {
        file = memfd_create("device", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)size) != 0)
            return NULL;
    }
    struct block *block = added(size, file);
    if (block == NULL && file >= 0)
        close(file);
    return block == NULL ? NULL : block->address;
}

static struct block *taken(struct block **link) {
    struct block *block = *link;
    *link = block->next;
    return block;
}

int device_free(void *pointer) {
    struct block *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct block **link = &blocks; *link != NULL && found == NULL; link = &(*link)->next) {
        if ((*link)->address == pointer && (*link)->imported[0] == 0) {
            found = taken(link);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (found != NULL)
        dropped(found);
    return found != NULL || pointer == NULL ? 0 : -1;
}

static struct block *holding(const char *pointer, size_t size) {
    for (struct block *block = blocks; block != NULL; block = block->next)
        if (pointer >= block->address && pointer + size <= block->address + block->size)
            return block;
    return NULL;
}

char *device_at(const void *pointer, size_t size) {
    pthread_mutex_lock(&lock);
    struct block *block = holding(pointer, size);
    char *at = block == NULL ? NULL : block->bytes + ((const char *)pointer - block->address);
    pthread_mutex_unlock(&lock);
    return at;
}

int device_export(const void *pointer, size_t size, char *key) {
    pthread_mutex_lock(&lock);
    struct block *block = holding(pointer, size);
    int whole = block != NULL && block->file >= 0 && block->address == pointer;
    if (whole)
        snprintf(key, DEVICE_KEY, "%d/%d/%zu", (int)getpid(), block->file, block->size);
    pthread_mutex_unlock(&lock);
    return whole ? 0 : -1;
}

void *device_import(const char *key) {
    int process, number;
    size_t size;
    char path[64];
    if (sscanf(key, "%d/%d/%zu", &process, &number, &size) != 3)
        return NULL;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, number);
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct block *block = file < 0 ? NULL : added(size, file);
    if (block == NULL)
        return NULL;
    snprintf(block->imported, DEVICE_KEY, "%s", key);
    return block->address;
}

int device_close(const char *key) {
    struct block *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct block **link = &blocks; *link != NULL; link = &(*link)->next) {
        if (strcmp((*link)->imported, key) == 0) {
            found = taken(link);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (found != NULL)
        dropped(found);
    return 0; /* who exported it has nothing to undo here */
}

int device_ends(int kind, size_t size, void **to, const void **from) {
    char *target = device_at(*to, size), *source = device_at(*from, size);
    if (kind < 1 || kind > 3 || (kind != 2) != (target != NULL) || (kind != 1) != (source != NULL))
        return -1;
    *to = target != NULL ? target : *to;
    *from = source != NULL ? source : *from;
    return 0;
}
