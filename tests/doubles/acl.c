/* Some functions of libascendcl.so. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "stream.h"

enum { Success = 0, InvalidParam = 100000, RepeatInit = 100002, BadAlloc = 200000,
       NotReady = 0, Complete = 1 };

struct event {
    struct stream *stream;
    uint64_t count;
};

static int initialized, device_set;

int aclInit(const char *path) {
    (void)path;
    if (initialized)
        return RepeatInit;
    initialized = 1;
    return Success;
}

int aclrtSetDevice(int32_t device) {
    device_set = initialized && device == 0;
    return device_set ? Success : InvalidParam;
}

int aclrtGetDeviceCount(uint32_t *count) {
    *count = 1;
    return Success;
}

int aclrtMalloc(void **pointer, size_t size, int policy) {
    (void)policy;
    *pointer = device_set ? device_new(size, 1) : NULL;
    return *pointer == NULL ? BadAlloc : Success;
}

int aclrtFree(void *pointer) {
    return device_free(pointer) == 0 ? Success : InvalidParam;
}

int aclrtMemset(void *pointer, size_t room, int32_t value, size_t size) {
    char *bytes = device_at(pointer, size);
    if (bytes == NULL || size > room)
        return InvalidParam;
    memset(bytes, value, size);
    return Success;
}

int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) {
    if (size > room || (size > 0 && device_ends(kind, size, &to, &from) != 0))
        return InvalidParam;
    memcpy(to, from, size);
    return Success;
}

int aclrtCreateStream(void **stream) {
    *stream = stream_new();
    return *stream == NULL ? BadAlloc : Success;
}

int aclrtDestroyStream(void *stream) {
    stream_free(stream);
    return Success;
}

int aclrtCreateEvent(void **event) {
    *event = calloc(1, sizeof(struct event));
    return *event == NULL ? BadAlloc : Success;
}

int aclrtDestroyEvent(void *event) {
    free(event);
    return Success;
}

int aclrtRecordEvent(void *event, void *stream) {
    *(struct event *)event = (struct event){stream, stream_pushed(stream)};
    return Success;
}

int aclrtQueryEventStatus(void *event, int *status) {
    struct event *asked = event;
    int reached = asked->stream == NULL || stream_reached(asked->stream, asked->count);
    *status = reached ? Complete : NotReady;
    return Success;
}

/* What is exported must be whole pages, of 2 MiB where there are such. */
int aclrtIpcMemGetExportKey(void *pointer, size_t size, char *key, size_t length, uint64_t flags) {
    if (length < DEVICE_KEY || flags != 1 || size % (2 << 20) != 0)
        return InvalidParam;
    return device_export(pointer, size, key) == 0 ? Success : InvalidParam;
}

int aclrtIpcMemImportByKey(void **pointer, const char *key, uint64_t flags) {
    *pointer = flags <= 1 ? device_import(key) : NULL;
    return *pointer != NULL ? Success : InvalidParam;
}

int aclrtIpcMemClose(const char *key) {
    return device_close(key) == 0 ? Success : InvalidParam;
}
