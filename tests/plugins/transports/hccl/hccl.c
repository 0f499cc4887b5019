/* Some functions of libhccl.so. As there, nothing can be aborted: what hangs, hangs. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "group.h"

typedef struct {
    char internal[4108];
} HcclRootInfo;

enum { Success = 0, Parameter = 1, Tcp = 9, Remote = 21 };

const char *HcclGetErrorString(int code) {
    return code == Success ? "no error" : code == Remote ? "remote error" : "an error";
}

int HcclGetRootInfo(HcclRootInfo *info) {
    double_log("HcclGetRootInfo");
    memset(info, 0, sizeof *info);
    group_random_name(info->internal);
    return Success;
}

int HcclCommInitRootInfo(uint32_t size, const HcclRootInfo *info, uint32_t rank, void **comm) {
    const char *address = getenv("HCCL_IF_IP");
    char line[128] = "HcclCommInitRootInfo ";
    double_log(strncat(line, address != NULL ? address : "", 100));
    struct group *group = malloc(sizeof *group);
    group_init(group, info->internal, (int)rank, (int)size);
    if (group_join(group) != 0) {
        group_close(group);
        free(group);
        return Tcp;
    }
    *comm = group;
    return Success;
}

int HcclBroadcast(void *buffer, uint64_t count, int type, uint32_t root, void *comm, void *stream) {
    if (root != 0 || type != 0) /* int8: all that is played here */
        return Parameter;
    char *bytes = device_at(buffer, count);
    if (bytes == NULL)
        return Parameter;
    group_broadcast(comm, bytes, count, stream);
    return Success;
}

int HcclGetCommAsyncError(void *comm, int *error) {
    *error = ((struct group *)comm)->failed ? Remote : Success;
    return Success;
}

int HcclCommDestroy(void *comm) {
    double_log("HcclCommDestroy");
    struct group *group = comm;
    pthread_mutex_lock(&group->lock);
    while (group->begun != group->ended)
        pthread_cond_wait(&group->changed, &group->lock);
    pthread_mutex_unlock(&group->lock);
    group_close(group);
    free(group);
    return Success;
}
