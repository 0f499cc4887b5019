/* Some functions of libcudart.
 *
 * A copy to or from host memory that is not page-locked is slow on a real GPU. Here it is written to
 * the file that DOUBLE_LOG names, if it is longer than a page: "cudaMemcpyAsync pageable".
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "group.h"
#include "stream.h"

#define PAGE 4096

enum { Success = 0, InvalidValue = 1, OutOfMemory = 2, InvalidDevice = 101, NotReady = 600,
       AlreadyRegistered = 712, NotRegistered = 713 };

struct range {
    const char *start, *end;
    struct range *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *page_locked;

static int is_page_locked(const char *host, size_t size) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (struct range *range = page_locked; range != NULL && !found; range = range->next)
        found = host >= range->start && host + size <= range->end;
    pthread_mutex_unlock(&lock);
    return found;
}

const char *cudaGetErrorString(int error) {
    return error == Success ? "no error" : error == OutOfMemory ? "out of memory" : "an error";
}

int cudaGetDeviceCount(int *count) {
    *count = 1;
    return Success;
}

int cudaSetDevice(int device) {
    return device == 0 ? Success : InvalidDevice;
}

int cudaMalloc(void **pointer, size_t size) {
    *pointer = device_new(size, 0);
    return *pointer == NULL ? OutOfMemory : Success;
}

int cudaFree(void *pointer) {
    return device_free(pointer) == 0 ? Success : InvalidValue;
}

int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    (void)flags;
    *stream = stream_new();
    return *stream == NULL ? OutOfMemory : Success;
}

int cudaStreamDestroy(void *stream) {
    stream_free(stream);
    return Success;
}

int cudaStreamQuery(void *stream) {
    return stream_reached(stream, stream_pushed(stream)) ? Success : NotReady;
}

int cudaStreamSynchronize(void *stream) {
    stream_wait(stream, stream_pushed(stream));
    return Success;
}

struct copy {
    void *to;
    const void *from;
    size_t size;
};

static void copied(void *argument) {
    struct copy *copy = argument;
    memcpy(copy->to, copy->from, copy->size);
    free(copy);
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    const void *host = kind == 1 ? from : kind == 2 ? to : NULL;
    if (host != NULL && size > PAGE && !is_page_locked(host, size))
        double_log("cudaMemcpyAsync pageable");
    if (size > 0 && device_ends(kind, size, &to, &from) != 0)
        return InvalidValue;
    struct copy *copy = malloc(sizeof *copy);
    *copy = (struct copy){to, from, size};
    stream_push(stream, copied, copy);
    return Success;
}

static void zeroed(void *argument) {
    struct copy *copy = argument;
    memset(copy->to, 0, copy->size);
    free(copy);
}

int cudaMemsetAsync(void *pointer, int value, size_t size, void *stream) {
    char *bytes = device_at(pointer, size);
    if (bytes == NULL || value != 0)
        return InvalidValue;
    struct copy *copy = malloc(sizeof *copy);
    *copy = (struct copy){bytes, NULL, size};
    stream_push(stream, zeroed, copy);
    return Success;
}

int cudaHostRegister(void *pointer, size_t size, unsigned flags) {
    (void)flags;
    if (pointer == NULL || size == 0 || device_at(pointer, 1) != NULL)
        return InvalidValue;
    if (is_page_locked(pointer, 1))
        return AlreadyRegistered;
    struct range *range = malloc(sizeof *range);
    pthread_mutex_lock(&lock);
    *range = (struct range){pointer, (char *)pointer + size, page_locked};
    page_locked = range;
    pthread_mutex_unlock(&lock);
    return Success;
}

int cudaHostUnregister(void *pointer) {
    struct range *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct range **link = &page_locked; *link != NULL && found == NULL;) {
        if ((*link)->start == pointer) {
            found = *link;
            *link = found->next;
        } else {
            link = &(*link)->next;
        }
    }
    pthread_mutex_unlock(&lock);
    free(found);
    return found != NULL ? Success : NotRegistered;
}
