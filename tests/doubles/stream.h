/* A device's queue of work, played by one thread. */
#ifndef DOUBLE_STREAM_H
#define DOUBLE_STREAM_H
#include <stdint.h>

struct stream;
typedef void (*stream_work)(void *argument);

struct stream *stream_new(void);
void stream_push(struct stream *stream, stream_work work, void *argument);
uint64_t stream_pushed(struct stream *stream);             /* how many works were pushed so far */
int stream_reached(struct stream *stream, uint64_t count); /* whether so many have ended */
void stream_wait(struct stream *stream, uint64_t count);
void stream_free(struct stream *stream); /* waits for all work */

#endif
