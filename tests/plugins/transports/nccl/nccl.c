/* Some functions of libnccl.so.2, with the same signatures and the same rules of use.
 *
 * Built with DOUBLE_OLD it lacks ncclCommShrink and ncclCommGrow, as libraries before 2.27 do.
 * DOUBLE_SHRINK_FAILS in the environment lets every shrink fail.
 */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "group.h"

typedef struct {
    char internal[128];
} ncclUniqueId;

typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;
} ncclConfig_t;

enum { Success, CudaError, SystemError, InternalError, InvalidArgument, InvalidUsage, RemoteError,
       InProgress };

typedef struct ncclComm *ncclComm_t;
struct ncclComm {
    struct group group;
    volatile int state;
    int has_thread;
    pthread_t thread;
    int derived;         /* children begun, part of their names */
    ncclComm_t child;    /* while it joins */
    ncclComm_t *result;  /* where it goes then */
};

int ncclGetVersion(int *version) {
#ifdef DOUBLE_OLD
    *version = 22603;
#else
    *version = 22907;
#endif
    return Success;
}

const char *ncclGetErrorString(int result) {
    static const char *texts[] = {"no error", "unhandled cuda error", "unhandled system error",
                                  "internal error", "invalid argument", "invalid usage",
                                  "remote process exited or there was a network error",
                                  "NCCL operation in progress"};
    return result >= 0 && result <= InProgress ? texts[result] : "unknown result code";
}

int ncclGetUniqueId(ncclUniqueId *id) {
    double_log("ncclGetUniqueId");
    memset(id, 0, sizeof *id);
    group_random_name(id->internal);
    return Success;
}

static ncclComm_t made(const char *name, int rank, int size) {
    ncclComm_t comm = calloc(1, sizeof *comm);
    group_init(&comm->group, name, rank, size);
    comm->state = InProgress;
    return comm;
}

static void freed(ncclComm_t comm) {
    group_close(&comm->group);
    free(comm);
}

static void *join(void *argument) {
    ncclComm_t comm = argument;
    comm->state = group_join(&comm->group) == 0 ? Success : SystemError;
    return NULL;
}

static int valid(const ncclConfig_t *config) {
    return config->magic == 0xcafebeef && config->size >= sizeof *config &&
           config->version >= 21800 && (config->blocking == 0 || config->blocking == 1);
}

static int begin(ncclComm_t comm, void *(*work)(void *), int blocking) {
    if (blocking) {
        work(comm);
        return comm->state;
    }
    comm->has_thread = pthread_create(&comm->thread, NULL, work, comm) == 0;
    return comm->has_thread ? InProgress : SystemError;
}

int ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                           ncclConfig_t *config) {
    double_log("ncclCommInitRankConfig");
    if (!valid(config) || rank < 0 || rank >= size)
        return InvalidArgument;
    *comm = made(id.internal, rank, size);
    return begin(*comm, join, config->blocking);
}

int ncclCommGetAsyncError(ncclComm_t comm, int *error) {
    *error = comm->state == Success && comm->group.failed ? RemoteError : comm->state;
    return Success;
}

int ncclBroadcast(const void *sent, void *received, size_t count, int type, int root,
                  ncclComm_t comm, void *stream) {
    if (comm->state != Success || comm->group.aborted)
        return InvalidUsage;
    if (root != 0 || type > 1 || sent != received) /* all that is played here */
        return InvalidArgument;
    char *bytes = device_at(received, count);
    if (bytes == NULL)
        return InvalidArgument;
    group_broadcast(&comm->group, bytes, count, stream);
    return Success;
}

static void ended(ncclComm_t comm) {
    if (comm->child != NULL)
        comm->child->group.aborted = 1;
    comm->group.aborted = 1;
    if (comm->has_thread)
        pthread_join(comm->thread, NULL);
    comm->has_thread = 0;
    group_abort(&comm->group);
}

int ncclCommAbort(ncclComm_t comm) {
    double_log("ncclCommAbort");
    ended(comm);
    freed(comm);
    return Success;
}

#ifndef DOUBLE_OLD
static void *join_child(void *argument) {
    ncclComm_t comm = argument, child = comm->child;
    int joined = group_join(&child->group) == 0;
    comm->child = NULL;
    if (joined) {
        child->state = Success;
        *comm->result = child;
    } else {
        freed(child);
    }
    comm->state = joined ? Success : SystemError;
    return NULL;
}

static int derive(ncclComm_t comm, ncclComm_t child, ncclComm_t *result, const ncclConfig_t *config) {
    if (comm->has_thread) /* of its own joining, which has ended */
        pthread_join(comm->thread, NULL);
    comm->derived++;
    comm->child = child;
    comm->result = result;
    comm->state = InProgress;
    return begin(comm, join_child, config->blocking);
}

int ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *result,
                   ncclConfig_t *config, int flags) {
    double_log(flags & 1 ? "ncclCommShrink abort" : "ncclCommShrink");
    if (getenv("DOUBLE_SHRINK_FAILS") != NULL)
        return InternalError;
    if (count <= 0 || !valid(config) || comm->state != Success)
        return InvalidArgument;
    if (flags & 1)
        group_abort(&comm->group);
    else if (group_busy(&comm->group) || comm->group.failed)
        return InvalidUsage;
    int before = 0, key[256];
    if (count > 254)
        return InvalidArgument;
    for (int i = 0; i < count; i++) {
        if (excluded[i] == comm->group.rank)
            return InvalidArgument;
        before += excluded[i] < comm->group.rank;
        key[i] = excluded[i];
    }
    key[count] = comm->derived;
    char name[GROUP_NAME];
    group_derived_name(name, comm->group.name, "shrink", key, (int)sizeof(int) * (count + 1));
    return derive(comm, made(name, comm->group.rank - before, comm->group.size - count), result,
                  config);
}

static void grown_name(char *name, ncclComm_t comm) {
    group_derived_name(name, comm->group.name, "grow", &comm->derived, sizeof comm->derived);
}

int ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id) {
    double_log("ncclCommGetUniqueId");
    memset(id, 0, sizeof *id);
    grown_name(id->internal, comm);
    return Success;
}

int ncclCommGrow(ncclComm_t comm, int size, const ncclUniqueId *id, int rank, ncclComm_t *result,
                 ncclConfig_t *config) {
    double_log(comm != NULL ? "ncclCommGrow" : "ncclCommGrow new");
    if (!valid(config))
        return InvalidArgument;
    if (comm == NULL) {
        if (id == NULL || rank < 0 || rank >= size)
            return InvalidArgument;
        *result = made(id->internal, rank, size);
        return begin(*result, join, config->blocking);
    }
    if (rank != -1 || size <= comm->group.size || (id != NULL) != (comm->group.rank == 0))
        return InvalidArgument;
    if (comm->state != Success || comm->group.failed || comm->group.aborted ||
        group_busy(&comm->group))
        return InvalidUsage;
    char name[GROUP_NAME];
    grown_name(name, comm);
    return derive(comm, made(name, comm->group.rank, size), result, config);
}
#endif
