/* Ranks of one machine that move bytes from rank 0 to the others, over abstract Unix sockets.
 *
 * Like a collective on a device, what has begun ends only when all take part or when it is aborted:
 * a peer that died sets `failed` and leaves the operation hanging.
 */
#ifndef DOUBLE_GROUP_H
#define DOUBLE_GROUP_H
#include <pthread.h>
#include <stdint.h>

#include "stream.h"

#define GROUP_NAME 40

struct group {
    char name[GROUP_NAME]; /* the same at all ranks, and at no other group */
    int rank, size;
    int *peers; /* sockets: at rank 0 one for each rank, elsewhere that of rank 0 */
    volatile int aborted, failed;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t begun, ended; /* operations: they take place in the order in which they began */
};

void group_random_name(char *name);
void group_derived_name(char *name, const char *parent, const char *how, const void *key, int bytes);
void group_init(struct group *group, const char *name, int rank, int size);
int group_join(struct group *group); /* waits for all ranks; 0, or -1 when aborted */
void group_broadcast(struct group *group, void *buffer, uint64_t bytes, struct stream *stream);
int group_busy(struct group *group);
void group_abort(struct group *group); /* returns when no operation runs any more */
void group_close(struct group *group);
void double_log(const char *call); /* into the file that DOUBLE_LOG names */

#endif
