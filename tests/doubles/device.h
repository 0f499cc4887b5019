/* Device memory that only the double's own functions reach: a host that touches it, dies. */
#ifndef DOUBLE_DEVICE_H
#define DOUBLE_DEVICE_H
#include <stddef.h>

#define DEVICE_KEY 65

void *device_new(size_t size, int shared);               /* NULL without memory */
int device_free(void *pointer);                          /* 0, or -1: it is none */
char *device_at(const void *pointer, size_t size);       /* its bytes, NULL if it is none */
int device_export(const void *pointer, size_t size, char *key); /* of shared memory alone */
void *device_import(const char *key);                    /* in another process; NULL: no such */
int device_close(const char *key);                       /* both there and here */
/* Where a copy's ends are: kind 1 host to device, 2 device to host, 3 device to device. 0, or -1 */
int device_ends(int kind, size_t size, void **to, const void **from);

#endif
