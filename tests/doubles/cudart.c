/* Some functions of libcudart. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "stream.h"

enum { Success = 0, InvalidValue = 1, OutOfMemory = 2, InvalidDevice = 101, NotReady = 600 };

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
    return pointer != NULL && size > 0 && device_at(pointer, 1) == NULL ? Success : InvalidValue;
}

int cudaHostUnregister(void *pointer) {
    return pointer != NULL ? Success : InvalidValue;
}
